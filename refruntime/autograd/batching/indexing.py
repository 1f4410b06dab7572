"""Batching rules of what reads and writes through index tensors.

Invariants
----------
* Index tensors that differ between samples get one more beside them: the number of the sample.
* The dimensions that index tensors make stand where the first index stood if the indexed dimensions
  are neighbours, and in front otherwise; the batch is moved in front of them.
"""

from __future__ import annotations

from typing import Any

from refruntime._impl import meta_of
from refruntime._layout import broadcast_shapes, extent
from refruntime._ops.opdef import ops
from refruntime.autograd.batching.generic import Case, rule, shifted


def _adjacent(dims: tuple[int, ...]) -> bool:
    return dims == tuple(range(dims[0], dims[0] + len(dims)))


def _block_ndim(case: Case, first: int) -> int:
    return max(case.ndim(place) for place in range(first, len(case.operands)))


def _indices(case: Case, first: int) -> tuple[Any, ...]:
    """Return the index tensors, those of all samples aligned with the batch in front."""
    ndim = _block_ndim(case, first)
    return tuple([case.aligned(place, ndim) for place in range(first, len(case.operands))])


def _samples(case: Case, ndim: int) -> Any:
    """Return the number of each sample, in the shape that broadcasts against index tensors."""
    numbers = ops.arange(case.size, device=case.operands[0].meta.device)
    return ops.reshape(numbers, (case.size, *(1,) * ndim))


def _move(value: Any, source: range, target: int) -> Any:
    """Move neighbouring dimensions so that the first of them comes to `target`."""
    if source.start == target or not source:
        return value
    places = list(source)
    order = [d for d in range(value.meta.ndim) if d not in places]
    return ops.permute(value, (*order[:target], *places, *order[target:]))


@rule("index")
def _index(case: Case) -> Any:
    """Read through index tensors."""
    dims = case.params["dims"]
    ndim = _block_ndim(case, 1)
    indices = _indices(case, 1)
    if not any(case.batched[1:]):
        moved = tuple([d + 1 for d in dims])
        result = case.run((case.operands[0], *indices), dims=moved)
        return result if _adjacent(dims) else ops.movedim(result, ndim, 0)
    if not case.batched[0]:
        result = case.run((case.operands[0], *indices))
        return ops.movedim(result, dims[0] if _adjacent(dims) else 0, 0)
    result = case.run(
        (case.operands[0], _samples(case, ndim), *indices), dims=(0, *[d + 1 for d in dims])
    )
    return _move(result, range(1, 1 + ndim), dims[0] + 1) if _adjacent(dims) else result


def _values_in_front(case: Case, values: Any, ndim: int) -> Any:
    """Return values of all samples with the block of index dimensions behind the batch."""
    dims = case.params["dims"]
    if not _adjacent(dims):
        return values
    return _move(values, range(dims[0] + 1, dims[0] + 1 + ndim), 1)


@rule("index_backward")
def _index_backward(case: Case) -> Any:
    """Add through index tensors into zeros."""
    dims, shape = case.params["dims"], (case.size, *case.params["shape"])
    ndim = _block_ndim(case, 1)
    values, indices = case.whole(0), _indices(case, 1)
    if not any(case.batched[1:]):
        if not _adjacent(dims):
            values = ops.movedim(values, 0, ndim)
        moved = tuple([d + 1 for d in dims])
        return case.run((values, *indices), dims=moved, shape=shape)
    values = _values_in_front(case, values, ndim)
    operands = (values, _samples(case, ndim), *indices)
    return case.run(operands, dims=(0, *[d + 1 for d in dims]), shape=shape)


@rule("index_put")
def _index_put(case: Case) -> Any:
    """Write through index tensors of each sample into its target."""
    dims = case.params["dims"]
    ndim = _block_ndim(case, 2)
    indices = _indices(case, 2)
    values = case.operands[1]
    if case.batched[1] or case.ndim(1):
        values = _values_in_front(case, _spread_values(case, ndim), ndim)
    operands = (case.whole(0), values, _samples(case, ndim), *indices)
    return case.run(operands, dims=(0, *[d + 1 for d in dims]))


def _spread_values(case: Case, ndim: int) -> Any:
    """Return values in the whole shape that the index shows, with the batch in front."""
    dims = case.params["dims"]
    target = case.operands[0].meta.shape[case.batched[0] :]
    blocks = [case.operands[p].meta.shape[case.batched[p] :] for p in range(2, len(case.operands))]
    block = broadcast_shapes(*blocks, op="index_put")
    before = dims[0] if _adjacent(dims) else 0
    rest = [size for d, size in enumerate(target) if d not in dims]
    space = (*rest[:before], *block, *rest[before:])
    values = case.aligned(1, len(space))
    return ops.expand(values, (case.size, *space))


