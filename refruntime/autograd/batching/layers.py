"""Batching rules of norms, losses, pooling and recurrent cells.

Invariants
----------
* Statistics belong to a sample: what a layer averages over never crosses the batch.
* Weights shared by all samples stay one operand; weights of each sample are applied afterwards.
"""

from __future__ import annotations

from typing import Any

from refruntime._dtypes import int64
from refruntime._ops.opdef import ops
from refruntime.autograd.batching.generic import Case, rule
from refruntime.autograd.batching.products import (
    channels_folded,
    channels_unfolded,
    folded,
    unfolded,
)


def _scaled(case: Case, result: Any, ndim: int) -> Any:
    """Apply weight and bias (operands 1 and 2) that were left out of the op."""
    for place, apply in ((1, ops.mul), (2, ops.add)):
        if place < len(case.operands) and case.operands[place] is not None:
            result = apply(result, case.aligned(place, ndim))
    return result


@rule("layer_norm")
def _layer_norm(case: Case) -> Any:
    """Normalise the last dimensions of each sample."""
    affine = case.operands[1:]
    input = case.whole(0)
    if not any(case.batched[1:]):
        return case.run((input, *affine))
    results = case.run((input, *(None,) * len(affine)))
    return (_scaled(case, results[0], case.ndim(0)), *results[1:])


@rule("group_norm")
def _group_norm(case: Case) -> Any:
    """Normalise groups of channels of each sample."""
    affine = case.operands[1:]
    input = folded(case.whole(0))
    shared = not any(case.batched[1:])
    results = case.run((input, *(affine if shared else (None,) * len(affine))))
    out, *statistics = [unfolded(result, case.size) for result in results]
    return (out if shared else _by_channel(case, out, 1, 2), *statistics)


def _by_channel(case: Case, out: Any, weight: int, bias: int) -> Any:
    """Apply a weight and a bias for each channel: ``[batch, N, C, ...]``."""
    trailing = (1,) * (out.meta.ndim - 3)
    for place, apply in ((weight, ops.mul), (bias, ops.add)):
        if case.operands[place] is not None:
            value = case.whole(place)
            out = apply(out, ops.reshape(value, (case.size, 1, value.meta.shape[1], *trailing)))
    return out


@rule("batch_norm")
def _batch_norm(case: Case) -> Any:
    """Normalise channels of each sample: channels of all samples are one dimension."""
    input = channels_folded(case.whole(0))
    rest = [None if v is None else folded(case.whole(p)) for p, v in enumerate(case.operands)]
    out, *statistics = case.run((input, *rest[1:]))
    return (
        channels_unfolded(out, case.size),
        *[unfolded(one, case.size) if one.meta.numel else _spread(case, one) for one in statistics],
    )


def _spread(case: Case, value: Any) -> Any:
    return ops.expand(value, (case.size, *value.meta.shape))


@rule("fold")
def _fold(case: Case) -> Any:
    """Run an op on images: images of all samples are one dimension."""
    result = case.run(tuple([folded(value) for value in case.wholes()]))
    return unfolded(result, case.size)


@rule("elements")
def _elements(case: Case) -> Any:
    """Run an elementwise op whose operands all have the first one's shape, or broadcast to it."""
    shape = case.whole(0).meta.shape
    ndim = len(shape) - 1
    operands = [case.whole(0)]
    for place in range(1, len(case.operands)):
        value = case.aligned(place, ndim)
        operands.append(value if value is None else ops.expand(value, shape))
    return case.run(tuple(operands))


@rule("pair_loss")
def _pair_loss(case: Case) -> Any:
    """Compute the loss of each element, and reduce each sample."""
    loss = case.run(case.wholes(), reduction="none")
    return _reduced(loss, case.params["reduction"])


def _reduced(loss: Any, reduction: str) -> Any:
    if reduction == "none" or loss.meta.ndim < 2:
        return loss
    dims = tuple(range(1, loss.meta.ndim))
    return ops.mean(loss, dims) if reduction == "mean" else ops.sum(loss, dims)


@rule("nll_loss")
def _nll_loss(case: Case) -> Any:
    """Pick the log-probability of each target, and reduce each sample."""
    if case.batched[2]:
        return case.each()
    input, target = case.whole(0), case.whole(1)
    plain = case.ndim(0) == 1
    if not plain:
        input, target = folded(input), folded(target)
    weight, ignored = case.operands[2], case.params["ignore_index"]
    loss, _ = case.run((input, target, weight), reduction="none")
    loss = loss if plain else unfolded(loss, case.size)
    total = _total_weight(case, loss, weight, ignored)
    reduction = case.params["reduction"]
    if reduction != "none":
        loss = _summed(loss)
    return (ops.div(loss, total) if reduction == "mean" else loss), total


def _total_weight(case: Case, like: Any, weight: Any, ignored: int) -> Any:
    """Return the sum of the weights of the targets of each sample."""
    target = case.whole(1)
    counted = ops.ne(target, ignored)
    if weight is None:
        return _summed(ops.to(counted, like.meta.dtype))
    safe = ops.masked_fill(target, ops.logical_not(counted), 0)
    picked = ops.index_select(weight, 0, ops.reshape(ops.to(safe, int64), (-1,)))
    return _summed(ops.mul(ops.reshape(picked, target.meta.shape), counted))


def _summed(value: Any) -> Any:
    return ops.sum(value, tuple(range(1, value.meta.ndim))) if value.meta.ndim > 1 else value


@rule("max_pool_backward")
def _max_pool_backward(case: Case) -> Any:
    """Give each window's gradient to the place of its largest element."""
    return case.run(case.wholes(), shape=(case.size, *case.params["shape"]))
