"""Padding, and moving pixels between channels and space.

Invariants
----------
* Constant padding is an op whose derivative is itself with negated amounts; the other modes select
  indices along one dimension after another.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from refruntime import _dtypes
from refruntime._dispatch import call, copy_into, launch
from refruntime._impl import TensorImpl, TensorMeta, alias, from_array, meta_of
from refruntime._ops import samples_nn as samples
from refruntime._ops.arguments import ints_of
from refruntime._ops.opdef import NO_PARAMS, REGISTRY, OpDef, front, ops, register, require_tensor
from refruntime.errors import ArgumentValueError, ShapeError

Ints = tuple[int, ...]


def _pad_infer(input: TensorMeta, *, amounts: Ints, value: float) -> TensorMeta:
    shape = tuple(
        size + amounts[2 * dim] + amounts[2 * dim + 1] for dim, size in enumerate(input.shape)
    )
    if min(shape, default=0) < 0:
        raise ShapeError(
            "pad",
            what=f"The input size {list(input.shape)}, plus negative padding {amounts}, resulted "
            "in a negative output size",
            expected="a result with sizes of zero or more",
            got=str(shape),
            remedy="crop less",
        )
    return meta_of(shape, input.dtype, input.device)


def _inner(x: TensorImpl, amounts: Ints, sign: int) -> TensorImpl:
    """Show the part of the source (sign -1) or of the result (sign 1) that both have."""
    offset = 0
    shape = []
    for dim, (size, stride) in enumerate(zip(x.meta.shape, x.meta.strides, strict=True)):
        before, after = (max(0, sign * amount) for amount in amounts[2 * dim : 2 * dim + 2])
        offset += before * stride
        shape.append(size - before - after)
    meta = meta_of(tuple(shape), x.meta.dtype, x.meta.device, x.meta.strides)
    return alias(x, meta, x.byte_offset + offset * meta.dtype.itemsize)


def _pad_kernel(out: TensorImpl, x: TensorImpl, *, amounts: Ints, value: float) -> None:
    if max(amounts, default=0) > 0:
        launch(REGISTRY["fill"], out.meta.device.type, out, (out, value), NO_PARAMS)
    if out.meta.numel and x.meta.numel:
        copy_into(_inner(out, amounts, 1), _inner(x, amounts, -1))


def _pad_jvp(op: OpDef, primals: Any, tangents: Any, out: Any, params: dict[str, Any]) -> Any:
    return call(op, tangents, {**params, "value": 0})


def _pad_vjp(g: Any, n: Any) -> Any:
    return call(PAD, (g,), {"amounts": tuple(-a for a in n.amounts), "value": 0})


PAD = register(
    OpDef("constant_pad_nd", ("input",), jvp=_pad_jvp, batch="pad", **samples.PAD,
          infer=_pad_infer, cpu=_pad_kernel, cuda=_pad_kernel,
          vjp=_pad_vjp)
)  # fmt: skip


@front(PAD, method=False)
def constant_pad_nd(input: Any, pad: Any, value: float = 0) -> Any:
    """Add `value` around the last dimensions; negative amounts crop."""
    require_tensor("constant_pad_nd", input)
    amounts = ints_of("pad", "pad", pad)
    if len(amounts) % 2 or len(amounts) > 2 * input.meta.ndim:
        raise ShapeError(
            "pad", what=f"Length of pad must be even and no more than twice the number of "
            f"dimensions of the input ({input.meta.ndim})", expected="pairs of amounts",
            got=str(amounts), remedy="pass (left, right, top, bottom, ...)",
        )  # fmt: skip
    pairs = [amounts[i : i + 2] for i in range(0, len(amounts), 2)]
    pairs += [(0, 0)] * (input.meta.ndim - len(pairs))
    flat = tuple(amount for pair in reversed(pairs) for amount in pair)
    return call(PAD, (input,), {"amounts": flat, "value": 0 if value is None else value})


def _pad_places(size: int, before: int, after: int, mode: str) -> Any:
    places = np.arange(-before, size + after)
    if mode == "replicate":
        return np.clip(places, 0, size - 1)
    if mode == "circular":
        return places % size
    period = max(1, 2 * (size - 1))
    places = places % period
    return np.where(places >= size, period - places, places)


@front(PAD, method=False)
def pad(input: Any, pad: Any, mode: str = "constant", value: float | None = None) -> Any:
    """Pad the last dimensions: ``(left, right, top, bottom, ...)``, from the last one backwards."""
    require_tensor("pad", input)
    if mode == "constant":
        return constant_pad_nd(input, pad, 0 if value is None else value)
    if mode not in ("reflect", "replicate", "circular"):
        raise ArgumentValueError(
            "pad", expected="constant, reflect, replicate or circular", got=repr(mode)
        )
    amounts = ints_of("pad", "pad", pad)
    spread = len(amounts) // 2
    if len(amounts) % 2 or input.meta.ndim not in (spread + 1, spread + 2):
        raise ShapeError(
            "pad", what=f"Only 2D, 3D, 4D, 5D padding with non-constant padding are supported for "
            f"now, got {input.meta.ndim}D input and {len(amounts)} amounts",
            expected="all but batch and channel dimensions padded", got=str(amounts),
            remedy="pad the spatial dimensions",
        )  # fmt: skip
    for step in range(spread):
        before, after = amounts[2 * step : 2 * step + 2]
        input = _pad_dim(input, input.meta.ndim - 1 - step, before, after, mode)
    return input


def _pad_dim(x: Any, dim: int, before: int, after: int, mode: str) -> Any:
    size = x.meta.shape[dim]
    limit = {"reflect": size - 1, "circular": size}.get(mode, max(before, after))
    if max(before, after) > limit or size == 0:
        raise ShapeError(
            "pad",
            what="Argument #4: Padding size should be less than the corresponding input dimension, "
            f"but got: padding ({before}, {after}) at dimension {dim} of input "
            f"{list(x.meta.shape)}",
            expected=f"at most {limit}", got=f"({before}, {after})", remedy="pad less",
        )  # fmt: skip
    if not before and not after:
        return x
    places = _pad_places(size, before, after, mode).astype(np.int64)
    index = ops.to(from_array(places, _dtypes.int64), x.meta.device)
    return ops.index_select(x, dim, index)


# ---------------------------------------------------------------------------------------------
# Channels and pixels


@front(method=False)
def pixel_shuffle(input: Any, upscale_factor: int) -> Any:
    """Turn ``[..., C r r, H, W]`` into ``[..., C, H r, W r]``."""
    require_tensor("pixel_shuffle", input)
    r = upscale_factor
    if input.meta.ndim < 3 or input.meta.shape[-3] % (r * r):
        raise ShapeError(
            "pixel_shuffle",
            what="expects its input's 'channel' dimension to be divisible by the square of "
            f"upscale_factor, but input.size(-3)={input.meta.shape[-3:][0]} is not divisible by "
            f"{r * r}",
            expected=f"channels that {r * r} divides", got=str(tuple(input.meta.shape)),
            remedy="check upscale_factor",
        )  # fmt: skip
    *lead, channels, height, width = input.meta.shape
    split = ops.reshape(input, (*lead, channels // (r * r), r, r, height, width))
    first = len(lead)
    order = (*range(first + 1), first + 3, first + 1, first + 4, first + 2)
    shape = (*lead, channels // (r * r), height * r, width * r)
    return ops.reshape(ops.permute(split, order), shape)


@front(method=False)
def pixel_unshuffle(input: Any, downscale_factor: int) -> Any:
    """Turn ``[..., C, H r, W r]`` into ``[..., C r r, H, W]``."""
    require_tensor("pixel_unshuffle", input)
    r = downscale_factor
    if input.meta.ndim < 3 or input.meta.shape[-1] % r or input.meta.shape[-2] % r:
        raise ShapeError(
            "pixel_unshuffle",
            what=f"expects height and width to be divisible by downscale_factor, but got "
            f"{list(input.meta.shape)}",
            expected=f"sizes that {r} divides", got=str(tuple(input.meta.shape)),
            remedy="check downscale_factor",
        )  # fmt: skip
    *lead, channels, height, width = input.meta.shape
    split = ops.reshape(input, (*lead, channels, height // r, r, width // r, r))
    first = len(lead)
    order = (*range(first + 1), first + 2, first + 4, first + 1, first + 3)
    shape = (*lead, channels * r * r, height // r, width // r)
    return ops.reshape(ops.permute(split, order), shape)


@front(method=False)
def channel_shuffle(input: Any, groups: int) -> Any:
    """Interleave `groups` groups of channels."""
    require_tensor("channel_shuffle", input)
    batch, channels, *rest = input.meta.shape
    split = ops.reshape(input, (batch, groups, channels // groups, *rest))
    return ops.reshape(ops.transpose(split, 1, 2), (batch, channels, *rest))
