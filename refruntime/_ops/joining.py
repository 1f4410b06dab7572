"""Joining tensors: cat, stack and their kin.

Invariants
----------
* The result has the promoted dtype of its parts; legacy empty vectors (shape (0,)) are skipped, as
  torch does.
* Each part is one strided copy into its place in the result.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from refruntime import _dtypes, _layout
from refruntime._dispatch import call
from refruntime._impl import TensorImpl, TensorMeta, meta_of
from refruntime._layout import wrap_dim
from refruntime._ops.opdef import OpDef, front, ops, register, require_tensor
from refruntime._ops.samples import ErrorSample, Sample, T
from refruntime.errors import ArgumentTypeError, ArgumentValueError, DTypeError, ShapeError
from refruntime.kernels.join import join_cpu, join_cuda


def _skipped(meta: TensorMeta) -> bool:
    return meta.ndim == 1 and meta.shape[0] == 0


@lru_cache(maxsize=4096)
def _cat_infer(*tensors: TensorMeta, dim: int) -> TensorMeta:
    parts = [meta for meta in tensors if not _skipped(meta)] or [tensors[0]]
    first = parts[0]
    total = 0
    for number, meta in enumerate(parts):
        if meta.ndim != first.ndim:
            raise ShapeError(
                "cat", what="Tensors must have same number of dimensions: got "
                f"{first.ndim} and {meta.ndim}", expected=f"{first.ndim} dimensions",
                got=meta.ndim, remedy="unsqueeze or reshape the parts",
            )  # fmt: skip
        for d in range(meta.ndim):
            if d != dim and meta.shape[d] != first.shape[d]:
                raise _size_clash(first, meta, number, d, dim)
        total += meta.shape[dim]
    shape = (*first.shape[:dim], total, *first.shape[dim + 1 :])
    dtype = _dtypes.result_type(*[(meta.dtype, _dtypes.DIMENSIONED) for meta in tensors])
    return meta_of(shape, dtype, first.device, _cat_strides(parts, shape))


def _cat_strides(parts: list[TensorMeta], shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Keep channels-last memory if every part has it."""
    if len(shape) == 4 and all(
        not meta.contiguous
        and _layout.is_contiguous(meta.shape, meta.strides, _layout.channels_last)
        for meta in parts
    ):
        return _layout.channels_last_strides(shape)
    return None


def _size_clash(first: TensorMeta, meta: TensorMeta, number: int, d: int, dim: int) -> ShapeError:
    return ShapeError(
        "cat", what=f"Sizes of tensors must match except in dimension {dim}. Expected size "
        f"{first.shape[d]} but got size {meta.shape[d]} for tensor number {number} in the list",
        expected=f"size {first.shape[d]} in dimension {d}", got=meta.shape[d],
        remedy="make the other dimensions equal",
    )  # fmt: skip


def _cat_kernel(join: Any) -> Any:
    def kernel(out: TensorImpl, *tensors: TensorImpl, dim: int) -> None:
        join(out, [tensor for tensor in tensors if not _skipped(tensor.meta)], dim)

    return kernel


def _cat_vjp(g: Any, n: Any) -> tuple[Any, ...]:
    gradients: list[Any] = []
    start = 0
    for meta, needed in zip(n.metas, n.needs, strict=True):
        if _skipped(meta):
            gradients.append(ops.zeros((0,), dtype=g.dtype, device=g.device) if needed else None)
            continue
        size = meta.shape[n.dim]
        gradients.append(ops.narrow(g, n.dim, start, size) if needed else None)
        start += size
    return tuple(gradients)


def _cat_samples() -> list[Sample]:
    return [
        Sample(([T((2, 3)), T((2, 3))],)),
        Sample(([T((2, 1)), T((2, 3), layout="transposed"), T((2, 2), layout="strided")], 1)),
        Sample(([T((3, 4), layout="expanded"), T((3, 4))], -2), grad=False),
        Sample(([T((4,))],)),
        Sample(([T((2,)), T((3,), _dtypes.float64)],), grad=False),
    ]


def _cat_reference(tensors: Any, dim: int = 0) -> Any:
    import numpy as np

    return np.concatenate(tensors, dim)


CAT = register(
    OpDef(
        "cat",
        ("*tensors",),
        jvp="linear",
        batch="cat",
        infer=_cat_infer,
        cpu=_cat_kernel(join_cpu),
        cuda=_cat_kernel(join_cuda),
        vjp=_cat_vjp,
        samples=_cat_samples,
        reference=_cat_reference,
        error_samples=lambda: [
            ErrorSample(([T((2, 3)), T((3, 2))],), RuntimeError, "Sizes of tensors must match"),
            ErrorSample(([T((2, 3)), T((2,))],), RuntimeError, "same number of dimensions"),
            ErrorSample(([],), ValueError, "non-empty"),
            ErrorSample(([T((2,))], 1), IndexError, "Dimension out of range"),
            ErrorSample(([T(()), T(())],), RuntimeError, "zero-dimensional"),
        ],
    )
)


def _parts(op: str, tensors: Any) -> tuple[Any, ...]:
    if isinstance(tensors, TensorImpl) or not isinstance(tensors, (list, tuple)):
        raise ArgumentTypeError(
            op, what=f"{op}(): argument 'tensors' must be tuple of Tensors",
            expected="a list or tuple of tensors", got=type(tensors).__name__,
            remedy="put the tensors into a list",
        )  # fmt: skip
    for tensor in tensors:
        require_tensor(op, tensor, "tensors")
    if not tensors:
        kind = ArgumentValueError if op == "cat" else ShapeError
        raise kind(
            op, what=f"{op}(): expected a non-empty list of Tensors", expected="a tensor",
            got="none", remedy="check the list",
        )  # fmt: skip
    return tuple(tensors)


