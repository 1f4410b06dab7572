from __future__ import annotations

import numpy as np
import pytest

import refruntime as torch
from refruntime.autograd import gradcheck, gradgradcheck


def double(*shape):
    rng = np.random.default_rng(sum(shape))
    return torch.from_numpy(rng.standard_normal(shape)).requires_grad_()


CASES = {
    "strided": (lambda x, w, b: torch.conv2d(x, w, b, 2, 1), (2, 2, 5, 4), (3, 2, 3, 3), 3),
    "one dimension": (lambda x, w, b: torch.conv1d(x, w, b, 2, 1, 2), (2, 2, 8), (3, 2, 3), 3),
    "groups": (lambda x, w, b: torch.conv2d(x, w, b, groups=2), (1, 4, 4, 4), (6, 2, 2, 3), 6),
    "three": (lambda x, w, b: torch.conv3d(x, w, b, 1, 1), (1, 2, 3, 3, 2), (2, 2, 2, 3, 2), 2),
    "transposed": (
        lambda x, w, b: torch.conv_transpose2d(x, w, b, 2, 1, 1), (1, 3, 3, 3), (3, 2, 3, 3), 2,
    ),
    "output padding beyond the stride": (
        lambda x, w, b: torch.conv_transpose1d(x, w, b, 1, 0, 1, 1, 2), (2, 3, 4), (3, 2, 2), 2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_convolutions_have_derivatives_of_both_orders(name):
    function, x, weight, rows = CASES[name]
    inputs = [double(*x), double(*weight), double(rows)]
    assert gradcheck(function, inputs, fast_mode=True)
    assert gradgradcheck(function, inputs, fast_mode=True)


@pytest.mark.parametrize("kernel", [(3, 3), (2, 3), (4, 1)])
@pytest.mark.parametrize("dilation", [1, 2])
def test_same_padding_keeps_the_size_and_pads_behind(kernel, dilation):
    x, weight = torch.randn(1, 2, 9, 8), torch.randn(3, 2, *kernel)
    y = torch.conv2d(x, weight, padding="same", dilation=dilation)
    assert y.shape == (1, 3, 9, 8)
    totals = [dilation * (k - 1) for k in kernel]
    sides = [side for t in reversed(totals) for side in (t // 2, t - t // 2)]
    padded = torch.nn.functional.pad(x, sides)
    expected = torch.conv2d(padded, weight, dilation=dilation)
    np.testing.assert_allclose(y.numpy(), expected.numpy(), rtol=1e-4, atol=1e-5)


def test_an_image_without_a_batch_dimension_gives_one_without():
    x, weight = torch.randn(2, 5, 5), torch.randn(3, 2, 3, 3)
    y = torch.conv2d(x, weight)
    assert y.shape == (3, 3, 3)
    np.testing.assert_array_equal(y.numpy(), torch.conv2d(x[None], weight)[0].numpy())


def test_an_empty_batch_gives_an_empty_result_and_zero_gradients():
    weight = torch.randn(3, 2, 3, 3, requires_grad=True)
    y = torch.conv2d(torch.zeros(0, 2, 5, 5), weight)
    assert y.shape == (0, 3, 3, 3)
    y.sum().backward()
    assert not weight.grad.any()


def test_a_transposed_convolution_undoes_the_shape_of_a_strided_one():
    x = torch.randn(1, 3, 11, 12)
    weight = torch.randn(4, 3, 3, 3)
    y = torch.conv2d(x, weight, stride=2, padding=1)
    back = torch.conv_transpose2d(y, weight, stride=2, padding=1, output_padding=(0, 1))
    assert back.shape == x.shape


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: torch.conv2d(torch.ones(1, 2, 4, 4), torch.ones(1, 2, 3, 3), stride=0),
         RuntimeError, "non-positive stride"),
        (lambda: torch.conv2d(torch.ones(1, 2, 4, 4), torch.ones(1, 2, 3, 3), stride=(1, 2, 3)),
         RuntimeError, "expected stride to be"),
        (lambda: torch.conv2d(torch.ones(4, 4), torch.ones(1, 2, 3, 3)), RuntimeError,
         r"Expected 3D \(unbatched\) or 4D"),
        (lambda: torch.conv2d(torch.ones(1, 1, 4, 4), torch.ones(1, 1, 3, 3), None, 2, "same"),
         ValueError, "not supported for strided"),
        (lambda: torch.conv_transpose1d(torch.ones(1, 1, 4), torch.ones(1, 1, 3), None, 2, 0, 2),
         RuntimeError, "output padding must be smaller"),
        (lambda: torch.conv2d(torch.ones(1, 1, 4, 4), torch.ones(1, 1, 3, 3).double()),
         RuntimeError, "float != double"),
    ],
)  # fmt: skip
def test_bad_arguments_are_refused(call, error, match):
    with pytest.raises(error, match=match):
        call()
