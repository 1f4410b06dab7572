"""Losses: nll_loss, cross_entropy, losses of pairs, binary cross entropy, kl_div.

Invariants
----------
* `reduction` is ``none``, ``mean`` or ``sum``; a mean over nothing is NaN, as in torch.
* `nll_loss` is linear in its operand: its backward is an op whose derivative is the loss itself.
* Losses of pairs read both operands once; their derivatives are written with other ops, so they
  are differentiable to any order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from refruntime import _dtypes
from refruntime._dispatch import call
from refruntime._dtypes import DType
from refruntime._impl import TensorMeta, meta_of
from refruntime._layout import broadcast_shapes
from refruntime._ops import samples_nn as samples
from refruntime._ops.opdef import OpDef, front, ops, register, require_tensor
from refruntime._ops.reductions import torch_name
from refruntime.errors import ArgumentValueError, DTypeError, KernelMissingError, ShapeError
from refruntime.kernels import loss as kernels

REDUCTIONS = ("none", "mean", "sum")


def _check_reduction(op: str, reduction: str) -> str:
    if reduction not in REDUCTIONS:
        raise ArgumentValueError(
            op, what=f"{reduction} is not a valid value for reduction",
            expected="none, mean or sum", got=repr(reduction),
        )  # fmt: skip
    return reduction


def reduced(loss: Any, reduction: str) -> Any:
    """Reduce a loss of elements."""
    if reduction == "mean":
        return ops.mean(loss)
    return ops.sum(loss) if reduction == "sum" else loss


# ---------------------------------------------------------------------------------------------
# Negative log likelihood


def _nll_infer(
    input: TensorMeta, target: TensorMeta, weight: TensorMeta | None, *, ignore_index: int,
    reduction: str,
) -> tuple[TensorMeta, TensorMeta]:  # fmt: skip
    _check_classes(input, target, weight)
    shape = tuple(target.shape) if reduction == "none" else ()
    scalar = meta_of((), input.dtype.compute, input.device)
    return meta_of(shape, input.dtype, input.device), scalar


def _check_classes(input: TensorMeta, target: TensorMeta, weight: TensorMeta | None) -> None:
    if not input.dtype.is_floating_point:
        raise KernelMissingError(
            "nll_loss", what=f"\"nll_loss_out_frame\" not implemented for "
            f"'{torch_name(input.dtype)}'", expected="floating-point log-probabilities",
            got=str(input.dtype), remedy="convert with .float()",
        )  # fmt: skip
    if target.dtype not in (_dtypes.int64, _dtypes.uint8):
        raise DTypeError(
            "nll_loss", what=f"expected scalar type Long but found {torch_name(target.dtype)}",
            expected="class numbers (int64)", got=str(target.dtype), remedy="use target.long()",
        )  # fmt: skip
    expected = tuple(input.shape[:1] + input.shape[2:]) if input.ndim > 1 else ()
    if input.ndim == 0 or tuple(target.shape) != expected:
        batch = input.shape[0] if input.ndim else 0
        got = target.shape[0] if target.ndim else 1
        what = f"size mismatch (got input: {list(input.shape)}, target: {list(target.shape)})"
        if input.ndim > 1 and got != batch:
            what = f"Expected input batch_size ({batch}) to match target batch_size ({got})."
            raise ArgumentValueError("nll_loss", what=what, expected=str(expected), got=str(got))
        raise ShapeError(
            "nll_loss", what=what, expected=f"a target of shape {expected}",
            got=str(tuple(target.shape)), remedy="drop the class dimension of the target",
        )  # fmt: skip
    classes = input.shape[min(1, input.ndim - 1)]
    if weight is not None and weight.numel != classes:
        raise ShapeError(
            "nll_loss", what=f"weight tensor should be defined either for all {classes} classes or "
            f"no classes but got weight tensor of shape: {list(weight.shape)}",
            expected=f"({classes},)", got=str(tuple(weight.shape)),
            remedy="give one weight for each class",
        )  # fmt: skip


def _nll_vjp(g: Any, n: Any) -> Any:
    params = {
        "shape": tuple(n.metas[0].shape), "ignore_index": n.ignore_index, "reduction": n.reduction,
    }  # fmt: skip
    return call(NLL_BACKWARD, (g[0], n.target, n.weight, n.out1), params), None, None


def _nll_backward_infer(
    grad: TensorMeta, target: Any, weight: Any, total: Any, *, shape: Any, ignore_index: int,
    reduction: str,
) -> TensorMeta:  # fmt: skip
    return meta_of(shape, grad.dtype, grad.device)


def _nll_backward_vjp(h: Any, n: Any) -> Any:
    params = {"ignore_index": n.ignore_index, "reduction": n.reduction}
    return call(NLL, (h, n.target, n.weight), params)[0], None, None, None


NLL = register(
    OpDef("nll_loss", ("input", "target", "weight"), batch="nll_loss", **samples.NLL,
          infer=_nll_infer, cpu=kernels.nll_loss_cpu,
          cuda=kernels.nll_loss_cuda,
          vjp=_nll_vjp, saves=("target", "weight", "out1"), nondiff_outputs=(1,),
          autocast="float32")
)  # fmt: skip
NLL_BACKWARD = register(
    OpDef("nll_loss_backward", ("grad", "target", "weight", "total_weight"),
          infer=_nll_backward_infer, cpu=kernels.nll_loss_backward_cpu,
          cuda=kernels.nll_loss_backward_cuda, vjp=_nll_backward_vjp,
          saves=("target", "weight"))
)  # fmt: skip


@front(NLL, method=False, aliases=("nll_loss_nd",))
def nll_loss(
    input: Any, target: Any, weight: Any = None, ignore_index: int = -100, reduction: str = "mean"
) -> Any:
    """Return minus the log-probability of each target class (weighted), reduced.

    Parameters
    ----------
    input : tensor
        Log-probabilities ``[N, C, ...]`` or ``[C]``.
    target : tensor of int64
        Classes ``[N, ...]``.
    weight : tensor, optional
        One weight for each class; a mean divides by the sum of the targets' weights.
    ignore_index : int
        A target that does not count.
    """
    require_tensor("nll_loss", input)
    require_tensor("nll_loss", target, "target")
    _check_reduction("nll_loss", reduction)
    params = {"ignore_index": ignore_index, "reduction": reduction}
    return call(NLL, (input, target, weight), params)[0]


@front(NLL, method=False)
def cross_entropy(
    input: Any, target: Any, weight: Any = None, ignore_index: int = -100,
    reduction: str = "mean", label_smoothing: float = 0.0,
) -> Any:  # fmt: skip
    """Return the cross entropy of softmax(input) against classes or probabilities.

    Parameters
    ----------
    input : tensor
        Logits ``[N, C, ...]`` or ``[C]``.
    target : tensor
        Classes ``[N, ...]`` (int64), or probabilities of the input's shape.
    label_smoothing : float
        How much of the target is spread evenly over all classes.
    """
    require_tensor("cross_entropy", input)
    require_tensor("cross_entropy", target, "target")
    _check_reduction("cross_entropy", reduction)
    dim = 0 if input.meta.ndim == 1 else 1
    probabilities = target.meta.dtype.is_floating_point
    if not probabilities:
        # Before log_softmax, so that the message speaks of the caller's operands.
        _check_classes(input.meta, target.meta, None if weight is None else weight.meta)
    logs = ops.log_softmax(input, dim)
    if probabilities:
        return _soft_cross_entropy(logs, target, weight, reduction, label_smoothing, dim)
    loss = nll_loss(logs, target, weight, ignore_index, reduction)
    if not label_smoothing:
        return loss
    smooth = _smoothed(logs, target, weight, ignore_index, reduction, dim)
    classes = input.meta.shape[dim]
    return ops.add(ops.mul(loss, 1 - label_smoothing), ops.mul(smooth, label_smoothing / classes))


def _class_row(weight: Any, logs: Any, dim: int) -> Any:
    shape = [1] * logs.ndim
    shape[dim] = -1
    return ops.reshape(weight, tuple(shape))


def _soft_cross_entropy(
    logs: Any, target: Any, weight: Any, reduction: str, smoothing: float, dim: int
) -> Any:
    if target.shape != logs.shape:
        raise ShapeError(
            "cross_entropy", expected=f"probabilities of shape {tuple(logs.shape)}",
            got=str(tuple(target.shape)), remedy="pass class numbers, or one for each class",
        )  # fmt: skip
    if smoothing:
        target = ops.add(ops.mul(target, 1 - smoothing), smoothing / logs.shape[dim])
    if weight is not None:
        logs = ops.mul(logs, _class_row(weight, logs, dim))
    products = ops.mul(logs, target)
    if reduction == "none":
        return ops.neg(ops.sum(products, dim))
    total = ops.neg(ops.sum(products))
    samples = logs.numel() // max(1, logs.shape[dim])
    return ops.div(total, samples) if reduction == "mean" else total


def _smoothed(
    logs: Any, target: Any, weight: Any, ignore_index: int, reduction: str, dim: int
) -> Any:
    """Return the loss against the uniform distribution, times the number of classes."""
    weighted = logs if weight is None else ops.mul(logs, _class_row(weight, logs, dim))
    counts = ops.ne(target, ignore_index)
    loss = ops.masked_fill(ops.neg(ops.sum(weighted, dim)), ops.logical_not(counts), 0.0)
    if reduction != "mean":
        return reduced(loss, reduction)
    if weight is None:
        return ops.div(ops.sum(loss), ops.sum(counts))
    known = ops.mul(target, counts)
    weights = ops.reshape(ops.index_select(weight, 0, ops.flatten(known)), target.shape)
    return ops.div(ops.sum(loss), ops.sum(ops.mul(weights, counts)))


# ---------------------------------------------------------------------------------------------
# Losses of pairs


def _pair_rule(op: str) -> Any:
    def infer(
        input: TensorMeta, target: TensorMeta, *, reduction: str, parameter: float = 0.0
    ) -> TensorMeta:
        dtype = _dtypes.promote_types(input.dtype, target.dtype)
        if not dtype.is_floating_point:
            raise KernelMissingError(
                op, what=f"\"{op}\" not implemented for '{torch_name(dtype)}'",
                expected="a floating-point dtype", got=str(dtype), remedy="convert with .float()",
            )  # fmt: skip
        return meta_of(tuple(input.shape) if reduction == "none" else (), dtype, input.device)

    return infer


Slope = Callable[[Any, float], Any]


def _pair_vjp(slope: Slope) -> Any:
    """Make the derivative rule from the loss's slope as a function of ``input - target``."""

    def vjp(g: Any, n: Any) -> tuple[Any, Any]:
        count = n.metas[0].numel
        scale = g if n.reduction != "mean" else ops.div(g, count) if count else g
        gradient = ops.mul(slope(ops.sub(n.input, n.target), n.params.get("parameter", 0.0)), scale)
        return gradient, ops.neg(gradient) if n.needs[1] else None

    return vjp


