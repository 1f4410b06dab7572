"""torch.utils.hooks: the handle that a hook registration returns."""

from __future__ import annotations

from refruntime.nn.modules._hooks import RemovableHandle

__all__ = ["RemovableHandle"]
