"""Parts of a tensor as arguments: zeros with a part set, and copies with a part replaced.

Invariants
----------
* A part is named by a view op and its parameters, so one pair of ops serves every view: `embed`
  (the derivative of showing a part) and `replace_part` (the functional form of writing one).
* Windows that overlap (`unfold`, `as_strided`) have derivatives of their own, which add up.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from refruntime import _layout
from refruntime._dispatch import call, copy_into, launch
from refruntime._impl import TensorImpl, TensorMeta, alias, meta_of
from refruntime._layout import View
from refruntime._ops.arguments import int_of, ints_of
from refruntime._ops.opdef import (
    NO_PARAMS,
    REGISTRY,
    OpDef,
    front,
    ops,
    register,
    require_tensor,
)
from refruntime._ops.samples import ErrorSample, Sample, T
from refruntime._ops.view_plans import one_view
from refruntime.errors import ShapeError

Params = dict[str, Any]


def window(tensor: TensorImpl, view: str, params: Params) -> TensorImpl:
    """Return what the view op `view` shows of a tensor, outside autograd (for kernels)."""
    rule = REGISTRY[view].view
    assert rule is not None
    shape, strides, offset = rule(tensor.meta, **params)
    meta = meta_of(tuple(shape), tensor.meta.dtype, tensor.meta.device, tuple(strides))
    return alias(tensor, meta, tensor.byte_offset + offset * meta.dtype.itemsize)


def zero_fill(out: TensorImpl) -> None:
    """Set a tensor's memory to zero, outside autograd (for kernels)."""
    launch(REGISTRY["fill"], out.meta.device.type, out, (out, 0), NO_PARAMS)


def _embed_infer(input: TensorMeta, *, shape: Any, view: str, params: Params) -> TensorMeta:
    return meta_of(tuple(shape), input.dtype, input.device)


def _embed_kernel(
    out: TensorImpl, input: TensorImpl, *, shape: Any, view: str, params: Params
) -> None:
    zero_fill(out)
    copy_into(window(out, view, params), input)


_EVERY_SECOND = {"dim": 1, "start": 1, "stop": 5, "step": 2}


def _replaced(whole: Any, part: Any, view: str, params: Params) -> Any:
    """Return a NumPy copy with a part replaced."""
    key: list[Any] = [slice(None)] * whole.ndim
    sliced = slice(params.get("start"), params.get("stop"), params.get("step"))
    key[params["dim"]] = params["index"] if view == "select" else sliced
    out = whole.copy()
    out[tuple(key)] = part
    return out


EMBED = register(
    OpDef(
        "_embed",
        ("input",),
        jvp="linear",
        batch="part",
        infer=_embed_infer,
        cpu=_embed_kernel,
        cuda=_embed_kernel,
        vjp=lambda g, n: call(REGISTRY[n.view], (g,), n.params["params"]),
        samples=lambda: [
            Sample((T((3,)), (2, 3), "select"), {"dim": 0, "index": 1}),
            Sample((T((2, 2), layout="transposed"), (2, 5), "slice"), _EVERY_SECOND),
        ],
        reference=lambda part, shape, view, **p: _replaced(np.zeros(shape), part, view, p),
    )
)


@front(EMBED, method=False, name="_embed")
def embed(part: Any, shape: Any, view: str, **params: Any) -> Any:
    """Return zeros of `shape` whose `view` (a view op and its params) is `part`."""
    return call(EMBED, (part,), {"shape": tuple(shape), "view": view, "params": params})


def _replace_infer(input: TensorMeta, src: TensorMeta, *, view: str, params: Params) -> TensorMeta:
    rule = REGISTRY[view].view
    assert rule is not None
    shape = tuple(rule(input, **params)[0])
    if shape != tuple(src.shape):
        raise ShapeError(
            f"{view}_scatter",
            what="expected src to have a size equal to the slice of self",
            expected=str(shape),
            got=str(tuple(src.shape)),
            remedy="expand or reshape src",
        )
    return meta_of(input.shape, input.dtype, input.device)


def _replace_kernel(
    out: TensorImpl, input: TensorImpl, src: TensorImpl, *, view: str, params: Params
) -> None:
    if out is not input:
        copy_into(out, input)
    copy_into(window(out, view, params), src)


def _replace_vjp(g: Any, n: Any) -> tuple[Any, Any]:
    part = call(REGISTRY[n.view], (g,), n.params["params"])
    if not n.needs[0]:
        return None, part
    hole = ops.zeros(tuple(n.metas[1].shape), dtype=g.dtype, device=g.device)
    return replace_part(g, hole, n.view, n.params["params"]), part


