"""Dropout in its forms.

Invariants
----------
* `dropout` saves nothing for backward. Its mask is a pure function of seed and offset, so backward
  draws it again: 16 bytes a call instead of one byte an element, and no slower, since a Philox word
  costs about as much as reading a mask from memory. The derivative is the same op on the gradient,
  which makes it differentiable to any order.
* Out of training, with ``p=0`` and on empty tensors the operand itself comes back.
"""

from __future__ import annotations

import math
from typing import Any

from refruntime._dispatch import call
from refruntime._impl import TensorImpl, TensorMeta, meta_of
from refruntime._ops.opdef import Inplace, OpDef, front, ops, register, require_tensor
from refruntime._ops.random import draw
from refruntime.errors import DTypeError, ShapeError
from refruntime.kernels.random import dropout_cpu
from refruntime.kernels.random_cuda import dropout_cuda


def _infer(input: TensorMeta, **_: Any) -> TensorMeta:
    return meta_of(input.shape, input.dtype, input.device)


def _vjp(g: Any, n: Any) -> Any:
    return call(DROPOUT, (g,), {"p": n.p, "seed": n.seed, "offset": n.offset})


DROPOUT = register(
    OpDef("dropout", ("input",), jvp="linear", batch="random",
          infer=_infer, cpu=dropout_cpu, cuda=dropout_cuda,
          vjp=_vjp, inplace=True, random=True)
)  # fmt: skip


def _applies(op: str, input: Any, p: float, train: bool) -> bool:
    """Check the arguments; say whether anything is to be dropped."""
    require_tensor(op, input)
    if not 0.0 <= p <= 1.0:
        raise ShapeError(
            op, what=f"dropout probability has to be between 0 and 1, but got {p:g}",
            expected="p in [0, 1]", got=f"{p:g}",
        )  # fmt: skip
    if not train or p == 0.0 or input.meta.numel == 0:
        return False
    if not input.meta.dtype.is_floating_point:
        raise DTypeError(
            op, what="result type Float can't be cast to the desired output type Long",
            expected="a floating dtype", got=str(input.meta.dtype), remedy="convert with .float()",
        )  # fmt: skip
    return True


def _params(op: str, input: TensorImpl, p: float, generator: Any) -> dict[str, Any]:
    return {"p": float(p), **draw(op, generator, input.meta.device, input.meta.numel, 1)}


@front(DROPOUT, method=False)
def dropout(input: Any, p: float = 0.5, train: bool = True, *, generator: Any = None) -> Any:
    """Zero each element with probability `p` and scale the others by ``1 / (1 - p)``."""
    if not _applies("dropout", input, p, train):
        return input
    return call(DROPOUT, (input,), _params("dropout", input, p, generator))


@front(DROPOUT, method=False, name="dropout_")
def dropout_(input: Any, p: float = 0.5, train: bool = True, *, generator: Any = None) -> Any:
    """Apply `dropout` in place."""
    if not _applies("dropout_", input, p, train):
        return input
    return call(DROPOUT, (input,), _params("dropout_", input, p, generator), Inplace(input))


@front(DROPOUT, method=False)
def native_dropout(input: Any, p: float, train: bool | None = True) -> tuple[Any, Any]:
    """Return `dropout` of the input and its mask."""
    if not _applies("native_dropout", input, p, bool(train)):
        return input, ops.ones_like(input, dtype=_bool())
    params = _params("native_dropout", input, p, None)
    ones = ops.ones_like(input.detach())
    mask = ops.ne(call(DROPOUT, (ones,), params), 0)
    return call(DROPOUT, (input,), params), mask


def _bool() -> Any:
    from refruntime import _dtypes

    return _dtypes.bool_


# ---------------------------------------------------------------------------------------------
# Forms composed of other ops: one draw a feature map, and dropout that keeps mean and variance

# Where SELU saturates: minus its scale times its alpha (Klambauer et al., 2017).
_SATURATION = -1.7580993408473766


def _feature_noise(op: str, input: Any) -> Any:
    if input.meta.ndim < 2:
        raise ShapeError(
            op, what="Feature dropout requires at least 2 dimensions in the input",
            expected="(batch, features, ...)", got=str(tuple(input.meta.shape)),
        )  # fmt: skip
    shape = (*input.meta.shape[:2], *[1] * (input.meta.ndim - 2))
    return ops.empty(shape, dtype=input.meta.dtype, device=input.meta.device)


@front(method=False)
def feature_dropout(input: Any, p: float = 0.5, train: bool = True) -> Any:
    """Zero whole feature maps (dimension 1) with probability `p`, and scale the others."""
    if not _applies("feature_dropout", input, p, train):
        return input
    if p == 1.0:
        return ops.mul(input, 0.0)
    noise = _feature_noise("feature_dropout", input).bernoulli_(1.0 - p)
    return ops.mul(input, ops.div(noise, 1.0 - p))


def _keep_moments(input: Any, keep: Any, p: float) -> Any:
    """Set dropped elements to SELU's saturation value, then restore mean 0 and variance 1."""
    a = 1.0 / math.sqrt((1.0 - p) * (1.0 + p * _SATURATION**2))
    shift = ops.add(ops.mul(keep, -a * _SATURATION), a * _SATURATION * (1.0 - p))
    return ops.add(ops.mul(input, ops.mul(keep, a)), shift)


@front(method=False)
def alpha_dropout(input: Any, p: float = 0.5, train: bool = False) -> Any:
    """Dropout for networks of SELUs: it keeps the mean and the variance of a standard input."""
    if not _applies("alpha_dropout", input, p, train):
        return input
    if p == 1.0:
        return ops.mul(input, 0.0)
    keep = ops.empty_like(input.detach()).bernoulli_(1.0 - p)
    return _keep_moments(input, keep, p)


@front(method=False)
def feature_alpha_dropout(input: Any, p: float = 0.5, train: bool = False) -> Any:
    """Apply `alpha_dropout` to whole feature maps (dimension 1)."""
    if not _applies("feature_alpha_dropout", input, p, train):
        return input
    if p == 1.0:
        return ops.mul(input, 0.0)
    keep = _feature_noise("feature_alpha_dropout", input).bernoulli_(1.0 - p)
    return _keep_moments(input, keep, p)
