"""Taking a tensor apart: unbind, split, chunk and their kin. Every piece is a view.

Invariants
----------
* All pieces of one call come from one node of the graph, whose derivative joins their gradients
  (zeros for pieces that were not used), so a loop over the rows of a tensor costs one pass back.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from refruntime import _layout
from refruntime._dispatch import call
from refruntime._impl import TensorImpl, TensorMeta, meta_of
from refruntime._layout import View, wrap_dim
from refruntime._ops.arguments import int_of, ints_of
from refruntime._ops.opdef import OpDef, front, ops, register, require_tensor
from refruntime._ops.samples import Sample, T
from refruntime._ops.view_plans import several_views
from refruntime.errors import IndexRangeError, ShapeError


def _infer_pieces(rule: Callable[..., tuple[View, ...]]) -> Callable[..., Any]:
    def infer(meta: TensorMeta, **params: Any) -> tuple[TensorMeta, ...]:
        return tuple(
            meta_of(tuple(shape), meta.dtype, meta.device, tuple(strides))
            for shape, strides, _ in rule(meta, **params)
        )

    return infer


def _filled_in(g: Any, shapes: list[tuple[int, ...]]) -> list[Any] | None:
    """Return the gradients of all pieces, zeros where there is none; None if none has one."""
    given = g if isinstance(g, (tuple, list)) else (g,)
    known = next((piece for piece in given if piece is not None), None)
    if known is None:
        return None
    return [
        ops.zeros(shape, dtype=known.dtype, device=known.device) if piece is None else piece
        for piece, shape in zip(given, shapes, strict=True)
    ]


# ---------------------------------------------------------------------------------------------
# unbind


def _unbind_rule(meta: TensorMeta, *, dim: int) -> tuple[View, ...]:
    shape, strides, _ = _layout.select(meta.shape, meta.strides, dim, 0) if meta.shape[dim] else (
        (), (), 0)  # fmt: skip
    return tuple((shape, strides, k * meta.strides[dim]) for k in range(meta.shape[dim]))


def _unbind_vjp(g: Any, n: Any) -> Any:
    shape = tuple(n.metas[0].shape)
    piece = (*shape[: n.dim], *shape[n.dim + 1 :])
    pieces = _filled_in(g, [piece] * shape[n.dim])
    return None if pieces is None else ops.stack(pieces, n.dim)


def _unbind_samples() -> list[Sample]:
    return [
        Sample((T((3, 4)),)),
        Sample((T((2, 3), layout="transposed"), -1)),
        Sample((T((1, 2)), 0)),
    ]


UNBIND = register(
    OpDef(
        "unbind",
        ("input",),
        jvp="linear",
        batch="view",
        infer=_infer_pieces(_unbind_rule),
        view=_unbind_rule,
        run=several_views(_unbind_rule),
        vjp=_unbind_vjp,
        samples=_unbind_samples,
        reference=lambda x, dim=0: [x.take(k, dim) for k in range(x.shape[dim])],
    )
)


@front(UNBIND)
def unbind(input: Any, dim: int = 0) -> tuple[Any, ...]:
    """Return the slices of a dimension, which goes away."""
    require_tensor("unbind", input)
    if not input.meta.ndim:
        raise IndexRangeError(
            "unbind", what="Dimension specified as 0 but tensor has no dimensions",
            expected="a tensor with dimensions", got="shape ()", remedy="use .item()",
        )  # fmt: skip
    dim = wrap_dim(dim, input.meta.ndim, "unbind")
    return tuple(call(UNBIND, (input,), {"dim": dim}))


# ---------------------------------------------------------------------------------------------
# split


def _split_rule(meta: TensorMeta, *, sizes: tuple[int, ...], dim: int) -> tuple[View, ...]:
    pieces = []
    start = 0
    for size in sizes:
        pieces.append(_layout.narrow(meta.shape, meta.strides, dim, start, size))
        start += size
    return tuple(pieces)


def _split_vjp(g: Any, n: Any) -> Any:
    shape = tuple(n.metas[0].shape)
    shapes = [(*shape[: n.dim], size, *shape[n.dim + 1 :]) for size in n.sizes]
    pieces = _filled_in(g, shapes)
    return None if pieces is None else ops.cat(pieces, n.dim)


def _split_reference(x: Any, sizes: Any, dim: int = 0) -> list[Any]:
    import numpy as np

    return np.split(x, np.cumsum(sizes)[:-1], dim)


def _split_samples() -> list[Sample]:
    return [
        Sample((T((5, 3)), [2, 3])),
        Sample((T((2, 6), layout="strided"), [1, 0, 5], 1)),
        Sample((T((4,)), [4])),
    ]


SPLIT = register(
    OpDef(
        "split_with_sizes",
        ("input",),
        jvp="linear",
        batch="view",
        infer=_infer_pieces(_split_rule),
        view=_split_rule,
        run=several_views(_split_rule),
        vjp=_split_vjp,
        samples=_split_samples,
        reference=_split_reference,
        backward_name="SplitBackward0",
    )
)


@front(SPLIT, aliases=("unsafe_split_with_sizes",))
def split_with_sizes(input: Any, split_sizes: Any, dim: int = 0) -> tuple[Any, ...]:
    """Return pieces of the given sizes along a dimension."""
    require_tensor("split", input)
    dim = _split_dim("split", input, dim)
    sizes = ints_of("split", "split_sizes", split_sizes)
    total = input.meta.shape[dim]
    if sum(sizes) != total or any(size < 0 for size in sizes):
        raise ShapeError(
            "split", what="split_with_sizes expects split_sizes to sum exactly to "
            f"{total} (input tensor's size at dimension {dim}), but got split_sizes={list(sizes)}",
            expected=f"sizes of at least 0 that sum to {total}", got=str(sizes),
            remedy="check the sizes",
        )  # fmt: skip
    return tuple(call(SPLIT, (input,), {"sizes": sizes, "dim": dim}))


def _split_dim(op: str, input: TensorImpl, dim: int) -> int:
    if not input.meta.ndim:
        raise ShapeError(
            op, what=f"{op} expects at least a 1-dimensional tensor",
            expected="a tensor with dimensions", got="shape ()", remedy="unsqueeze it first",
        )  # fmt: skip
    return wrap_dim(dim, input.meta.ndim, op)


@front(SPLIT, aliases=("unsafe_split",))
def split(input: Any, split_size_or_sections: Any, dim: int = 0) -> tuple[Any, ...]:
    """Return pieces of one size (the last may be smaller), or of the sizes in a list."""
    if isinstance(split_size_or_sections, (list, tuple)):
        return split_with_sizes(input, split_size_or_sections, dim)
    require_tensor("split", input)
    size = int_of("split", "split_size_or_sections", split_size_or_sections)
    dim = _split_dim("split", input, dim)
    return split_with_sizes(input, _even_sizes("split", input.meta.shape[dim], size), dim)


def _even_sizes(op: str, total: int, size: int) -> list[int]:
    if size < 0 or (size == 0 and total):
        raise ShapeError(
            op, what=f"{op} expects split_size be non-negative, but got split_size={size}"
            if size < 0 else "split_size can only be 0 if dimension size is 0",
            expected="a size of at least 1", got=size, remedy="check the size",
        )  # fmt: skip
    if not total:
        return [0]
    return [min(size, total - start) for start in range(0, total, size)]


@front(SPLIT, aliases=("unsafe_chunk",))
def chunk(input: Any, chunks: int, dim: int = 0) -> tuple[Any, ...]:
    """Return at most `chunks` pieces of equal size; the last may be smaller."""
    require_tensor("chunk", input)
    count = int_of("chunk", "chunks", chunks)
    if count <= 0:
        raise ShapeError(
            "chunk", what=f"chunk expects `chunks` to be greater than 0, got: {count}",
            expected="at least 1", got=count, remedy="check chunks",
        )  # fmt: skip
    dim = _split_dim("chunk", input, dim)
    total = input.meta.shape[dim]
    if not total:
        return split_with_sizes(input, [0] * count, dim)
    return split_with_sizes(input, _even_sizes("chunk", total, -(-total // count)), dim)


@front(SPLIT)
def tensor_split(input: Any, indices_or_sections: Any, dim: int = 0) -> tuple[Any, ...]:
    """Return nearly equal pieces, or the pieces between the given indices."""
    require_tensor("tensor_split", input)
    dim = _split_dim("tensor_split", input, dim)
    total = input.meta.shape[dim]
    if isinstance(indices_or_sections, TensorImpl):
        indices_or_sections = indices_or_sections.array().tolist()
    if isinstance(indices_or_sections, int):
        count = indices_or_sections
        if count <= 0:
            raise ShapeError(
                "tensor_split", what=f"number of sections must be larger than 0, got {count}",
                expected="at least 1", got=count, remedy="check the sections",
            )  # fmt: skip
        size, larger = divmod(total, count)
        return split_with_sizes(input, [size + (k < larger) for k in range(count)], dim)
    edges = [0, *ints_of("tensor_split", "indices", indices_or_sections), total]
    pieces = []
    for start, end in pairwise(edges):
        pieces.append(ops.slice(input, dim, start, max(end, start) if end >= 0 else end))
    return tuple(pieces)


def _axis_split(name: str, axis: int, least: int) -> Callable[..., tuple[Any, ...]]:
    def split_along(input: Any, indices_or_sections: Any) -> tuple[Any, ...]:
        require_tensor(name, input)
        if input.meta.ndim < least:
            raise ShapeError(
                name, what=f"torch.{name} requires a tensor with at least {least} dimension(s)",
                expected=f"at least {least}", got=input.meta.ndim, remedy="unsqueeze the tensor",
            )  # fmt: skip
        dim = axis if input.meta.ndim > 1 else 0
        count = indices_or_sections
        if isinstance(count, int) and (count <= 0 or input.meta.shape[dim] % count):
            raise ShapeError(
                name, what=f"size {input.meta.shape[dim]} of dimension {dim} is not divisible "
                f"by the split_size {count}", expected="a divisor", got=count,
                remedy="use tensor_split for uneven pieces",
            )  # fmt: skip
        return tensor_split(input, indices_or_sections, dim)

    split_along.__name__ = split_along.__qualname__ = name
    split_along.__doc__ = f"Take a tensor apart along dimension {axis}."
    return split_along


for _name, _axis, _least in (("hsplit", 1, 1), ("vsplit", 0, 2), ("dsplit", 2, 3)):
    front(SPLIT)(_axis_split(_name, _axis, _least))
