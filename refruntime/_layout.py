"""The views that a layout allows: pure functions, no arrays.

State
-----
None. A layout is a shape (tuple of sizes) and strides (tuple, in elements); functions that make a
view return ``(shape, strides, offset)``, the offset in elements from the source's first element.

Invariants
----------
* Rules and the strides that they give equal PyTorch's, those of dimensions of size 1 included.
* Dimensions arrive as the user wrote them; each rule wraps and checks them.
* What belongs to shapes alone stands in `_shape`, what belongs to strides in `_strides`; both are
  offered here too, so that the layers above import one module.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from refruntime._shape import (
    MemoryFormat,
    Shape,
    Size,
    broadcast_shapes,
    channels_last,
    channels_last_3d,
    contiguous_format,
    infer_shape,
    numel,
    preserve_format,
    reduce_shape,
    wrap_dim,
    wrap_dims,
)
from refruntime._strides import (
    Strides,
    channels_last_strides,
    collapse,
    contiguous_strides,
    dense_strides,
    elementwise_strides,
    extent,
    has_internal_overlap,
    is_contiguous,
    is_dense,
)
from refruntime.errors import ArgumentValueError, IndexRangeError, ShapeError

__all__ = [
    "MemoryFormat", "Shape", "Size", "Strides", "View", "as_strided", "broadcast_shapes",
    "broadcast_strides", "channels_last", "channels_last_3d", "channels_last_strides", "collapse",
    "contiguous_format", "contiguous_strides", "dense_strides", "diagonal", "elementwise_strides",
    "expand", "extent", "flatten_shape", "has_internal_overlap", "infer_shape", "is_contiguous",
    "is_dense", "movedim", "narrow", "numel", "permute", "preserve_format", "reduce_shape",
    "select", "slice_", "squeeze", "transpose", "unflatten_shape", "unfold", "unsqueeze",
    "view_strides", "wrap_dim", "wrap_dims",
]  # fmt: skip

View = tuple[Shape, Strides, int]


def broadcast_strides(
    shape: Sequence[int], strides: Sequence[int], target_shape: Sequence[int]
) -> Strides:
    """Return the strides with which a layout is read as `target_shape`: 0 where it repeats."""
    missing = len(target_shape) - len(shape)
    kept = (
        0 if size == 1 and target != 1 else stride
        for size, stride, target in zip(shape, strides, target_shape[missing:], strict=True)
    )
    return (0,) * missing + tuple(kept)


def expand(
    shape: Sequence[int], strides: Sequence[int], sizes: Sequence[int], op: str = "expand"
) -> View:
    """Repeat dimensions of size 1 (and new leading ones) without copying; -1 keeps a size."""
    missing = len(sizes) - len(shape)
    if missing < 0:
        raise ShapeError(
            op, what=f"the number of sizes provided ({len(sizes)}) must be greater or equal to the "
            f"number of dimensions in the tensor ({len(shape)})",
            expected=f"at least {len(shape)} sizes", got=str(tuple(sizes)),
            remedy="name a size for each dimension; -1 keeps it",
        )  # fmt: skip
    new_shape, new_strides = list(sizes), [0] * len(sizes)
    if not shape and min(sizes, default=0) >= 0:
        return tuple(new_shape), tuple(new_strides), 0
    for dim in range(len(sizes) - 1, -1, -1):
        if dim >= missing:
            size, stride = shape[dim - missing], strides[dim - missing]
        else:
            size = 1
            stride = new_shape[dim + 1] * new_strides[dim + 1] if dim + 1 < len(sizes) else 1
        target = sizes[dim]
        if target == -1 and dim >= missing:
            target = size
        if target != size and (size != 1 or target < 0):
            _cannot_expand(op, shape, sizes, dim, size)
        new_shape[dim] = target
        new_strides[dim] = stride if target == size else 0
    return tuple(new_shape), tuple(new_strides), 0


def _cannot_expand(
    op: str, shape: Sequence[int], sizes: Sequence[int], dim: int, size: int
) -> NoReturn:
    raise ShapeError(
        op,
        what=f"The expanded size of the tensor ({sizes[dim]}) must match the existing size "
        f"({size}) at non-singleton dimension {dim}.  Target sizes: {list(sizes)}.  "
        f"Tensor sizes: {list(shape)}",
        expected="equal sizes wherever the tensor's size is not 1",
        got=f"{tuple(shape)} to {tuple(sizes)}",
        remedy="only dimensions of size 1 expand; use repeat() to copy",
    )


def view_strides(
    shape: Sequence[int], strides: Sequence[int], new_shape: Sequence[int]
) -> Strides | None:
    """Return the strides that show the elements as `new_shape`, or None if that takes a copy."""
    if 0 in shape:
        return tuple(strides) if tuple(shape) == tuple(new_shape) else contiguous_strides(new_shape)
    if not shape:
        return (1,) * len(new_shape)
    runs = _runs(shape, strides)
    result: list[int] = []
    count, step = runs.pop()
    taken = 1
    for size in reversed(new_shape):
        while taken == count and size != 1:
            count, step = runs.pop()
            taken = 1
        result.append(taken * step)
        taken *= size
        if count % taken:
            return None
    return tuple(reversed(result))


def _runs(shape: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int]]:
    """Split a layout into runs of equally spaced elements: (length, step), the innermost last."""
    runs: list[tuple[int, int]] = []
    count, step = 1, strides[-1]
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != count * step:
            runs.append((count, step))
            count, step = 1, stride
        count *= size
    runs.append((count, step))
    return runs[::-1]


def transpose(
    shape: Sequence[int], strides: Sequence[int], dim0: int, dim1: int, op: str = "transpose"
) -> View:
    """Swap two dimensions."""
    first, second = wrap_dim(dim0, len(shape), op), wrap_dim(dim1, len(shape), op)
    order = list(range(len(shape)))
    if order:
        order[first], order[second] = second, first
    return _reorder(shape, strides, order)


def _reorder(shape: Sequence[int], strides: Sequence[int], order: Sequence[int]) -> View:
    return tuple(shape[dim] for dim in order), tuple(strides[dim] for dim in order), 0


def permute(
    shape: Sequence[int], strides: Sequence[int], dims: Sequence[int], op: str = "permute"
) -> View:
    """Put the dimensions in the order `dims`."""
    if len(dims) != len(shape):
        raise ShapeError(
            op, what="permute(sparse_coo): number of dimensions in the tensor input does not match "
            f"the length of the desired ordering of dimensions i.e. input.dim() = {len(shape)} is "
            f"not equal to len(dims) = {len(dims)}",
            expected=f"{len(shape)} dimensions", got=str(tuple(dims)),
            remedy="name each dimension once",
        )  # fmt: skip
    return _reorder(shape, strides, wrap_dims(tuple(dims), len(shape), op))


def movedim(
    shape: Sequence[int], strides: Sequence[int], source: Any, destination: Any, op: str = "movedim"
) -> View:
    """Move dimensions to new places; the others keep their order."""
    frm, to = wrap_dims(source, len(shape), op), wrap_dims(destination, len(shape), op)
    if len(frm) != len(to):
        raise ShapeError(
            op, what="Invalid source or destination dims: source should have the same number of "
            "elements as destination", expected=f"{len(frm)} destinations", got=str(to),
            remedy="name a destination for each source",
        )  # fmt: skip
    rest = iter(dim for dim in range(len(shape)) if dim not in frm)
    placed = dict(zip(to, frm, strict=True))
    order = [placed[dim] if dim in placed else next(rest) for dim in range(len(shape))]
    return _reorder(shape, strides, order)


def select(
    shape: Sequence[int], strides: Sequence[int], dim: int, index: int, op: str = "select"
) -> View:
    """Take one index of a dimension, which goes away."""
    if not shape:
        raise IndexRangeError(
            op, what="select() cannot be applied to a 0-dim tensor.",
            expected="a tensor with dimensions", got="shape ()",
            remedy="use .item() to read a 0-dim tensor",
        )  # fmt: skip
    dim = wrap_dim(dim, len(shape), op)
    size = shape[dim]
    if not -size <= index < size:
        raise IndexRangeError(
            op, what=f"index {index} is out of bounds for dimension {dim} with size {size}",
            expected=f"an index in [{-size}, {size - 1}]", got=index, remedy="check the index",
        )  # fmt: skip
    offset = (index + size if index < 0 else index) * strides[dim]
    return _without(shape, dim), _without(strides, dim), offset


def _without(values: Sequence[int], dim: int) -> tuple[int, ...]:
    return (*values[:dim], *values[dim + 1 :])


def _replace(values: Sequence[int], dim: int, value: int) -> tuple[int, ...]:
    return (*values[:dim], value, *values[dim + 1 :])


def slice_(
    shape: Sequence[int], strides: Sequence[int], dim: int, start: int | None = None,
    stop: int | None = None, step: int | None = 1, op: str = "slice",
) -> View:  # fmt: skip
    """Take every `step`-th index from `start` to `stop`, clipped to the dimension as lists do."""
    dim = wrap_dim(dim, len(shape), op)
    step = 1 if step is None else step
    if step <= 0:
        raise ArgumentValueError(
            op, what="step must be greater than zero",
            expected="a step of at least 1", got=step, remedy="use flip() to reverse a dimension",
        )  # fmt: skip
    picked = range(*slice(start, stop, step).indices(shape[dim]))
    offset = picked.start * strides[dim] if picked else min(picked.start, shape[dim]) * strides[dim]
    return _replace(shape, dim, len(picked)), _replace(strides, dim, strides[dim] * step), offset


def narrow(
    shape: Sequence[int], strides: Sequence[int], dim: int, start: int, length: int,
    op: str = "narrow",
) -> View:  # fmt: skip
    """Take `length` indices from `start`; unlike a slice, it must lie inside the dimension."""
    if not shape:
        raise ShapeError(
            op, what="narrow() cannot be applied to a 0-dim tensor.",
            expected="a tensor with dimensions", got="shape ()", remedy="unsqueeze it first",
        )  # fmt: skip
    dim = wrap_dim(dim, len(shape), op)
    size = shape[dim]
    if not -size <= start <= size:
        raise IndexRangeError(
            op, what=f"start out of range (expected to be in range of [{-size}, {size}], "
            f"but got {start})", expected=f"a start in dimension {dim} of size {size}", got=start,
            remedy="check the start",
        )  # fmt: skip
    first = start + size if start < 0 else start
    if length < 0 or first + length > size:
        raise ShapeError(
            op, what="narrow(): length must be non-negative." if length < 0 else
            f"start ({first}) + length ({length}) exceeds dimension size ({size}).",
            expected=f"a length in [0, {size - first}]", got=length, remedy="check the length",
        )  # fmt: skip
    return _replace(shape, dim, length), tuple(strides), first * strides[dim]


def squeeze(
    shape: Sequence[int], strides: Sequence[int], dims: Any = None, op: str = "squeeze"
) -> View:
    """Drop dimensions of size 1: all of them, or those among `dims`."""
    named = wrap_dims(dims, len(shape), op)
    kept = [dim for dim in range(len(shape)) if shape[dim] != 1 or dim not in named]
    return _reorder(shape, strides, kept)


def unsqueeze(
    shape: Sequence[int], strides: Sequence[int], dim: int, op: str = "unsqueeze"
) -> View:
    """Insert a dimension of size 1 before `dim`."""
    at = wrap_dim(dim, len(shape) + 1, op)
    stride = 1 if at == len(shape) else shape[at] * strides[at]
    return (*shape[:at], 1, *shape[at:]), (*strides[:at], stride, *strides[at:]), 0


def unfold(
    shape: Sequence[int], strides: Sequence[int], dim: int, size: int, step: int,
    op: str = "unfold",
) -> View:  # fmt: skip
    """Show windows of `size` indices, `step` apart, as a new last dimension."""
    dim = wrap_dim(dim, len(shape), op)
    length = shape[dim] if shape else 1
    stride = strides[dim] if shape else 1
    if not 0 <= size <= length or step <= 0:
        raise ShapeError(
            op, what=f"step is {step} but must be > 0" if step <= 0 else
            f"maximum size for tensor at dimension {dim} is {length} but size is {size}",
            expected=f"a size in [0, {length}] and a step of at least 1",
            got=f"size {size}, step {step}", remedy="pad the tensor or shrink the window",
        )  # fmt: skip
    if not shape:
        return (size,), (1,), 0
    windows = (length - size) // step + 1
    new_shape = (*_replace(shape, dim, windows), size)
    return new_shape, (*_replace(strides, dim, stride * step), stride), 0


def diagonal(
    shape: Sequence[int], strides: Sequence[int], offset: int = 0, dim1: int = 0, dim2: int = 1,
    op: str = "diagonal",
) -> View:  # fmt: skip
    """Show the diagonal of two dimensions as a new last one."""
    first, second = wrap_dim(dim1, len(shape), op), wrap_dim(dim2, len(shape), op)
    if first == second:
        raise ShapeError(
            op, what=f"diagonal dimensions cannot be identical {dim1}, {dim2}",
            expected="two different dimensions", got=f"{dim1} and {dim2}",
            remedy="name another dimension",
        )  # fmt: skip
    rows, columns = shape[first], shape[second]
    length = max(min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns), 0)
    shift = offset * strides[second] if offset >= 0 else -offset * strides[first]
    kept = [dim for dim in range(len(shape)) if dim not in (first, second)]
    new_shape, new_strides, _ = _reorder(shape, strides, kept)
    step = strides[first] + strides[second]
    return (*new_shape, length), (*new_strides, step), shift if length else 0


def as_strided(
    size: Sequence[int], stride: Sequence[int], capacity: int, offset: int = 0,
    op: str = "as_strided",
) -> View:  # fmt: skip
    """Check a layout that the user chose against a storage of `capacity` elements."""
    if len(size) != len(stride):
        _bad_layout(op, "mismatch in length of strides and shape", size, stride)
    if any(step < 0 for step in stride):
        _bad_layout(op, "Negative strides are not supported at the moment", size, stride)
    if any(length < 0 for length in size) or offset < 0:
        _bad_layout(op, "sizes and the storage offset must not be negative", size, stride)
    highest = extent(size, stride)[1] + offset
    if 0 not in size and highest >= capacity:
        _bad_layout(
            op, f"setStorage: sizes {list(size)}, strides {list(stride)}, storage offset {offset} "
            f"require {highest + 1} elements, out of bounds for storage of {capacity}",
            size, stride,
        )  # fmt: skip
    return tuple(size), tuple(stride), offset


def _bad_layout(op: str, what: str, size: Sequence[int], stride: Sequence[int]) -> NoReturn:
    raise ShapeError(
        op, what=what, expected="a layout inside the storage",
        got=f"size {tuple(size)}, stride {tuple(stride)}", remedy="check size, stride and offset",
    )  # fmt: skip


def flatten_shape(
    shape: Sequence[int], start_dim: int = 0, end_dim: int = -1, op: str = "flatten"
) -> Shape:
    """Return the shape with the dimensions from `start_dim` to `end_dim` made one."""
    start, end = wrap_dim(start_dim, len(shape), op), wrap_dim(end_dim, len(shape), op)
    if start > end:
        raise ShapeError(
            op, what="flatten() has invalid args: start_dim cannot come after end_dim",
            expected="start_dim <= end_dim", got=f"{start_dim} and {end_dim}", remedy="swap them",
        )  # fmt: skip
    return (*shape[:start], numel(shape[start : end + 1]), *shape[end + 1 :])


def unflatten_shape(
    shape: Sequence[int], dim: int, sizes: Sequence[int], op: str = "unflatten"
) -> Shape:
    """Return the shape with dimension `dim` split into `sizes` (one of which may be -1)."""
    at = wrap_dim(dim, len(shape), op)
    if not sizes or not shape:
        raise ShapeError(
            op, what="sizes must be non-empty" if shape else "a 0-dim tensor cannot be unflattened",
            expected="a dimension, and at least one size", got=f"{tuple(shape)}, {tuple(sizes)}",
            remedy="name the sizes, or unsqueeze the tensor first",
        )  # fmt: skip
    return (*shape[:at], *infer_shape(sizes, shape[at], op), *shape[at + 1 :])
