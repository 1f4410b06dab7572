"""Optimizer steps as ops: one pass over a parameter, its gradient and its state.

State
-----
None. The ops return the new parameter and state; an optimizer gives the old ones as ``out``, and
they are updated in place.

Invariants
----------
* Numbers that change from step to step (rate, step count) are operands, not parameters: the
  dispatcher remembers answers by parameters.
* The kernels get contiguous tensors: what lies otherwise is packed, updated and written back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from refruntime._dispatch import call, copy_into
from refruntime._impl import TensorImpl, TensorMeta, empty_impl, meta_of
from refruntime._ops.opdef import OpDef, front, register, require_tensor
from refruntime._ops.samples import Sample, T
from refruntime.errors import DTypeError, ShapeError
from refruntime.kernels import optim as kernels
from refruntime.kernels import optim_cuda
from refruntime.kernels.copy import contiguous_impl

Kernel = Callable[..., None]


def _matching(op: str, param: TensorMeta, others: dict[str, Any]) -> TensorMeta:
    """Check that gradient and state fit the parameter; return the meta of each result."""
    if not param.dtype.is_floating_point:
        raise DTypeError(op, expected="a floating-point parameter", got=str(param.dtype))
    for name, meta in others.items():
        if meta is None:
            continue
        if meta.shape != param.shape:
            raise ShapeError(op, what=name, expected=str(param.shape), got=str(meta.shape))
        if meta.dtype is not param.dtype:
            raise DTypeError(op, what=name, expected=str(param.dtype), got=str(meta.dtype))
    return meta_of(tuple(param.shape), param.dtype, param.device)


def _updated(outs: Any, sources: tuple[Any, ...], step: Callable[..., None]) -> None:
    """Copy the sources to the outputs where they differ, and run a step on packed outputs."""
    targets = outs if isinstance(outs, tuple) else (outs,)
    work = []
    for target, source in zip(targets, sources, strict=True):
        packed = target if target.meta.contiguous else empty_impl(_packed(target.meta))
        if packed is not source:
            copy_into(packed, source)
        work.append(packed)
    step(*work)
    for target, packed in zip(targets, work, strict=True):
        if packed is not target:
            copy_into(target, packed)


def _packed(meta: TensorMeta) -> TensorMeta:
    return meta_of(tuple(meta.shape), meta.dtype, meta.device)


# ---------------------------------------------------------------------------------------------
# SGD


def _sgd_infer(
    param: TensorMeta, grad: TensorMeta, velocity: Any, lr: float, **params: Any
) -> TensorMeta | tuple[TensorMeta, ...]:
    meta = _matching("sgd_step", param, {"grad": grad, "velocity": velocity})
    return meta if velocity is None else (meta, meta)


def _sgd_kernel(step: Kernel) -> Kernel:
    def kernel(
        out: Any, param: TensorImpl, grad: TensorImpl, velocity: Any, lr: float, **params: Any
    ) -> None:
        slope = contiguous_impl(grad)
        sources = (param,) if velocity is None else (param, velocity)
        _updated(out, sources, lambda p, v=None: step(p, slope, v, lr=lr, **params))

    return kernel


def _sgd_reference(  # type: ignore[no-untyped-def]
    p, g, v, lr, *, momentum, dampening, weight_decay, nesterov, maximize, first
) -> Any:
    g = (-g if maximize else g) + weight_decay * p
    if v is None:
        return p - lr * g
    v = g if first else momentum * v + (1 - dampening) * g
    return p - lr * (g + momentum * v if nesterov else v), v


def _sgd_samples() -> Iterable[Sample]:
    shape = (3, 5)
    plain = {
        "momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False,
        "maximize": False, "first": False,
    }  # fmt: skip
    pair = (T(shape), T(shape))
    yield Sample((*pair, None, 0.1), plain | {"weight_decay": 0.1}, grad=False, name="plain")
    moving = plain | {"momentum": 0.9, "dampening": 0.3, "maximize": True}
    yield Sample((*pair, T(shape), 0.1), moving, grad=False, name="momentum")
    ahead = plain | {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}
    yield Sample((*pair, T(shape), 0.1), ahead, grad=False, name="nesterov")
    yield Sample((*pair, T(shape, values=np.zeros(shape)), 0.1), moving | {"first": True},
                 grad=False, name="first")  # fmt: skip


SGD_STEP = register(
    OpDef("sgd_step", ("param", "grad", "velocity", "lr"), infer=_sgd_infer,
          cpu=_sgd_kernel(kernels.sgd_cpu), cuda=_sgd_kernel(optim_cuda.sgd_cuda),
          samples=_sgd_samples, reference=_sgd_reference)
)  # fmt: skip


@front(SGD_STEP, method=False)
def sgd_step(
    param: Any, grad: Any, velocity: Any, lr: float, *, momentum: float = 0.0,
    dampening: float = 0.0, weight_decay: float = 0.0, nesterov: bool = False,
    maximize: bool = False, first: bool = False, out: Any = None,
) -> Any:  # fmt: skip
    """Return the parameter (and the velocity) after a step of SGD.

    Parameters
    ----------
    param, grad : Tensor
        Of one shape and floating dtype.
    velocity : Tensor or None
        None without momentum.
    lr, momentum, dampening, weight_decay, nesterov, maximize
        As in `optim.SGD`.
    first : bool
        Whether the velocity, given as zeros, starts as the gradient.
    out : Tensor or tuple of Tensor, optional
        The tensors to update.
    """
    require_tensor("sgd_step", param, "param")
    require_tensor("sgd_step", grad, "grad")
    params = {
        "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay,
        "nesterov": nesterov, "maximize": maximize, "first": first,
    }  # fmt: skip
    return call(SGD_STEP, (param, grad, velocity, lr), params, out)


# ---------------------------------------------------------------------------------------------
# Adam


def _adam_infer(
    param: TensorMeta, grad: TensorMeta, mean: TensorMeta, square: TensorMeta, largest: Any,
    lr: float, step: float, **params: Any,
) -> tuple[TensorMeta, ...]:  # fmt: skip
    others = {"grad": grad, "mean": mean, "square": square, "largest": largest}
    meta = _matching("adam_step", param, others)
    return (meta,) * (3 if largest is None else 4)


def _adam_kernel(run: Kernel) -> Kernel:
    def kernel(
        out: Any, param: TensorImpl, grad: TensorImpl, mean: TensorImpl, square: TensorImpl,
        largest: Any, lr: float, step: float, **params: Any,
    ) -> None:  # fmt: skip
        slope = contiguous_impl(grad)
        sources = (param, mean, square) if largest is None else (param, mean, square, largest)

        def update(p: Any, m: Any, v: Any, top: Any = None) -> None:
            run(p, slope, m, v, top, step=int(step), lr=lr, **params)

        _updated(out, sources, update)

    return kernel


def _adam_reference(  # type: ignore[no-untyped-def]
    p, g, m, v, top, lr, step, *, betas, eps, weight_decay, decoupled, maximize
) -> Any:
    g = -g if maximize else g
    if decoupled:
        p = p * (1 - lr * weight_decay)
    else:
        g = g + weight_decay * p
    m = betas[0] * m + (1 - betas[0]) * g
    v = betas[1] * v + (1 - betas[1]) * g * g
    largest = v if top is None else np.maximum(top, v)
    spread = np.sqrt(largest / (1 - betas[1] ** step)) + eps
    p = p - lr * m / (1 - betas[0] ** step) / spread
    return (p, m, v) if top is None else (p, m, v, largest)


def _adam_samples() -> Iterable[Sample]:
    shape = (4, 3)
    square = T(shape, low=0.1, high=2.0)
    start = (T(shape), T(shape), T(shape), square)
    plain = {
        "betas": (0.9, 0.99), "eps": 1e-3, "weight_decay": 0.0, "decoupled": False,
        "maximize": False,
    }  # fmt: skip
    yield Sample((*start, None, 0.1, 1), plain, grad=False, name="first step")
    decay = plain | {"weight_decay": 0.1}
    yield Sample((*start, None, 0.1, 7), decay | {"maximize": True}, grad=False, name="decay")
    yield Sample((*start, None, 0.1, 7), decay | {"decoupled": True}, grad=False, name="decoupled")
    yield Sample((*start, square, 0.1, 3), decay, grad=False, name="amsgrad")


ADAM_STEP = register(
    OpDef("adam_step", ("param", "grad", "mean", "square", "largest", "lr", "step"),
          infer=_adam_infer, cpu=_adam_kernel(kernels.adam_cpu),
          cuda=_adam_kernel(optim_cuda.adam_cuda), samples=_adam_samples,
          reference=_adam_reference)
)  # fmt: skip


@front(ADAM_STEP, method=False)
def adam_step(
    param: Any, grad: Any, mean: Any, square: Any, largest: Any, lr: float, step: float, *,
    betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0,
    decoupled: bool = False, maximize: bool = False, out: Any = None,
) -> Any:  # fmt: skip
    """Return the parameter and its moments after a step of Adam, or of AdamW if `decoupled`.

    Parameters
    ----------
    param, grad, mean, square : Tensor
        Of one shape and floating dtype.
    largest : Tensor or None
        The largest `square` so far (amsgrad).
    lr, betas, eps, weight_decay, maximize
        As in `optim.Adam`.
    step : float
        The number of this step, from 1.
    decoupled : bool
        Whether the decay is taken from the parameter instead of added to the gradient.
    out : tuple of Tensor, optional
        The tensors to update: parameter, mean, square (and largest).
    """
    for name, value in (("param", param), ("grad", grad), ("mean", mean), ("square", square)):
        require_tensor("adam_step", value, name)
    params = {
        "betas": betas, "eps": eps, "weight_decay": weight_decay, "decoupled": decoupled,
        "maximize": maximize,
    }  # fmt: skip
    return call(ADAM_STEP, (param, grad, mean, square, largest, lr, step), params, out)
