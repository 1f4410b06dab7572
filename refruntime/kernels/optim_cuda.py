"""Optimizer steps on the GPU, each one pass over a parameter: launches of optim.cu.

State
-----
None; the tensors that are given are updated in place.

Invariants
----------
* Parameter, gradient and state are contiguous and of one dtype; a gradient in another layout is
  packed first, a parameter or state in another layout is refused by the caller.
"""

from __future__ import annotations

from refruntime._impl import TensorImpl
from refruntime.kernels import launch
from refruntime.kernels.gpu import optional_address, packed_cuda


def sgd_cuda(
    param: TensorImpl, grad: TensorImpl, velocity: TensorImpl | None, *, lr: float, momentum: float,
    dampening: float, weight_decay: float, nesterov: bool, maximize: bool, first: bool,
) -> None:  # fmt: skip
    """Take a step of SGD; `first` starts `velocity` (None without momentum) as the gradient."""
    if not param.meta.numel:
        return
    grad = packed_cuda(grad)
    launch.raw(
        "optim", "sgd", (param.meta.dtype.ctype,), *launch.cover(param.meta.numel),
        (param.address(), grad.address(), optional_address(velocity), param.meta.numel, float(lr),
         float(momentum), float(dampening), float(weight_decay), int(nesterov), int(maximize),
         int(first)),
    )  # fmt: skip


def adam_cuda(
    param: TensorImpl, grad: TensorImpl, mean: TensorImpl, square: TensorImpl,
    largest_square: TensorImpl | None, *, step: int, lr: float, betas: tuple[float, float],
    eps: float, weight_decay: float, decoupled: bool, maximize: bool,
) -> None:  # fmt: skip
    """Take step number `step` (from 1) of Adam, or of AdamW when `decoupled`."""
    if not param.meta.numel:
        return
    grad = packed_cuda(grad)
    beta1, beta2 = map(float, betas)
    launch.raw(
        "optim", "adam", (param.meta.dtype.ctype,), *launch.cover(param.meta.numel),
        (param.address(), grad.address(), mean.address(), square.address(),
         optional_address(largest_square), param.meta.numel, float(lr), beta1, beta2, float(eps),
         float(weight_decay), 1.0 - beta1**step, 1.0 - beta2**step, int(decoupled), int(maximize)),
    )  # fmt: skip
