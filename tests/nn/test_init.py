"""First values: distributions, fans, gains, and what layers start with."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

import refruntime as torch
from refruntime import nn
from refruntime.nn import init
from refruntime.random import Generator


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(5)


def uniform(bound):
    return stats.uniform(-bound, 2 * bound)


def fits(tensor, distribution):
    values = tensor.detach().numpy().ravel().astype(np.float64)
    return stats.kstest(values, distribution.cdf).pvalue > 1e-3


def blank(*shape):
    return nn.Parameter(torch.empty(shape))


# 64 outputs, 32 inputs, a window of 9: fans 288 and 576.
SHAPE = (64, 32, 3, 3)


@pytest.mark.parametrize(
    ("fill", "distribution"),
    [
        (lambda t: init.uniform_(t, -2.0, 3.0), stats.uniform(-2, 5)),
        (lambda t: init.normal_(t, 1.0, 2.0), stats.norm(1, 2)),
        (lambda t: init.trunc_normal_(t, 0.5, 2.0, -1.0, 2.0),
         stats.truncnorm(-0.75, 0.75, 0.5, 2)),
        (init.xavier_uniform_, uniform(math.sqrt(6 / 864))),
        (lambda t: init.xavier_normal_(t, gain=2.0), stats.norm(0, 2 * math.sqrt(2 / 864))),
        (init.kaiming_uniform_, uniform(math.sqrt(6 / 288))),
        (lambda t: init.kaiming_uniform_(t, a=math.sqrt(5)), uniform(1 / math.sqrt(288))),
        (lambda t: init.kaiming_normal_(t, mode="fan_out", nonlinearity="relu"),
         stats.norm(0, math.sqrt(2 / 576))),
    ],
)  # fmt: skip
def test_fills_follow_their_distribution(fill, distribution):
    tensor = blank(*SHAPE)
    assert fill(tensor) is tensor
    assert fits(tensor, distribution)
    assert tensor.requires_grad and tensor.grad_fn is None


def test_a_generator_makes_a_fill_repeatable():
    first = init.kaiming_normal_(blank(4, 4), generator=Generator().manual_seed(3))
    second = init.kaiming_normal_(blank(4, 4), generator=Generator().manual_seed(3))
    np.testing.assert_array_equal(first.detach().numpy(), second.detach().numpy())


def test_constants():
    assert init.constant_(blank(2), 3.5).tolist() == [3.5, 3.5]
    assert init.ones_(blank(2)).tolist() == [1.0, 1.0]
    assert init.zeros_(blank(2)).tolist() == [0.0, 0.0]
    np.testing.assert_array_equal(init.eye_(blank(2, 3)).detach().numpy(), np.eye(2, 3))


def test_dirac_passes_channels_through_in_each_group():
    weight = init.dirac_(blank(4, 2, 3), groups=2).detach().numpy()
    expected = np.zeros((4, 2, 3))
    for out, channel in ((0, 0), (1, 1), (2, 0), (3, 1)):
        expected[out, channel, 1] = 1
    np.testing.assert_array_equal(weight, expected)


@pytest.mark.parametrize("shape", [(5, 5), (3, 7), (7, 3), (4, 2, 3)])
def test_orthogonal_rows_or_columns(shape):
    matrix = init.orthogonal_(blank(*shape), gain=2.0).detach().numpy().reshape(shape[0], -1)
    if matrix.shape[0] > matrix.shape[1]:
        matrix = matrix.T
    np.testing.assert_allclose(matrix @ matrix.T, 4 * np.eye(len(matrix)), atol=1e-5)


def test_sparse_leaves_the_same_share_of_zeros_in_each_column():
    matrix = init.sparse_(blank(10, 6), 0.3).detach().numpy()
    np.testing.assert_array_equal((matrix == 0).sum(0), [3] * 6)


@pytest.mark.parametrize(
    ("name", "param", "gain"),
    [
        ("linear", None, 1.0), ("conv_transpose2d", None, 1.0), ("tanh", None, 5 / 3),
        ("relu", None, math.sqrt(2)), ("leaky_relu", None, math.sqrt(2 / (1 + 1e-4))),
        ("leaky_relu", 0.5, math.sqrt(2 / 1.25)), ("selu", None, 0.75),
    ],
)  # fmt: skip
def test_gains(name, param, gain):
    assert init.calculate_gain(name, param) == pytest.approx(gain)


def test_what_cannot_be_initialized():
    with pytest.raises(ValueError, match="fewer than 2 dimensions"):
        init.kaiming_uniform_(blank(3))
    with pytest.raises(ValueError, match="Unsupported nonlinearity"):
        init.calculate_gain("odd")
    with pytest.raises(ValueError, match="Mode"):
        init.kaiming_uniform_(blank(2, 2), mode="fan_both")
    with pytest.raises(ValueError, match="2 dimensions"):
        init.eye_(blank(2))
    with pytest.raises(ValueError, match="divisible by groups"):
        init.dirac_(blank(3, 1, 1), groups=2)


def test_old_names_without_underscore_fill_too():
    assert init.constant(blank(2), 1.0).tolist() == [1.0, 1.0]


HIDDEN = uniform(1 / math.sqrt(40))

LAYERS = [
    (lambda: nn.Linear(200, 40), "weight", uniform(1 / math.sqrt(200))),
    (lambda: nn.Linear(16, 4000), "bias", uniform(0.25)),
    (lambda: nn.Bilinear(25, 20, 10), "weight", uniform(0.2)),
    (lambda: nn.Conv2d(16, 64, 3), "weight", uniform(1 / 12)),
    (lambda: nn.Conv2d(16, 4000, 3, groups=4), "bias", uniform(1 / 6)),
    (lambda: nn.ConvTranspose2d(16, 64, 3), "weight", uniform(1 / 24)),
    (lambda: nn.Embedding(100, 20), "weight", stats.norm(0, 1)),
    (lambda: nn.LSTM(30, 40), "weight_ih_l0", HIDDEN),
    (lambda: nn.GRU(30, 40), "weight_hh_l0", HIDDEN),
    (lambda: nn.RNNCell(30, 40), "weight_ih", HIDDEN),
    (lambda: nn.MultiheadAttention(40, 4), "in_proj_weight", uniform(math.sqrt(6 / 160))),
    (lambda: nn.MultiheadAttention(100, 4), "out_proj.weight", uniform(0.1)),
]


@pytest.mark.parametrize(("make", "name", "distribution"), LAYERS)
def test_layers_start_as_in_pytorch(make, name, distribution):
    assert fits(make().get_parameter(name), distribution)


@pytest.mark.parametrize(
    ("make", "name", "value"),
    [
        (lambda: nn.BatchNorm2d(3), "weight", 1.0), (lambda: nn.BatchNorm2d(3), "bias", 0.0),
        (lambda: nn.LayerNorm(3), "weight", 1.0), (lambda: nn.GroupNorm(1, 3), "bias", 0.0),
        (lambda: nn.RMSNorm(3), "weight", 1.0), (lambda: nn.PReLU(3), "weight", 0.25),
        (lambda: nn.MultiheadAttention(4, 2), "in_proj_bias", 0.0),
        (lambda: nn.MultiheadAttention(4, 2), "out_proj.bias", 0.0),
    ],
)  # fmt: skip
def test_layers_start_with_constants(make, name, value):
    assert set(make().get_parameter(name).detach().numpy().ravel()) == {value}


def test_the_padding_row_of_an_embedding_starts_at_zero():
    weight = nn.Embedding(5, 3, padding_idx=-2).weight.detach().numpy()
    assert (weight[3] == 0).all()
    assert (weight[[0, 1, 2, 4]] != 0).all()
