"""Saving and loading: PyTorch's ``.pt`` files both ways, safetensors, pickle and deep copies.

State
-----
The set of classes and functions that the program has declared safe (`add_safe_globals`).

Invariants
----------
* `load` runs no code of the file unless ``weights_only=False`` is asked for: a global that is
  neither known nor declared safe raises, and the error names it.
* Tensors that shared a storage when saved share one when loaded.
* What a file claims is checked against its bytes before any tensor is made of it.
"""

from __future__ import annotations

from refruntime.serialization.names import CheckpointError
from refruntime.serialization.reader import load
from refruntime.serialization.safe import load_safetensors, save_safetensors
from refruntime.serialization.tensors import (
    copy_tensor,
    deepcopy_tensor,
    rebuild_tensor,
    reduce_tensor,
)
from refruntime.serialization.unpickler import (
    add_safe_globals,
    clear_safe_globals,
    get_safe_globals,
    safe_globals,
)
from refruntime.serialization.writer import save

__all__ = [
    "CheckpointError", "add_safe_globals", "clear_safe_globals", "copy_tensor", "deepcopy_tensor",
    "get_safe_globals", "load", "load_safetensors", "rebuild_tensor", "reduce_tensor",
    "safe_globals", "save", "save_safetensors",
]  # fmt: skip
