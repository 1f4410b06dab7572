"""Functions that are composed here: sampling on grids, p-norm pooling, look-ups, draws."""

from __future__ import annotations

import numpy as np
import pytest

import refruntime as torch
import refruntime.nn.functional as F
from refruntime import nn


def t(array):
    return torch.from_numpy(np.array(array))


def array(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


IMAGE = array(1, 2, 3, 4)


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_the_identity_grid_reads_the_image(mode):
    grid = F.affine_grid(t([[[1.0, 0, 0], [0, 1, 0]]]), (1, 2, 3, 4), align_corners=True)
    out = F.grid_sample(t(IMAGE), grid, mode, align_corners=True)
    np.testing.assert_allclose(out.numpy(), IMAGE, atol=1e-12)
    grid = F.affine_grid(t([[[1.0, 0, 0], [0, 1, 0]]]), (1, 2, 3, 4), align_corners=False)
    out = F.grid_sample(t(IMAGE), grid, mode, align_corners=False)
    np.testing.assert_allclose(out.numpy(), IMAGE, atol=1e-12)


def test_points_between_elements_are_mixed_and_points_outside_are_padded():
    x, y = 2 * 1.25 / 3 - 1, 2 * 0.5 / 2 - 1
    grid = t([[[[x, y], [5.0, 5.0]]]])
    out = F.grid_sample(t(IMAGE), grid, align_corners=True).numpy()
    square = IMAGE[0, :, :2, 1:3].mean(1)
    np.testing.assert_allclose(out[0, :, 0, 0], 0.75 * square[:, 0] + 0.25 * square[:, 1])
    np.testing.assert_array_equal(out[0, :, 0, 1], 0)
    border = F.grid_sample(t(IMAGE), grid, padding_mode="border", align_corners=True).numpy()
    np.testing.assert_allclose(border[0, :, 0, 1], IMAGE[0, :, -1, -1])


def test_sampling_is_differentiable_in_image_and_grid():
    image, grid = t(IMAGE), t(np.random.default_rng(1).uniform(-0.7, 0.7, (1, 2, 2, 2)))
    image.requires_grad_(True)
    grid.requires_grad_(True)
    assert torch.autograd.gradcheck(
        lambda i, g: F.grid_sample(i, g, align_corners=False), (image, grid)
    )


def test_what_sampling_refuses():
    with pytest.warns(UserWarning, match="align_corners"):
        F.grid_sample(t(IMAGE), torch.zeros(1, 2, 2, 2, dtype=torch.float64))
    with pytest.raises(RuntimeError, match="4D input"):
        F.grid_sample(t(IMAGE[0]), torch.zeros(1, 2, 2, 2))
    with pytest.raises(NotImplementedError, match="reflection"):
        F.grid_sample(t(IMAGE), torch.zeros(1, 2, 2, 2), padding_mode="reflection")
    with pytest.raises(NotImplementedError, match="2D maps"):
        F.affine_grid(torch.zeros(1, 3, 4), (1, 1, 2, 2, 2))


def test_p_norm_pooling():
    x = np.abs(array(2, 3, 6))
    out = nn.LPPool1d(3, 2)(t(x)).numpy()
    np.testing.assert_allclose(out, (x.reshape(2, 3, 3, 2) ** 3).sum(-1) ** (1 / 3))
    x = np.abs(array(1, 2, 4, 4))
    blocks = x.reshape(1, 2, 2, 2, 2, 2).transpose(0, 1, 2, 4, 3, 5).reshape(1, 2, 2, 2, 4)
    out = F.lp_pool2d(t(x), 2, 2).numpy()
    np.testing.assert_allclose(out, np.sqrt((blocks**2).sum(-1)))


def test_older_names_of_interpolation():
    x = t(array(1, 1, 2, 2))
    np.testing.assert_array_equal(
        F.upsample(x, scale_factor=2).numpy(), F.upsample_nearest(x, scale_factor=2).numpy()
    )
    wide = F.upsample_bilinear(x, size=(3, 3)).numpy()
    assert wide[0, 0, 1, 1] == pytest.approx(x.numpy().mean())


def test_bags_skip_the_padding_row_and_weigh_samples():
    table, places = array(5, 3), np.array([0, 2, 2, 4])
    out = F.embedding_bag(t(places), t(table), t([0, 3]), mode="mean", padding_idx=0)
    np.testing.assert_allclose(out.numpy(), [table[2], table[4]])
    weights = np.array([1.0, 2.0, 3.0, 4.0])
    out = F.embedding_bag(
        t(places), t(table), t([0, 1, 4]), mode="sum", per_sample_weights=t(weights),
        include_last_offset=True,
    )  # fmt: skip
    np.testing.assert_allclose(out.numpy(), [table[0], 5 * table[2] + 4 * table[4]])
    empty = F.embedding_bag(t(places), t(table), t([0, 0]), mode="max")
    np.testing.assert_array_equal(empty.numpy()[0], 0)


def test_what_bags_refuse():
    table = t(array(5, 3))
    with pytest.raises(ValueError, match="offsets has to be None"):
        F.embedding_bag(t([[0]]), table, t([0]))
    with pytest.raises(ValueError, match="1D Tensor but got None"):
        F.embedding_bag(t([0]), table)
    with pytest.raises(NotImplementedError, match="mode='sum'"):
        F.embedding_bag(t([[0]]), table, per_sample_weights=t([[1.0]]))
    with pytest.raises(NotImplementedError, match="max_norm"):
        F.embedding(t([0]), table, max_norm=1.0)


def test_hard_gumbel_draws_are_one_hot_with_soft_gradients():
    torch.manual_seed(0)
    logits = torch.zeros(3000, 3)
    logits[:, 1] = 1.0
    logits.requires_grad_(True)
    draws = F.gumbel_softmax(logits, hard=True)
    share = draws.detach().numpy().mean(0)
    np.testing.assert_allclose(share, np.exp([0, 1, 0]) / np.exp([0, 1, 0]).sum(), atol=0.03)
    assert set(np.unique(draws.detach().numpy().round(5))) == {0.0, 1.0}
    (draws * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert float(logits.grad.abs().sum()) > 0
    soft = F.gumbel_softmax(torch.zeros(4, 3), tau=0.5)
    np.testing.assert_allclose(soft.numpy().sum(1), 1.0, rtol=1e-5)


def test_prelu_needs_one_weight_or_one_a_channel():
    x = array(2, 3, 4)
    w = np.array([0.1, 0.2, 0.3])
    out = F.prelu(t(x), t(w)).numpy()
    np.testing.assert_allclose(out, np.where(x > 0, x, w[:, None] * x))
    with pytest.raises(RuntimeError, match="3 channels"):
        F.prelu(t(x), t([0.1, 0.2]))


def test_glu_needs_an_even_size():
    with pytest.raises(RuntimeError, match="even size"):
        F.glu(torch.ones(3))
    with pytest.raises(RuntimeError, match="scalars"):
        F.glu(torch.tensor(1.0))


def test_normalize_never_divides_by_less_than_eps():
    x = np.array([[3.0, 4.0], [0.0, 0.0]])
    np.testing.assert_allclose(F.normalize(t(x)).numpy(), [[0.6, 0.8], [0, 0]])
    target = torch.empty(2, 2, dtype=torch.float64)
    assert F.normalize(t(x), p=1.0, out=target) is target
    np.testing.assert_allclose(target.numpy()[0], [3 / 7, 4 / 7])


def test_pairwise_distances_of_rows():
    x = array(4, 3)
    expected = [np.linalg.norm(x[i] - x[j]) for i in range(4) for j in range(i + 1, 4)]
    np.testing.assert_allclose(F.pdist(t(x)).numpy(), expected)


@pytest.mark.parametrize("name", ["relu", "leaky_relu", "elu", "celu", "selu", "hardtanh", "rrelu"])
def test_names_with_an_underscore_write_into_their_input(name):
    x = t(array(3, 4))
    expected = getattr(F, name)(x).numpy().copy()
    assert getattr(F, name + "_")(x) is x
    np.testing.assert_array_equal(x.numpy(), expected)


def test_a_function_replaced_in_the_namespace_is_the_one_that_modules_call(monkeypatch):
    monkeypatch.setattr(F, "dropout", lambda x, p=0.5, training=True, inplace=False: x * 0)
    assert float(nn.Dropout(0.5)(torch.ones(3)).sum()) == 0.0
