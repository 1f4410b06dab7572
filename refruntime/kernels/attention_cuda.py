"""Scaled dot-product attention on the GPU: launches of attention.cu.

State
-----
None.

Invariants
----------
* Heads of all samples are one leading dimension: q ``(heads, queries, width)``, k ``(heads / group,
  keys, width)``, v ``(heads / group, keys, value_width)``.
* The score matrix is never stored; a mask is read in place through its strides.
* The tile of an instance is at least as wide as the heads; the largest tiles that fit into shared
  memory are those that `cuda_instances` lists.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from refruntime import _dtypes
from refruntime._impl import TensorImpl
from refruntime.errors import KernelMissingError
from refruntime.kernels import launch
from refruntime.kernels.cuda_instances import KERNELS
from refruntime.kernels.gpu import (
    into_contiguous_cuda,
    packed_cuda,
    row_block,
    scratch,
    struct,
)


@dataclass(frozen=True, slots=True)
class Mask:
    """Which pairs count, or what is added to their scores.

    Parameters
    ----------
    values : tensor
        bool (pairs that count), or of the operands' dtype (added); of shape ``(samples or 1, heads
        of a sample or 1, queries or 1, keys or 1)``.
    heads : int
        Heads of a sample.
    """

    values: TensorImpl
    heads: int


@dataclass(frozen=True, slots=True)
class _Instance:
    args: tuple[str, ...]
    side: int
    rows: int
    pitch: int


def _instance(kernel: str, ctype: str, width: int) -> _Instance:
    """Return the narrowest instance whose tile is as wide as the heads."""
    for args in KERNELS["attention"][kernel]:
        if args[0] == ctype and int(args[1]) >= width:
            pad = 2 if ctype in ("__half", "__nv_bfloat16") else 1
            side = int(args[2])
            return _Instance(args, side, side * int(args[3]), int(args[1]) + pad)
    raise KernelMissingError(
        "scaled_dot_product_attention", what="no GPU kernel for these operands",
        expected="floating-point heads of a width of at most 256", got=f"{ctype}, {width}",
        remedy="split the heads, or convert the operands",
    )  # fmt: skip


def _tail(
    q: TensorImpl, v: TensorImpl, mask: Mask | None, scale: float, causal: bool
) -> tuple[Any, ...]:
    """Return the arguments that the kernels end with: masks, shape, scale, causal."""
    _, queries, width = q.meta.shape
    keys, value_width = v.meta.shape[1:]
    group = q.meta.shape[0] // v.meta.shape[0]
    if mask is None:
        shape = struct(queries, keys, width, value_width, group, 1, 0, 0, 0, 0)
        return 0, 0, shape, scale, int(causal)
    meta, address = mask.values.meta, mask.values.address()
    steps = (0 if n == 1 else s for n, s in zip(meta.shape, meta.strides, strict=True))
    shape = struct(queries, keys, width, value_width, group, mask.heads, *steps)
    chosen = (0, address) if meta.dtype is _dtypes.bool_ else (address, 0)
    return *chosen, shape, scale, int(causal)


@into_contiguous_cuda
def attention_cuda(
    out: tuple[TensorImpl, TensorImpl], q: TensorImpl, k: TensorImpl, v: TensorImpl, *,
    mask: Mask | None = None, scale: float, causal: bool = False,
) -> None:  # fmt: skip
    """Write attention and, for the backward, each query's log-sum-exp (in the computing type)."""
    if not out[0].meta.numel:
        return
    q, k, v = packed_cuda(q), packed_cuda(k), packed_cuda(v)
    dtype, (heads, queries, width) = q.meta.dtype, q.meta.shape
    it = _instance("attention_forward", dtype.ctype, max(width, v.meta.shape[2]))
    shared = 2 * it.rows * it.pitch * dtype.itemsize
    shared += it.rows * (it.rows + 4) * dtype.compute.itemsize
    launch.raw(
        "attention", "attention_forward", it.args, (-(-queries // it.rows) * heads,),
        (it.side, it.side),
        (out[0].address(), out[1].address(), q.address(), k.address(), v.address(),
         *_tail(q, v, mask, scale, causal)),
        shared,
    )  # fmt: skip


@into_contiguous_cuda
def attention_backward_cuda(
    out: tuple[TensorImpl, TensorImpl, TensorImpl], g: TensorImpl, q: TensorImpl, k: TensorImpl,
    v: TensorImpl, result: TensorImpl, lse: TensorImpl, *, mask: Mask | None = None, scale: float,
    causal: bool = False,
) -> None:  # fmt: skip
    """Write the gradients of q, k and v from that of the result."""
    g, q, k, v, result = map(packed_cuda, (g, q, k, v, result))
    dtype, (heads, queries, width) = q.meta.dtype, q.meta.shape
    keys, value_width = v.meta.shape[1:]
    delta = scratch(lse, (heads, queries), dtype.compute)
    block = row_block(value_width)
    if delta.meta.numel:
        launch.raw(
            "attention", "attention_delta", (dtype.ctype,), (heads * queries,), block,
            (delta.address(), g.address(), result.address(), value_width),
            block[1] * dtype.compute.itemsize,
        )  # fmt: skip
    it = _instance("attention_backward_q", dtype.ctype, max(width, value_width))
    shared = 4 * it.rows * it.pitch * dtype.itemsize
    shared += 2 * it.rows * (it.rows + 1) * dtype.compute.itemsize
    known = (g.address(), q.address(), k.address(), v.address(), lse.address(), delta.address(),
             *_tail(q, v, mask, scale, causal))  # fmt: skip
    each = (
        ("attention_backward_q", heads, queries, out[:1]),
        ("attention_backward_kv", k.meta.shape[0], keys, out[1:]),
    )
    for kernel, count, rows, targets in each:
        if count and rows:
            launch.raw(
                "attention", kernel, it.args, (-(-rows // it.rows) * count,), (it.side, it.side),
                (*(target.address() for target in targets), *known), shared,
            )  # fmt: skip

