"""What operators do with sparse tensors: products with dense matrices, sums, scaling.

Invariants
----------
* Every rule is composed of ordinary operators on places and values, so gradients follow by
  themselves.
"""

from __future__ import annotations

from typing import Any

from refruntime._ops.opdef import ops
from refruntime.errors import ArgumentTypeError, ShapeError
from refruntime.sparse.coo import SparseTensor, build


def _is_sparse(value: Any) -> bool:
    return isinstance(value, SparseTensor)


def _check_product(op: str, a: Any, b: Any) -> None:
    if a.dim() != 2 or b.dim() not in (1, 2) or a.shape[1] != b.shape[0]:
        raise ShapeError(
            op, what="mat1 and mat2 shapes cannot be multiplied",
            expected="a matrix, and one with as many rows as the first has columns",
            got=f"{tuple(a.shape)} and {tuple(b.shape)}", remedy="transpose an operand",
        )  # fmt: skip


def mm(input: Any, mat2: Any) -> Any:
    """Return the product of two matrices of which one or both are sparse."""
    _check_product("mm", input, mat2)
    if not _is_sparse(input):
        return ops.transpose(mm(mat2.t(), ops.transpose(input, 0, 1)), 0, 1)
    if _is_sparse(mat2):
        return _sparse_by_sparse(input, mat2)
    rows, columns = input._indices()
    values = input._values()
    taken = ops.index_select(mat2, 0, columns)
    scaled = taken * (ops.unsqueeze(values, 1) if mat2.dim() == 2 else values)
    shape = (input.shape[0], *mat2.shape[1:])
    zeros = ops.zeros(shape, dtype=scaled.dtype, device=scaled.device)
    return ops.index_add(zeros, 0, rows, scaled)


def _sparse_by_sparse(a: SparseTensor, b: SparseTensor) -> SparseTensor:
    """Join each element of `a` with the elements of the row of `b` that its column names."""
    a, b = a.coalesce(), b.coalesce()
    rows_of_b = b.indices()[0]
    starts = ops.searchsorted(rows_of_b, ops.arange(b.shape[0] + 1, device=b.device))
    lengths = starts[1:] - starts[:-1]
    a_rows, a_columns = a.indices()
    counts = ops.index_select(lengths, 0, a_columns)
    left = ops.repeat_interleave(ops.arange(a._nnz(), device=a.device), counts)
    # The place of each pair within its row of b.
    firsts = ops.cumsum(counts, 0) - counts
    within = ops.arange(left.shape[0], device=a.device) - ops.index_select(firsts, 0, left)
    right = ops.index_select(starts, 0, ops.index_select(a_columns, 0, left)) + within
    values = ops.index_select(a.values(), 0, left) * ops.index_select(b.values(), 0, right)
    places = ops.stack(
        [ops.index_select(a_rows, 0, left), ops.index_select(b.indices()[1], 0, right)]
    )
    return build(places, values, (a.shape[0], b.shape[1]), False).coalesce()


def addmm(input: Any, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """Return ``beta * input + alpha * (mat1 @ mat2)`` for a sparse `mat1`."""
    product = mm(mat1, mat2)
    return input * beta + (product if alpha == 1 else product * alpha)


def add(input: Any, other: Any, *, alpha: Any = 1) -> Any:
    """Return the sum of two tensors; sparse if both are."""
    if not (_is_sparse(input) and _is_sparse(other)):
        first, second = (v.to_dense() if _is_sparse(v) else v for v in (input, other))
        return ops.add(first, second, alpha=alpha)
    if input.shape != other.shape:
        raise ShapeError(
            "add", expected="two sparse tensors of one shape",
            got=f"{tuple(input.shape)} and {tuple(other.shape)}",
        )  # fmt: skip
    places = ops.cat([input._indices(), other._indices()], 1)
    values = ops.cat([input._values(), other._values() * alpha], 0)
    return build(places, values, input.shape, False).coalesce()


def subtract(input: Any, other: Any, *, alpha: Any = 1) -> Any:
    """Return the difference of two tensors."""
    return add(input, other, alpha=-alpha)


def multiply(input: Any, other: Any) -> Any:
    """Return the product of a sparse tensor with a number, or element by element."""
    if not _is_sparse(input):
        input, other = other, input
    if _is_sparse(other):
        return multiply(input.coalesce(), other.to_dense())
    if isinstance(other, (int, float, complex)) or other.dim() == 0:
        return input._with(input._values() * other)
    factors = ops.expand(other, tuple(input.shape))
    return input._with(input._values() * factors[tuple(ops.unbind(input._indices(), 0))])


def divide(input: Any, other: Any, **params: Any) -> Any:
    """Return the values over a number, or over the elements of a dense tensor."""
    if not _is_sparse(input) or _is_sparse(other):
        raise ArgumentTypeError("div", expected="sparse / dense", got="a sparse divisor")
    return multiply(input, 1 / other)


def total(input: Any, dim: Any = None, dtype: Any = None) -> Any:
    """Return the sum of all elements, or a tensor with the given dimensions summed.

    Parameters
    ----------
    input : SparseTensor
    dim : int or sequence of int, optional
        The dimensions to sum. What is left is sparse while a sparse dimension is left.
    dtype : optional
        The dtype of the sum.
    """
    values = input._values() if dtype is None else input._values().to(dtype)
    if dim is None:
        return ops.sum(values)
    dims = {d % input.dim() for d in ((dim,) if isinstance(dim, int) else dim)}
    sparse = input.sparse_dim()
    dense = [d - sparse + 1 for d in dims if d >= sparse]
    values = ops.sum(values, dense) if dense else values
    kept = [d for d in range(sparse) if d not in dims]
    if not kept:
        return ops.sum(values, 0)
    shape = [size for d, size in enumerate(input.shape) if d not in dims]
    return build(input._indices()[kept], values, shape, False).coalesce()


def _matmul(input: Any, mat2: Any) -> Any:
    return mm(input, mat2)


def _sum(input: Any, *, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    if keepdim:
        raise ArgumentTypeError("sum", expected="keepdim=False", got="a sparse tensor")
    return total(input, dim, dtype)


def _transpose(input: Any, dim0: int, dim1: int) -> Any:
    return input.transpose(dim0, dim1)


def _on_values(name: str) -> Any:
    """Make the rule of a function that is zero at zero: it acts on the values alone."""

    def rule(input: Any) -> Any:
        once = input.coalesce()
        return once._with(getattr(ops, name)(once.values()))

    return rule


SparseTensor.rules.update(
    mm=mm, mv=_matmul, bmm=_matmul, addmm=addmm, add=add, sub=subtract, mul=multiply, div=divide,
    sum=_sum, transpose=_transpose,
)  # fmt: skip
SparseTensor.rules.update(
    {name: _on_values(name)
     for name in ("abs", "expm1", "log1p", "neg", "relu", "sign", "sin", "sqrt", "square", "tanh")}
)  # fmt: skip
