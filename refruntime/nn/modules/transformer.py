"""Transformer: encoder and decoder layers, stacks of them, and both together.

Source: Vaswani et al., "Attention is all you need", 2017.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from refruntime._ops.opdef import ops
from refruntime.nn import functional, init
from refruntime.nn.modules._attention import MultiheadAttention
from refruntime.nn.modules.container import ModuleList
from refruntime.nn.modules.dropout import Dropout
from refruntime.nn.modules.linear import Linear
from refruntime.nn.modules.module import Module
from refruntime.nn.modules.normalization import LayerNorm

__all__ = [
    "Transformer",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
]

Activation = str | Callable[[Any], Any]


def _activation(given: Activation) -> Callable[[Any], Any]:
    if not isinstance(given, str):
        return given
    if given not in ("relu", "gelu"):
        raise RuntimeError(f"activation should be relu/gelu, not {given}")
    return functional.relu if given == "relu" else functional.gelu


def _causal_mask(size: int, device: Any = None, dtype: Any = None) -> Any:
    full = ops.full((size, size), float("-inf"), device=device, dtype=dtype)
    return ops.triu(full, 1)


def _is_causal(mask: Any, is_causal: bool | None, size: int | None) -> bool:
    """Whether a mask is the causal one; a hint saves the look."""
    if is_causal is not None:
        return is_causal
    if mask is None or (size is not None and tuple(mask.shape[-2:]) != (size, size)):
        return False
    causal = _causal_mask(mask.shape[-1], mask.device, ops.zeros(0).dtype)
    given = mask if mask.dtype.is_floating_point else _as_added(mask)
    return tuple(given.shape) == tuple(causal.shape) and bool((given == causal).all())


def _as_added(mask: Any) -> Any:
    return ops.masked_fill(ops.zeros(tuple(mask.shape), device=mask.device), mask, float("-inf"))


class _Layer(Module):
    """What encoder and decoder layers share: attention, feed-forward, norms, dropouts."""

    linear1: Linear
    linear2: Linear
    dropout: Dropout

    def _make_feed_forward(
        self, d_model: int, dim_feedforward: int, dropout: float, bias: bool, where: dict[str, Any]
    ) -> None:
        self.linear1 = Linear(d_model, dim_feedforward, bias=bias, **where)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias=bias, **where)

    def _make_norms(
        self, count: int, d_model: int, eps: float, dropout: float, bias: bool,
        where: dict[str, Any],
    ) -> None:  # fmt: skip
        for i in range(1, count + 1):
            setattr(self, f"norm{i}", LayerNorm(d_model, eps=eps, bias=bias, **where))
        for i in range(1, count + 1):
            setattr(self, f"dropout{i}", Dropout(dropout))

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.__dict__.setdefault("activation", functional.relu)

    def _feed_forward(self, x: Any) -> Any:
        return self.linear2(self.dropout(self.activation(self.linear1(x))))


class TransformerEncoderLayer(_Layer):
    """Self-attention and a feed-forward network, each with a residual and a norm.

    Parameters
    ----------
    d_model, nhead : int
        Width, and number of heads.
    dim_feedforward : int
        Width inside the feed-forward network.
    dropout : float
        Of all parts.
    activation : str or callable
        ``relu``, ``gelu`` or a function.
    layer_norm_eps : float
        Of the norms.
    batch_first : bool
        Whether tensors are (batch, length, width) instead of (length, batch, width).
    norm_first : bool
        Whether the norms stand before the parts instead of after.
    bias : bool
        Whether all parts have biases.
    device, dtype : optional
        Of the parameters.
    """

    def __init__(
        self, d_model: int, nhead: int, dim_feedforward: int = 2048, dropout: float = 0.1,
        activation: Activation = functional.relu, layer_norm_eps: float = 1e-5,
        batch_first: bool = False, norm_first: bool = False, bias: bool = True,
        device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        where = {"device": device, "dtype": dtype}
        self.self_attn = MultiheadAttention(
            d_model, nhead, dropout=dropout, bias=bias, batch_first=batch_first, **where
        )
        self._make_feed_forward(d_model, dim_feedforward, dropout, bias, where)
        self.norm_first = norm_first
        self._make_norms(2, d_model, layer_norm_eps, dropout, bias, where)
        self.activation = _activation(activation)

    def forward(
        self, src: Any, src_mask: Any = None, src_key_padding_mask: Any = None,
        is_causal: bool = False,
    ) -> Any:  # fmt: skip
        """Run the layer; masks as in `MultiheadAttention`."""
        masks = (src_mask, src_key_padding_mask, is_causal)
        if self.norm_first:
            src = src + self._sa_block(self.norm1(src), *masks)
            return src + self._ff_block(self.norm2(src))
        src = self.norm1(src + self._sa_block(src, *masks))
        return self.norm2(src + self._ff_block(src))

    def _sa_block(
        self, x: Any, attn_mask: Any, key_padding_mask: Any, is_causal: bool = False
    ) -> Any:
        attended, _ = self.self_attn(
            x, x, x, attn_mask=attn_mask, key_padding_mask=key_padding_mask, need_weights=False,
            is_causal=is_causal,
        )  # fmt: skip
        return self.dropout1(attended)

    def _ff_block(self, x: Any) -> Any:
        return self.dropout2(self._feed_forward(x))


class TransformerDecoderLayer(_Layer):
    """Self-attention, attention to the encoder, and a feed-forward network.

    Parameters are those of `TransformerEncoderLayer`.
    """

    def __init__(
        self, d_model: int, nhead: int, dim_feedforward: int = 2048, dropout: float = 0.1,
        activation: Activation = functional.relu, layer_norm_eps: float = 1e-5,
        batch_first: bool = False, norm_first: bool = False, bias: bool = True,
        device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        where = {"device": device, "dtype": dtype}
        attention = {"dropout": dropout, "bias": bias, "batch_first": batch_first, **where}
        self.self_attn = MultiheadAttention(d_model, nhead, **attention)
        self.multihead_attn = MultiheadAttention(d_model, nhead, **attention)
        self._make_feed_forward(d_model, dim_feedforward, dropout, bias, where)
        self.norm_first = norm_first
        self._make_norms(3, d_model, layer_norm_eps, dropout, bias, where)
        self.activation = _activation(activation)

    def forward(
        self, tgt: Any, memory: Any, tgt_mask: Any = None, memory_mask: Any = None,
        tgt_key_padding_mask: Any = None, memory_key_padding_mask: Any = None,
        tgt_is_causal: bool = False, memory_is_causal: bool = False,
    ) -> Any:  # fmt: skip
        """Run the layer on targets and the encoder's output; masks as in `MultiheadAttention`."""
        own = (tgt_mask, tgt_key_padding_mask, tgt_is_causal)
        other = (memory_mask, memory_key_padding_mask, memory_is_causal)
        x = tgt
        if self.norm_first:
            x = x + self._sa_block(self.norm1(x), *own)
            x = x + self._mha_block(self.norm2(x), memory, *other)
            return x + self._ff_block(self.norm3(x))
        x = self.norm1(x + self._sa_block(x, *own))
        x = self.norm2(x + self._mha_block(x, memory, *other))
        return self.norm3(x + self._ff_block(x))

    def _sa_block(
        self, x: Any, attn_mask: Any, key_padding_mask: Any, is_causal: bool = False
    ) -> Any:
        attended, _ = self.self_attn(
            x, x, x, attn_mask=attn_mask, key_padding_mask=key_padding_mask, need_weights=False,
            is_causal=is_causal,
        )  # fmt: skip
        return self.dropout1(attended)

    def _mha_block(
        self, x: Any, memory: Any, attn_mask: Any, key_padding_mask: Any, is_causal: bool = False
    ) -> Any:
        attended, _ = self.multihead_attn(
            x, memory, memory, attn_mask=attn_mask, key_padding_mask=key_padding_mask,
            need_weights=False, is_causal=is_causal,
        )  # fmt: skip
        return self.dropout2(attended)

    def _ff_block(self, x: Any) -> Any:
        return self.dropout3(self._feed_forward(x))