def _pair_op(name: str, loss: Any, slope: Slope, **fields: Any) -> OpDef:
    return register(
        OpDef(name, ("input", "target"), batch="pair_loss", **fields, infer=_pair_rule(name),
              cpu=kernels.pair_loss_cpu(loss),
          cuda=kernels.pair_loss_cuda(loss),
              vjp=_pair_vjp(slope), saves=("input", "target"), autocast="float32")
    )  # fmt: skip


def _clamped(difference: Any, limit: float) -> Any:
    return ops.clamp(difference, -limit, limit)


MSE = _pair_op("mse_loss", kernels.squared_error, lambda d, _: ops.mul(d, 2.0), **samples.MSE)
L1 = _pair_op("l1_loss", kernels.absolute_error, lambda d, _: ops.sgn(d), **samples.L1)
SMOOTH_L1 = _pair_op(
    "smooth_l1_loss",
    kernels.smooth_error,
    lambda d, beta: ops.div(_clamped(d, beta), beta),
    **samples.SMOOTH_L1,
)
HUBER = _pair_op("huber_loss", kernels.huber_error, _clamped, **samples.HUBER)


def _pair_loss(op: OpDef, input: Any, target: Any, reduction: str, **params: Any) -> Any:
    require_tensor(op.name, input)
    require_tensor(op.name, target, "target")
    _check_reduction(op.name, reduction)
    shape = input.meta.shape
    if target.meta.shape != shape:
        shape = broadcast_shapes(shape, target.meta.shape, op=op.name)
        input, target = ops.expand(input, shape), ops.expand(target, shape)
    return call(op, (input, target), {"reduction": reduction, **params})


