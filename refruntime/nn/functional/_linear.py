"""Linear maps, embeddings and dropout: torch's signatures over the registry's ops."""

from __future__ import annotations

from typing import Any

from refruntime._ops.opdef import ops
from refruntime.errors import ArgumentValueError, KernelMissingError


def linear(input: Any, weight: Any, bias: Any = None) -> Any:
    """Return ``input @ weight.T + bias``."""
    return ops.linear(input, weight, bias)


def bilinear(input1: Any, input2: Any, weight: Any, bias: Any = None) -> Any:
    """Return ``input1 @ weight[k] @ input2`` for each output k, plus `bias`."""
    out_features, width1, width2 = weight.shape
    batch = tuple(input1.shape[:-1])
    left = input1.reshape(-1, width1)
    # (n, out, width2): the first input through all matrices at once.
    through = left.matmul(weight.transpose(0, 1).reshape(width1, out_features * width2))
    through = through.reshape(-1, out_features, width2)
    result = (through * input2.reshape(-1, 1, width2)).sum(-1)
    if bias is not None:
        result = result + bias
    return result.reshape(*batch, out_features)


def _refuse_max_norm(op: str, max_norm: Any) -> None:
    if max_norm is not None:
        raise KernelMissingError(
            op, what="max_norm is not supported", expected="max_norm=None", got=str(max_norm),
            remedy="scale the rows of the weight yourself before the look-up",
        )  # fmt: skip


