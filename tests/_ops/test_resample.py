from __future__ import annotations

import numpy as np
import pytest

import refruntime as torch
from refruntime._ops.opdef import ops


def grid(*shape):
    return torch.arange(float(np.prod(shape))).reshape(shape)


def test_nearest_repeats_and_skips():
    x = grid(1, 1, 2, 2)
    assert ops.interpolate(x, scale_factor=2)[0, 0, 0].tolist() == [0, 0, 1, 1]
    assert ops.interpolate(grid(1, 1, 6), 3).tolist() == [[[0, 2, 4]]]
    assert ops.interpolate(grid(1, 1, 6), 3, mode="nearest-exact").tolist() == [[[1, 3, 5]]]


@pytest.mark.parametrize("mode", ["linear", "bilinear", "bicubic", "trilinear"])
@pytest.mark.parametrize("align", [False, True])
def test_a_constant_stays_constant(mode, align):
    ndim = {"linear": 1, "trilinear": 3}.get(mode, 2)
    x = torch.full((1, 2, *(3, 4, 5)[:ndim]), 1.5)
    y = ops.interpolate(x, (5, 2, 7)[:ndim], mode=mode, align_corners=align)
    np.testing.assert_allclose(y.numpy(), 1.5, rtol=1e-6)


def test_aligned_corners_are_kept():
    x = grid(1, 1, 3, 4)
    y = ops.interpolate(x, (5, 7), mode="bilinear", align_corners=True)[0, 0]
    assert [y[0, 0], y[0, -1], y[-1, 0], y[-1, -1]] == [0, 3, 8, 11]
    assert y[0].tolist() == pytest.approx([0, 0.5, 1, 1.5, 2, 2.5, 3])


def test_linear_weights_lie_between_centres():
    y = ops.interpolate(grid(1, 1, 4), 8, mode="linear")
    assert y[0, 0].tolist() == [0, 0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3]


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_antialiasing_averages_what_a_large_step_would_skip(mode):
    x = torch.zeros(1, 1, 16, 16)
    x[..., ::2] = 2.0
    y = ops.interpolate(x, (4, 4), mode=mode, antialias=True)
    np.testing.assert_allclose(y.numpy()[..., 1:-1], 1.0, atol=0.1)


def test_area_is_adaptive_average_pooling():
    x = torch.randn(1, 2, 5, 7)
    one, other = ops.interpolate(x, (2, 3), mode="area"), torch.adaptive_avg_pool2d(x, (2, 3))
    np.testing.assert_array_equal(one.numpy(), other.numpy())


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [({"size": 4, "scale_factor": 2}, "only one of size or scale_factor"), ({}, "only one of"),
     ({"size": 4, "mode": "trilinear"}, "does not support mode"),
     ({"size": (1, 2, 3)}, "same number of spatial dimensions")],
)  # fmt: skip
def test_contradictions_are_refused(kwargs, match):
    with pytest.raises(ValueError, match=match):
        ops.interpolate(torch.ones(1, 1, 2, 2), **kwargs)
