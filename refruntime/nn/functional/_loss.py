"""Losses over classes and probabilities, and how losses are reduced.

Invariants
----------
* Every loss takes `reduction`: ``none``, ``mean`` or ``sum``; the older `size_average` and `reduce`
  are translated by `legacy_reduction`.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

from refruntime._ops.opdef import ops
from refruntime.errors import ArgumentValueError


def legacy_reduction(
    size_average: bool | None, reduce: bool | None, reduction: str = "mean"
) -> str:
    """Return the reduction that older settings mean; `reduction` itself where none is given."""
    if size_average is None and reduce is None:
        return reduction
    warnings.warn(
        "size_average and reduce args will be deprecated, please use reduction instead.",
        stacklevel=3,
    )
    if reduce is False:
        return "none"
    return "mean" if size_average is None or size_average else "sum"


def reduced(loss: Any, reduction: str) -> Any:
    """Reduce a loss: ``none``, ``mean`` or ``sum``."""
    if reduction == "mean":
        return loss.mean()
    if reduction == "sum":
        return loss.sum()
    if reduction != "none":
        raise ArgumentValueError(
            "loss", what=f"{reduction} is not a valid value for reduction",
            expected="'none', 'mean' or 'sum'", got=repr(reduction),
        )  # fmt: skip
    return loss


def nll_loss(
    input: Any,
    target: Any,
    weight: Any = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Any:
    """Return minus the log-probability of the target class.

    Parameters
    ----------
    input : Tensor
        Log-probabilities: (classes), (batch, classes) or (batch, classes, ...).
    target : Tensor
        Class numbers: the shape of the input without the classes.
    weight : Tensor, optional
        A weight a class; the mean is then the weighted one.
    ignore_index : int
        A target that does not count.
    reduction : str
        ``none``, ``mean`` or ``sum``.
    """
    reduction = legacy_reduction(size_average, reduce, reduction)
    return ops.nll_loss(
        input, target, weight=weight, ignore_index=ignore_index, reduction=reduction
    )


def cross_entropy(
    input: Any,
    target: Any,
    weight: Any = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    """Return the cross entropy of softmax(input) and the target.

    Parameters
    ----------
    input : Tensor
        Logits: (classes), (batch, classes) or (batch, classes, ...).
    target : Tensor
        Class numbers, or probabilities of the input's shape.
    weight : Tensor, optional
        A weight a class.
    ignore_index : int
        A target that does not count (class numbers only).
    reduction : str
        ``none``, ``mean`` or ``sum``.
    label_smoothing : float
        How much of the target is spread over all classes, in [0, 1].
    """
    reduction = legacy_reduction(size_average, reduce, reduction)
    return ops.cross_entropy(
        input, target, weight=weight, ignore_index=ignore_index, reduction=reduction,
        label_smoothing=label_smoothing,
    )  # fmt: skip


def kl_div(
    input: Any,
    target: Any,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> Any:
    """Return ``target * (log(target) - input)``, the input being log-probabilities.

    `reduction` may also be ``batchmean``: the sum divided by the first size, which is the
    divergence in the mathematical sense.
    """
    if reduction != "batchmean":
        reduction = legacy_reduction(size_average, reduce, reduction)
    if reduction == "mean":
        warnings.warn(
            "reduction: 'mean' divides the total loss by both the batch size and the support "
            "size; 'batchmean' divides only by the batch size, as the divergence does.",
            stacklevel=2,
        )
    return ops.kl_div(input, target, reduction, log_target)


def binary_cross_entropy(
    input: Any,
    target: Any,
    weight: Any = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Any:
    """Return the binary cross entropy of probabilities; logarithms are cut at -100."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    if tuple(target.shape) != tuple(input.shape):
        raise ArgumentValueError(
            "binary_cross_entropy",
            what=f"Using a target size ({target.shape}) that is different to the input size "
            f"({input.shape}) is deprecated", remedy="make the sizes equal",
        )  # fmt: skip
    return ops.binary_cross_entropy(input, target, weight, reduction=reduction)


def binary_cross_entropy_with_logits(
    input: Any,
    target: Any,
    weight: Any = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    pos_weight: Any = None,
) -> Any:
    """Return the binary cross entropy of sigmoid(input), computed stably.

    Parameters
    ----------
    input, target : Tensor
        Logits, and numbers in [0, 1] of the same shape.
    weight : Tensor, optional
        Broadcast to the loss.
    pos_weight : Tensor, optional
        A weight of the positive class.
    reduction : str
        ``none``, ``mean`` or ``sum``.
    """
    reduction = legacy_reduction(size_average, reduce, reduction)
    if tuple(target.shape) != tuple(input.shape):
        raise ArgumentValueError(
            "binary_cross_entropy_with_logits",
            what=f"Target size ({target.shape}) must be the same as input size ({input.shape})",
        )
    return ops.binary_cross_entropy_with_logits(
        input, target, weight, pos_weight, reduction=reduction
    )


