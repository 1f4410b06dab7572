"""Layers against NumPy: linear, embedding, normalization, dropout, shapes, and their errors."""

from __future__ import annotations

import numpy as np
import pytest

import refruntime as torch
from refruntime import nn


def array(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def tensor(*shape, seed=0):
    return torch.from_numpy(array(*shape, seed=seed))


def values(t):
    return t.detach().numpy()


def test_linear_maps_the_last_dimension():
    layer = nn.Linear(4, 3, dtype=torch.float64)
    x = array(2, 5, 4)
    expected = x @ values(layer.weight).T + values(layer.bias)
    np.testing.assert_allclose(values(layer(torch.from_numpy(x))), expected)
    bare = nn.Linear(4, 3, bias=False)
    assert bare.bias is None
    assert list(bare.state_dict()) == ["weight"]


def test_bilinear_is_a_form_for_each_output():
    layer = nn.Bilinear(3, 4, 2, dtype=torch.float64)
    a, b = array(5, 3), array(5, 4, seed=1)
    expected = np.einsum("ni,oij,nj->no", a, values(layer.weight), b) + values(layer.bias)
    np.testing.assert_allclose(
        values(layer(torch.from_numpy(a), torch.from_numpy(b))), expected, rtol=1e-12
    )


def test_identity_takes_any_arguments():
    x = tensor(2)
    assert nn.Identity(54, unused=3)(x) is x


def test_embedding_reads_rows_and_the_padding_row_takes_no_gradient():
    layer = nn.Embedding(5, 3, padding_idx=1)
    out = layer(torch.tensor([[0, 1], [4, 0]]))
    np.testing.assert_array_equal(values(out), values(layer.weight)[[[0, 1], [4, 0]]])
    out.sum().backward()
    np.testing.assert_array_equal(layer.weight.grad.numpy()[:, 0], [2, 0, 0, 0, 1])


def test_embedding_over_given_weights_is_frozen_unless_told():
    table = tensor(4, 2)
    layer = nn.Embedding.from_pretrained(table)
    assert not layer.weight.requires_grad
    assert layer.weight.data_ptr() == table.data_ptr()
    assert nn.Embedding.from_pretrained(table, freeze=False).weight.requires_grad


def test_embedding_refuses_what_it_cannot_do():
    with pytest.raises(NotImplementedError, match="max_norm"):
        nn.Embedding(3, 2, max_norm=1.0)
    with pytest.raises(AssertionError, match="Padding_idx"):
        nn.Embedding(3, 2, padding_idx=3)
    with pytest.raises(AssertionError, match="Shape of weight"):
        nn.Embedding(3, 2, _weight=tensor(2, 3))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_embedding_bags_begin_at_offsets(mode):
    layer = nn.EmbeddingBag(5, 3, mode=mode)
    rows = values(layer.weight)[[1, 2, 4, 0, 3]]
    reduce = {"sum": np.sum, "mean": np.mean, "max": np.max}[mode]
    out = layer(torch.tensor([1, 2, 4, 0, 3]), torch.tensor([0, 2]))
    expected = np.stack([reduce(rows[:2], 0), reduce(rows[2:], 0)])
    np.testing.assert_allclose(values(out), expected, rtol=1e-6)


def normalized(x, axes, eps=1e-5):
    mean, var = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    return (x - mean) / np.sqrt(var + eps)


def test_batch_norm_uses_the_batch_while_training_and_remembers_it():
    layer = nn.BatchNorm2d(3, dtype=torch.float64)
    x = array(4, 3, 2, 2) * 2 + 1
    np.testing.assert_allclose(
        values(layer(torch.from_numpy(x))), normalized(x, (0, 2, 3)), rtol=1e-10
    )
    flat = x.transpose(1, 0, 2, 3).reshape(3, -1)
    np.testing.assert_allclose(layer.running_mean.numpy(), 0.1 * flat.mean(1))
    np.testing.assert_allclose(layer.running_var.numpy(), 0.9 + 0.1 * flat.var(1, ddof=1))
    assert int(layer.num_batches_tracked) == 1
    layer.eval()
    mean, var = layer.running_mean.numpy(), layer.running_var.numpy()
    expected = (x - mean[:, None, None]) / np.sqrt(var + 1e-5)[:, None, None]
    np.testing.assert_allclose(values(layer(torch.from_numpy(x))), expected, rtol=1e-10)


def test_batch_norm_without_momentum_takes_the_plain_mean_of_batches():
    layer = nn.BatchNorm1d(2, momentum=None, dtype=torch.float64)
    first, second = array(5, 2), array(5, 2, seed=1)
    layer(torch.from_numpy(first))
    layer(torch.from_numpy(second))
    np.testing.assert_allclose(
        layer.running_mean.numpy(), (first.mean(0) + second.mean(0)) / 2, rtol=1e-10
    )


def test_batch_norm_without_statistics_uses_the_batch_in_evaluation_too():
    layer = nn.BatchNorm1d(2, track_running_stats=False, affine=False).double().eval()
    x = array(5, 2)
    np.testing.assert_allclose(values(layer(torch.from_numpy(x))), normalized(x, (0,)), rtol=1e-10)
    assert list(layer.state_dict()) == []


def test_batch_norm_checks_dimensions_and_batch_size():
    with pytest.raises(ValueError, match="expected 4D input"):
        nn.BatchNorm2d(3)(torch.ones(2, 3))
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        nn.BatchNorm1d(3)(torch.ones(1, 3))


def test_instance_layer_and_group_norm_differ_in_what_they_average():
    x = array(2, 4, 3, 3)
    t = torch.from_numpy(x)
    np.testing.assert_allclose(
        values(nn.InstanceNorm2d(4).double()(t)), normalized(x, (2, 3)), rtol=1e-10
    )
    np.testing.assert_allclose(
        values(nn.LayerNorm([4, 3, 3]).double()(t)), normalized(x, (1, 2, 3)), rtol=1e-10
    )
    groups = normalized(x.reshape(2, 2, 2, 3, 3), (2, 3, 4)).reshape(x.shape)
    np.testing.assert_allclose(values(nn.GroupNorm(2, 4).double()(t)), groups, rtol=1e-10)


def test_instance_norm_takes_a_sample_without_batch():
    layer = nn.InstanceNorm2d(2).double()
    x = tensor(2, 3, 3)
    np.testing.assert_allclose(values(layer(x)), values(layer(x.unsqueeze(0))[0]))


def test_rms_norm_divides_by_the_root_mean_square():
    x = array(3, 5)
    layer = nn.RMSNorm(5, eps=1e-3, dtype=torch.float64)
    expected = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-3)
    np.testing.assert_allclose(values(layer(torch.from_numpy(x))), expected, rtol=1e-10)


