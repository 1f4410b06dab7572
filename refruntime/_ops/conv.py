"""Convolution ops: conv1d to conv3d, their transposed forms, and the weight's gradient.

Invariants
----------
* Two records serve all: `convolution` (plain or transposed) and `convolution_weight`. Each is the
  derivative of the other two uses, so derivatives of any order stay among them.
* Parameters of records are tuples with one entry a spatial dimension.
"""

from __future__ import annotations

from typing import Any

from refruntime._dispatch import call
from refruntime._impl import TensorMeta, meta_of
from refruntime._ops import samples_inner as inner
from refruntime._ops import samples_nn as samples
from refruntime._ops.linalg import common_dtype
from refruntime._ops.opdef import OpDef, front, ops, register, require_tensor
from refruntime.errors import ArgumentValueError, KernelMissingError, ShapeError
from refruntime.kernels import conv as kernels

Ints = tuple[int, ...]


def out_size(size: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    """Return how many positions a window has."""
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def _transposed_size(
    size: int, kernel: int, stride: int, padding: int, dilation: int, extra: int
) -> int:
    return (size - 1) * stride - 2 * padding + dilation * (kernel - 1) + extra + 1


def _check_channels(
    input: TensorMeta, weight: TensorMeta, bias: TensorMeta | None, groups: int, transposed: bool
) -> None:
    op = "convolution"
    if input.ndim != weight.ndim or input.ndim < 3:
        raise ShapeError(
            op,
            what=f"expected {weight.ndim}D input with weight of size {list(weight.shape)}, but got "
            f"input of size {list(input.shape)}",
            expected=f"{weight.ndim} dimensions",
            got=str(tuple(input.shape)),
            remedy="add or drop a dimension",
        )
    channels = weight.shape[0] if transposed else weight.shape[1] * groups
    if groups < 1 or (channels if transposed else weight.shape[0]) % groups:
        raise ShapeError(
            op, what=f"expected weight to be divisible by groups={groups}, but got "
            f"{list(weight.shape)}", expected="channels that groups divides", got=groups,
            remedy="check groups",
        )  # fmt: skip
    if input.shape[1] != channels:
        raise ShapeError(
            op,
            what=f"Given {'transposed=1' if transposed else f'groups={groups}'}, weight of size "
            f"{list(weight.shape)}, expected input{list(input.shape)} to have {channels} channels, "
            f"but got {input.shape[1]} channels instead",
            expected=f"{channels} channels",
            got=str(input.shape[1]),
            remedy="check in_channels of the layer",
        )
    rows = weight.shape[1] * groups if transposed else weight.shape[0]
    if bias is not None and tuple(bias.shape) != (rows,):
        raise ShapeError(
            op,
            what=f"Given weight of size {list(weight.shape)}, expected bias to be 1-dimensional "
            f"with {rows} elements, but got bias of size {list(bias.shape)} instead",
            expected=f"({rows},)", got=str(tuple(bias.shape)), remedy="check the bias",
        )  # fmt: skip


def _convolution_infer(
    input: TensorMeta, weight: TensorMeta, bias: TensorMeta | None, *, stride: Ints, padding: Ints,
    dilation: Ints, transposed: bool, output_padding: Ints, groups: int,
) -> TensorMeta:  # fmt: skip
    dtype = common_dtype("convolution", input, weight, bias)
    if dtype.is_complex:
        raise KernelMissingError(
            "convolution", what=f"no convolution of {dtype.name}", expected="a real dtype",
            got=str(dtype), remedy="convolve real and imaginary parts apart",
        )  # fmt: skip
    _check_channels(input, weight, bias, groups, transposed)
    sizes, kernel = input.shape[2:], weight.shape[2:]
    each = zip(sizes, kernel, stride, padding, dilation, output_padding, strict=True)
    if transposed:
        rows = weight.shape[1] * groups
        spatial = tuple(_transposed_size(*one) for one in each)
    else:
        rows = weight.shape[0]
        spatial = tuple(out_size(*one[:5]) for one in each)
    if any(size <= 0 for size in spatial) and input.numel:
        padded = " x ".join(str(s + 2 * p) for s, p in zip(sizes, padding, strict=True))
        spread = " x ".join(str(d * (k - 1) + 1) for k, d in zip(kernel, dilation, strict=True))
        raise ShapeError(
            "convolution",
            what=f"Calculated padded input size per channel: ({padded}). Kernel size: ({spread}). "
            "Kernel size can't be greater than actual input size",
            expected="a kernel that fits into the input",
            got=str(tuple(input.shape)),
            remedy="pad the input, or use a smaller kernel",
        )
    return meta_of((input.shape[0], rows, *(max(0, s) for s in spatial)), dtype, input.device)


def _convolution_vjp(g: Any, n: Any) -> tuple[Any, Any, Any]:
    gx = gw = gb = None
    if n.needs[0]:
        gx = _input_gradient(g, n)
    if n.needs[1]:
        small, large = (n.input, g) if n.transposed else (g, n.input)
        gw = _weight_gradient(small, large, n, tuple(n.metas[1].shape[2:]))
    if n.needs[2]:
        gb = ops.sum(g, (0, *range(2, g.ndim)))
    return gx, gw, gb


def _input_gradient(g: Any, n: Any) -> Any:
    """Convolve the gradient with the same weight, the other way round."""
    weight, size = n.weight, n.metas[0].shape[2:]
    extra = tuple(
        0 if n.transposed else whole - _transposed_size(*one, 0)
        for whole, one in zip(
            size,
            zip(g.shape[2:], weight.shape[2:], n.stride, n.padding, n.dilation, strict=True),
            strict=True,
        )
    )
    params = {**_params(n), "transposed": not n.transposed, "output_padding": extra}
    return _cropped(call(CONVOLUTION, (g, weight, None), params), size)


def _cropped(x: Any, size: Ints) -> Any:
    """Drop windows that no input made: output padding beyond the stride leaves room for them."""
    for dim, whole in enumerate(size, 2):
        if x.shape[dim] != whole:
            x = ops.narrow(x, dim, 0, whole)
    return x


def _params(n: Any) -> dict[str, Any]:
    return {
        "stride": n.stride, "padding": n.padding, "dilation": n.dilation, "groups": n.groups,
    }  # fmt: skip


def _weight_gradient(small: Any, large: Any, n: Any, kernel: Ints) -> Any:
    return call(CONVOLUTION_WEIGHT, (small, large), {**_params(n), "kernel": kernel})


CONVOLUTION = register(
    OpDef("convolution", ("input", "weight", "bias"), jvp="bilinear", batch="convolution",
          **samples.CONVOLUTION,
          infer=_convolution_infer,
          cpu=kernels.convolution_cpu, cuda=kernels.convolution_cuda,
          vjp=_convolution_vjp, saves=("input", "weight"),
          autocast="lower")
)  # fmt: skip


def _weight_infer(
    grad: TensorMeta, input: TensorMeta, *, stride: Ints, padding: Ints, dilation: Ints,
    groups: int, kernel: Ints,
) -> TensorMeta:  # fmt: skip
    shape = (grad.shape[1], input.shape[1] // groups, *kernel)
    return meta_of(shape, common_dtype("convolution_weight", grad, input), input.device)


def _weight_vjp(h: Any, n: Any) -> tuple[Any, Any]:
    # The gradient is linear in both operands: h takes the weight's place.
    gg = gx = None
    none = (0,) * len(n.stride)
    if n.needs[0]:
        params = {**_params(n), "transposed": False, "output_padding": none}
        gg = _cropped(call(CONVOLUTION, (n.input, h, None), params), n.metas[0].shape[2:])
    if n.needs[1]:
        sizes = zip(n.metas[0].shape[2:], n.kernel, n.stride, n.padding, n.dilation, strict=True)
        extra = tuple(
            whole - _transposed_size(*one, 0)
            for whole, one in zip(n.metas[1].shape[2:], sizes, strict=True)
        )
        params = {**_params(n), "transposed": True, "output_padding": extra}
        gx = call(CONVOLUTION, (n.grad, h, None), params)
    return gg, gx


CONVOLUTION_WEIGHT = register(
    OpDef("convolution_weight", ("grad", "input"), jvp="bilinear", batch="convolution_weight",
          **inner.CONVOLUTION_WEIGHT,
          infer=_weight_infer,
          cpu=kernels.convolution_weight_cpu, cuda=kernels.convolution_weight_cuda,
          vjp=_weight_vjp, saves=("grad", "input"),
          autocast="lower")
)  # fmt: skip


# ---------------------------------------------------------------------------------------------
# Front functions


def spatial(op: str, name: str, value: Any, ndim: int) -> Ints:
    """Return a parameter with one entry a spatial dimension; one number stands for all."""
    if type(value) is int:
        return (value,) * ndim
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,) * ndim
    if len(values) == 1:
        values *= ndim
    if len(values) != ndim:
        raise ShapeError(
            op, what=f"expected {name} to be a single integer value or a list of {ndim} values",
            expected=f"{ndim} values", got=str(values), remedy=f"check {name}",
        )  # fmt: skip
    return tuple(int(v) for v in values)


def _positive(op: str, name: str, values: Ints) -> Ints:
    if min(values) < 1:
        raise ShapeError(
            op, what=f"non-positive {name} is not supported", expected="numbers above zero",
            got=str(values), remedy=f"check {name}",
        )  # fmt: skip
    return values


def _same_padding(op: str, x: Any, weight: Any, stride: Ints, dilation: Ints) -> tuple[Any, Ints]:
    """Pad so that the result has the input's size; what is odd goes behind."""
    if max(stride) > 1:
        raise ArgumentValueError(
            op, what="padding='same' is not supported for strided convolutions",
            expected="stride 1", got=str(stride), remedy="pass numbers as padding",
        )  # fmt: skip
    totals = [d * (k - 1) for k, d in zip(weight.meta.shape[2:], dilation, strict=True)]
    if any(total % 2 for total in totals):
        odd = [side for total in reversed(totals) for side in (0, total % 2)]
        x = ops.pad(x, odd)
    return x, tuple(total // 2 for total in totals)


def _conv(
    op: str, ndim: int, input: Any, weight: Any, bias: Any, stride: Any, padding: Any,
    dilation: Any, groups: int,
) -> Any:  # fmt: skip
    require_tensor(op, input)
    require_tensor(op, weight, "weight")
    x = _batched(op, input, ndim)
    steps = _positive(op, "stride", spatial(op, "stride", stride, ndim))
    spread = _positive(op, "dilation", spatial(op, "dilation", dilation, ndim))
    if padding == "valid":
        padding = 0
    if padding == "same":
        x, pads = _same_padding(op, x, weight, steps, spread)
    elif isinstance(padding, str):
        raise ArgumentValueError(
            op, expected="'valid', 'same' or numbers as padding", got=repr(padding)
        )
    else:
        pads = spatial(op, "padding", padding, ndim)
    params = {
        "stride": steps, "padding": pads, "dilation": spread, "transposed": False,
        "output_padding": (0,) * ndim, "groups": groups,
    }  # fmt: skip
    result = call(CONVOLUTION, (x, weight, bias), params)
    return result if x.meta.ndim == input.meta.ndim else ops.squeeze(result, 0)


def _batched(op: str, x: Any, ndim: int) -> Any:
    if x.meta.ndim not in (ndim + 1, ndim + 2):
        raise ShapeError(
            op,
            what=f"Expected {ndim + 1}D (unbatched) or {ndim + 2}D (batched) input to {op}, but "
            f"got input of size: {list(x.meta.shape)}",
            expected=f"{ndim + 1} or {ndim + 2} dimensions",
            got=str(tuple(x.meta.shape)),
            remedy="add the channel or batch dimension with unsqueeze",
        )
    return ops.unsqueeze(x, 0) if x.meta.ndim == ndim + 1 else x


@front(CONVOLUTION, method=False)
def conv1d(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
    groups: int = 1,
) -> Any:  # fmt: skip
    """Convolve ``[N, C, L]`` with ``[O, C / groups, K]``."""
    return _conv("conv1d", 1, input, weight, bias, stride, padding, dilation, groups)


@front(CONVOLUTION, method=False)
def conv2d(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
    groups: int = 1,
) -> Any:  # fmt: skip
    """Convolve ``[N, C, H, W]`` with ``[O, C / groups, KH, KW]``."""
    return _conv("conv2d", 2, input, weight, bias, stride, padding, dilation, groups)


@front(CONVOLUTION, method=False)
def conv3d(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
    groups: int = 1,
) -> Any:  # fmt: skip
    """Convolve ``[N, C, D, H, W]`` with ``[O, C / groups, KD, KH, KW]``."""
    return _conv("conv3d", 3, input, weight, bias, stride, padding, dilation, groups)


def _conv_transpose(
    op: str, ndim: int, input: Any, weight: Any, bias: Any, stride: Any, padding: Any,
    output_padding: Any, groups: int, dilation: Any,
) -> Any:  # fmt: skip
    require_tensor(op, input)
    require_tensor(op, weight, "weight")
    x = _batched(op, input, ndim)
    steps = _positive(op, "stride", spatial(op, "stride", stride, ndim))
    spread = _positive(op, "dilation", spatial(op, "dilation", dilation, ndim))
    extra = spatial(op, "output_padding", output_padding, ndim)
    if any(e >= max(s, d) for e, s, d in zip(extra, steps, spread, strict=True)):
        raise ShapeError(
            op,
            what="output padding must be smaller than either stride or dilation, but got "
            f"output_padding: {extra}, stride: {steps}, dilation: {spread}",
            expected="a smaller output_padding", got=str(extra), remedy="check output_padding",
        )  # fmt: skip
    params = {
        "stride": steps, "padding": spatial(op, "padding", padding, ndim), "dilation": spread,
        "transposed": True, "output_padding": extra, "groups": groups,
    }  # fmt: skip
    result = call(CONVOLUTION, (x, weight, bias), params)
    return result if x.meta.ndim == input.meta.ndim else ops.squeeze(result, 0)


@front(CONVOLUTION, method=False)
def conv_transpose1d(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0,
    output_padding: Any = 0, groups: int = 1, dilation: Any = 1,
) -> Any:  # fmt: skip
    """Spread ``[N, C, L]`` by ``[C, O / groups, K]``: the transpose of `conv1d`."""
    rest = (stride, padding, output_padding, groups, dilation)
    return _conv_transpose("conv_transpose1d", 1, input, weight, bias, *rest)


@front(CONVOLUTION, method=False)
def conv_transpose2d(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0,
    output_padding: Any = 0, groups: int = 1, dilation: Any = 1,
) -> Any:  # fmt: skip
    """Spread ``[N, C, H, W]`` by ``[C, O / groups, KH, KW]``: the transpose of `conv2d`."""
    rest = (stride, padding, output_padding, groups, dilation)
    return _conv_transpose("conv_transpose2d", 2, input, weight, bias, *rest)


@front(CONVOLUTION, method=False)
def conv_transpose3d(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0,
    output_padding: Any = 0, groups: int = 1, dilation: Any = 1,
) -> Any:  # fmt: skip
    """Spread ``[N, C, D, H, W]`` by ``[C, O / groups, KD, KH, KW]``: the transpose of `conv3d`."""
    rest = (stride, padding, output_padding, groups, dilation)
    return _conv_transpose("conv_transpose3d", 3, input, weight, bias, *rest)


@front(CONVOLUTION, method=False)
def convolution(
    input: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
    output_padding: Any, groups: int,
) -> Any:  # fmt: skip
    """Convolve in as many spatial dimensions as `weight` has."""
    require_tensor("convolution", input)
    ndim = weight.meta.ndim - 2
    named = {
        "stride": stride, "padding": padding, "dilation": dilation,
        "output_padding": output_padding,
    }  # fmt: skip
    params = {name: spatial("convolution", name, value, ndim) for name, value in named.items()}
    return call(
        CONVOLUTION, (input, weight, bias), {**params, "transposed": transposed, "groups": groups}
    )