def poisson_nll_loss(
    input: Any,
    target: Any,
    log_input: bool = True,
    full: bool = False,
    size_average: bool | None = None,
    eps: float = 1e-8,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Any:
    """Return minus the log-likelihood of counts; `full` adds Stirling's approximation."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    loss = input.exp() - target * input if log_input else input - target * (input + eps).log()
    if full:
        stirling = target * target.log() - target + 0.5 * (2 * math.pi * target).log()
        loss = loss + ops.where(target > 1, stirling, ops.zeros_like(stirling))
    return reduced(loss, reduction)


def gaussian_nll_loss(
    input: Any,
    target: Any,
    var: Any,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Any:
    """Return minus the log-likelihood under a normal distribution.

    Parameters
    ----------
    input, target : Tensor
        Means and values.
    var : Tensor or float
        Variances: of the input's shape, without its last dimension, or with size 1 there.
    full : bool
        Whether the constant is added.
    eps : float
        The smallest variance, held without gradient.
    reduction : str
        ``none``, ``mean`` or ``sum``.
    """
    variance = input.new_full((1,), var) if isinstance(var, (int, float)) else var
    if tuple(variance.shape) != tuple(input.shape) and not isinstance(var, (int, float)):
        if tuple(input.shape[:-1]) == tuple(variance.shape):
            variance = variance.unsqueeze(-1)
        elif not (
            tuple(input.shape[:-1]) == tuple(variance.shape[:-1]) and variance.shape[-1] == 1
        ):
            raise ArgumentValueError("gaussian_nll_loss", what="var is of incorrect size")
    if bool((variance < 0).any()):
        raise ArgumentValueError("gaussian_nll_loss", what="var has negative entry/entries")
    # The floor changes the value but not the gradient.
    clamped = variance + (variance.detach().clamp(min=eps) - variance.detach())
    loss = 0.5 * (clamped.log() + (input - target).square() / clamped)
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    return reduced(loss, reduction)


def soft_margin_loss(
    input: Any,
    target: Any,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Any:
    """Return ``log(1 + exp(-target * input))``."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    return reduced((-target * input).exp().log1p(), reduction)


def multilabel_soft_margin_loss(
    input: Any,
    target: Any,
    weight: Any = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Any:
    """Return the mean over classes of the binary cross entropy of logits."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    positive, negative = ops.logsigmoid(input), ops.logsigmoid(-input)
    loss = -(target * positive + (1 - target) * negative)
    if weight is not None:
        loss = loss * weight
    return reduced(loss.sum(-1) / input.shape[-1], reduction)


def multi_margin_loss(
    input: Any,
    target: Any,
    p: int = 1,
    margin: float = 1.0,
    weight: Any = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Any:
    """Return the mean over the other classes of max(0, margin - x[target] + x[class]) ** p."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    rows = input.reshape(1, -1) if input.dim() < 2 else input
    places = target.reshape(-1, 1)
    gaps = (margin - rows.gather(1, places) + rows).clamp(min=0)
    gaps = gaps.pow(p) if p != 1 else gaps
    if weight is not None:
        gaps = gaps * weight[places]
    own = ops.zeros_like(rows).scatter_(1, places, 1.0)
    loss = (gaps * (1 - own)).sum(1) / rows.shape[1]
    return reduced(loss.squeeze(0) if input.dim() < 2 else loss, reduction)


def multilabel_margin_loss(
    input: Any,
    target: Any,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Any:
    """Return the hinge loss between target classes and all others; targets end at the first -1."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    rows = input.reshape(1, -1) if input.dim() < 2 else input
    labels = target.reshape(rows.shape)
    valid = ops.cumprod((labels >= 0).to(rows.dtype), 1)
    places = labels.clamp(min=0)
    chosen = ops.zeros_like(rows).scatter_add_(1, places, valid).clamp(max=1)
    # (batch, target class, other class)
    gaps = (1 - rows.gather(1, places).unsqueeze(2) + rows.unsqueeze(1)).clamp(min=0)
    counted = valid.unsqueeze(2) * (1 - chosen).unsqueeze(1)
    loss = (gaps * counted).sum([1, 2]) / rows.shape[1]
    return reduced(loss.squeeze(0) if input.dim() == 1 else loss, reduction)
