"""One op for a whole batch: batched tensors, the rules of ops, and `vmap`."""

from __future__ import annotations

from refruntime.autograd.batching.batched import VmapLevel
from refruntime.autograd.batching.vmap import vmap

__all__ = ["VmapLevel", "vmap"]
