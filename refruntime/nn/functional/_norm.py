"""Normalizations and distances: torch's signatures over the registry's ops."""

from __future__ import annotations

from typing import Any

from refruntime._dtypes import int64
from refruntime._ops.opdef import ops
from refruntime.errors import ArgumentValueError
from refruntime.nn.functional._pool import avg_pool2d


def batch_norm(
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """Normalize each channel over the batch, by its own or by the running statistics.

    Parameters
    ----------
    input : Tensor
        (batch, channels, ...).
    running_mean, running_var : Tensor or None
        Updated while training.
    weight, bias : Tensor, optional
        Scale and shift a channel.
    training : bool
        Whether the batch's own statistics are used.
    momentum : float
        The weight of this batch in the running statistics.
    eps : float
        Added to the variance.
    """
    if training and input.dim() > 1:
        _check_values(input)
    return ops.batch_norm(
        input, running_mean, running_var, weight, bias, training, momentum, eps
    )


def _check_values(input: Any) -> None:
    count = input.numel() // max(input.shape[1], 1)
    if count == 1:
        raise ArgumentValueError(
            "batch_norm", what="Expected more than 1 value per channel when training",
            got=f"input size {input.shape}",
        )  # fmt: skip


def instance_norm(
    input: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """Normalize each channel of each sample by itself; parameters as in `batch_norm`."""
    if use_input_stats and input.numel() == input.shape[0] * input.shape[1]:
        raise ArgumentValueError(
            "instance_norm", what="Expected more than 1 spatial element when training",
            got=f"input size {input.shape}",
        )  # fmt: skip
    return ops.instance_norm(
        input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps
    )


def layer_norm(
    input: Any,
    normalized_shape: Any,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
) -> Any:
    """Normalize over the last dimensions, of sizes `normalized_shape`."""
    return ops.layer_norm(input, normalized_shape, weight, bias, eps)


def rms_norm(
    input: Any,
    normalized_shape: Any,
    weight: Any = None,
    eps: float | None = None,
) -> Any:
    """Divide by the root mean square over the last dimensions."""
    return ops.rms_norm(input, normalized_shape, weight, eps)


def group_norm(
    input: Any,
    num_groups: int,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
) -> Any:
    """Normalize over groups of channels."""
    return ops.group_norm(input, num_groups, weight, bias, eps)


def local_response_norm(
    input: Any,
    size: int,
    alpha: float = 1e-4,
    beta: float = 0.75,
    k: float = 1.0,
) -> Any:
    """Divide by a power of the mean square over `size` neighbouring channels."""
    if input.dim() < 3:
        raise ArgumentValueError(
            "local_response_norm", what="Expected 3D or higher dimensionality input",
            got=f"{input.dim()} dimensions",
        )  # fmt: skip
    if input.numel() == 0:
        return input
    rows = input.square().reshape(input.shape[0], 1, input.shape[1], -1)
    before, after = size // 2, (size - 1) // 2
    padded = ops.constant_pad_nd(rows, [0, 0, before, after], 0.0)
    mean = avg_pool2d(padded, (size, 1), stride=1).reshape(input.shape)
    return input / (mean * alpha + k).pow(beta)


def normalize(
    input: Any,
    p: float = 2.0,
    dim: Any = 1,
    eps: float = 1e-12,
    out: Any = None,
) -> Any:
    """Divide by the p-norm along `dim`, but by no less than `eps`."""
    norm = input.norm(p, dim, keepdim=True).clamp_min(eps)
    return ops.div(input, norm) if out is None else ops.div(input, norm, out=out)


def cosine_similarity(x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> Any:
    """Return the cosine of the angle between vectors along `dim`."""
    first = x1 / x1.norm(2, dim, keepdim=True).clamp_min(eps)
    second = x2 / x2.norm(2, dim, keepdim=True).clamp_min(eps)
    return (first * second).sum(dim)


def pairwise_distance(
    x1: Any, x2: Any, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Any:
    """Return the p-norm of ``x1 - x2 + eps`` along the last dimension."""
    return (x1 - x2 + eps).norm(p, -1, keepdim=keepdim)


def pdist(input: Any, p: float = 2.0) -> Any:
    """Return the p-norm distances of all pairs of rows, as a vector."""
    rows = input.shape[0]
    first = [i for i in range(rows) for _ in range(i + 1, rows)]
    second = [j for i in range(rows) for j in range(i + 1, rows)]
    left = input[ops.tensor(first, dtype=int64)]
    right = input[ops.tensor(second, dtype=int64)]
    return (left - right).norm(p, -1)