@front(MSE, method=False)
def mse_loss(input: Any, target: Any, reduction: str = "mean") -> Any:
    """Return the squared differences, reduced."""
    return _pair_loss(MSE, input, target, reduction)


@front(L1, method=False)
def l1_loss(input: Any, target: Any, reduction: str = "mean") -> Any:
    """Return the absolute differences, reduced."""
    return _pair_loss(L1, input, target, reduction)


@front(SMOOTH_L1, method=False)
def smooth_l1_loss(input: Any, target: Any, reduction: str = "mean", beta: float = 1.0) -> Any:
    """Return ``d**2 / (2 beta)`` for differences below `beta`, and ``d - beta / 2`` above."""
    if beta < 0:
        raise ShapeError(
            "smooth_l1_loss", what="smooth_l1_loss does not support negative values for beta.",
            expected="beta >= 0", got=beta, remedy="use a positive beta",
        )  # fmt: skip
    if beta == 0:
        return l1_loss(input, target, reduction)
    return _pair_loss(SMOOTH_L1, input, target, reduction, parameter=float(beta))


@front(HUBER, method=False)
def huber_loss(input: Any, target: Any, reduction: str = "mean", delta: float = 1.0) -> Any:
    """Return ``d**2 / 2`` for differences up to `delta`, and ``delta (d - delta / 2)`` above."""
    if delta <= 0:
        raise ShapeError(
            "huber_loss", what="huber_loss does not support non-positive values for delta.",
            expected="delta > 0", got=delta, remedy="use a positive delta",
        )  # fmt: skip
    return _pair_loss(HUBER, input, target, reduction, parameter=float(delta))


