"""Attention, composed of matrix products and softmax.

Source: Vaswani et al., "Attention is all you need", 2017.
"""

from __future__ import annotations

import math
from typing import Any

from refruntime._dtypes import bool_
from refruntime._ops.opdef import ops
from refruntime.errors import ShapeError
from refruntime.nn import functional


def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Return ``softmax(query @ key.T * scale + mask) @ value``.

    Parameters
    ----------
    query : Tensor
        (..., heads, queries, width).
    key, value : Tensor
        (..., heads, keys, width).
    attn_mask : Tensor, optional
        Broadcast to (..., queries, keys): True where attention is allowed, or added to the scores.
    dropout_p : float
        Dropout of the weights; applied whenever it is above 0.
    is_causal : bool
        Each query sees the keys up to its own place.
    scale : float, optional
        By default 1 / sqrt(width).
    enable_gqa : bool
        Whether several heads of the query may share one of key and value.
    """
    fused = getattr(ops, "scaled_dot_product_attention", None)
    if fused is not None:
        return fused(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    if is_causal and attn_mask is not None:
        raise RuntimeError(
            "scaled_dot_product_attention: Explicit attn_mask should not be set when is_causal=True"
        )
    if enable_gqa:
        key, value = _shared_heads(query, key), _shared_heads(query, value)
    factor = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = (query * factor).matmul(key.transpose(-2, -1))
    if is_causal:
        queries, keys = scores.shape[-2:]
        attn_mask = ops.ones((queries, keys), dtype=bool_, device=query.device).tril()
    if attn_mask is not None:
        if attn_mask.dtype is bool_:
            scores = scores.masked_fill(attn_mask.logical_not(), float("-inf"))
        else:
            scores = scores + attn_mask
    weights = ops.softmax(scores, -1)
    if attn_mask is not None and attn_mask.dtype is bool_:
        # A query that may see nothing gives 0, not NaN.
        weights = weights.masked_fill(attn_mask.any(-1, keepdim=True).logical_not(), 0.0)
    if dropout_p > 0.0:
        weights = functional.dropout(weights, dropout_p, True)
    return weights.matmul(value)


def _shared_heads(query: Any, tensor: Any) -> Any:
    heads, shared = query.shape[-3], tensor.shape[-3]
    if heads == shared:
        return tensor
    if heads % shared:
        raise RuntimeError(
            "scaled_dot_product_attention: Number of heads in key and value must divide the "
            f"number of heads in query, got {shared} and {heads}"
        )
    return tensor.repeat_interleave(heads // shared, -3)


def canonical_mask(mask: Any, name: str, dtype: Any) -> Any:
    """Return a mask as what is added to the scores: True becomes minus infinity."""
    if mask is None:
        return None
    if mask.dtype is bool_:
        zeros = ops.zeros(tuple(mask.shape), dtype=dtype, device=mask.device)
        return zeros.masked_fill_(mask, float("-inf"))
    if not mask.dtype.is_floating_point:
        raise AssertionError(f"only bool and floating types of {name} are supported")
    return mask


def _project(
    query: Any, key: Any, value: Any, weight: Any, bias: Any, separate: tuple[Any, ...]
) -> tuple[Any, Any, Any]:
    """Return the projected query, key and value, with as few matrix products as can be."""
    width = query.shape[-1]
    if weight is None:
        parts = ops.chunk(bias, 3, 0) if bias is not None else (None, None, None)
        return tuple(
            functional.linear(x, w, b)
            for x, w, b in zip((query, key, value), separate, parts, strict=True)
        )
    if query is key and key is value:
        return tuple(ops.chunk(functional.linear(query, weight, bias), 3, -1))
    first = functional.linear(query, weight[:width], None if bias is None else bias[:width])
    rest_weight = weight[width:]
    rest_bias = None if bias is None else bias[width:]
    if key is value:
        second, third = ops.chunk(functional.linear(key, rest_weight, rest_bias), 2, -1)
        return first, second, third
    weights = ops.chunk(rest_weight, 2, 0)
    biases = (None, None) if rest_bias is None else ops.chunk(rest_bias, 2, 0)
    second = functional.linear(key, weights[0], biases[0])
    return first, second, functional.linear(value, weights[1], biases[1])


def multi_head_attention_forward(
    query: Any,
    key: Any,
    value: Any,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Any,
    in_proj_bias: Any,
    bias_k: Any,
    bias_v: Any,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Any,
    out_proj_bias: Any,
    training: bool = True,
    key_padding_mask: Any = None,
    need_weights: bool = True,
    attn_mask: Any = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Any = None,
    k_proj_weight: Any = None,
    v_proj_weight: Any = None,
    static_k: Any = None,
    static_v: Any = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Any, Any]:
    """Project, attend in each head, and project back; see `nn.MultiheadAttention`.

    Tensors are (length, batch, width), or (length, width) without a batch.
    """
    _check_inputs(query, key, value, embed_dim_to_check, num_heads)
    if is_causal and attn_mask is None:
        raise RuntimeError("Need attn_mask if specifying the is_causal hint.")
    batched = query.dim() == 3
    if not batched:
        query, key, value = _with_batch(query, key, value)
        key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
    separate = (q_proj_weight, k_proj_weight, v_proj_weight)
    joint = None if use_separate_proj_weight else in_proj_weight
    q, k, v = _project(query, key, value, joint, in_proj_bias, separate)
    length, batch, width = query.shape
    keys = k.shape[0]
    if bias_k is not None and bias_v is not None:
        k = ops.cat([k, bias_k.expand(1, batch, width)], 0)
        v = ops.cat([v, bias_v.expand(1, batch, width)], 0)
    q, k, v = (_split_heads(x, num_heads) for x in (q, k, v))
    if static_k is not None:
        k, keys = static_k.reshape(batch, num_heads, *static_k.shape[1:]), static_k.shape[1]
    v = v if static_v is None else static_v.reshape(batch, num_heads, *static_v.shape[1:])
    if add_zero_attn:
        row = (batch, num_heads, 1, width // num_heads)
        zero = ops.zeros(row, dtype=k.dtype, device=k.device)
        k, v = ops.cat([k, zero], 2), ops.cat([v, zero], 2)
    shape = (batch, num_heads, length, k.shape[2])
    mask = _joint_mask(attn_mask, key_padding_mask, shape, k.shape[2] - keys, q)
    drop = dropout_p if training else 0.0
    if need_weights:
        mixed, weights = _attend_with_weights(q, k, v, mask, drop)
    else:
        mixed, weights = functional.scaled_dot_product_attention(q, k, v, mask, drop), None
    rows = mixed.permute(2, 0, 1, 3).reshape(length * batch, width)
    output = functional.linear(rows, out_proj_weight, out_proj_bias).reshape(length, batch, -1)
    if weights is not None and average_attn_weights:
        weights = weights.mean(1)
    if batched:
        return output, weights
    return output.squeeze(1), None if weights is None else weights.squeeze(0)


def _with_batch(query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
    """Add a batch of one; tensors that are one stay one."""
    first = query.unsqueeze(1)
    second = first if key is query else key.unsqueeze(1)
    if value is key:
        return first, second, second
    return first, second, first if value is query else value.unsqueeze(1)


def _check_inputs(query: Any, key: Any, value: Any, width: int, num_heads: int) -> None:
    op = "multi_head_attention_forward"
    if query.dim() not in (2, 3):
        raise AssertionError(
            f"query should be unbatched 2D or batched 3D tensor but received {query.dim()}-D query"
        )
    if key.dim() != query.dim() or value.dim() != query.dim():
        raise AssertionError(
            f"{op}: expected key and value to be {query.dim()}-D like the query, got {key.dim()}-D "
            f"and {value.dim()}-D tensors"
        )
    if query.shape[-1] != width:
        raise AssertionError(
            f"was expecting embedding dimension of {width}, but got {query.shape[-1]}"
        )
    if width % num_heads:
        raise AssertionError(f"embed_dim {width} not divisible by num_heads {num_heads}")


def _split_heads(x: Any, num_heads: int) -> Any:
    """(length, batch, width) to (batch, heads, length, width / heads)."""
    length, batch, width = x.shape
    return x.reshape(length, batch, num_heads, width // num_heads).permute(1, 2, 0, 3)


def _joint_mask(
    attn_mask: Any, key_padding_mask: Any, shape: tuple[int, ...], extra: int, like: Any
) -> Any:
    """Add both masks up; rows that were added to the keys are always seen."""
    batch, heads, length, keys = shape
    given = canonical_mask(attn_mask, "attn_mask", like.dtype)
    if given is not None:
        expected = {(length, keys - extra), (batch * heads, length, keys - extra)}
        if tuple(given.shape) not in expected:
            raise ShapeError(
                "multi_head_attention_forward",
                what=f"The shape of the {given.dim()}D attn_mask is {given.shape}",
                expected=" or ".join(map(str, sorted(expected, key=len))),
                got=str(tuple(given.shape)),
            )
        if given.dim() == 3:
            given = given.reshape(batch, heads, length, keys - extra)
    padding = canonical_mask(key_padding_mask, "key_padding_mask", like.dtype)
    if padding is not None:
        padding = padding.reshape(batch, 1, 1, keys - extra)
        given = padding if given is None else given + padding
    if given is None or not extra:
        return given
    return ops.constant_pad_nd(given, [0, extra], 0.0)


def _attend_with_weights(q: Any, k: Any, v: Any, mask: Any, drop: float) -> tuple[Any, Any]:
    scores = (q * math.sqrt(1.0 / q.shape[-1])).matmul(k.transpose(-2, -1))
    if mask is not None:
        scores = scores + mask
    weights = functional.softmax(scores, -1)
    if drop > 0.0:
        weights = functional.dropout(weights, drop)
    return weights.matmul(v), weights
