"""torch.utils: the names that torch keeps there. Submodules are loaded when asked for."""

from __future__ import annotations

import importlib
from typing import Any

_SUBMODULES = frozenset({"_pytree", "checkpoint", "data", "hooks"})


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