@front(CAT, method=False, aliases=("concat", "concatenate"))
def cat(tensors: Any, dim: int = 0, *, axis: int | None = None, out: Any = None) -> Any:
    """Join tensors along a dimension that they have.

    Raises
    ------
    ShapeError
        If the sizes differ in another dimension, or a part is zero-dim.
    """
    parts = _parts("cat", tensors)
    dim = dim if axis is None else axis
    for number, part in enumerate(parts):
        if not part.meta.ndim:
            raise ShapeError(
                "cat", what="zero-dimensional tensor (at position "
                f"{number}) cannot be concatenated",
                expected="tensors with dimensions", got="shape ()", remedy="use stack",
            )  # fmt: skip
    ndim = next((part.meta.ndim for part in parts if not _skipped(part.meta)), 1)
    return call(CAT, parts, {"dim": wrap_dim(dim, ndim, "cat")}, out)


@front(CAT, method=False)
def stack(tensors: Any, dim: int = 0, *, out: Any = None) -> Any:
    """Join tensors of one shape along a new dimension."""
    parts = _parts("stack", tensors)
    shape = parts[0].meta.shape
    for number, part in enumerate(parts):
        if part.meta.shape != shape:
            raise ShapeError(
                "stack", what=f"stack expects each tensor to be equal size, but got {list(shape)} "
                f"at entry 0 and {list(part.meta.shape)} at entry {number}",
                expected=str(tuple(shape)), got=str(tuple(part.meta.shape)),
                remedy="reshape the parts, or use cat",
            )  # fmt: skip
    dim = wrap_dim(dim, len(shape) + 1, "stack")
    return call(CAT, tuple([ops.unsqueeze(part, dim) for part in parts]), {"dim": dim}, out)


@front(CAT, method=False)
def hstack(tensors: Any, *, out: Any = None) -> Any:
    """Join tensors side by side: along dimension 1, or 0 for vectors."""
    parts = [ops.atleast_1d(part) for part in _parts("hstack", tensors)]
    return cat(parts, 0 if parts[0].meta.ndim == 1 else 1, out=out)


@front(CAT, method=False, aliases=("row_stack",))
def vstack(tensors: Any, *, out: Any = None) -> Any:
    """Join tensors as rows: along dimension 0."""
    return cat([ops.atleast_2d(part) for part in _parts("vstack", tensors)], 0, out=out)


@front(CAT, method=False)
def dstack(tensors: Any, *, out: Any = None) -> Any:
    """Join tensors in depth: along dimension 2."""
    return cat([ops.atleast_3d(part) for part in _parts("dstack", tensors)], 2, out=out)


@front(CAT, method=False)
def column_stack(tensors: Any, *, out: Any = None) -> Any:
    """Join vectors as columns, and matrices side by side."""
    parts = [
        ops.reshape(part, (-1, 1)) if part.meta.ndim < 2 else part
        for part in _parts("column_stack", tensors)
    ]
    return cat(parts, 1, out=out)


@front(method=False)
def block_diag(*tensors: Any) -> Any:
    """Return a matrix with the given matrices along its diagonal."""
    blocks = [ops.atleast_2d(tensor) for tensor in tensors]
    width = sum(block.meta.shape[1] for block in blocks)
    rows, left = [], 0
    for block in blocks:
        height, columns = block.meta.shape
        row = ops.zeros((height, width), dtype=block.dtype, device=block.device)
        rows.append(ops.slice_scatter(row, block, 1, left, left + columns))
        left += columns
    return cat(rows, 0)


@front(method=False)
def meshgrid(*tensors: Any, indexing: str = "ij") -> tuple[Any, ...]:
    """Return the coordinate grids of vectors, as views; `indexing` is ``ij`` or ``xy``."""
    if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)):
        tensors = tuple(tensors[0])
    if indexing not in ("ij", "xy"):
        raise ArgumentValueError(
            "meshgrid", what='indexing must be one of "xy" or "ij"', expected="'ij' or 'xy'",
            got=repr(indexing), remedy="name one of them",
        )  # fmt: skip
    vectors = [ops.reshape(tensor, (-1,)) for tensor in _parts("meshgrid", tensors)]
    for vector in vectors:
        if vector.meta.dtype is not vectors[0].meta.dtype:
            raise DTypeError(
                "meshgrid", what="meshgrid expects all tensors to have the same dtype",
                expected=str(vectors[0].meta.dtype), got=str(vector.meta.dtype),
                remedy="convert the vectors",
            )  # fmt: skip
    swap = indexing == "xy" and len(vectors) > 1
    if swap:
        vectors[0], vectors[1] = vectors[1], vectors[0]
    shape = tuple(vector.meta.numel for vector in vectors)
    grids = []
    for place, vector in enumerate(vectors):
        sizes = [1] * len(shape)
        sizes[place] = shape[place]
        grids.append(ops.expand(ops.view(vector, sizes), shape))
    if swap:
        grids[0], grids[1] = grids[1], grids[0]
    return tuple(grids)


@front(method=False)
def cartesian_prod(*tensors: Any) -> Any:
    """Return all combinations of the elements of vectors, one a row."""
    if len(tensors) == 1:
        return tensors[0]
    grids = meshgrid(*tensors, indexing="ij")
    return stack([ops.reshape(grid, (-1,)) for grid in grids], 1)
