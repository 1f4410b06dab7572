"""Pooling ops: max (with places), average, adaptive forms; windows as columns and back.

Invariants
----------
* Max pooling returns values and places in one record; its backward adds at the places, and the
  derivative of that reads at the places: both are ops.
* Average pooling is a separable weighted sum (`_ops.resample`), whatever padding and ceil mode.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from refruntime import _dtypes
from refruntime._dispatch import call
from refruntime._impl import TensorMeta, meta_of
from refruntime._ops import samples_nn as samples
from refruntime._ops.conv import out_size, spatial
from refruntime._ops.opdef import OpDef, front, ops, register, require_tensor
from refruntime._ops.resample import resample
from refruntime.errors import ShapeError
from refruntime.kernels import pool as kernels
from refruntime.kernels import pool_cuda as gpu
from refruntime.kernels.resample import Taps

Ints = tuple[int, ...]


def _checked(op: str, x: Any, ndim: int) -> None:
    require_tensor(op, x)
    if x.meta.ndim not in (ndim + 1, ndim + 2):
        raise ShapeError(
            op, what=f"Expected {ndim + 1}D or {ndim + 2}D input, but got {list(x.meta.shape)}",
            expected=f"{ndim + 1} or {ndim + 2} dimensions", got=str(tuple(x.meta.shape)),
            remedy="add the channel or batch dimension",
        )  # fmt: skip


def _pooled_size(
    op: str, size: int, kernel: int, stride: int, padding: int, dilation: int, ceil: bool
) -> int:
    if 2 * padding > kernel:
        raise ShapeError(
            op, what=f"pad should be at most half of effective kernel size, but got pad={padding}, "
            f"kernel_size={kernel} and dilation={dilation}", expected=f"at most {kernel // 2}",
            got=padding, remedy="pad the input with pad() first",
        )  # fmt: skip
    if not ceil:
        count = out_size(size, kernel, stride, padding, dilation)
    else:
        reach = size + 2 * padding - dilation * (kernel - 1) - 1
        count = -(-reach // stride) + 1
        # The last window must start inside the input or its left padding.
        if (count - 1) * stride >= size + padding:
            count -= 1
    if count < 1:
        raise ShapeError(
            op, what="Given input size gives an output size that is too small",
            expected="windows that fit into the input", got=f"size {size}, kernel {kernel}",
            remedy="use a smaller kernel, or padding",
        )  # fmt: skip
    return count


# ---------------------------------------------------------------------------------------------
# Max pooling


def _max_pool_infer(
    input: TensorMeta, *, windows: Any, steps: Ints
) -> tuple[TensorMeta, TensorMeta]:
    shape = (*input.shape[: input.ndim - len(windows)], *map(len, windows))
    values = meta_of(shape, input.dtype, input.device)
    return values, meta_of(shape, _dtypes.int64, input.device)


def _max_pool_vjp(g: Any, n: Any) -> Any:
    spatial_dims = len(n.windows)
    shape = tuple(n.metas[0].shape[-spatial_dims:])
    params = {"spatial": spatial_dims, "shape": shape, "windows": n.windows}
    return call(ADD_AT, (g[0], n.out1), params)


MAX_POOL = register(
    OpDef("max_pool2d", ("input",), batch="leading", **samples.MAX_POOL,
          infer=_max_pool_infer, cpu=kernels.max_pool_cpu,
          cuda=gpu.max_pool_cuda,
          vjp=_max_pool_vjp, saves=("out1",), nondiff_outputs=(1,),
          backward_name="MaxPool2DWithIndicesBackward0")
)  # fmt: skip


def _add_at_infer(
    grad: TensorMeta, places: Any, *, spatial: int, shape: Ints, windows: Any = None
) -> TensorMeta:
    return meta_of((*grad.shape[: grad.ndim - spatial], *shape), grad.dtype, grad.device)


def _add_at_vjp(h: Any, n: Any) -> tuple[Any, None]:
    lead = h.ndim - n.spatial
    flat = ops.reshape(h, (*h.shape[:lead], -1))
    places = ops.reshape(n.places, (*h.shape[:lead], -1))
    return ops.reshape(ops.gather(flat, -1, places), n.metas[0].shape), None


ADD_AT = register(
    OpDef("max_pool_backward", ("grad", "places"), jvp="linear", batch="max_pool_backward",
          infer=_add_at_infer,
          cpu=kernels.max_pool_backward_cpu,
          cuda=gpu.max_pool_backward_cuda, vjp=_add_at_vjp, saves=("places",))
)  # fmt: skip


def _max_pool(
    op: str, ndim: int, x: Any, kernel_size: Any, stride: Any, padding: Any, dilation: Any,
    ceil_mode: bool, return_indices: bool,
) -> Any:  # fmt: skip
    _checked(op, x, ndim)
    kernel = spatial(op, "kernel_size", kernel_size, ndim)
    steps = kernel if stride in (None, [], ()) else spatial(op, "stride", stride, ndim)
    pads = spatial(op, "padding", padding, ndim)
    spread = spatial(op, "dilation", dilation, ndim)
    sizes = tuple(x.meta.shape[-ndim:])
    windows = tuple(
        kernels.pool_windows(one[0], _pooled_size(op, *one, ceil_mode), *one[1:])
        for one in zip(sizes, kernel, steps, pads, spread, strict=True)
    )
    values, places = call(MAX_POOL, (x,), {"windows": windows, "steps": spread})
    return (values, places) if return_indices else values


@front(MAX_POOL, method=False)
def max_pool1d(
    input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False, return_indices: bool = False,
) -> Any:  # fmt: skip
    """Return the largest element of each window of ``[N, C, L]``."""
    rest = (kernel_size, stride, padding, dilation, ceil_mode, return_indices)
    return _max_pool("max_pool1d", 1, input, *rest)


@front(MAX_POOL, method=False)
def max_pool2d(
    input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False, return_indices: bool = False,
) -> Any:  # fmt: skip
    """Return the largest element of each window of ``[N, C, H, W]``."""
    rest = (kernel_size, stride, padding, dilation, ceil_mode, return_indices)
    return _max_pool("max_pool2d", 2, input, *rest)


@front(MAX_POOL, method=False)
def max_pool2d_with_indices(
    input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False,
) -> Any:  # fmt: skip
    """Return `max_pool2d` and the place of each maximum in its plane."""
    return max_pool2d(input, kernel_size, stride, padding, dilation, ceil_mode, True)


@front(MAX_POOL, method=False)
def max_pool3d(
    input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False, return_indices: bool = False,
) -> Any:  # fmt: skip
    """Return the largest element of each window of ``[N, C, D, H, W]``."""
    rest = (kernel_size, stride, padding, dilation, ceil_mode, return_indices)
    return _max_pool("max_pool3d", 3, input, *rest)


def _adaptive_sizes(op: str, x: Any, output_size: Any, ndim: int) -> Ints:
    sizes = output_size if isinstance(output_size, (tuple, list)) else (output_size,) * ndim
    whole = x.meta.shape[-ndim:]
    return tuple(
        int(size if wanted is None else wanted) for wanted, size in zip(sizes, whole, strict=True)
    )


def _adaptive_max_pool(op: str, ndim: int, x: Any, output_size: Any, return_indices: bool) -> Any:
    _checked(op, x, ndim)
    counts = _adaptive_sizes(op, x, output_size, ndim)
    windows = tuple(
        kernels.adaptive_windows(size, count)
        for size, count in zip(x.meta.shape[-ndim:], counts, strict=True)
    )
    values, places = call(MAX_POOL, (x,), {"windows": windows, "steps": (1,) * ndim})
    return (values, places) if return_indices else values


@front(MAX_POOL, method=False)
def adaptive_max_pool1d(input: Any, output_size: Any, return_indices: bool = False) -> Any:
    """Return the largest element of each of `output_size` windows that cover the length."""
    return _adaptive_max_pool("adaptive_max_pool1d", 1, input, output_size, return_indices)


@front(MAX_POOL, method=False)
def adaptive_max_pool2d(input: Any, output_size: Any, return_indices: bool = False) -> Any:
    """Return the largest element of each of `output_size` windows that cover the plane."""
    return _adaptive_max_pool("adaptive_max_pool2d", 2, input, output_size, return_indices)


@front(MAX_POOL, method=False)
def adaptive_max_pool3d(input: Any, output_size: Any, return_indices: bool = False) -> Any:
    """Return the largest element of each of `output_size` windows that cover the volume."""
    return _adaptive_max_pool("adaptive_max_pool3d", 3, input, output_size, return_indices)


# ---------------------------------------------------------------------------------------------
# Average pooling


@cache
def _average_taps(
    size: int, count: int, kernel: int, stride: int, padding: int, include_pad: bool, scaled: bool
) -> Taps:
    starts = [0]
    index: list[int] = []
    weight: list[float] = []
    for place in range(count):
        first = place * stride - padding
        end = min(first + kernel, size + padding)
        inside = range(max(first, 0), min(end, size))
        divisor = (end - first if include_pad else len(inside)) if scaled else 1
        index += inside
        weight += [1.0 / divisor] * len(inside)
        starts.append(len(index))
    return Taps(size, count, np.array(starts), np.array(index), np.array(weight))


@cache
def _adaptive_taps(size: int, count: int) -> Taps:
    windows = [range(*bounds) for bounds in kernels.adaptive_windows(size, count)]
    index = np.array([place for window in windows for place in window], np.int64)
    weight = np.array([1.0 / len(window) for window in windows for _ in window])
    return Taps(size, count, np.cumsum([0, *map(len, windows)]), index, weight)


def _avg_pool(
    op: str, ndim: int, x: Any, kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool,
    count_include_pad: bool, divisor_override: int | None,
) -> Any:  # fmt: skip
    _checked(op, x, ndim)
    kernel = spatial(op, "kernel_size", kernel_size, ndim)
    steps = kernel if stride in (None, [], ()) else spatial(op, "stride", stride, ndim)
    pads = spatial(op, "padding", padding, ndim)
    scaled = divisor_override is None
    taps = [
        _average_taps(
            size, _pooled_size(op, size, k, s, p, 1, ceil_mode), k, s, p, count_include_pad, scaled
        )
        for size, k, s, p in zip(x.meta.shape[-ndim:], kernel, steps, pads, strict=True)
    ]
    if not x.meta.dtype.is_floating_point:
        # Integers: the mean is cut towards zero; the margin makes up for the weights' rounding.
        means = resample(ops.to(x, _dtypes.float64), taps)
        if not scaled:
            means = ops.div(means, divisor_override)
        return ops.to(ops.trunc(ops.mul(means, 1 + 1e-12)), x.meta.dtype)
    result = resample(x, taps)
    return result if scaled else ops.div(result, divisor_override)


@front(method=False)
def avg_pool1d(
    input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Any:  # fmt: skip
    """Return the mean of each window of ``[N, C, L]``."""
    rest = (kernel_size, stride, padding, ceil_mode, count_include_pad, None)
    return _avg_pool("avg_pool1d", 1, input, *rest)


@front(method=False)
def avg_pool2d(
    input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> Any:  # fmt: skip
    """Return the mean of each window of ``[N, C, H, W]``."""
    rest = (kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
    return _avg_pool("avg_pool2d", 2, input, *rest)


@front(method=False)
def avg_pool3d(
    input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> Any:  # fmt: skip
    """Return the mean of each window of ``[N, C, D, H, W]``."""
    rest = (kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
    return _avg_pool("avg_pool3d", 3, input, *rest)


def _adaptive_avg_pool(op: str, ndim: int, x: Any, output_size: Any) -> Any:
    _checked(op, x, ndim)
    counts = _adaptive_sizes(op, x, output_size, ndim)
    dims = tuple(range(-ndim, 0))
    if all(count == 1 for count in counts):
        return ops.mean(x, dims, keepdim=True)
    sizes = x.meta.shape[-ndim:]
    return resample(x, [_adaptive_taps(*pair) for pair in zip(sizes, counts, strict=True)])


@front(method=False)
def adaptive_avg_pool1d(input: Any, output_size: Any) -> Any:
    """Return the means of `output_size` windows that cover the length."""
    return _adaptive_avg_pool("adaptive_avg_pool1d", 1, input, output_size)


@front(method=False)
def adaptive_avg_pool2d(input: Any, output_size: Any) -> Any:
    """Return the means of `output_size` windows that cover the plane."""
    return _adaptive_avg_pool("adaptive_avg_pool2d", 2, input, output_size)


@front(method=False)
def adaptive_avg_pool3d(input: Any, output_size: Any) -> Any:
    """Return the means of `output_size` windows that cover the volume."""
    return _adaptive_avg_pool("adaptive_avg_pool3d", 3, input, output_size)


# ---------------------------------------------------------------------------------------------
# Windows as columns


def _im2col_infer(
    input: TensorMeta, *, kernel: Ints, result: Ints, stride: Ints, padding: Ints, dilation: Ints
) -> TensorMeta:
    batch, channels = input.shape[:2]
    shape = (batch, channels * kernel[0] * kernel[1], result[0] * result[1])
    return meta_of(shape, input.dtype, input.device)


def _im2col_vjp(g: Any, n: Any) -> Any:
    return call(COL2IM, (g,), {**n.params, "size": tuple(n.metas[0].shape[-2:])})


IM2COL = register(
    OpDef(
        "im2col",
        ("input",),
        jvp="linear",
        batch="fold",
        **samples.IM2COL,
        infer=_im2col_infer,
        cpu=kernels.im2col_cpu,
        cuda=gpu.im2col_cuda,
        vjp=_im2col_vjp,
    )
)


def _col2im_infer(
    input: TensorMeta, *, size: Ints, kernel: Ints, result: Ints, stride: Ints, padding: Ints,
    dilation: Ints,
) -> TensorMeta:  # fmt: skip
    channels = input.shape[1] // (kernel[0] * kernel[1])
    return meta_of((input.shape[0], channels, *size), input.dtype, input.device)


def _col2im_vjp(g: Any, n: Any) -> Any:
    return call(IM2COL, (g,), {name: value for name, value in n.params.items() if name != "size"})


COL2IM = register(
    OpDef(
        "col2im",
        ("input",),
        jvp="linear",
        batch="fold",
        **samples.COL2IM,
        infer=_col2im_infer,
        cpu=kernels.col2im_cpu,
        cuda=gpu.col2im_cuda,
        vjp=_col2im_vjp,
    )
)


def _column_params(
    op: str, size: Ints, kernel_size: Any, dilation: Any, padding: Any, stride: Any
) -> dict[str, Any]:
    kernel = spatial(op, "kernel_size", kernel_size, 2)
    spread = spatial(op, "dilation", dilation, 2)
    pads, steps = spatial(op, "padding", padding, 2), spatial(op, "stride", stride, 2)
    result = tuple(out_size(*one) for one in zip(size, kernel, steps, pads, spread, strict=True))
    if min(result) < 1:
        raise ShapeError(
            op, what=f"calculated shape of the array of sliding blocks is {result}, but its "
            "components must be at least one", expected="blocks that fit", got=f"size {size}",
            remedy="use a smaller kernel, or padding",
        )  # fmt: skip
    return {
        "kernel": kernel, "result": result, "stride": steps, "padding": pads, "dilation": spread,
    }  # fmt: skip


@front(IM2COL, method=False)
def im2col(
    input: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
) -> Any:
    """Return the windows of each image as columns (torch.nn.functional.unfold)."""
    _checked("unfold", input, 2)
    x = ops.unsqueeze(input, 0) if input.meta.ndim == 3 else input
    size = tuple(x.meta.shape[-2:])
    params = _column_params("unfold", size, kernel_size, dilation, padding, stride)
    result = call(IM2COL, (x,), params)
    return ops.squeeze(result, 0) if input.meta.ndim == 3 else result


@front(COL2IM, method=False)
def col2im(
    input: Any, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0,
    stride: Any = 1,
) -> Any:  # fmt: skip
    """Add columns of windows up into images (torch.nn.functional.fold)."""
    _checked("fold", input, 1)
    x = ops.unsqueeze(input, 0) if input.meta.ndim == 2 else input
    size = spatial("fold", "output_size", output_size, 2)
    params = _column_params("fold", size, kernel_size, dilation, padding, stride)
    blocks, window = params["result"][0] * params["result"][1], params["kernel"]
    if x.meta.shape[2] != blocks or x.meta.shape[1] % (window[0] * window[1]):
        raise ShapeError(
            "fold",
            what=f"Given output_size={size} and the other arguments, expected input's size at "
            f"dimension 2 to match the calculated number of sliding blocks {blocks}",
            expected=f"[N, C * {window[0] * window[1]}, {blocks}]", got=str(tuple(x.meta.shape)),
            remedy="check output_size, kernel_size, stride and padding",
        )  # fmt: skip
    result = call(COL2IM, (x,), {**params, "size": size})
    return ops.squeeze(result, 0) if input.meta.ndim == 2 else result
