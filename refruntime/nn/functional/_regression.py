"""Losses over differences and distances: torch's signatures over the registry's ops."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from refruntime._ops.opdef import ops
from refruntime.errors import ArgumentValueError
from refruntime.nn.functional._loss import legacy_reduction, reduced
from refruntime.nn.functional._norm import pairwise_distance


def _warn_of_sizes(input: Any, target: Any) -> None:
    if tuple(target.shape) != tuple(input.shape):
        warnings.warn(
            f"Using a target size ({target.shape}) that is different to the input size "
            f"({input.shape}). This will likely lead to incorrect results due to broadcasting. "
            "Please ensure they have the same size.",
            stacklevel=3,
        )


def _weighted(loss: Any, weight: Any, reduction: str) -> Any:
    """Reduce a loss with a weight an element; the mean divides by the sum of weights."""
    loss = loss * weight
    if reduction == "mean":
        return loss.sum() / weight.expand_as(loss).sum()
    return reduced(loss, reduction)


def mse_loss(
    input: Any,
    target: Any,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Any = None,
) -> Any:
    """Return ``(input - target) ** 2``."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    _warn_of_sizes(input, target)
    if weight is None:
        return ops.mse_loss(input, target, reduction)
    return _weighted(ops.mse_loss(input, target, "none"), weight, reduction)


def l1_loss(
    input: Any,
    target: Any,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Any = None,
) -> Any:
    """Return ``|input - target|``."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    _warn_of_sizes(input, target)
    if weight is None:
        return ops.l1_loss(input, target, reduction)
    return _weighted(ops.l1_loss(input, target, "none"), weight, reduction)


def smooth_l1_loss(
    input: Any,
    target: Any,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    beta: float = 1.0,
) -> Any:
    """Return ``d^2 / (2 * beta)`` where the difference d is small, else ``|d| - beta / 2``."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    _warn_of_sizes(input, target)
    return ops.smooth_l1_loss(input, target, reduction, beta)


def huber_loss(
    input: Any,
    target: Any,
    reduction: str = "mean",
    delta: float = 1.0,
    weight: Any = None,
) -> Any:
    """Return ``d^2 / 2`` where d is small, else ``delta * (|d| - delta / 2)``."""
    _warn_of_sizes(input, target)
    if weight is None:
        return ops.huber_loss(input, target, reduction, delta)
    return _weighted(ops.huber_loss(input, target, "none", delta), weight, reduction)


def hinge_embedding_loss(
    input: Any,
    target: Any,
    margin: float = 1.0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Any:
    """Return the input where the target is 1, ``max(0, margin - input)`` where it is -1."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    zero = ops.zeros_like(input)
    # Where the target is neither, both parts count, as in torch.
    near = ops.where(target != -1, input, zero)
    far = ops.where(target != 1, (margin - input).clamp(min=0), zero)
    return reduced(near + far, reduction)


def margin_ranking_loss(
    input1: Any,
    input2: Any,
    target: Any,
    margin: float = 0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Any:
    """Return ``max(0, -target * (input1 - input2) + margin)``."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    return reduced((-target * (input1 - input2) + margin).clamp(min=0), reduction)


# Keeps the gradient of the norm finite at zero, as torch does.
_COSINE_EPS = 1e-12


def cosine_embedding_loss(
    input1: Any,
    input2: Any,
    target: Any,
    margin: float = 0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Any:
    """Return ``1 - cos`` where the target is 1, ``max(0, cos - margin)`` where it is -1."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    if target.dim() + 1 != max(input1.dim(), input2.dim()):
        raise RuntimeError(
            f"cosine_embedding_loss: expected inputs with one dimension more than the target, got "
            f"{tuple(input1.shape)}, {tuple(input2.shape)} and {tuple(target.shape)}"
        )
    norms = (input1.square().sum(-1) + _COSINE_EPS) * (input2.square().sum(-1) + _COSINE_EPS)
    cosine = (input1 * input2).sum(-1) / norms.sqrt()
    zero = ops.zeros_like(cosine)
    near = ops.where(target == 1, 1 - cosine, zero)
    far = ops.where(target == -1, (cosine - margin).clamp(min=0), zero)
    return reduced(near + far, reduction)


def triplet_margin_loss(
    anchor: Any,
    positive: Any,
    negative: Any,
    margin: float = 1.0,
    p: float = 2,
    eps: float = 1e-6,
    swap: bool = False,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Any:
    """Return ``max(0, d(anchor, positive) - d(anchor, negative) + margin)``.

    `swap` takes the smaller of the negative's distances to the anchor and to the positive.
    """
    reduction = legacy_reduction(size_average, reduce, reduction)
    if margin <= 0:
        raise ArgumentValueError("triplet_margin_loss", expected="margin above 0", got=str(margin))

    def distance(x: Any, y: Any) -> Any:
        return pairwise_distance(x, y, p, eps)

    return _triplet(anchor, positive, negative, distance, margin, swap, reduction)


def triplet_margin_with_distance_loss(
    anchor: Any,
    positive: Any,
    negative: Any,
    *,
    distance_function: Callable[[Any, Any], Any] | None = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> Any:
    """`triplet_margin_loss` with any distance (by default `pairwise_distance`)."""
    if margin <= 0:
        raise ArgumentValueError(
            "triplet_margin_with_distance_loss", expected="margin above 0", got=str(margin)
        )
    distance = pairwise_distance if distance_function is None else distance_function
    return _triplet(anchor, positive, negative, distance, margin, swap, reduction)


def _triplet(
    anchor: Any, positive: Any, negative: Any, distance: Callable[[Any, Any], Any], margin: float,
    swap: bool, reduction: str,
) -> Any:  # fmt: skip
    near, far = distance(anchor, positive), distance(anchor, negative)
    if swap:
        far = ops.minimum(far, distance(positive, negative))
    return reduced((margin + near - far).clamp(min=0), reduction)
