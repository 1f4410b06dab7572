"""torch.autograd.grad_mode: the modes under the name that torch keeps them; see `modes`."""

from __future__ import annotations

from refruntime.autograd.modes import enable_grad, inference_mode, no_grad, set_grad_enabled

__all__ = ["enable_grad", "inference_mode", "no_grad", "set_grad_enabled"]
