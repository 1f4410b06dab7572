"""Optimizer steps on the CPU, each one pass over a parameter: SGD and Adam (AdamW).

State
-----
None; the tensors that are given are updated in place.

Invariants
----------
* Parameter, gradient and state are contiguous and of one dtype; the ops see to that.
* Arithmetic is in the computing type, in the order of `optim_cuda`'s kernels, which are the twins.
"""

from __future__ import annotations

import math

from refruntime._impl import TensorImpl
from refruntime.kernels import launch
from refruntime.kernels.variants import ACC, load_T, ptr_T, store_T, template

# Elements a piece of work; a parameter up to this size is updated by one call.
_GRAIN = 1 << 16


@template("void(" + "int64, " * 3 + "float64, " * 4 + "int64, int64, int64, int64)")
def sgd(param, grad, velocity, lr, momentum, fresh, decay, nesterov, maximize, start, stop):  # type: ignore[no-untyped-def]
    """``v = momentum v + fresh g``; ``p -= lr v``; without momentum `velocity` is 0."""
    p = ptr_T(param)
    g = ptr_T(grad)
    sign = ACC(-1) if maximize else ACC(1)
    if velocity == 0:
        for i in range(start, stop):
            value = load_T(p, i)
            store_T(p, i, value - ACC(lr) * (sign * load_T(g, i) + ACC(decay) * value))
        return
    v = ptr_T(velocity)
    for i in range(start, stop):
        value = load_T(p, i)
        slope = sign * load_T(g, i) + ACC(decay) * value
        speed = ACC(momentum) * load_T(v, i) + ACC(fresh) * slope
        store_T(v, i, speed)
        if nesterov:
            speed = slope + ACC(momentum) * speed
        store_T(p, i, value - ACC(lr) * speed)


@template("void(" + "int64, " * 5 + "float64, " * 7 + "int64, int64, int64)")
def adam(  # type: ignore[no-untyped-def]
    param, grad, mean, square, largest, rate, root, beta1, beta2, eps, shrink, decay, maximize,
    start, stop,
):  # fmt: skip
    """``p = shrink p - rate m / (sqrt(v) / root + eps)``; without amsgrad `largest` is 0."""
    p = ptr_T(param)
    g = ptr_T(grad)
    m = ptr_T(mean)
    v = ptr_T(square)
    sign = ACC(-1) if maximize else ACC(1)
    if largest == 0:
        for i in range(start, stop):
            value = load_T(p, i)
            slope = sign * load_T(g, i) + ACC(decay) * value
            first = load_T(m, i)
            first += ACC(1.0 - beta1) * (slope - first)
            second = ACC(beta2) * load_T(v, i) + ACC(1.0 - beta2) * slope * slope
            store_T(m, i, first)
            store_T(v, i, second)
            spread = ACC(math.sqrt(second)) / ACC(root) + ACC(eps)
            store_T(p, i, ACC(shrink) * value - ACC(rate) * first / spread)
        return
    top = ptr_T(largest)
    for i in range(start, stop):
        value = load_T(p, i)
        slope = sign * load_T(g, i) + ACC(decay) * value
        first = load_T(m, i)
        first += ACC(1.0 - beta1) * (slope - first)
        second = ACC(beta2) * load_T(v, i) + ACC(1.0 - beta2) * slope * slope
        store_T(m, i, first)
        store_T(v, i, second)
        second = max(load_T(top, i), second)
        store_T(top, i, second)
        spread = ACC(math.sqrt(second)) / ACC(root) + ACC(eps)
        store_T(p, i, ACC(shrink) * value - ACC(rate) * first / spread)


def _address(tensor: TensorImpl | None) -> int:
    return 0 if tensor is None else tensor.address()


def sgd_cpu(
    param: TensorImpl, grad: TensorImpl, velocity: TensorImpl | None, *, lr: float, momentum: float,
    dampening: float, weight_decay: float, nesterov: bool, maximize: bool, first: bool,
) -> None:  # fmt: skip
    """Take a step of SGD; `first` starts `velocity` (None without momentum) as the gradient."""
    dtype = param.meta.dtype
    # A velocity of zeros with the whole gradient added is the gradient.
    fresh = 1.0 if first else 1.0 - dampening
    launch.parallel_for(
        sgd.for_dtypes(T=dtype, ACC=dtype.compute), param.meta.numel, _GRAIN,
        param.address(), grad.address(), _address(velocity), float(lr), float(momentum), fresh,
        float(weight_decay), int(nesterov), int(maximize),
    )  # fmt: skip


def adam_cpu(
    param: TensorImpl, grad: TensorImpl, mean: TensorImpl, square: TensorImpl,
    largest_square: TensorImpl | None, *, step: int, lr: float, betas: tuple[float, float],
    eps: float, weight_decay: float, decoupled: bool, maximize: bool,
) -> None:  # fmt: skip
    """Take step number `step` (from 1) of Adam, or of AdamW when `decoupled`."""
    dtype = param.meta.dtype
    beta1, beta2 = map(float, betas)
    shrink, decay = (1.0 - lr * weight_decay, 0.0) if decoupled else (1.0, float(weight_decay))
    launch.parallel_for(
        adam.for_dtypes(T=dtype, ACC=dtype.compute), param.meta.numel, _GRAIN,
        param.address(), grad.address(), mean.address(), square.address(),
        _address(largest_square), lr / (1.0 - beta1**step), math.sqrt(1.0 - beta2**step), beta1,
        beta2, float(eps), shrink, decay, int(maximize),
    )  # fmt: skip
