"""Attention against NumPy, masks, and the Transformer's layers."""

from __future__ import annotations

import numpy as np
import pytest

import refruntime as torch
import refruntime.nn.functional as F
from refruntime import nn


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def array(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def attend(q, k, v, added=0.0):
    weights = softmax(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]) + added)
    return weights @ v, weights


@pytest.fixture
def qkv():
    return array(2, 3, 4, 5), array(2, 3, 6, 5, seed=1), array(2, 3, 6, 7, seed=2)


def test_attention_is_a_softmax_of_scaled_products(qkv):
    out = F.scaled_dot_product_attention(*map(torch.from_numpy, qkv))
    np.testing.assert_allclose(out.numpy(), attend(*qkv)[0], rtol=1e-9)


def test_boolean_masks_allow_and_float_masks_add(qkv):
    allowed = array(4, 6) > -0.5
    allowed[:, 0] = True
    added = np.where(allowed, 0.0, -np.inf)
    expected = attend(*qkv, added)[0]
    tensors = tuple(map(torch.from_numpy, qkv))
    for mask in (allowed, added):
        out = F.scaled_dot_product_attention(*tensors, attn_mask=torch.from_numpy(mask))
        np.testing.assert_allclose(out.numpy(), expected, rtol=1e-9)


def test_causal_attention_sees_no_later_key(qkv):
    q, k, v = qkv
    out = F.scaled_dot_product_attention(*map(torch.from_numpy, qkv), is_causal=True)
    added = np.where(np.tril(np.ones((4, 6))), 0.0, -np.inf)
    np.testing.assert_allclose(out.numpy(), attend(q, k, v, added)[0], rtol=1e-9)


def test_heads_of_the_query_may_share_keys():
    q, k, v = array(1, 4, 3, 5), array(1, 2, 3, 5, seed=1), array(1, 2, 3, 5, seed=2)
    out = F.scaled_dot_product_attention(*map(torch.from_numpy, (q, k, v)), enable_gqa=True)
    expected = attend(q, k.repeat(2, 1), v.repeat(2, 1))[0]
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-9)


def multihead(layer, q, k, v, added=0.0):
    """MultiheadAttention in NumPy (batch first): output, weights of each head."""
    w = {name: p.detach().numpy() for name, p in layer.named_parameters()}
    parts = [
        x @ m.T + b
        for x, m, b in zip(
            (q, k, v), np.split(w["in_proj_weight"], 3), np.split(w["in_proj_bias"], 3), strict=True
        )
    ]
    n, heads = q.shape[0], layer.num_heads
    parts = [x.reshape(n, x.shape[1], heads, -1).transpose(0, 2, 1, 3) for x in parts]
    out, weights = attend(*parts, added)
    out = out.transpose(0, 2, 1, 3).reshape(q.shape)
    return out @ w["out_proj.weight"].T + w["out_proj.bias"], weights


def layer_of(**settings):
    return nn.MultiheadAttention(8, 2, batch_first=True, dtype=torch.float64, **settings)


@pytest.mark.parametrize("need_weights", [True, False])
def test_multihead_attention_equals_its_parts(need_weights):
    layer = layer_of()
    q, k = array(2, 4, 8), array(2, 6, 8, seed=1)
    out, weights = layer(
        torch.from_numpy(q), torch.from_numpy(k), torch.from_numpy(k), need_weights=need_weights
    )
    expected, expected_weights = multihead(layer, q, k, k)
    np.testing.assert_allclose(out.detach().numpy(), expected, rtol=1e-9)
    if need_weights:
        np.testing.assert_allclose(
            weights.detach().numpy(), expected_weights.mean(1), rtol=1e-9
        )
    else:
        assert weights is None


def test_masks_of_keys_and_of_pairs_join():
    layer = layer_of()
    x = array(2, 4, 8)
    pairs = np.triu(np.ones((4, 4), bool), 1)
    keys = np.zeros((2, 4), bool)
    keys[1, 0] = True
    pairs[0] = False
    added = np.where(pairs[None] | keys[:, None], -np.inf, 0.0)[:, None]
    t = torch.from_numpy(x)
    out, weights = layer(
        t, t, t, key_padding_mask=torch.from_numpy(keys), attn_mask=torch.from_numpy(pairs),
        average_attn_weights=False,
    )  # fmt: skip
    expected, expected_weights = multihead(layer, x, x, x, added)
    np.testing.assert_allclose(out.detach().numpy(), expected, rtol=1e-9)
    np.testing.assert_allclose(weights.detach().numpy(), expected_weights, rtol=1e-9, atol=1e-12)


