"""Shapes and dimensions, as users give them and as broadcasting joins them: pure functions.

State
-----
None. A shape is a tuple of sizes; `Size` is the one that users see.

Invariants
----------
* Dimensions are wrapped (negative ones counted from the end) and checked here, so that the same
  mistake gives the same message in every op.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn, SupportsIndex, overload

from refruntime.errors import ArgumentTypeError, IndexRangeError, ShapeError

Shape = tuple[int, ...]


class Size(tuple[int, ...]):
    """The shape of a tensor: a tuple of ints that prints as PyTorch's and knows its product."""

    __slots__ = ()

    def __new__(cls, sizes: Iterable[Any] = ()) -> Size:
        made = tuple.__new__(cls, sizes)
        for position, size in enumerate(made):
            if type(size) is not int:
                return tuple.__new__(cls, _as_ints(made, position))
        return made

    def numel(self) -> int:
        """Return the number of elements."""
        return math.prod(self)

    def __repr__(self) -> str:
        return f"torch.Size([{', '.join(map(str, self))}])"

    @overload
    def __getitem__(self, key: SupportsIndex) -> int: ...
    @overload
    def __getitem__(self, key: slice) -> Size: ...
    def __getitem__(self, key: Any) -> Any:
        picked = tuple.__getitem__(self, key)
        return tuple.__new__(Size, picked) if isinstance(key, slice) else picked

    def __add__(self, other: Any) -> Size:
        if not isinstance(other, tuple):
            raise TypeError(
                f"can only concatenate tuple (not {type(other).__name__}) to torch.Size"
            )
        return Size(tuple.__add__(self, other))

    def __radd__(self, other: Any) -> Size:
        return Size(other + tuple(self)) if isinstance(other, tuple) else NotImplemented

    def __mul__(self, count: SupportsIndex) -> Size:
        return tuple.__new__(Size, tuple.__mul__(self, count))

    __rmul__ = __mul__


def _as_ints(sizes: tuple[Any, ...], position: int) -> tuple[int, ...]:
    try:
        return tuple(operator.index(size) for size in sizes)
    except TypeError:
        raise ArgumentTypeError(
            "Size",
            what="torch.Size() takes an iterable of 'int'",
            expected="integers",
            got=f"item {position} of type {type(sizes[position]).__name__}",
            remedy="convert the sizes with int(...)",
        ) from None


class MemoryFormat:
    """How a new tensor orders its dimensions in memory."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"torch.{self.name}"

    def __reduce__(self) -> str:
        return self.name


contiguous_format = MemoryFormat("contiguous_format")
channels_last = MemoryFormat("channels_last")
channels_last_3d = MemoryFormat("channels_last_3d")
preserve_format = MemoryFormat("preserve_format")


def numel(shape: Sequence[int]) -> int:
    """Return the number of elements of a shape."""
    return math.prod(shape)


# ---------------------------------------------------------------------------------------------
# Dimensions and shapes that users give


def wrap_dim(dim: Any, ndim: int, op: str) -> int:
    """Return `dim` counted from the start; a zero-dim tensor takes 0 and -1.

    Raises
    ------
    IndexRangeError
        If there is no such dimension.
    ArgumentTypeError
        If `dim` is not an integer.
    """
    try:
        index = operator.index(dim)
    except TypeError:
        raise ArgumentTypeError(
            op, what="argument 'dim' must be int", expected="int", got=type(dim).__name__,
            remedy="pass the number of a dimension",
        ) from None  # fmt: skip
    bound = ndim or 1
    if not -bound <= index < bound:
        raise IndexRangeError(
            op,
            what=f"Dimension out of range (expected to be in range of [{-bound}, {bound - 1}], "
            f"but got {index})",
            expected=f"a dimension of a {ndim}-dim tensor",
            got=index,
            remedy="check the tensor's shape",
        )
    return index + bound if index < 0 else index


def wrap_dims(dims: Any, ndim: int, op: str) -> tuple[int, ...]:
    """Return dimensions counted from the start; None means all, an int one; duplicates raise."""
    if dims is None:
        return tuple(range(ndim))
    listed = dims if isinstance(dims, (tuple, list)) else (dims,)
    wrapped = tuple(wrap_dim(dim, ndim, op) for dim in listed)
    for dim in wrapped:
        if wrapped.count(dim) > 1:
            raise ShapeError(
                op, what=f"dim {dim} appears multiple times in the list of dims",
                expected="different dimensions", got=str(tuple(listed)),
                remedy="name each dimension once",
            )  # fmt: skip
    return wrapped


def reduce_shape(shape: Sequence[int], dims: Sequence[int], keepdim: bool) -> Shape:
    """Return the shape that is left after reducing `dims` (wrapped)."""
    if keepdim:
        return tuple(1 if dim in dims else size for dim, size in enumerate(shape))
    return tuple(size for dim, size in enumerate(shape) if dim not in dims)


def infer_shape(shape: Sequence[int], count: int, op: str) -> Shape:
    """Fill in the one size that is -1, for `count` elements.

    Raises
    ------
    ShapeError
        If the sizes do not multiply to `count`, or more than one is -1.
    """
    unknown = [dim for dim, size in enumerate(shape) if size == -1]
    if len(unknown) > 1:
        _bad_shape(op, shape, count, "only one dimension can be inferred")
    if any(size < -1 for size in shape):
        _bad_shape(op, shape, count, f"invalid shape dimension {min(shape)}")
    known = math.prod(size for size in shape if size != -1)
    if not unknown:
        if known != count:
            _bad_shape(
                op, shape, count, f"shape '{list(shape)}' is invalid for input of size {count}"
            )
        return tuple(shape)
    if known == 0:
        _bad_shape(
            op, shape, count, f"cannot reshape tensor of {count} elements into shape {list(shape)} "
            "because the unspecified dimension size -1 can be any value and is ambiguous",
        )  # fmt: skip
    if count % known:
        _bad_shape(op, shape, count, f"shape '{list(shape)}' is invalid for input of size {count}")
    return tuple(count // known if size == -1 else size for size in shape)


def _bad_shape(op: str, shape: Sequence[int], count: int, what: str) -> NoReturn:
    raise ShapeError(
        op, what=what, expected=f"sizes that multiply to {count}, at most one of them -1",
        got=str(tuple(shape)), remedy="check the sizes",
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------
# Broadcasting


def broadcast_shapes(*shapes: Sequence[int], op: str = "broadcast") -> Shape:
    """Return the shape to which all of `shapes` expand.

    Raises
    ------
    ShapeError
        If two sizes differ and neither is 1.
    """
    first = shapes[0] if shapes else ()
    if all(shape == first for shape in shapes):
        return tuple(first)
    result: list[int] = []
    for shape in shapes:
        if len(shape) > len(result):
            result[:0] = [1] * (len(shape) - len(result))
        start = len(result) - len(shape)
        for dim, size in enumerate(shape, start):
            if result[dim] == 1:
                result[dim] = size
            elif size not in (1, result[dim]):
                _cannot_broadcast(op, shapes, result[dim], size, dim)
    return tuple(result)


def _cannot_broadcast(
    op: str, shapes: Sequence[Sequence[int]], first: int, second: int, dim: int
) -> NoReturn:
    raise ShapeError(
        op,
        what=f"The size of tensor a ({first}) must match the size of tensor b ({second}) at "
        f"non-singleton dimension {dim}",
        expected="shapes that broadcast (equal sizes from the right, or 1)",
        got=" and ".join(str(tuple(shape)) for shape in shapes),
        remedy="reshape one operand, or insert dimensions of size 1",
    )