# ---------------------------------------------------------------------------------------------
# Binary cross entropy, kl_div


def _elements_rule(op: str) -> Any:
    def infer(input: TensorMeta, target: TensorMeta, pos_weight: Any = None) -> TensorMeta:
        dtype: DType = input.dtype
        if not dtype.is_floating_point or target.dtype is not dtype:
            raise DTypeError(
                op, what=f"expected scalar type {torch_name(dtype)} but found "
                f"{torch_name(target.dtype)}", expected="floating-point operands of one dtype",
                got=f"{dtype} and {target.dtype}", remedy="convert the target with .float()",
            )  # fmt: skip
        return meta_of(tuple(input.shape), dtype, input.device)

    return infer


def _bce_vjp(g: Any, n: Any) -> tuple[Any, Any]:
    x, t = n.input, n.target
    both = ops.clamp(ops.mul(ops.sub(1.0, x), x), min=1e-12)
    gx = ops.mul(g, ops.div(ops.sub(x, t), both)) if n.needs[0] else None
    if not n.needs[1]:
        return gx, None
    yes = ops.clamp(ops.log(x), min=-100.0)
    no = ops.clamp(ops.log1p(ops.neg(x)), min=-100.0)
    return gx, ops.mul(g, ops.sub(no, yes))


BCE = register(
    OpDef("binary_cross_entropy", ("input", "target"), batch="elements", **samples.BCE,
          infer=_elements_rule("binary_cross_entropy"),
          cpu=kernels.binary_cross_entropy_cpu, cuda=kernels.binary_cross_entropy_cuda,
          vjp=_bce_vjp, saves=("input", "target"))
)  # fmt: skip