def _copies(layer: Module, count: int) -> ModuleList:
    return ModuleList([copy.deepcopy(layer) for _ in range(count)])


class TransformerEncoder(Module):
    """A stack of encoder layers.

    Parameters
    ----------
    encoder_layer : Module
        Copied `num_layers` times.
    num_layers : int
    norm : Module, optional
        Applied at the end.
    enable_nested_tensor, mask_check : bool
        Accepted; there are no nested tensors.
    """

    def __init__(
        self, encoder_layer: Module, num_layers: int, norm: Module | None = None,
        enable_nested_tensor: bool = True, mask_check: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.layers = _copies(encoder_layer, num_layers)
        self.num_layers = num_layers
        self.norm = norm
        self.enable_nested_tensor = enable_nested_tensor
        self.mask_check = mask_check

    def forward(
        self, src: Any, mask: Any = None, src_key_padding_mask: Any = None,
        is_causal: bool | None = None,
    ) -> Any:  # fmt: skip
        """Run all layers."""
        first: Any = self.layers[0]
        attention = getattr(first, "self_attn", None)
        batch_first = bool(attention is not None and attention.batch_first)
        length = src.shape[1 if batch_first and src.dim() == 3 else 0]
        causal = _is_causal(mask, is_causal, length)
        output = src
        for layer in self.layers:
            output = layer(
                output, src_mask=mask, is_causal=causal, src_key_padding_mask=src_key_padding_mask
            )
        return output if self.norm is None else self.norm(output)


class TransformerDecoder(Module):
    """A stack of decoder layers.

    Parameters
    ----------
    decoder_layer : Module
        Copied `num_layers` times.
    num_layers : int
    norm : Module, optional
        Applied at the end.
    """

    def __init__(self, decoder_layer: Module, num_layers: int, norm: Module | None = None) -> None:
        super().__init__()
        self.layers = _copies(decoder_layer, num_layers)
        self.num_layers = num_layers
        self.norm = norm

    def forward(
        self, tgt: Any, memory: Any, tgt_mask: Any = None, memory_mask: Any = None,
        tgt_key_padding_mask: Any = None, memory_key_padding_mask: Any = None,
        tgt_is_causal: bool | None = None, memory_is_causal: bool = False,
    ) -> Any:  # fmt: skip
        """Run all layers."""
        causal = _is_causal(tgt_mask, tgt_is_causal, None)
        output = tgt
        for layer in self.layers:
            output = layer(
                output, memory, tgt_mask=tgt_mask, memory_mask=memory_mask,
                tgt_key_padding_mask=tgt_key_padding_mask,
                memory_key_padding_mask=memory_key_padding_mask, tgt_is_causal=causal,
                memory_is_causal=memory_is_causal,
            )  # fmt: skip
        return output if self.norm is None else self.norm(output)


class Transformer(Module):
    """An encoder and a decoder.

    Parameters
    ----------
    d_model, nhead : int
        Width, and number of heads.
    num_encoder_layers, num_decoder_layers : int
    dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first, bias
        As in `TransformerEncoderLayer`.
    custom_encoder, custom_decoder : Module, optional
        In the place of the built ones.
    device, dtype : optional
        Of the parameters.
    """

    def __init__(
        self, d_model: int = 512, nhead: int = 8, num_encoder_layers: int = 6,
        num_decoder_layers: int = 6, dim_feedforward: int = 2048, dropout: float = 0.1,
        activation: Activation = functional.relu, custom_encoder: Any = None,
        custom_decoder: Any = None, layer_norm_eps: float = 1e-5, batch_first: bool = False,
        norm_first: bool = False, bias: bool = True, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        where = {"device": device, "dtype": dtype}
        layer = (
            d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first,
            norm_first, bias,
        )  # fmt: skip

        def norm() -> LayerNorm:
            return LayerNorm(d_model, eps=layer_norm_eps, bias=bias, **where)

        self.encoder = custom_encoder or TransformerEncoder(
            TransformerEncoderLayer(*layer, **where), num_encoder_layers, norm()
        )
        self.decoder = custom_decoder or TransformerDecoder(
            TransformerDecoderLayer(*layer, **where), num_decoder_layers, norm()
        )
        self._reset_parameters()
        self.d_model = d_model
        self.nhead = nhead
        self.batch_first = batch_first

    def _reset_parameters(self) -> None:
        for param in self.parameters():
            if param.dim() > 1:
                init.xavier_uniform_(param)

    @staticmethod
    def generate_square_subsequent_mask(sz: int, device: Any = None, dtype: Any = None) -> Any:
        """Return the causal mask: minus infinity above the diagonal, 0 elsewhere."""
        return _causal_mask(sz, device, dtype)

    def forward(
        self, src: Any, tgt: Any, src_mask: Any = None, tgt_mask: Any = None,
        memory_mask: Any = None, src_key_padding_mask: Any = None,
        tgt_key_padding_mask: Any = None, memory_key_padding_mask: Any = None,
        src_is_causal: bool | None = None, tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Any:  # fmt: skip
        """Encode `src` and decode `tgt`; masks as in `MultiheadAttention`."""
        batched = src.dim() == 3
        axis = 0 if self.batch_first else 1
        if batched and src.shape[axis] != tgt.shape[axis]:
            raise RuntimeError("the batch number of src and tgt must be equal")
        if src.shape[-1] != self.d_model or tgt.shape[-1] != self.d_model:
            raise RuntimeError("the feature number of src and tgt must be equal to d_model")
        memory = self.encoder(
            src, mask=src_mask, src_key_padding_mask=src_key_padding_mask, is_causal=src_is_causal
        )
        return self.decoder(
            tgt, memory, tgt_mask=tgt_mask, memory_mask=memory_mask,
            tgt_key_padding_mask=tgt_key_padding_mask,
            memory_key_padding_mask=memory_key_padding_mask, tgt_is_causal=tgt_is_causal,
            memory_is_causal=memory_is_causal,
        )  # fmt: skip
