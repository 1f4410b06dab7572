"""torch.nn.utils: clipping, parameter vectors, reparametrizations, packed sequences."""

from __future__ import annotations

import importlib
from typing import Any

# Loaded when asked for: the reparametrizations import modules, which import `rnn` from here.
_HOMES = {
    "clip_grad_norm": "clip_grad",
    "clip_grad_norm_": "clip_grad",
    "clip_grad_value_": "clip_grad",
    "clip_grads_with_norm_": "clip_grad",
    "get_total_norm": "clip_grad",
    "parameters_to_vector": "convert_parameters",
    "vector_to_parameters": "convert_parameters",
    "remove_spectral_norm": "_spectral_norm",
    "remove_weight_norm": "_weight_norm",
    "spectral_norm": "_spectral_norm",
    "weight_norm": "_weight_norm",
}
_SUBMODULES = ("clip_grad", "convert_parameters", "parametrizations", "parametrize", "rnn")

__all__ = [*_HOMES, *_SUBMODULES]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    if name in _SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
