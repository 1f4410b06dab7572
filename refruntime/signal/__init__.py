"""torch.signal: windows."""

from __future__ import annotations

from refruntime.signal import windows

__all__ = ["windows"]