def embedding(
    input: Any,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    """Return the rows of `weight` at the indices `input`.

    Parameters
    ----------
    input : Tensor
        Integer indices of any shape.
    weight : Tensor
        (rows, width).
    padding_idx : int, optional
        A row that takes no gradient.
    max_norm, norm_type : float
        Not supported: `max_norm` must be None.
    scale_grad_by_freq : bool
        Divide each row's gradient by how often the row was looked up.
    sparse : bool
        Accepted; gradients are dense.
    """
    _refuse_max_norm("embedding", max_norm)
    if padding_idx is not None:
        rows = weight.shape[0]
        if not -rows <= padding_idx < rows:
            raise AssertionError("Padding_idx must be within num_embeddings")
        padding_idx %= rows
    row = -1 if padding_idx is None else padding_idx
    return ops.embedding(weight, input, row, scale_grad_by_freq, sparse)


def embedding_bag(
    input: Any,
    weight: Any,
    offsets: Any = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Any:
    """Return the sum, mean or maximum of the rows of each bag.

    Bags are the rows of a two-dimensional `input`, or begin at `offsets` of a flat one.
    """
    _refuse_max_norm("embedding_bag", max_norm)
    if per_sample_weights is not None and mode != "sum":
        raise NotImplementedError(
            "embedding_bag: per_sample_weights was not None; expected mode='sum', "
            f"got mode='{mode}'"
        )
    if not weight.is_floating_point() and input.is_floating_point():
        # The order of an early version of torch, which still takes it.
        input, weight = weight, input
    bags, count = _bags(input, offsets, include_last_offset)
    flat = input.reshape(-1)
    if padding_idx is not None:
        counted = flat != padding_idx % weight.shape[0]
        flat, bags = flat[counted], bags[counted]
        if per_sample_weights is not None:
            per_sample_weights = per_sample_weights.reshape(-1)[counted]
    rows = ops.embedding(weight, flat, -1, scale_grad_by_freq, sparse)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.reshape(-1, 1)
    return _reduced_bags(rows, bags, count, mode)


def _bags(input: Any, offsets: Any, include_last: bool) -> tuple[Any, int]:
    """Return the bag of each entry of the flat list of indices, and the number of bags."""
    if input.dim() == 2:
        if offsets is not None:
            raise ArgumentValueError(
                "embedding_bag", what="if input is 2D, then offsets has to be None"
            )
        rows = ops.arange(input.shape[0], device=input.device)
        return ops.repeat_interleave(rows, input.shape[1]), input.shape[0]
    if offsets is None:
        raise ArgumentValueError(
            "embedding_bag", what="offsets has to be a 1D Tensor but got None"
        )
    begins = offsets[:-1] if include_last else offsets
    entries = ops.arange(input.numel(), dtype=begins.dtype, device=begins.device)
    return ops.searchsorted(begins, entries, right=True) - 1, begins.shape[0]


def _reduced_bags(rows: Any, bags: Any, count: int, mode: str) -> Any:
    """Join the rows of each bag; an empty bag gives zeros."""
    zeros = ops.zeros((count, rows.shape[1]), dtype=rows.dtype, device=rows.device)
    if mode == "max":
        places = bags.unsqueeze(1).expand_as(rows)
        return ops.scatter_reduce(zeros, 0, places, rows, "amax", include_self=False)
    sums = ops.index_add(zeros, 0, bags, rows)
    if mode == "sum":
        return sums
    sizes = ops.bincount(bags, minlength=count).clamp(min=1)
    return sums / sizes.unsqueeze(1)


def one_hot(tensor: Any, num_classes: int = -1) -> Any:
    """Return a last dimension with 1 at the index and 0 elsewhere (int64).

    Parameters
    ----------
    tensor : Tensor
        int64 class numbers of any shape.
    num_classes : int
        By default one more than the largest number.
    """
    return ops.one_hot(tensor, num_classes)


def _check_p(p: float) -> None:
    if not 0.0 <= p <= 1.0:
        raise ArgumentValueError(
            "dropout", what="dropout probability has to be between 0 and 1", got=str(p)
        )


def dropout(
    input: Any,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
) -> Any:
    """Set elements to 0 with probability `p` and scale the others by 1 / (1 - p)."""
    _check_p(p)
    return ops.dropout_(input, p, training) if inplace else ops.dropout(input, p, training)


def _channel_dropout(input: Any, p: float, training: bool, inplace: bool, kept: int) -> Any:
    """Drop along all but the first `kept` dimensions."""
    _check_p(p)
    if not training or p == 0:
        return input
    shape = tuple(input.shape[:kept]) + (1,) * (input.dim() - kept)
    mask = ops.empty(shape, dtype=input.dtype, device=input.device).bernoulli_(1 - p)
    if p < 1:
        mask.div_(1 - p)
    return input.mul_(mask) if inplace else input * mask


def dropout1d(
    input: Any,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
) -> Any:
    """Set whole channels of ([batch,] channels, length) to 0."""
    if input.dim() not in (2, 3):
        raise RuntimeError(
            f"dropout1d: Expected 2D or 3D input, but received a {input.dim()}D input."
        )
    return _channel_dropout(input, p, training, inplace, input.dim() - 1)


def dropout2d(
    input: Any,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
) -> Any:
    """Set whole channels of (batch, channels, ...) to 0."""
    # torch takes the first two dimensions also for 3-D input.
    return _channel_dropout(input, p, training, inplace, 2)


def dropout3d(
    input: Any,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
) -> Any:
    """Set whole channels of ([batch,] channels, depth, height, width) to 0."""
    return _channel_dropout(input, p, training, inplace, input.dim() - 3)


def alpha_dropout(
    input: Any,
    p: float = 0.5,
    training: bool = False,
    inplace: bool = False,
) -> Any:
    """Dropout that keeps mean and variance of what comes out of SELU."""
    _check_p(p)
    result = ops.alpha_dropout(input, p, training)
    return input.copy_(result) if inplace and training else result


def feature_alpha_dropout(
    input: Any,
    p: float = 0.5,
    training: bool = False,
    inplace: bool = False,
) -> Any:
    """`alpha_dropout` of whole channels."""
    _check_p(p)
    result = ops.feature_alpha_dropout(input, p, training)
    return input.copy_(result) if inplace and training else result
