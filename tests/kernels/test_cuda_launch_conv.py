"""The GPU launch functions of convolutions, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from refruntime import _dtypes
from refruntime.kernels import conv_cuda
from refruntime.kernels.conv_plan import Shape
from tests.kernels.cuda_host.launches import Router, filled, tensor
from tests.kernels.cuda_host.windows import Conv

CASES = {
    "plain": Conv(2, 3, (6, 5), 4, (3, 3)),
    "strided": Conv(2, 2, (7, 8), 3, (3, 2), stride=(2, 3), padding=(1, 1)),
    "grouped and dilated": Conv(2, 4, (7, 6), 6, (3, 2), padding=(1, 1), dilation=(2, 1), groups=2),
    "line": Conv(2, 3, (11,), 2, (4,), stride=(2,), padding=(2,)),
}


def three(sizes: tuple[int, ...], missing: int) -> Any:
    return (missing,) * (3 - len(sizes)) + sizes


def shape_of(c: Conv, transposed: bool = False) -> Shape:
    stride, padding, dilation = c.steps
    ins, outs = c.in_channels // c.groups, c.out_channels // c.groups
    sides = (ins, outs, three(c.size, 1), three(c.out_size, 1))
    channels, rows, source, result = (outs, ins, *sides[:1:-1]) if transposed else sides
    return Shape(
        c.batch, c.groups, channels, rows, source, result, three(c.kernel, 1), three(stride, 1),
        three(padding, 0), three(dilation, 1), transposed,
    )  # fmt: skip


@pytest.mark.parametrize("layout", ["contiguous", "strided"])
@pytest.mark.parametrize("case", CASES)
def test_convolution_and_its_gradients(
    router: Router, rng: np.random.Generator, case: str, layout: str
) -> None:
    c = CASES[case]
    x, w, g = (rng.standard_normal(s) for s in (c.x_shape, c.w_shape, c.y_shape))
    bias = rng.standard_normal(c.out_channels)
    out = filled(c.y_shape, _dtypes.float64)
    operands = tensor(x, layout), tensor(w, layout), tensor(bias)
    conv_cuda.correlate_cuda(out, *operands, shape_of(c))
    spread = bias.reshape(1, -1, *[1] * len(c.size))
    np.testing.assert_allclose(out.array(), c.forward(x, w) + spread, atol=1e-12)

    gx, gw = c.gradients(x, w, g)
    out = filled(c.x_shape, _dtypes.float64)
    operands = tensor(g, layout), tensor(w, layout)
    conv_cuda.correlate_cuda(out, *operands, None, shape_of(c, transposed=True))
    np.testing.assert_allclose(out.array(), gx, atol=1e-12)
    out = filled(c.w_shape, _dtypes.float64)
    conv_cuda.correlate_weight_cuda(out, tensor(g, layout), tensor(x, layout), shape_of(c))
    np.testing.assert_allclose(out.array(), gw, atol=1e-12)
    launched = [e for e in router.launched if e.startswith("conv<")]
    assert launched == [f"conv<{p}, double>" for p in ("Forward", "Input", "Weight")]


def test_the_weight_gradient_of_many_places_is_summed_in_splits(
    router: Router, rng: np.random.Generator
) -> None:
    c = Conv(4, 1, (20, 20), 1, (2, 2))
    x, g = rng.standard_normal(c.x_shape), rng.standard_normal(c.y_shape)
    out = filled(c.w_shape, _dtypes.float64)
    conv_cuda.correlate_weight_cuda(out, tensor(g), tensor(x), shape_of(c))
    expected = [
        (x[:, 0, i : i + 19, j : j + 19] * g[:, 0]).sum() for i in range(2) for j in range(2)
    ]
    np.testing.assert_allclose(out.array().ravel(), expected, atol=1e-10)
    assert router.launched[1] == "conv_weight_finish<double>"


def test_an_empty_result_launches_nothing(router: Router) -> None:
    c = Conv(0, 2, (4, 4), 3, (2, 2))
    out, x, w = (tensor(np.zeros(s)) for s in (c.y_shape, c.x_shape, c.w_shape))
    conv_cuda.correlate_cuda(out, x, w, None, shape_of(c))
    assert not router.launched


def test_the_weight_gradient_of_an_empty_batch_is_zero(router: Router) -> None:
    c = Conv(0, 2, (4, 4), 3, (2, 2))
    out, x, g = (
        filled(c.w_shape, _dtypes.float64),
        *(tensor(np.zeros(s)) for s in (c.x_shape, c.y_shape)),
    )
    conv_cuda.correlate_weight_cuda(out, g, x, shape_of(c))
    assert not out.array().any()
    assert router.launched