@rule("index_select")
def _index_select(case: Case) -> Any:
    """Take places of a dimension, the same for all samples or others for each."""
    input, index = case.operands
    ndim = case.ndim(0)
    dim = case.params["dim"] % max(ndim, 1)
    if not case.batched[1]:
        return case.run((input, index), dim=dim + 1)
    whole = case.whole(0)
    if not ndim:
        return ops.expand(ops.unsqueeze(whole, -1), index.meta.shape) if case.ndim(1) else whole
    count = index.meta.shape[-1] if case.ndim(1) else 1
    places = ops.reshape(index, (case.size, *(1,) * dim, count, *(1,) * (ndim - 1 - dim)))
    shape = list(whole.meta.shape)
    shape[dim + 1] = count
    return ops.gather(whole, dim + 1, ops.expand(places, shape))


@rule("gather")
def _gather(case: Case) -> Any:
    """Read or write along one dimension through an index tensor of the samples' number of dims."""
    ndim = max(case.ndim(0), case.ndim(1))
    operands = case.wholes()
    if not ndim:
        operands = tuple([_at_least_vector(case, place) for place in range(len(operands))])
        return ops.squeeze(case.run(operands, dim=1), 1)
    return case.run(operands, dim=shifted(case.params["dim"], ndim))


def _at_least_vector(case: Case, place: int) -> Any:
    value = case.whole(place)
    return ops.unsqueeze(value, -1) if hasattr(value, "meta") else value


@rule("embedding")
def _embedding(case: Case) -> Any:
    """Look rows up; tables of all samples are one long table."""
    weight, indices = case.operands
    if not case.batched[0]:
        return case.run((weight, indices))
    if case.params.get("padding_idx") is not None and case.params["padding_idx"] >= 0:
        return case.each()
    rows = weight.meta.shape[1]
    return case.run((ops.reshape(weight, (-1, *weight.meta.shape[2:])), _long(case, 1, rows)))


def _long(case: Case, place: int, rows: int) -> Any:
    """Return row numbers of each sample as those of the long table."""
    return ops.add(case.whole(place), ops.mul(_samples(case, case.ndim(place)), rows))


@rule("embedding_backward")
def _embedding_backward(case: Case) -> Any:
    """Add gradients into rows; tables of all samples are one long table."""
    if case.params.get("padding_idx") is not None and case.params["padding_idx"] >= 0:
        return case.each()
    if case.params.get("by_freq"):
        return case.each()
    rows = case.params["rows"]
    result = case.run((case.whole(0), _long(case, 1, rows)), rows=rows * case.size)
    return ops.reshape(result, (case.size, rows, *result.meta.shape[1:]))


@rule("searchsorted")
def _searchsorted(case: Case) -> Any:
    """Find places in sorted sequences: one for all, or one for each sample."""
    sequence, values = case.operands
    if not case.batched[0] and case.ndim(0) == 1:
        return case.run((sequence, values))
    if case.ndim(0) > 1:
        return case.run(case.wholes())
    rows = ops.reshape(case.whole(1), (case.size, -1))
    return ops.reshape(case.run((sequence, rows)), case.whole(1).meta.shape)


@rule("as_strided_backward")
def _as_strided_backward(case: Case) -> Any:
    """Add windows up in a layout; samples lie one after the other."""
    base, size, stride = (case.params[name] for name in ("base", "size", "stride"))
    reach = [extent(base.shape, base.strides), extent(size, stride)]
    low = min(reach[0][0], case.params["shift"] + reach[1][0])
    step = max(reach[0][1], case.params["shift"] + reach[1][1]) - low + 1
    shape, strides = (case.size, *base.shape), (step, *base.strides)
    return case.run(
        case.wholes(), base=meta_of(shape, base.dtype, base.device, strides),
        size=(case.size, *size), stride=(step, *stride),
    )  # fmt: skip


@rule("unfold_backward")
def _unfold_backward(case: Case) -> Any:
    """Add windows up along a dimension."""
    shape = case.params["shape"]
    dim = shifted(case.params["dim"], len(shape))
    return case.run((case.operands[0],), shape=(case.size, *shape), dim=dim)
