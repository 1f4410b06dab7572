"""torch.amp: products in a half type, sums in float32, and gradients scaled to stay visible."""

from __future__ import annotations

from refruntime.amp.autocast_mode import (
    autocast,
    custom_bwd,
    custom_fwd,
    is_autocast_available,
)
from refruntime.amp.grad_scaler import GradScaler

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd", "is_autocast_available"]
