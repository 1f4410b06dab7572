from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import refruntime as torch
from refruntime import _dtypes
from refruntime._impl import empty_impl, from_array, meta_of
from refruntime._ops.samples_nn import convolution as reference
from refruntime.config import config
from refruntime.kernels import conv


def forward(x, weight, stride, padding, dilation, groups, transposed=False, extra=(0, 0)):
    """Convolve NumPy arrays by the kernel, and by the plain reference."""
    want = reference(
        *(a.astype(np.float64) for a in (x, weight)), None, stride, padding, dilation, transposed,
        extra, groups,
    )  # fmt: skip
    dtype = _dtypes.from_numpy_dtype(x.dtype)
    out = empty_impl(meta_of(want.shape, dtype))
    conv.convolution_cpu(
        out, from_array(x, dtype), from_array(weight, dtype), None, stride=stride, padding=padding,
        dilation=dilation, transposed=transposed, output_padding=extra, groups=groups,
    )  # fmt: skip
    return out.array(), want


def close(got, want, rtol=2e-5):
    np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol * max(1.0, np.abs(want).max()))


pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))


@settings(max_examples=40, deadline=None)
@given(
    images=st.integers(1, 4), groups=st.integers(1, 3), channels=st.integers(1, 3),
    rows=st.integers(1, 10), size=st.tuples(st.integers(3, 9), st.integers(3, 12)), kernel=pairs,
    stride=pairs, padding=st.tuples(st.integers(0, 2), st.integers(0, 2)), dilation=pairs,
)  # fmt: skip
def test_any_convolution_and_its_gradients_equal_the_plain_loops(
    images, groups, channels, rows, size, kernel, stride, padding, dilation
):
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    size = tuple(max(s, r) for s, r in zip(size, reach, strict=True))
    rng = np.random.default_rng(images)
    x = rng.standard_normal((images, groups * channels, *size))
    weight = rng.standard_normal((groups * rows, channels, *kernel))
    got, want = forward(x, weight, stride, padding, dilation, groups)
    close(got, want, 1e-12)
    g = rng.standard_normal(want.shape)
    sizes = zip(size, want.shape[2:], kernel, stride, padding, dilation, strict=True)
    extra = tuple(n - ((m - 1) * s - 2 * p + d * (k - 1) + 1) for n, m, k, s, p, d in sizes)
    close(*forward(g, weight, stride, padding, dilation, groups, True, extra), 1e-12)
    # The gradient of the weight is the transpose of a linear map: <g, conv(x, w)> = <dw, w>.
    dw = empty_impl(meta_of(weight.shape, _dtypes.float64))
    conv.convolution_weight_cpu(
        dw, from_array(g, _dtypes.float64), from_array(x, _dtypes.float64), stride=stride,
        padding=padding, dilation=dilation, groups=groups, kernel=kernel,
    )  # fmt: skip
    assert np.sum(dw.array() * weight) == pytest.approx(np.sum(g * want), rel=1e-9, abs=1e-9)


# Shapes that reach each way of packing: single rows, rows read in place, shifted copies for wide
# layers, phases of a stride, batches of small images, planes wider than a block.
CASES = {
    "depthwise": ((4, 16, 14, 14), (16, 1, 3, 3), 1, 1, 16),
    "in place": ((3, 8, 28, 28), (16, 8, 1, 1), 1, 0, 1),
    "in place 3x3": ((2, 4, 40, 40), (16, 4, 3, 3), 1, 0, 1),
    "compact": ((2, 8, 14, 14), (64, 8, 3, 3), 1, 1, 1),
    "phases": ((2, 3, 33, 33), (24, 3, 7, 7), 2, 3, 1),
    "small images": ((64, 2, 5, 5), (11, 2, 3, 3), 1, 1, 1),
    "wide": ((1, 2, 6, 900), (9, 2, 3, 3), 1, 1, 1),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_each_way_of_packing_is_right(name, dtype):
    x_shape, w_shape, stride, padding, groups = CASES[name]
    rng = np.random.default_rng(0)
    x = rng.standard_normal(x_shape).astype(dtype)
    weight = rng.standard_normal(w_shape).astype(dtype)
    args = ((stride, stride), (padding, padding), (1, 1), groups)
    close(*forward(x, weight, *args), 2e-5 if dtype is np.float32 else 2e-3)


@pytest.mark.parametrize("name", ["compact", "phases", "depthwise"])
def test_results_do_not_depend_on_the_number_of_threads(name):
    x_shape, w_shape, stride, padding, groups = CASES[name]
    results = []
    for threads in (1, 3):
        with config.patch(num_threads=threads):
            torch.manual_seed(0)
            x = torch.randn(*x_shape, requires_grad=True)
            weight = torch.randn(*w_shape, requires_grad=True)
            y = torch.conv2d(x, weight, None, stride, padding, 1, groups)
            results.append([y, *torch.autograd.grad(y.square().sum(), [x, weight])])
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one.detach().numpy(), other.detach().numpy())


def test_a_nan_beside_the_image_row_does_not_reach_other_outputs():
    x = np.zeros((1, 1, 4, 4), np.float32)
    x[0, 0, 1, 3] = np.nan
    got, want = forward(x, np.ones((1, 1, 3, 3), np.float32), (1, 1), (1, 1), (1, 1), 1)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))


def test_taps_that_no_output_reaches_leave_only_the_bias():
    x = torch.ones(1, 1, 2, 2)
    y = torch.conv_transpose2d(x, torch.ones(1, 1, 1, 1), torch.tensor([0.5]), stride=3)
    expected = np.full((4, 4), 0.5, np.float32)
    expected[::3, ::3] = 1.5
    np.testing.assert_array_equal(y[0, 0].numpy(), expected)


def test_integers_are_convolved_exactly():
    x = torch.arange(16).reshape(1, 1, 4, 4)
    y = torch.conv2d(x, torch.ones(1, 1, 2, 2, dtype=torch.int64))
    assert y.tolist() == [[[[10, 14, 18], [26, 30, 34], [42, 46, 50]]]]


def test_a_batch_too_large_to_pack_at_once_gives_the_same_weight_gradient(monkeypatch):
    rng = np.random.default_rng(1)
    x, g = rng.standard_normal((9, 2, 8, 8)), rng.standard_normal((9, 3, 8, 8))
    results = []
    for limit in (conv.PACKED_BYTES, 4096):
        monkeypatch.setattr(conv, "PACKED_BYTES", limit)
        out = empty_impl(meta_of((3, 2, 3, 3), _dtypes.float64))
        conv.convolution_weight_cpu(
            out, from_array(g, _dtypes.float64), from_array(x, _dtypes.float64), stride=(1, 1),
            padding=(1, 1), dilation=(1, 1), groups=1, kernel=(3, 3),
        )  # fmt: skip
        results.append(out.array())
    close(*results, 1e-12)