def _logits_vjp(g: Any, n: Any) -> tuple[Any, Any, Any]:
    x, t, weight = n.input, n.target, n.pos_weight
    gx = gt = gw = None
    if n.needs[0]:
        slope = ops.sub(ops.sigmoid(x), t)
        if weight is not None:
            falling = ops.mul(ops.mul(ops.sub(weight, 1.0), t), ops.sigmoid(ops.neg(x)))
            slope = ops.sub(slope, falling)
        gx = ops.mul(g, slope)
    if n.needs[1] or n.needs[2]:
        # softplus(-x), the loss of the positive class.
        soft = ops.neg(ops.logsigmoid(x))
        if n.needs[1]:
            rise = x if weight is None else ops.sub(x, ops.mul(ops.sub(weight, 1.0), soft))
            gt = ops.neg(ops.mul(g, rise))
        gw = ops.mul(g, ops.mul(t, soft)) if n.needs[2] else None
    return gx, gt, gw


BCE_LOGITS = register(
    OpDef("binary_cross_entropy_with_logits", ("input", "target", "pos_weight"), batch="elements",
          **samples.BCE_LOGITS,
          infer=_elements_rule("binary_cross_entropy_with_logits"),
          cpu=kernels.binary_cross_entropy_with_logits_cpu,
          cuda=kernels.binary_cross_entropy_with_logits_cuda, vjp=_logits_vjp,
          saves=("input", "target", "pos_weight"), autocast="float32")
)  # fmt: skip


def _same_shape(op: str, input: Any, target: Any) -> None:
    require_tensor(op, input)
    require_tensor(op, target, "target")
    if input.meta.shape != target.meta.shape:
        raise ArgumentValueError(
            op,
            what=f"Target size ({tuple(target.meta.shape)}) must be the same as input size "
            f"({tuple(input.meta.shape)})",
            expected=str(tuple(input.meta.shape)),
            got=str(tuple(target.meta.shape)),
        )


@front(BCE, method=False)
def binary_cross_entropy(
    input: Any, target: Any, weight: Any = None, reduction: str = "mean"
) -> Any:
    """Return the binary cross entropy of probabilities, weighted and reduced."""
    _same_shape("binary_cross_entropy", input, target)
    _check_reduction("binary_cross_entropy", reduction)
    loss = call(BCE, (input, target), {})
    return reduced(loss if weight is None else ops.mul(loss, weight), reduction)


@front(BCE_LOGITS, method=False)
def binary_cross_entropy_with_logits(
    input: Any, target: Any, weight: Any = None, pos_weight: Any = None, reduction: str = "mean"
) -> Any:
    """Return the binary cross entropy of logits, safe from overflow, weighted and reduced."""
    _same_shape("binary_cross_entropy_with_logits", input, target)
    _check_reduction("binary_cross_entropy_with_logits", reduction)
    if pos_weight is not None:
        pos_weight = ops.expand(ops.to(pos_weight, input.meta.dtype), input.meta.shape)
    loss = call(BCE_LOGITS, (input, target, pos_weight), {})
    return reduced(loss if weight is None else ops.mul(loss, weight), reduction)


@front(method=False)
def kl_div(input: Any, target: Any, reduction: str = "mean", log_target: bool = False) -> Any:
    """Return ``target (log target - input)``; ``batchmean`` divides the sum by the batch."""
    require_tensor("kl_div", input)
    if log_target:
        loss = ops.mul(ops.exp(target), ops.sub(target, input))
    else:
        loss = ops.sub(ops.xlogy(target, target), ops.mul(target, input))
    if reduction == "batchmean":
        return ops.div(ops.sum(loss), input.meta.shape[0] if input.meta.ndim else 1)
    return reduced(loss, _check_reduction("kl_div", reduction))