def test_local_response_norm_counts_neighbouring_channels():
    x = array(2, 5, 4)
    padded = np.pad(x * x, ((0, 0), (1, 1), (0, 0)))
    mean = sum(padded[:, i : i + 5] for i in range(3)) / 3
    expected = x / (2.0 + 0.5 * mean) ** 0.75
    out = nn.LocalResponseNorm(3, alpha=0.5, k=2.0)(torch.from_numpy(x))
    np.testing.assert_allclose(values(out), expected, rtol=1e-10)


def test_group_norm_needs_groups_that_divide():
    with pytest.raises(ValueError, match="divisible by num_groups"):
        nn.GroupNorm(3, 4)


def test_dropout_works_in_training_only():
    torch.manual_seed(0)
    layer = nn.Dropout(0.4)
    x = torch.ones(4000)
    out = values(layer(x))
    assert set(np.unique(out.round(5))) == {0.0, np.float32(1 / 0.6).round(5)}
    assert abs((out == 0).mean() - 0.4) < 0.05
    assert layer.eval()(x) is x
    with pytest.raises(ValueError, match="between 0 and 1"):
        nn.Dropout(1.5)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [(nn.Dropout1d, (50, 8, 3)), (nn.Dropout2d, (50, 8, 3, 3)), (nn.Dropout3d, (50, 8, 2, 2, 2))],
)
def test_channel_dropout_drops_whole_channels(layer, shape):
    torch.manual_seed(0)
    out = values(layer(0.5)(torch.ones(shape))).reshape(50, 8, -1)
    assert (out == out[:, :, :1]).all()
    assert set(np.unique(out)) == {0.0, 2.0}


@pytest.mark.parametrize("inplace", [False, True])
def test_dropout_in_place_writes_into_its_input(inplace):
    x = torch.ones(64)
    out = nn.Dropout(0.5, inplace=inplace)(x)
    assert (out is x) == inplace
    assert bool((x == 1).all()) != inplace


def test_alpha_dropout_keeps_mean_and_variance():
    torch.manual_seed(1)
    out = values(nn.AlphaDropout(0.3)(torch.randn(40000)))
    assert abs(out.mean()) < 0.03
    assert abs(out.std() - 1) < 0.03


def test_flatten_and_unflatten_are_inverse():
    x = tensor(2, 3, 4)
    flat = nn.Flatten()(x)
    assert tuple(flat.shape) == (2, 12)
    np.testing.assert_array_equal(values(nn.Unflatten(1, (3, 4))(flat)), values(x))
    assert tuple(nn.Flatten(0, 1)(x).shape) == (6, 4)


