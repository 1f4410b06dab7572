"""Scaled dot-product attention: one op that never holds the score matrix, and its parts.

Invariants
----------
* The fused op sees heads of all samples as one dimension; it saves its operands, its result and one
  number a query, and its backward computes the weights again.
* Dropout, a mask that requires grad, and operands that do not fit run as products and softmax.
* A query that may see nothing gives zero.

Sources: Vaswani et al., "Attention is all you need", 2017; Dao et al., "FlashAttention", 2022.
"""

from __future__ import annotations

import math
from typing import Any

from refruntime import _dtypes
from refruntime._dispatch import call
from refruntime._impl import TensorMeta, meta_of, requires_grad
from refruntime._layout import broadcast_shapes
from refruntime._ops import samples_attention as samples
from refruntime._ops.linalg import common_dtype
from refruntime._ops.opdef import OpDef, front, ops, register, require_tensor
from refruntime.errors import DTypeError, ShapeError
from refruntime.kernels import attention as kernels
from refruntime.kernels import attention_cuda as gpu

_OP = "scaled_dot_product_attention"


def _infer(
    query: TensorMeta, key: TensorMeta, value: TensorMeta, mask: TensorMeta | None, *,
    scale: float, causal: bool, heads: int,
) -> tuple[TensorMeta, TensorMeta]:  # fmt: skip
    count, queries, _ = query.shape
    result = meta_of((count, queries, value.shape[2]), query.dtype, query.device)
    return result, meta_of((count, queries), query.dtype.compute, query.device)


def _vjp(g: Any, n: Any) -> tuple[Any, ...]:
    operands = (g[0], n.query, n.key, n.value, n.out0, n.out1, n.mask)
    params = {"scale": n.scale, "causal": n.causal, "heads": n.heads}
    return (*call(BACKWARD, operands, params), None)


def _backward_infer(
    grad: TensorMeta, query: TensorMeta, key: TensorMeta, value: TensorMeta, *_: Any, **params: Any
) -> tuple[TensorMeta, TensorMeta, TensorMeta]:
    query, key, value = (meta_of(m.shape, m.dtype, m.device) for m in (query, key, value))
    return query, key, value


