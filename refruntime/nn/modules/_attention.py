"""MultiheadAttention.

Source: Vaswani et al., "Attention is all you need", 2017.
"""

from __future__ import annotations

from typing import Any

from refruntime.errors import ArgumentValueError
from refruntime.nn import functional, init
from refruntime.nn.modules.linear import NonDynamicallyQuantizableLinear, unset
from refruntime.nn.modules.module import Module

__all__ = ["MultiheadAttention"]


class MultiheadAttention(Module):
    """Attention in several subspaces at once.

    Parameters
    ----------
    embed_dim, num_heads : int
        The model's width, and into how many heads it is split.
    dropout : float
        Of the attention weights.
    bias : bool
        Whether the projections have biases.
    add_bias_kv : bool
        Whether a learned row is added to keys and values.
    add_zero_attn : bool
        Whether a row of zeros is added to keys and values.
    kdim, vdim : int, optional
        Widths of keys and values, by default `embed_dim`.
    batch_first : bool
        Whether tensors are (batch, length, width) instead of (length, batch, width).
    device, dtype : optional
        Of the parameters.
    """

    bias_k: Any
    bias_v: Any

    def __init__(
        self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True,
        add_bias_kv: bool = False, add_zero_attn: bool = False, kdim: int | None = None,
        vdim: int | None = None, batch_first: bool = False, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        if embed_dim <= 0 or num_heads <= 0:
            raise ArgumentValueError(
                "MultiheadAttention", what="embed_dim and num_heads must be greater than 0",
                got=f"embed_dim={embed_dim} and num_heads={num_heads}",
            )  # fmt: skip
        if embed_dim % num_heads:
            raise AssertionError("embed_dim must be divisible by num_heads")
        super().__init__()
        self.embed_dim = embed_dim
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self._qkv_same_embed_dim = self.kdim == embed_dim and self.vdim == embed_dim
        self.num_heads = num_heads
        self.dropout = dropout
        self.batch_first = batch_first
        self.head_dim = embed_dim // num_heads
        where = {"device": device, "dtype": dtype}
        self._make_projections(where)
        if bias:
            self.in_proj_bias = unset(3 * embed_dim, **where)
        else:
            self.register_parameter("in_proj_bias", None)
        self.out_proj = NonDynamicallyQuantizableLinear(embed_dim, embed_dim, bias=bias, **where)
        self.bias_k = unset(1, 1, embed_dim, **where) if add_bias_kv else None
        self.bias_v = unset(1, 1, embed_dim, **where) if add_bias_kv else None
        self.add_zero_attn = add_zero_attn
        self._reset_parameters()

    def _make_projections(self, where: dict[str, Any]) -> None:
        width = self.embed_dim
        separate = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
        if self._qkv_same_embed_dim:
            self.in_proj_weight = unset(3 * width, width, **where)
            for name in separate:
                self.register_parameter(name, None)
        else:
            for name, size in zip(separate, (width, self.kdim, self.vdim), strict=True):
                self.register_parameter(name, unset(width, size, **where))
            self.register_parameter("in_proj_weight", None)

    def _reset_parameters(self) -> None:
        if self._qkv_same_embed_dim:
            init.xavier_uniform_(self.in_proj_weight)
        else:
            for weight in (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight):
                init.xavier_uniform_(weight)
        if self.in_proj_bias is not None:
            init.constant_(self.in_proj_bias, 0.0)
            init.constant_(self.out_proj.bias, 0.0)
        for bias in (self.bias_k, self.bias_v):
            if bias is not None:
                init.xavier_normal_(bias)

    def forward(
        self, query: Any, key: Any, value: Any, key_padding_mask: Any = None,
        need_weights: bool = True, attn_mask: Any = None, average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Any, Any]:  # fmt: skip
        """Attend from `query` to `key` and `value`.

        Parameters
        ----------
        query, key, value : Tensor
            (length, batch, width), the other way round with `batch_first`, or without a batch.
        key_padding_mask : Tensor, optional
            (batch, keys): True or minus infinity where a key does not count.
        need_weights : bool
            Whether the attention weights are returned too (which is slower).
        attn_mask : Tensor, optional
            (queries, keys) or (batch * heads, queries, keys): True where attention is not allowed,
            or what is added to the scores.
        average_attn_weights : bool
            Whether the weights returned are the mean over heads.
        is_causal : bool
            A hint that `attn_mask` is the causal mask.

        Returns
        -------
        (Tensor, Tensor or None)
            The output, shaped as the query, and the weights.
        """
        batched = query.dim() == 3
        if self.batch_first and batched:
            query, key, value = _swapped(query, key, value)
        output, weights = functional.multi_head_attention_forward(
            query, key, value, self.embed_dim, self.num_heads, self.in_proj_weight,
            self.in_proj_bias, self.bias_k, self.bias_v, self.add_zero_attn, self.dropout,
            self.out_proj.weight, self.out_proj.bias, training=self.training,
            key_padding_mask=key_padding_mask, need_weights=need_weights, attn_mask=attn_mask,
            use_separate_proj_weight=not self._qkv_same_embed_dim,
            q_proj_weight=self.q_proj_weight, k_proj_weight=self.k_proj_weight,
            v_proj_weight=self.v_proj_weight, average_attn_weights=average_attn_weights,
            is_causal=is_causal,
        )  # fmt: skip
        if self.batch_first and batched:
            output = output.transpose(1, 0)
        return output, weights


def _swapped(query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
    """Put the length first; tensors that are one stay one, so that one projection serves all."""
    turned = query.transpose(1, 0)
    keys = turned if key is query else key.transpose(1, 0)
    if value is key:
        return turned, keys, keys
    return turned, keys, turned if value is query else value.transpose(1, 0)