def test_pixel_shuffle_and_unshuffle_are_inverse():
    x = tensor(2, 8, 3, 4)
    wide = nn.PixelShuffle(2)(x)
    assert tuple(wide.shape) == (2, 2, 6, 8)
    np.testing.assert_array_equal(values(wide)[:, 0, 0, 1], values(x)[:, 1, 0, 0])
    np.testing.assert_array_equal(values(nn.PixelUnshuffle(2)(wide)), values(x))


def test_channel_shuffle_takes_from_each_group_in_turn():
    x = torch.arange(6.0).reshape(1, 6, 1)
    assert nn.ChannelShuffle(2)(x).flatten().tolist() == [0, 3, 1, 4, 2, 5]


def test_distances():
    a, b = array(3, 4), array(3, 4, seed=1)
    ta, tb = torch.from_numpy(a), torch.from_numpy(b)
    np.testing.assert_allclose(
        values(nn.PairwiseDistance(1.0)(ta, tb)), np.abs(a - b + 1e-6).sum(1), rtol=1e-10
    )
    cosine = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    np.testing.assert_allclose(values(nn.CosineSimilarity()(ta, tb)), cosine, rtol=1e-10)


ACTIVATIONS = {
    nn.ReLU: lambda x: np.maximum(x, 0),
    nn.ReLU6: lambda x: np.clip(x, 0, 6),
    nn.Sigmoid: lambda x: 1 / (1 + np.exp(-x)),
    nn.Tanh: np.tanh,
    nn.SiLU: lambda x: x / (1 + np.exp(-x)),
    nn.Mish: lambda x: x * np.tanh(np.log1p(np.exp(x))),
    nn.Softplus: lambda x: np.log1p(np.exp(x)),
    nn.Softsign: lambda x: x / (1 + np.abs(x)),
    nn.LogSigmoid: lambda x: -np.log1p(np.exp(-x)),
    nn.Hardsigmoid: lambda x: np.clip(x + 3, 0, 6) / 6,
    nn.Hardswish: lambda x: x * np.clip(x + 3, 0, 6) / 6,
    nn.Hardtanh: lambda x: np.clip(x, -1, 1),
    nn.LeakyReLU: lambda x: np.where(x > 0, x, 0.01 * x),
    nn.ELU: lambda x: np.where(x > 0, x, np.expm1(x)),
    nn.CELU: lambda x: np.where(x > 0, x, np.expm1(x)),
    nn.Tanhshrink: lambda x: x - np.tanh(x),
    nn.Hardshrink: lambda x: np.where(np.abs(x) > 0.5, x, 0),
    nn.Softshrink: lambda x: np.sign(x) * np.maximum(np.abs(x) - 0.5, 0),
    nn.PReLU: lambda x: np.where(x > 0, x, 0.25 * x),
    nn.Softmin: lambda x: np.exp(-x) / np.exp(-x).sum(1, keepdims=True),
    nn.GLU: lambda x: x[:, :3] / (1 + np.exp(-x[:, 3:])),
}


@pytest.mark.parametrize("kind", ACTIVATIONS, ids=lambda kind: kind.__name__)
def test_activations(kind):
    x = array(5, 6) * 3
    out = values(kind()(torch.from_numpy(x)))
    np.testing.assert_allclose(out, ACTIVATIONS[kind](x), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize(
    "layer",
    [
        nn.ReLU(True), nn.ReLU6(True), nn.SELU(True), nn.SiLU(True), nn.Mish(True),
        nn.Hardswish(True), nn.Hardsigmoid(True), nn.LeakyReLU(0.1, True), nn.ELU(1.0, True),
        nn.CELU(1.0, True), nn.Hardtanh(inplace=True), nn.Threshold(0.1, 2.0, True),
        nn.RReLU(inplace=True),
    ],
    ids=lambda layer: type(layer).__name__,
)  # fmt: skip
def test_activations_in_place_give_the_same_values(layer):
    x = tensor(4, 5)
    layer.eval()
    layer.inplace = False
    expected = values(layer(x))
    layer.inplace = True
    assert layer(x) is x
    np.testing.assert_array_equal(values(x), expected)


def test_rrelu_draws_slopes_while_training():
    torch.manual_seed(0)
    x = torch.full((2000,), -1.0)
    slopes = -values(nn.RReLU(0.1, 0.5)(x))
    assert 0.1 <= slopes.min() < 0.13 < 0.47 < slopes.max() <= 0.5
    np.testing.assert_allclose(values(nn.RReLU(0.1, 0.5).eval()(x)), -0.3, rtol=1e-6)


def test_softmax_without_dim_takes_torchs_choice():
    x = array(2, 3)
    expected = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    np.testing.assert_allclose(values(nn.Softmax()(torch.from_numpy(x))), expected, rtol=1e-10)
    with pytest.raises(ValueError, match="3D or 4D"):
        nn.Softmax2d()(torch.from_numpy(x))
