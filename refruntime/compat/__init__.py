"""Running programs that say ``import torch``.

`install` makes ``torch`` and every ``torch.X`` name the very module objects of refruntime;
`uninstall` takes that back; `run_script` and `run_module` run a program under it.
"""

from __future__ import annotations

from refruntime.compat.names import (
    TorchAlreadyImportedError,
    install,
    installed,
    uninstall,
)
from refruntime.compat.run import run_module, run_script

__all__ = [
    "TorchAlreadyImportedError",
    "install",
    "installed",
    "run_module",
    "run_script",
    "uninstall",
]