def test_rows_added_to_the_keys_show_in_the_weights():
    layer = layer_of(add_bias_kv=True, add_zero_attn=True)
    x = torch.from_numpy(array(2, 4, 8))
    _, weights = layer(x, x, x, attn_mask=torch.zeros(4, 4, dtype=torch.float64))
    assert tuple(weights.shape) == (2, 4, 6)
    np.testing.assert_allclose(weights.detach().numpy().sum(-1), 1.0)


def test_other_widths_of_keys_and_values_have_projections_of_their_own():
    layer = layer_of(kdim=5, vdim=3)
    assert layer.in_proj_weight is None
    out, _ = layer(
        torch.from_numpy(array(2, 4, 8)), torch.from_numpy(array(2, 6, 5)),
        torch.from_numpy(array(2, 6, 3)),
    )  # fmt: skip
    assert tuple(out.shape) == (2, 4, 8)


def test_what_attention_refuses():
    layer = nn.MultiheadAttention(8, 2)
    x = torch.ones(4, 2, 8)
    with pytest.raises(AssertionError, match="divisible"):
        nn.MultiheadAttention(8, 3)
    with pytest.raises(AssertionError, match="embedding dimension of 8"):
        layer(torch.ones(4, 2, 6), x, x)
    with pytest.raises(RuntimeError, match="attn_mask"):
        layer(x, x, x, attn_mask=torch.zeros(3, 3))
    with pytest.raises(RuntimeError, match="is_causal"):
        layer(x, x, x, is_causal=True)


@pytest.mark.parametrize("norm_first", [False, True])
def test_an_encoder_layer_is_attention_and_feed_forward_with_residuals(norm_first):
    layer = nn.TransformerEncoderLayer(
        8, 2, 16, dropout=0.0, batch_first=True, norm_first=norm_first
    ).double()
    x = torch.from_numpy(array(2, 4, 8))

    def attention(t):
        return layer.self_attn(t, t, t)[0]

    def feed_forward(t):
        return layer.linear2(layer.linear1(t).relu())

    if norm_first:
        y = x + attention(layer.norm1(x))
        expected = y + feed_forward(layer.norm2(y))
    else:
        y = layer.norm1(x + attention(x))
        expected = layer.norm2(y + feed_forward(y))
    np.testing.assert_allclose(
        layer(x).detach().numpy(), expected.detach().numpy(), rtol=1e-9
    )


def test_layers_of_a_stack_are_copies_with_values_of_their_own():
    stack = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 2, nn.LayerNorm(8))
    first, second = stack.layers
    assert first.linear1.weight is not second.linear1.weight
    np.testing.assert_array_equal(
        first.linear1.weight.detach().numpy(), second.linear1.weight.detach().numpy()
    )


def test_a_causal_transformer_does_not_see_later_targets():
    net = nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True).eval()
    src, tgt = torch.randn(1, 5, 8), torch.randn(1, 4, 8)
    mask = nn.Transformer.generate_square_subsequent_mask(4)
    before = net(src, tgt, tgt_mask=mask).detach().numpy()
    tgt[:, -1] = 9.0
    after = net(src, tgt, tgt_mask=mask).detach().numpy()
    np.testing.assert_allclose(before[:, :3], after[:, :3], rtol=1e-5, atol=1e-6)
    assert not np.allclose(before[:, 3], after[:, 3])


def test_what_a_transformer_refuses():
    net = nn.Transformer(8, 2, 1, 1, 16)
    with pytest.raises(RuntimeError, match="batch number"):
        net(torch.ones(3, 2, 8), torch.ones(3, 1, 8))
    with pytest.raises(RuntimeError, match="feature number"):
        net(torch.ones(3, 2, 8), torch.ones(3, 2, 6))
    with pytest.raises(RuntimeError, match="relu/gelu"):
        nn.TransformerEncoderLayer(8, 2, activation="odd")
