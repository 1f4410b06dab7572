from __future__ import annotations

import numpy as np
import pytest

import refruntime as torch
from refruntime._ops.opdef import ops
from refruntime.autograd import gradcheck, gradgradcheck

NUMPY = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}


@pytest.mark.parametrize("mode", NUMPY)
def test_padding_by_other_elements_equals_numpy_and_has_derivatives(mode):
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((1, 2, 3, 4)))
    expected = np.pad(x.numpy(), [(0, 0), (0, 0), (2, 1), (3, 0)], mode=NUMPY[mode])
    np.testing.assert_array_equal(ops.pad(x, (3, 0, 2, 1), mode).numpy(), expected)
    x.requires_grad_()
    assert gradcheck(lambda x: ops.pad(x, (3, 0, 2, 1), mode), [x], fast_mode=True)
    assert gradgradcheck(lambda x: ops.pad(x, (3, 0, 2, 1), mode), [x], fast_mode=True)


def test_cropping_and_padding_mix():
    x = torch.arange(6.0).reshape(2, 3)
    assert ops.pad(x, (-1, 1, 1, -1), value=9.0).tolist() == [[9, 9, 9], [1, 2, 9]]


def test_reflecting_more_than_there_is_is_refused():
    with pytest.raises(RuntimeError, match="less than the corresponding input dimension"):
        ops.pad(torch.ones(1, 2, 3), (3, 0), "reflect")
    with pytest.raises(ValueError, match="constant, reflect, replicate or circular"):
        ops.pad(torch.ones(2), (1, 1), "mirror")


def test_pixels_move_to_channels_and_back():
    x = torch.arange(2 * 8 * 2 * 3.0).reshape(2, 8, 2, 3)
    y = ops.pixel_shuffle(x, 2)
    assert y.shape == (2, 2, 4, 6)
    assert y[0, 0, :2, :2].flatten().tolist() == x[0, :4, 0, 0].tolist()
    np.testing.assert_array_equal(ops.pixel_unshuffle(y, 2).numpy(), x.numpy())


def test_channels_of_groups_are_interleaved():
    x = torch.arange(6.0).reshape(1, 6, 1)
    assert ops.channel_shuffle(x, 2).flatten().tolist() == [0, 3, 1, 4, 2, 5]
