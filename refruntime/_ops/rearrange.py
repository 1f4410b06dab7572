"""Rearranged copies: flips, rolls, repetitions, triangles.

Invariants
----------
* Each is its own kind of derivative: a flip's is a flip, a roll's the roll back, a triangle's the
  triangle, a repetition's the sum over the repeats.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from refruntime import _dtypes
from refruntime._dispatch import call
from refruntime._impl import TensorImpl, TensorMeta, meta_of
from refruntime._layout import wrap_dim, wrap_dims
from refruntime._ops.arguments import ints_of, spread_ints
from refruntime._ops.opdef import OpDef, front, ops, register, require_tensor
from refruntime._ops.samples import ErrorSample, Sample, T
from refruntime.errors import ShapeError
from refruntime.kernels import rearrange


def _same(input: TensorMeta, **params: Any) -> TensorMeta:
    return meta_of(input.shape, input.dtype, input.device)


# ---------------------------------------------------------------------------------------------
# flip

FLIP = register(
    OpDef(
        "flip",
        ("input",),
        jvp="linear",
        batch="dims",
        infer=_same,
        cpu=rearrange.flip,
        cuda=rearrange.flip,
        vjp=lambda g, n: ops.flip(g, *n.dims),
        samples=lambda: [
            Sample((T((3, 4)), (0,))),
            Sample((T((3, 4), layout="transposed"), (0, 1))),
            Sample((T((2, 3, 2), layout="strided"), [-1])),
            Sample((T((2, 3), _dtypes.int64), (1,)), grad=False),
        ],
        error_samples=lambda: [ErrorSample((T((2, 3)), (0, 0)), RuntimeError, "multiple times")],
        reference=lambda x, dims: np.flip(x, tuple(dims)),
    )
)


@front(FLIP)
def flip(input: Any, *args: Any, dims: Any = None) -> Any:
    """Reverse the order of elements along `dims`."""
    require_tensor("flip", input)
    listed = wrap_dims(spread_ints("flip", "dims", args, dims), input.meta.ndim, "flip")
    return call(FLIP, (input,), {"dims": listed})


@front(FLIP)
def fliplr(input: Any) -> Any:
    """Reverse the columns."""
    return flip(input, 1)


@front(FLIP)
def flipud(input: Any) -> Any:
    """Reverse the rows."""
    return flip(input, 0)


@front(FLIP)
def rot90(input: Any, k: int = 1, dims: Any = (0, 1)) -> Any:
    """Rotate the plane of two dimensions by `k` quarter turns, the first towards the second."""
    require_tensor("rot90", input)
    first, second = wrap_dims(ints_of("rot90", "dims", dims), input.meta.ndim, "rot90")
    turns = k % 4
    if turns == 2:
        return flip(input, first, second)
    if turns == 0:
        return ops.clone(input)
    turned = ops.transpose(input, first, second)
    return flip(turned, first if turns == 1 else second)


# ---------------------------------------------------------------------------------------------
# roll

ROLL = register(
    OpDef(
        "roll",
        ("input",),
        jvp="linear",
        batch="roll",
        infer=_same,
        cpu=rearrange.roll,
        cuda=rearrange.roll,
        vjp=lambda g, n: ops.roll(g, -n.shift, n.dim),
        samples=lambda: [
            Sample((T((5, 2)), 2, 0)),
            Sample((T((2, 4), layout="transposed"), (-1, 1), (1, 0))),
            Sample((T((2, 3)), 4)),
        ],
        reference=lambda x, shifts, dims=None: np.roll(x, shifts, dims),
    )
)


@front(ROLL)
def roll(input: Any, shifts: Any, dims: Any = None) -> Any:
    """Move elements along dimensions; what leaves at one end enters at the other."""
    require_tensor("roll", input)
    moves = ints_of("roll", "shifts", shifts)
    if dims is None or dims in ((), []):
        if len(moves) != 1:
            raise _uneven(moves, ())
        flat = ops.reshape(input, (-1,))
        return ops.reshape(call(ROLL, (flat,), {"shift": moves[0], "dim": 0}), input.meta.shape)
    places = ints_of("roll", "dims", dims)
    if len(places) != len(moves):
        raise _uneven(moves, places)
    for shift, dim in zip(moves, places, strict=True):
        dim = wrap_dim(dim, input.meta.ndim, "roll")
        input = call(ROLL, (input,), {"shift": shift, "dim": dim})
    return input


def _uneven(shifts: tuple[int, ...], dims: tuple[int, ...]) -> ShapeError:
    return ShapeError(
        "roll", what=f"shifts and dimensions must align. shifts: {len(shifts)}, dims:{len(dims)}",
        expected="one shift a dimension", got=f"{shifts} and {dims}", remedy="name a dim a shift",
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------
# Repetition


def _repeat_infer(input: TensorMeta, *, repeats: tuple[int, ...]) -> TensorMeta:
    if len(repeats) < input.ndim or any(count < 0 for count in repeats):
        raise ShapeError(
            "repeat", what="Number of dimensions of repeat dims can not be smaller than number of "
            "dimensions of tensor", expected=f"at least {input.ndim} counts of at least 0",
            got=str(repeats), remedy="name a count for each dimension",
        )  # fmt: skip
    sizes = (1,) * (len(repeats) - input.ndim) + tuple(input.shape)
    shape = tuple(count * size for count, size in zip(repeats, sizes, strict=True))
    return meta_of(shape, input.dtype, input.device)


def _repeat_vjp(g: Any, n: Any) -> Any:
    sizes = (1,) * (len(n.repeats) - n.metas[0].ndim) + tuple(n.metas[0].shape)
    parted = [extent for pair in zip(n.repeats, sizes, strict=True) for extent in pair]
    if not parted:
        return g
    summed = ops.sum(ops.reshape(g, parted), tuple(range(0, len(parted), 2)))
    return ops.reshape(summed, n.metas[0].shape)


REPEAT = register(
    OpDef(
        "repeat",
        ("input",),
        jvp="linear",
        batch="repeat",
        infer=_repeat_infer,
        cpu=rearrange.repeat,
        cuda=rearrange.repeat,
        vjp=_repeat_vjp,
        samples=lambda: [
            Sample((T((3,)), 2)),
            Sample((T((2, 3), layout="transposed"), (2, 1, 2))),
            Sample((T((1, 2), layout="strided"), (3, 2))),
        ],
        error_samples=lambda: [ErrorSample((T((2, 3)), 2), RuntimeError, "repeat dims")],
        reference=lambda x, *repeats: np.tile(
            x, repeats[0] if isinstance(repeats[0], tuple) else repeats
        ),
    )
)


@front(REPEAT)
def repeat(input: Any, *args: Any, repeats: Any = None) -> Any:
    """Return the tensor copied `repeats` times along each dimension; more counts, more dims."""
    require_tensor("repeat", input)
    return call(REPEAT, (input,), {"repeats": spread_ints("repeat", "repeats", args, repeats)})


@front(REPEAT)
def tile(input: Any, *args: Any, dims: Any = None) -> Any:
    """Return the tensor repeated; missing leading counts are 1."""
    require_tensor("tile", input)
    counts = spread_ints("tile", "dims", args, dims)
    return repeat(input, (1,) * (input.meta.ndim - len(counts)) + counts)


@front()
def repeat_interleave(
    input: Any, repeats: Any = None, dim: int | None = None, *, output_size: int | None = None
) -> Any:
    """Return each slice of a dimension `repeats` times (a number, or one a slice), side by side."""
    require_tensor("repeat_interleave", input)
    if repeats is None:
        counts = input.array()
        return _places(np.repeat(np.arange(len(counts)), counts))
    if dim is None:
        input, dim = ops.flatten(input), 0
    dim = wrap_dim(dim, input.meta.ndim, "repeat_interleave")
    size = input.meta.shape[dim]
    each = repeats.array().reshape(-1) if isinstance(repeats, TensorImpl) else np.array([repeats])
    if (each < 0).any() or each.size not in (1, size):
        raise ShapeError(
            "repeat_interleave", what="repeats can not be negative" if (each < 0).any() else
            f"repeats must have the same size as input along dim, but got repeats.size(0) = "
            f"{each.size} and input.size({dim}) = {size}", expected=f"1 or {size} counts",
            got=str(each.tolist()), remedy="check repeats",
        )  # fmt: skip
    return ops.index_select(input, dim, _places(np.repeat(np.arange(size), each)))


def _places(array: Any) -> Any:
    return ops.tensor(array.astype(np.int64))


# ---------------------------------------------------------------------------------------------
# Triangles


def _matrix_infer(input: TensorMeta, *, diagonal: int, upper: bool) -> TensorMeta:
    if input.ndim < 2:
        name = "triu" if upper else "tril"
        raise ShapeError(
            name, what=f"{name}: input tensor must have at least 2 dimensions",
            expected="a matrix or a batch of them", got=str(tuple(input.shape)),
            remedy="unsqueeze the tensor",
        )  # fmt: skip
    return meta_of(input.shape, input.dtype, input.device)


def _triangle_op(name: str) -> OpDef:
    upper = name == "triu"

    def samples() -> list[Sample]:
        return [
            Sample((T((4, 4)),)),
            Sample((T((3, 5), layout="transposed"), 1)),
            Sample((T((2, 4, 3), layout="strided"), -1)),
            Sample((T((3, 3), _dtypes.int64), 9), grad=False),
        ]

    return register(
        OpDef(
            name, ("input",), jvp="linear", batch="leading",
            infer=_matrix_infer, cpu=rearrange.triangle_cpu,
            cuda=rearrange.triangle_cuda, inplace=True, samples=samples,
            vjp=lambda g, n: getattr(ops, name)(g, n.diagonal),
            error_samples=lambda: [ErrorSample((T((3,)),), RuntimeError, "at least 2 dimensions")],
            reference=lambda x, diagonal=0: (np.triu if upper else np.tril)(x, diagonal),
        )
    )  # fmt: skip


TRIL, TRIU = _triangle_op("tril"), _triangle_op("triu")


@front(TRIL, inplace=True)
def tril(input: Any, diagonal: int = 0, *, out: Any = None) -> Any:
    """Return the lower triangle of matrices, zeros above the diagonal."""
    require_tensor("tril", input)
    return call(TRIL, (input,), {"diagonal": diagonal, "upper": False}, out)


@front(TRIU, inplace=True)
def triu(input: Any, diagonal: int = 0, *, out: Any = None) -> Any:
    """Return the upper triangle of matrices, zeros below the diagonal."""
    require_tensor("triu", input)
    return call(TRIU, (input,), {"diagonal": diagonal, "upper": True}, out)