REPLACE = register(
    OpDef(
        "_replace_part",
        ("input", "src"),
        jvp="linear",
        batch="part",
        infer=_replace_infer,
        cpu=_replace_kernel,
        cuda=_replace_kernel,
        vjp=_replace_vjp,
        samples=lambda: [
            Sample((T((2, 3)), T((3,)), "select", {"dim": 0, "index": -1})),
            Sample((T((2, 5), layout="transposed"), T((2, 2)), "slice", _EVERY_SECOND)),
        ],
        error_samples=lambda: [
            ErrorSample(
                (T((2, 3)), T((2,)), "select", {"dim": 0, "index": 0}), RuntimeError, "src to have"
            )
        ],
        reference=_replaced,
    )
)


@front(REPLACE, method=False, name="_replace_part")
def replace_part(input: Any, src: Any, view: str, params: Params) -> Any:
    """Return a copy of `input` whose `view` is `src`."""
    return call(REPLACE, (input, src), {"view": view, "params": params})


@front(REPLACE)
def select_scatter(input: Any, src: Any, dim: int, index: int) -> Any:
    """Return a copy of `input` with `src` at `index` of `dim`."""
    return replace_part(input, src, "select", {"dim": dim, "index": index})


@front(REPLACE)
def slice_scatter(
    input: Any, src: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    """Return a copy of `input` with `src` in a slice of `dim`."""
    params = {"dim": dim, "start": start, "stop": end, "step": step}
    return replace_part(input, src, "slice", params)


@front(REPLACE)
def diagonal_scatter(input: Any, src: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """Return a copy of `input` with `src` on a diagonal."""
    params = {"offset": offset, "dim1": dim1, "dim2": dim2}
    return replace_part(input, src, "diagonal", params)


# ---------------------------------------------------------------------------------------------
# Diagonals


@front(EMBED)
def diag_embed(input: Any, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Any:
    """Return zeros with the last dimension of `input` on a diagonal of two new ones."""
    require_tensor("diag_embed", input)
    ndim = input.meta.ndim + 1
    first = _layout.wrap_dim(dim1, ndim, "diag_embed")
    second = _layout.wrap_dim(dim2, ndim, "diag_embed")
    size = input.meta.shape[-1] + abs(offset)
    shape = list(input.meta.shape[:-1])
    for dim in sorted((first, second)):
        shape.insert(dim, size)
    return embed(input, shape, "diagonal", offset=offset, dim1=first, dim2=second)


@front(EMBED)
def diag(input: Any, diagonal: int = 0) -> Any:
    """Return the diagonal of a matrix, or the matrix with a diagonal."""
    require_tensor("diag", input)
    if input.meta.ndim not in (1, 2):
        raise ShapeError(
            "diag", what=f"diag(): Supports 1D or 2D tensors. Got {input.meta.ndim}D",
            expected="1 or 2 dimensions", got=str(tuple(input.meta.shape)),
            remedy="use diagonal() or diag_embed()",
        )  # fmt: skip
    if input.meta.ndim == 1:
        return diag_embed(input, diagonal)
    return ops.clone(ops.diagonal(input, diagonal))


@front(EMBED)
def diagflat(input: Any, offset: int = 0) -> Any:
    """Return the matrix whose diagonal has the elements of `input`."""
    return diag_embed(ops.flatten(input), offset)


# ---------------------------------------------------------------------------------------------
# Windows, which may overlap


def _unfold_backward_infer(
    input: TensorMeta, *, shape: Any, dim: int, size: int, step: int
) -> TensorMeta:
    return meta_of(tuple(shape), input.dtype, input.device)


def _unfold_backward(
    out: TensorImpl, input: TensorImpl, *, shape: Any, dim: int, size: int, step: int
) -> None:
    """Add each window's k-th column to the indices that it was read from."""
    zero_fill(out)
    if not out.meta.ndim:
        copy_into(out, window(input, "select", {"dim": 0, "index": 0}))
        return
    windows = input.meta.shape[dim]
    for k in range(size if windows else 0):
        stop = k + (windows - 1) * step + 1
        params = {"dim": dim, "start": k, "stop": stop, "step": step}
        _add_into(window(out, "slice", params), window(input, "select", {"dim": -1, "index": k}))


def _add_into(target: TensorImpl, source: TensorImpl) -> None:
    launch(REGISTRY["add"], target.meta.device.type, target, (target, source), NO_PARAMS)


def _unfold_backward_reference(g: Any, shape: Any, dim: int, size: int, step: int) -> Any:
    out = np.zeros(shape)
    moved = np.moveaxis(out, dim, 0)
    for k, window in enumerate(np.moveaxis(g, dim, 0)):
        moved[k * step : k * step + size] += np.moveaxis(window, -1, 0)
    return out


UNFOLD_BACKWARD = register(
    OpDef(
        "_unfold_backward",
        ("input",),
        jvp="linear",
        batch="unfold_backward",
        infer=_unfold_backward_infer,
        cpu=_unfold_backward,
        cuda=_unfold_backward,
        vjp=lambda g, n: ops.unfold(g, n.dim, n.size, n.step),
        samples=lambda: [
            Sample((T((3, 3)), (5,), 0, 3, 1)),
            Sample((T((2, 2, 2), layout="transposed"), (5, 2), 0, 2, 3)),
        ],
        reference=_unfold_backward_reference,
    )
)


@front(UNFOLD_BACKWARD, method=False, name="_unfold_backward")
def _fold_back(g: Any, shape: Any, dim: int, size: int, step: int) -> Any:
    """Return windows added up in a tensor of `shape`."""
    params = {"shape": tuple(shape), "dim": dim, "size": size, "step": step}
    return call(UNFOLD_BACKWARD, (g,), params)


def _unfold_rule(meta: TensorMeta, *, dim: int, size: int, step: int) -> View:
    return _layout.unfold(meta.shape, meta.strides, dim, size, step)


def _unfold_vjp(g: Any, n: Any) -> Any:
    shape = tuple(n.metas[0].shape)
    dim = _layout.wrap_dim(n.dim, len(shape), "unfold")
    params = {"shape": shape, "dim": dim, "size": n.size, "step": n.step}
    return call(UNFOLD_BACKWARD, (g,), params)


def _unfold_reference(x: Any, dim: int, size: int, step: int) -> Any:
    windows = np.lib.stride_tricks.sliding_window_view(x, size, dim)
    return windows.take(range(0, x.shape[dim] - size + 1, step), dim % x.ndim)


UNFOLD = register(
    OpDef(
        "unfold",
        ("input",),
        jvp="linear",
        batch="view",
        view=_unfold_rule,
        run=one_view(_unfold_rule),
        vjp=_unfold_vjp,
        samples=lambda: [Sample((T((5,)), 0, 3, 1)), Sample((T((2, 6)), -1, 2, 3))],
        error_samples=lambda: [
            ErrorSample((T((3,)), 0, 4, 1), RuntimeError, "maximum size for tensor"),
            ErrorSample((T((3,)), 0, 2, 0), RuntimeError, "must be > 0"),
        ],
        reference=_unfold_reference,
    )
)


@front(UNFOLD)
def unfold(input: Any, dimension: int, size: int, step: int) -> Any:
    """Show windows of `size` indices, `step` apart, as a new last dimension."""
    require_tensor("unfold", input)
    size, step = int_of("unfold", "size", size), int_of("unfold", "step", step)
    return call(UNFOLD, (input,), {"dim": dimension, "size": size, "step": step})


def _strided_rule(meta: TensorMeta, *, size: Any, stride: Any, shift: int) -> View:
    return tuple(size), tuple(stride), shift


def _strided_backward_infer(
    input: TensorMeta, *, base: TensorMeta, size: Any, stride: Any, shift: int
) -> TensorMeta:
    return meta_of(base.shape, input.dtype, input.device)


def _strided_backward(
    out: TensorImpl, input: TensorImpl, *, base: TensorMeta, size: Any, stride: Any, shift: int
) -> None:
    """Add the gradient up in memory laid out as the base's, then read the base's elements."""
    low, high = _layout.extent(base.shape, base.strides)
    first, last = _layout.extent(size, stride)
    start = min(low, shift + first)
    memory = np.zeros(max(high, shift + last) - start + 1, input.meta.dtype.compute.np)
    places = _places(size, stride, shift - start)
    np.add.at(memory, places, input.array().astype(memory.dtype))
    # Elements of an expanded base share memory: each gets an equal share of what arrived there.
    own = _places(base.shape, base.strides, -start)
    shares = np.bincount(own.ravel(), minlength=memory.size)[own]
    out.array()[...] = (memory[own] / shares).astype(out.meta.dtype.np)


def _places(shape: Any, strides: Any, offset: int) -> Any:
    """Return the memory place of every element of a layout."""
    places = np.full(tuple(shape), offset, np.int64)
    for dim, (size, stride) in enumerate(zip(shape, strides, strict=True)):
        places += (np.arange(size) * stride).reshape((-1,) + (1,) * (len(shape) - dim - 1))
    return places


def _strided_reference(g: Any, shape: Any, size: Any, stride: Any, shift: int) -> Any:
    out = np.zeros(int(np.prod(shape)))
    np.add.at(out, _places(size, stride, shift), g)
    return out.reshape(shape)


AS_STRIDED_BACKWARD = register(
    OpDef(
        "_as_strided_backward",
        ("input",),
        jvp="linear",
        batch="as_strided_backward",
        infer=_strided_backward_infer,
        cpu=_strided_backward,
        vjp=lambda g, n: _as_strided_over(g, n),
        samples=lambda: [
            Sample((T((3, 3)), (5,), (3, 3), (1, 1), 0)),
            Sample((T((2, 2), layout="transposed"), (2, 4), (2, 2), (4, 1), 2)),
        ],
        reference=_strided_reference,
    )
)


@front(AS_STRIDED_BACKWARD, method=False, name="_as_strided_backward")
def _strided_gradient(g: Any, shape: Any, size: Any, stride: Any, shift: int) -> Any:
    """Return the gradient of a row-major tensor of `shape` that was read with ``as_strided``."""
    base = meta_of(tuple(shape), g.dtype, g.device)
    params = {"base": base, "size": tuple(size), "stride": tuple(stride), "shift": shift}
    return call(AS_STRIDED_BACKWARD, (g,), params)


def _as_strided_over(g: Any, n: Any) -> Any:
    """Read a gradient in the base's layout through the window: the derivative's derivative."""
    if _layout.is_dense(n.base.shape, n.base.strides):
        g = call(REGISTRY["copy"], (g,), {"strides": tuple(n.base.strides)})
    else:
        laid_out = ops.empty_strided(
            tuple(n.base.shape), n.base.strides, dtype=g.dtype, device=g.device
        )
        g = ops.copy_(laid_out, g)
    return call(AS_STRIDED, (g,), {"size": n.size, "stride": n.stride, "shift": n.shift})


AS_STRIDED = register(
    OpDef(
        "as_strided",
        ("input",),
        jvp="linear",
        batch="view",
        view=_strided_rule,
        run=one_view(_strided_rule),
        vjp=lambda g, n: call(AS_STRIDED_BACKWARD, (g,), {"base": n.metas[0], **n.params}),
        samples=lambda: [
            Sample((T((6,)), (3, 2), (1, 2), 1)),
            Sample((T((3, 4)), (2, 2), (4, 1))),
        ],
        error_samples=lambda: [
            ErrorSample((T((6,)), (3, 3), (2, 1)), RuntimeError, "out of bounds for storage"),
            ErrorSample((T((6,)), (3,), (-1,)), RuntimeError, "Negative strides"),
        ],
        reference=lambda x, size, stride, offset=0: x.ravel()[_places(size, stride, offset)],
    )
)


def _strided_params(
    op: str, input: TensorImpl, size: Any, stride: Any, storage_offset: int | None
) -> Params:
    itemsize = input.meta.dtype.itemsize
    own = input.byte_offset // itemsize
    offset = own if storage_offset is None else int_of(op, "storage_offset", storage_offset)
    sizes, steps = ints_of(op, "size", size), ints_of(op, "stride", stride)
    _layout.as_strided(sizes, steps, input.storage.nbytes // itemsize, offset, op)
    return {"size": sizes, "stride": steps, "shift": offset - own}


@front(AS_STRIDED)
def as_strided(input: Any, size: Any, stride: Any, storage_offset: int | None = None) -> Any:
    """Show the storage with any sizes and strides; the offset counts from the storage's start."""
    require_tensor("as_strided", input)
    return call(
        AS_STRIDED, (input,), _strided_params("as_strided", input, size, stride, storage_offset)
    )


@front(REPLACE)
def as_strided_scatter(
    input: Any, src: Any, size: Any, stride: Any, storage_offset: int | None = None
) -> Any:
    """Return a copy of `input` with `src` where `as_strided` would look."""
    require_tensor("as_strided_scatter", input)
    params = _strided_params("as_strided_scatter", input, size, stride, storage_offset)
    return replace_part(input, src, "as_strided", params)
