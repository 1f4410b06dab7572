"""What strides say: order in memory, gaps, overlap, and loops that can be merged.

State
-----
None. Strides are tuples, in elements, one a dimension.

Invariants
----------
* Strides computed here for a new tensor equal PyTorch's, those of dimensions of size 1 included.
"""

from __future__ import annotations

from collections.abc import Sequence

from refruntime._shape import (
    MemoryFormat,
    Shape,
    channels_last,
    channels_last_3d,
    contiguous_format,
)

Strides = tuple[int, ...]


def contiguous_strides(shape: Sequence[int]) -> Strides:
    """Return row-major strides. A size of 0 counts as 1, as in PyTorch."""
    strides = [1] * len(shape)
    for dim in range(len(shape) - 2, -1, -1):
        strides[dim] = strides[dim + 1] * max(shape[dim + 1], 1)
    return tuple(strides)


def channels_last_strides(shape: Sequence[int]) -> Strides:
    """Return the strides of (N, C, spatial...) memory in which channels vary fastest."""
    order = [1, *range(len(shape) - 1, 1, -1), 0]
    return _strides_in_order(shape, order)


def _strides_in_order(shape: Sequence[int], order: Sequence[int]) -> Strides:
    """Return dense strides whose dimensions vary in `order`, the fastest first."""
    strides = [1] * len(shape)
    step = 1
    for dim in order:
        strides[dim] = step
        step *= shape[dim]
    return tuple(strides)


def is_contiguous(
    shape: Sequence[int], strides: Sequence[int], memory_format: MemoryFormat = contiguous_format
) -> bool:
    """Say whether elements lie in row-major (or channels-last) order without gaps."""
    order: Sequence[int] = range(len(shape) - 1, -1, -1)
    if memory_format in (channels_last, channels_last_3d):
        if len(shape) != (4 if memory_format is channels_last else 5):
            return False
        order = [1, *range(len(shape) - 1, 1, -1), 0]
    elif 0 in shape:
        return True
    expected = 1
    for dim in order:
        if shape[dim] != 1:
            if strides[dim] != expected:
                return False
            expected *= shape[dim]
    return True


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Say whether the elements fill one span without gaps or overlap, in any order of dims."""
    if 0 in shape:
        return True
    expected = 1
    for stride, size in sorted((t, s) for s, t in zip(shape, strides, strict=True) if s != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def dense_strides(shape: Sequence[int], *layouts: Sequence[int]) -> Strides:
    """Return the strides of a new tensor like operands with these strides (``empty_like``).

    One dense layout is kept; otherwise dimensions keep the order in which they vary in memory,
    the first operand that can tell two of them apart deciding.
    """
    first = layouts[0]
    if all(tuple(other) == tuple(first) for other in layouts) and is_dense(shape, first):
        return tuple(first)
    order = list(range(len(shape) - 1, -1, -1))
    for start in range(1, len(order)):
        _insert(order, start, shape, layouts)
    return _strides_in_order(shape, order)


def elementwise_strides(shape: Sequence[int], *layouts: Sequence[int]) -> Strides:
    """Return the strides of an elementwise result over operands broadcast to `shape`.

    As `dense_strides`, but operands that are all contiguous, or all channels-last, give a result
    of that kind whatever the strides of their dimensions of size 1.
    """
    if all(is_contiguous(shape, strides) for strides in layouts):
        return contiguous_strides(shape)
    if all(is_contiguous(shape, strides, channels_last) for strides in layouts):
        return channels_last_strides(shape)
    return dense_strides(shape, *layouts)


def _insert(
    order: list[int], start: int, shape: Sequence[int], layouts: Sequence[Sequence[int]]
) -> None:
    """Move the dimension at `start` before the slower ones; ties stay, and do not stop the walk."""
    here = start
    for earlier in range(start - 1, -1, -1):
        comparison = _compare_dims(order[earlier], order[here], shape, layouts)
        if comparison > 0:
            order[earlier], order[here] = order[here], order[earlier]
            here = earlier
        elif comparison < 0:
            return


def _compare_dims(
    first: int, second: int, shape: Sequence[int], layouts: Sequence[Sequence[int]]
) -> int:
    """Return 1 if `first` is slower than `second`, -1 if faster, 0 if nothing tells."""
    for strides in layouts:
        slow, fast = strides[first], strides[second]
        if slow == 0 or fast == 0:
            continue
        if slow != fast:
            return 1 if slow > fast else -1
        if shape[first] > shape[second]:
            return 1
    return 0


def extent(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, int]:
    """Return the lowest and the highest element offset that a layout reaches, both inclusive.

    An empty layout reaches ``(0, -1)``.
    """
    if 0 in shape:
        return 0, -1
    reach = [(size - 1) * stride for size, stride in zip(shape, strides, strict=True)]
    return sum(r for r in reach if r < 0), sum(r for r in reach if r > 0)


def has_internal_overlap(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Say whether a dimension repeats the same elements, as expanded ones do.

    Windows that overlap partly (`unfold`) are not looked for, as in PyTorch: writing to them is
    allowed, and the last write wins.
    """
    if 0 in shape:
        return False
    return any(size > 1 and stride == 0 for size, stride in zip(shape, strides, strict=True))


def collapse(
    shape: Sequence[int], strides_lists: Sequence[Sequence[int]], *, reorder: bool = False
) -> tuple[Shape, tuple[Strides, ...]]:
    """Merge dimensions that every operand walks as one, and drop those of size 1.

    Parameters
    ----------
    shape : sequence of int
        The common iteration shape.
    strides_lists : sequence of strides
        One entry an operand, the output first.
    reorder : bool
        Also sort the dimensions so that the innermost varies fastest in memory, the first operand
        that can tell deciding. For kernels whose order of elements does not matter.

    Returns
    -------
    shape, strides_lists
        Outermost dimension first; both without dimensions for a single element.
    """
    dims = [dim for dim in range(len(shape)) if shape[dim] != 1]
    if reorder:
        order = dims[::-1]
        for start in range(1, len(order)):
            _insert(order, start, shape, strides_lists)
        dims = order[::-1]
    sizes: list[int] = []
    walks: list[list[int]] = [[] for _ in strides_lists]
    for dim in dims:
        steps = [strides[dim] for strides in strides_lists]
        size = shape[dim]
        if sizes and all(w[-1] == step * size for w, step in zip(walks, steps, strict=True)):
            sizes[-1] *= size
            for walk, step in zip(walks, steps, strict=True):
                walk[-1] = step
        else:
            sizes.append(size)
            for walk, step in zip(walks, steps, strict=True):
                walk.append(step)
    return tuple(sizes), tuple(map(tuple, walks))
