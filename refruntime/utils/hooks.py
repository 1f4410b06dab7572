"""torch.utils.hooks: the handle that a hook registration returns."""

from __future__ import annotations

from refruntime.autograd.hooks import RemovableHandle

__all__ = ["RemovableHandle"]
