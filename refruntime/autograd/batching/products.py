"""Batching rules of products: matrices, vectors, linear layers, convolutions, attention.

Invariants
----------
* A product with one batched factor stays one product of matrices where it can: the other factor is
  never copied for each sample.
* A convolution folds the batch into its own batch if weights are shared, else into its groups.
"""

from __future__ import annotations

from typing import Any

from refruntime._impl import TensorImpl
from refruntime._ops.opdef import ops
from refruntime.autograd.batching.generic import Case, batch_call, rule


@rule("matmul")
def _matmul(case: Case) -> Any:
    """Multiply stacks of matrices; leading dimensions broadcast."""
    ndim = max(case.ndim(0), case.ndim(1))
    return batch_call("bmm", (case.aligned(0, ndim), case.aligned(1, ndim)))


@rule("mv")
def _mv(case: Case) -> Any:
    """Multiply matrices with vectors."""
    matrix, vector = case.operands
    if case.batched[0] and case.batched[1]:
        return ops.squeeze(batch_call("bmm", (matrix, ops.unsqueeze(vector, -1))), -1)
    if case.batched[0]:
        return ops.matmul(matrix, vector)
    return batch_call("mm", (vector, ops.transpose(matrix, 0, 1)))


@rule("dot")
def _dot(case: Case) -> Any:
    """Multiply vectors."""
    first, second = case.operands
    if case.op.name == "vdot" and first.meta.dtype.is_complex:
        first = ops.conj(first)
    return ops.sum(ops.mul(first, second), -1)


@rule("addmm")
def _addmm(case: Case) -> Any:
    """Add products of matrices."""
    beta, alpha = case.params["beta"], case.params["alpha"]
    ndim = max(case.ndim(1), case.ndim(2))
    product = batch_call("bmm", (case.aligned(1, ndim), case.aligned(2, ndim)))
    if alpha != 1:
        product = ops.mul(product, alpha)
    if beta == 0:
        return product
    added = case.aligned(0, ndim)
    return ops.add(product, added if beta == 1 else ops.mul(added, beta))


@rule("linear")
def _linear(case: Case) -> Any:
    """Apply a linear layer, shared or one for each sample."""
    input, weight, bias = case.operands
    if not case.batched[1]:
        if not case.batched[2]:
            return case.run((input, weight, bias))
        return ops.add(case.run((input, weight, None)), case.aligned(2, case.ndim(0)))
    ndim = case.ndim(0)
    turned = ops.transpose(weight, -2, -1)
    if not case.batched[0]:
        return _with_bias(case, _shared_input(case, input, turned, ndim), ndim)
    rows = ops.reshape(input, (case.size, -1, input.meta.shape[-1]))
    product = batch_call("bmm", (rows, turned))
    shape = (*input.meta.shape[:-1], weight.meta.shape[-2])
    return _with_bias(case, ops.reshape(product, shape), ndim)


def _shared_input(case: Case, input: Any, turned: Any, ndim: int) -> Any:
    rows = ops.reshape(input, (-1, input.meta.shape[-1]))
    product = batch_call("bmm", (rows, turned))
    return ops.reshape(product, (case.size, *input.meta.shape[:-1], turned.meta.shape[-1]))


def _with_bias(case: Case, result: Any, ndim: int) -> Any:
    return result if case.operands[2] is None else ops.add(result, case.aligned(2, ndim))


# ---------------------------------------------------------------------------------------------
# Convolutions


def folded(value: Any) -> Any:
    """Make one dimension of the batch and the first dimension of samples."""
    shape = value.meta.shape
    return ops.reshape(value, (shape[0] * shape[1], *shape[2:]))


def unfolded(value: Any, size: int) -> Any:
    """Undo `folded`."""
    shape = value.meta.shape
    return ops.reshape(value, (size, shape[0] // size, *shape[1:]))


def channels_folded(value: Any) -> Any:
    """Turn ``[batch, N, C, ...]`` into ``[N, batch * C, ...]``."""
    turned = ops.transpose(value, 0, 1)
    shape = turned.meta.shape
    return ops.reshape(turned, (shape[0], shape[1] * shape[2], *shape[3:]))


def channels_unfolded(value: Any, size: int) -> Any:
    """Undo `channels_folded`."""
    shape = value.meta.shape
    return ops.transpose(ops.reshape(value, (shape[0], size, shape[1] // size, *shape[2:])), 0, 1)


@rule("convolution")
def _convolution(case: Case) -> Any:
    """Convolve with shared weights, or with weights of each sample as groups."""
    input, weight, bias = case.operands
    if case.batched[1]:
        operands = (
            channels_folded(case.whole(0)), folded(weight),
            None if bias is None else folded(case.whole(2)),
        )  # fmt: skip
        result = case.run(operands, groups=case.params["groups"] * case.size)
        return channels_unfolded(result, case.size)
    if not case.batched[2]:
        return unfolded(case.run((folded(input), weight, bias)), case.size)
    result = case.run((folded(input) if case.batched[0] else input, weight, None))
    if case.batched[0]:
        result = unfolded(result, case.size)
    shape = bias.meta.shape
    spatial = (1,) * (weight.meta.ndim - 2)
    return ops.add(result, ops.reshape(bias, (shape[0], 1, shape[1], *spatial)))


@rule("convolution_weight")
def _convolution_weight(case: Case) -> Any:
    """Return the gradients of the weights of each sample: one convolution with groups."""
    grad, input = (channels_folded(case.whole(place)) for place in (0, 1))
    result = case.run((grad, input), groups=case.params["groups"] * case.size)
    return unfolded(result, case.size)


@rule("attention")
def _attention(case: Case) -> Any:
    """Attend in all samples at once: heads of all samples are one dimension already."""
    *stacks, mask = case.wholes()
    if mask is not None:
        mask = _folded_mask(mask, case)
    results = case.run((*map(folded, stacks), mask))
    if isinstance(results, tuple):
        return tuple([unfolded(result, case.size) for result in results])
    return unfolded(results, case.size)


def _folded_mask(mask: TensorImpl, case: Case) -> Any:
    """Fold a mask ``[batch, samples or 1, heads or 1, ...]`` so that it fits the folded heads."""
    if not case.batched[-1] and mask.meta.shape[1] == 1:
        return case.operands[-1]
    samples = case.length(0) // case.params["heads"]
    shape = mask.meta.shape
    return folded(ops.expand(mask, (shape[0], samples, *shape[2:])))