def _weights(query: Any, key: Any, mask: Any, scale: float, causal: bool, heads: int) -> Any:
    """Return the weights ``[shared, group, queries, keys]`` of heads that share their keys."""
    shared = key.shape[0]
    turned = ops.transpose(ops.unsqueeze(key, 1), -2, -1)
    stacked = ops.reshape(query, (shared, query.shape[0] // shared, *query.shape[1:]))
    scores = ops.matmul(ops.mul(stacked, scale), turned)
    shape = scores.shape
    scores = ops.reshape(scores, (query.shape[0] // heads, heads, *shape[-2:]))
    return ops.reshape(_softened(scores, mask, causal), shape)


def _softened(scores: Any, mask: Any, causal: bool) -> Any:
    """Mask scores and return softmax over the keys; rows that see nothing are zero."""
    if causal:
        square = ops.ones(scores.shape[-2:], dtype=_dtypes.bool_, device=scores.device)
        scores = ops.masked_fill(scores, ops.logical_not(ops.tril(square)), -math.inf)
    if mask is None:
        return ops.softmax(scores, -1)
    if mask.meta.dtype is _dtypes.bool_:
        scores = ops.masked_fill(scores, ops.logical_not(mask), -math.inf)
    else:
        scores = ops.add(scores, mask)
    blind = ops.all(ops.eq(scores, -math.inf), -1, keepdim=True)
    return ops.masked_fill(ops.softmax(ops.masked_fill(scores, blind, 0.0), -1), blind, 0.0)


def _parts(
    g: Any, query: Any, key: Any, value: Any, result: Any, lse: Any, mask: Any, *, scale: float,
    causal: bool, heads: int,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """The backward in ops that have derivatives themselves."""
    weights = _weights(query, key, mask, scale, causal, heads)
    shared, group = weights.shape[:2]
    g4 = ops.reshape(g, (shared, group, *g.shape[1:]))
    q4 = ops.reshape(query, (shared, group, *query.shape[1:]))
    slopes = ops.matmul(g4, ops.transpose(ops.unsqueeze(value, 1), -2, -1))
    mean = ops.sum(ops.mul(slopes, weights), -1, keepdim=True)
    scores = ops.mul(ops.mul(weights, ops.sub(slopes, mean)), scale)
    gq = ops.reshape(ops.matmul(scores, ops.unsqueeze(key, 1)), query.shape)
    gk = ops.sum(ops.matmul(ops.transpose(scores, -2, -1), q4), 1)
    return gq, gk, ops.sum(ops.matmul(ops.transpose(weights, -2, -1), g4), 1)


def _cuda(
    out: Any, query: Any, key: Any, value: Any, mask: Any, *, heads: int, **params: Any
) -> None:
    pairs = None if mask is None else gpu.Mask(mask, heads)
    gpu.attention_cuda(out, query, key, value, mask=pairs, **params)


def _backward_cuda(out: Any, *operands: Any, heads: int, **params: Any) -> None:
    *rest, mask = operands
    pairs = None if mask is None else gpu.Mask(mask, heads)
    gpu.attention_backward_cuda(out, *rest, mask=pairs, **params)


ATTENTION = register(
    OpDef(_OP, ("query", "key", "value", "mask"), batch="attention",
          **samples.ATTENTION, infer=_infer,
          cpu=kernels.attention_cpu, cuda=_cuda, vjp=_vjp,
          saves=("query", "key", "value", "mask", "out0", "out1"), nondiff_outputs=(1,),
          autocast="lower", backward_name="ScaledDotProductFlashAttentionForCpuBackward0")
)  # fmt: skip
BACKWARD = register(
    OpDef(f"{_OP}_backward", ("grad", "query", "key", "value", "result", "lse", "mask"),
          batch="decomposed",
          infer=_backward_infer, cpu=kernels.attention_backward_cpu, cuda=_backward_cuda,
          decomposition=_parts)
)  # fmt: skip


# ---------------------------------------------------------------------------------------------
# The front function


def _check(query: Any, key: Any, value: Any, mask: Any, causal: bool) -> None:
    for name, operand in (("query", query), ("key", key), ("value", value)):
        require_tensor(_OP, operand, name)
        if operand.meta.ndim < 2:
            raise ShapeError(
                _OP, what=f"Expected {name} to be at least 2D", expected="[..., length, width]",
                got=str(tuple(operand.meta.shape)), remedy="add a dimension",
            )  # fmt: skip
    common_dtype(_OP, query.meta, key.meta, value.meta)
    if mask is not None and causal:
        raise ShapeError(
            _OP, what="Explicit attn_mask should not be set when is_causal=True",
            expected="a mask or is_causal", got="both", remedy="put the causal mask into attn_mask",
        )  # fmt: skip
    if mask is not None and mask.meta.dtype not in (_dtypes.bool_, query.meta.dtype):
        raise DTypeError(
            _OP, what="Expected attn_mask dtype to be bool or to match query dtype",
            expected=f"bool or {query.meta.dtype}", got=str(mask.meta.dtype),
            remedy="convert the mask",
        )  # fmt: skip
    if query.meta.shape[-1] != key.meta.shape[-1] or key.meta.shape[-2] != value.meta.shape[-2]:
        raise ShapeError(
            _OP, what="query and key must have one width, key and value one length",
            expected=f"a key of width {query.meta.shape[-1]}",
            got=f"{tuple(query.meta.shape)}, {tuple(key.meta.shape)}, {tuple(value.meta.shape)}",
            remedy="check the projections",
        )  # fmt: skip


def _check_heads(query: Any, other: Any) -> None:
    heads, shared = query.meta.shape[-3], other.meta.shape[-3]
    if heads % shared:
        raise ShapeError(
            _OP, what="Number of heads in key and value must divide the number of heads in query",
            expected=f"a divisor of {heads}", got=shared, remedy="check num_key_value_heads",
        )  # fmt: skip


def _shared_heads(query: Any, other: Any) -> Any:
    """Repeat heads of keys or values for the query heads that share them."""
    heads, shared = query.meta.shape[-3], other.meta.shape[-3]
    return other if heads == shared else ops.repeat_interleave(other, heads // shared, -3)


def _mask_in_four(mask: Any, lead: tuple[int, ...]) -> Any:
    """Return a mask as ``[samples or 1, heads or 1, queries or 1, keys or 1]``."""
    if mask.meta.ndim > 4 or len(lead) > 2:
        whole = (*lead, *mask.meta.shape[-2:]) if mask.meta.ndim >= 2 else (*lead, 1, 1)
        mask = ops.expand(mask, whole)
        return ops.reshape(mask, (-1, lead[-1], *mask.shape[-2:]))
    if len(lead) == 1 and mask.meta.ndim == 3:
        return ops.unsqueeze(mask, 1)
    while mask.meta.ndim < 4:
        mask = ops.unsqueeze(mask, 0)
    return mask


def _fits(query: Any, key: Any, value: Any, mask: Any, gqa: bool) -> bool:
    """Whether the fused op takes the operands as they are."""
    lead = query.meta.shape[:-2]
    alike = key.meta.shape[:-2] == value.meta.shape[:-2] and query.meta.dtype.is_floating_point
    if gqa:
        alike = alike and len(lead) >= 1 and lead[:-1] == key.meta.shape[:-3]
    else:
        alike = alike and lead == key.meta.shape[:-2]
    # A mask that stands for others inside a function transform may carry a derivative too.
    learned = requires_grad(mask) or hasattr(mask, "call_op")
    return alike and not learned and query.meta.numel > 0 and key.meta.numel > 0


def _fused(query: Any, key: Any, value: Any, mask: Any, causal: bool, scale: float) -> Any:
    lead = tuple(query.meta.shape[:-2])
    heads = lead[-1] if len(lead) > 1 else 1
    stacks = [ops.reshape(x, (-1, *x.meta.shape[-2:])) for x in (query, key, value)]
    if mask is not None:
        mask = _mask_in_four(mask, lead)
    params = {"scale": scale, "causal": causal, "heads": heads}
    result = call(ATTENTION, (*stacks, mask), params)[0]
    return ops.reshape(result, (*lead, query.meta.shape[-2], value.meta.shape[-1]))


@front(ATTENTION, method=False)
def scaled_dot_product_attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """Return ``softmax(query @ key.T * scale + mask) @ value``.

    Parameters
    ----------
    query, key, value : tensor
        ``[..., heads, queries, width]``, ``[..., heads, keys, width]``, ``[..., heads, keys,
        value width]``.
    attn_mask : tensor, optional
        Broadcast to ``[..., queries, keys]``: True where a pair counts, or added to its score.
    dropout_p : float
        Dropout of the weights, applied whenever it is above zero.
    is_causal : bool
        Each query sees the keys up to its own place.
    scale : float, optional
        One over the root of the width by default.
    enable_gqa : bool
        Several query heads may share one head of keys and values.
    """
    _check(query, key, value, attn_mask, is_causal)
    if enable_gqa:
        _check_heads(query, key)
        _check_heads(query, value)
    factor = 1.0 / math.sqrt(max(1, query.meta.shape[-1])) if scale is None else float(scale)
    if dropout_p == 0.0 and _fits(query, key, value, attn_mask, enable_gqa):
        return _fused(query, key, value, attn_mask, bool(is_causal), factor)
    if enable_gqa:
        key, value = _shared_heads(query, key), _shared_heads(query, value)
    broadcast_shapes(query.meta.shape[:-2], key.meta.shape[:-2], op=_OP)
    scores = ops.matmul(ops.mul(query, factor), ops.transpose(key, -2, -1))
    weights = _softened(scores, attn_mask, bool(is_causal))
    if dropout_p > 0.0:
        weights = ops.dropout(weights, dropout_p, True)
    return ops.matmul(weights, value)
