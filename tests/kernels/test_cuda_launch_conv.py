"""The GPU launch functions of convolutions, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from refruntime import _dtypes
from refruntime.kernels import conv
from tests.kernels.cuda_host.launches import Router, assert_same, filled, tensor
from tests.kernels.cuda_host.windows import Conv

CASES = {
    "plain": Conv(2, 3, (6, 5), 4, (3, 3)),
    "strided": Conv(2, 2, (7, 8), 3, (3, 2), stride=(2, 3), padding=(1, 1)),
    "grouped and dilated": Conv(2, 4, (7, 6), 6, (3, 2), padding=(1, 1), dilation=(2, 1), groups=2),
    "line": Conv(2, 3, (11,), 2, (4,), stride=(2,), padding=(2,)),
}


def settings(c: Conv) -> dict[str, Any]:
    stride, padding, dilation = c.steps
    return {"stride": stride, "padding": padding, "dilation": dilation, "groups": c.groups}


def convolve(out: Any, x: Any, w: Any, bias: Any, c: Conv, transposed: bool = False) -> None:
    params = {**settings(c), "transposed": transposed, "output_padding": (0,) * len(c.size)}
    conv.convolution_cuda(out, x, w, bias, **params)


@pytest.mark.parametrize("layout", ["contiguous", "strided"])
@pytest.mark.parametrize("case", CASES)
def test_convolution_and_its_gradients(
    router: Router, rng: np.random.Generator, case: str, layout: str
) -> None:
    c = CASES[case]
    x, w, g = (rng.standard_normal(s) for s in (c.x_shape, c.w_shape, c.y_shape))
    bias = rng.standard_normal(c.out_channels)
    out = filled(c.y_shape, _dtypes.float64)
    convolve(out, tensor(x, layout), tensor(w, layout), tensor(bias), c)
    spread = bias.reshape(1, -1, *[1] * len(c.size))
    np.testing.assert_allclose(out.array(), c.forward(x, w) + spread, atol=1e-12)

    gx, gw = c.gradients(x, w, g)
    out = filled(c.x_shape, _dtypes.float64)
    convolve(out, tensor(g, layout), tensor(w, layout), None, c, transposed=True)
    np.testing.assert_allclose(out.array(), gx, atol=1e-12)
    out = filled(c.w_shape, _dtypes.float64)
    operands = tensor(g, layout), tensor(x, layout)
    conv.convolution_weight_cuda(out, *operands, **settings(c), kernel=c.kernel)
    np.testing.assert_allclose(out.array(), gw, atol=1e-12)
    launched = [e for e in router.launched if e.startswith("conv<")]
    assert launched == [f"conv<{p}, double>" for p in ("Forward", "Input", "Weight")]


def test_the_weight_gradient_of_many_places_is_summed_in_splits(
    router: Router, rng: np.random.Generator
) -> None:
    c = Conv(4, 1, (20, 20), 1, (2, 2))
    x, g = rng.standard_normal(c.x_shape), rng.standard_normal(c.y_shape)
    out = filled(c.w_shape, _dtypes.float64)
    conv.convolution_weight_cuda(out, tensor(g), tensor(x), **settings(c), kernel=c.kernel)
    expected = [
        (x[:, 0, i : i + 19, j : j + 19] * g[:, 0]).sum() for i in range(2) for j in range(2)
    ]
    np.testing.assert_allclose(out.array().ravel(), expected, atol=1e-10)
    assert router.launched[1] == "conv_weight_finish<double>"


def test_convolutions_agree_with_the_cpu(router: Router, rng: np.random.Generator) -> None:
    c = CASES["grouped and dilated"]
    x, w, g = (
        tensor(rng.standard_normal(s).astype(np.float32)) for s in (c.x_shape, c.w_shape, c.y_shape)
    )
    expected, got = (filled(c.y_shape, _dtypes.float32) for _ in range(2))
    params = {**settings(c), "transposed": False, "output_padding": (0, 0)}
    conv.convolution_cpu(expected, x, w, None, **params)
    conv.convolution_cuda(got, x, w, None, **params)
    assert_same(got, expected, 1e-5)
    expected, got = (filled(c.w_shape, _dtypes.float32) for _ in range(2))
    conv.convolution_weight_cpu(expected, g, x, **settings(c), kernel=c.kernel)
    conv.convolution_weight_cuda(got, g, x, **settings(c), kernel=c.kernel)
    assert_same(got, expected, 1e-5)
    assert router.launched


def test_an_empty_result_launches_nothing(router: Router) -> None:
    c = Conv(0, 2, (4, 4), 3, (2, 2))
    out, x, w = (tensor(np.zeros(s)) for s in (c.y_shape, c.x_shape, c.w_shape))
    convolve(out, x, w, None, c)
    assert not router.launched


def test_the_weight_gradient_of_an_empty_batch_is_zero(router: Router) -> None:
    c = Conv(0, 2, (4, 4), 3, (2, 2))
    out, x, g = (
        filled(c.w_shape, _dtypes.float64),
        *(tensor(np.zeros(s)) for s in (c.x_shape, c.y_shape)),
    )
    conv.convolution_weight_cuda(out, g, x, **settings(c), kernel=c.kernel)
    assert not out.array().any()
    assert router.launched
