"""conv.cu on the host, against loops in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import pytest

from refruntime.kernels import cuda_instances
from tests.kernels.cuda_host.arrays import DTYPES, FLOATS, assert_near, computing, sample, wide
from tests.kernels.cuda_host.harness import HostModule, Out, run
from tests.kernels.cuda_host.windows import Conv

Host = Callable[[str], HostModule]


CASES = {
    "plain": Conv(2, 3, (6, 5), 4, (3, 3)),
    "strided": Conv(2, 2, (7, 8), 3, (3, 2), stride=(2, 3), padding=(1, 1)),
    "dilated": Conv(1, 2, (9, 8), 2, (3, 3), dilation=(2, 2), padding=(2, 1)),
    "grouped": Conv(2, 4, (5, 5), 6, (3, 3), padding=(1, 1), groups=2),
    "depthwise": Conv(1, 4, (5, 4), 4, (2, 2), stride=(2, 1), groups=4),
    "pointwise": Conv(3, 5, (3, 3), 2, (1, 1)),
    "uncovered": Conv(1, 1, (6, 6), 1, (2, 2), stride=(3, 3)),
    "line": Conv(2, 3, (11,), 2, (4,), stride=(2,), padding=(2,)),
    "volume": Conv(
        1, 2, (4, 3, 5), 2, (2, 1, 3), stride=(1, 2, 2), padding=(1, 0, 1), dilation=(2, 1, 1)
    ),
}


def launch(
    host: Host, problem: str, ctype: str, c: Conv, out: Out, a: np.ndarray, b: np.ndarray,
    bias: Any, splits: int = 1,
) -> np.ndarray:  # fmt: skip
    ins, outs = c.in_channels // c.groups, c.out_channels // c.groups
    rows, columns = {
        "Forward": (outs, c.batch * prod(c.out_size)),
        "Input": (ins, c.batch * prod(c.size)),
        "Weight": (outs, ins * prod(c.kernel)),
    }[problem]
    return run(
        host("conv"),
        cuda_instances.require("conv", "conv", (problem, ctype)),
        (-(-columns // 64), -(-rows // 64), c.groups * splits),
        (256,),
        [out, a, b, bias, c.shape, splits],
    )[0]


def weight_gradient(
    host: Host, ctype: str, c: Conv, g: np.ndarray, x: np.ndarray, splits: int
) -> np.ndarray:
    partial = Out((splits, *c.w_shape), computing(ctype))
    states = launch(host, "Weight", ctype, c, partial, g, x, 0, splits)
    count = states[0].size
    name = cuda_instances.require("conv", "conv_weight_finish", (ctype,))
    args = [Out(c.w_shape, DTYPES[ctype]), states, splits, count]
    return run(host("conv"), name, (-(-count // 32),), (32,), args)[0]


@pytest.mark.parametrize("case", CASES)
def test_convolution_and_both_gradients(host: Host, rng: np.random.Generator, case: str) -> None:
    c = CASES[case]
    x, w, g = (sample(rng, s, "double") for s in (c.x_shape, c.w_shape, c.y_shape))
    bias = sample(rng, (c.out_channels,), "double")
    y = launch(host, "Forward", "double", c, Out(c.y_shape, np.float64), w, x, bias)
    np.testing.assert_allclose(
        y, c.forward(x, w) + bias.reshape(1, -1, *[1] * len(c.size)), atol=1e-12
    )
    gx, gw = c.gradients(x, w, g)
    got = launch(host, "Input", "double", c, Out(c.x_shape, np.float64), w, g, 0)
    np.testing.assert_allclose(got, gx, atol=1e-12)
    for splits in (1, 3):
        got = weight_gradient(host, "double", c, g, x, splits)
        np.testing.assert_allclose(got, gw, atol=1e-12)


@pytest.mark.parametrize("ctype", FLOATS)
def test_convolution_in_every_type(host: Host, rng: np.random.Generator, ctype: str) -> None:
    c = CASES["grouped"]
    x, w, g = (sample(rng, s, ctype) for s in (c.x_shape, c.w_shape, c.y_shape))
    y = launch(host, "Forward", ctype, c, Out(c.y_shape, DTYPES[ctype]), w, x, 0)
    assert_near(y, c.forward(wide(x), wide(w)), ctype, scale=4)
    gx, gw = c.gradients(wide(x), wide(w), wide(g))
    got = launch(host, "Input", ctype, c, Out(c.x_shape, DTYPES[ctype]), w, g, 0)
    assert_near(got, gx, ctype, scale=4)
    assert_near(weight_gradient(host, ctype, c, g, x, 2), gw, ctype, scale=4)


def test_results_larger_than_a_tile(host: Host, rng: np.random.Generator) -> None:
    c = Conv(2, 3, (9, 9), 70, (3, 3), padding=(1, 1))
    x, w = sample(rng, c.x_shape, "float"), sample(rng, c.w_shape, "float")
    y = launch(host, "Forward", "float", c, Out(c.y_shape, np.float32), w, x, 0)
    np.testing.assert_allclose(y, c.forward(x, w), rtol=1e-4, atol=1e-4)
