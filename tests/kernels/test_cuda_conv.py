"""conv.cu and pool.cu on the host, against loops in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest

from refruntime.kernels import cuda_instances
from tests.kernels.cuda_host.arrays import DTYPES, FLOATS, assert_near, computing, sample, wide
from tests.kernels.cuda_host.harness import HostModule, Out, run
from tests.kernels.cuda_host.windows import Conv, Pair, Pool, shares, struct

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


# --------------------------------------------------------------------------------------------- pool


POOLS = {
    "halves": Pool((6, 8), (2, 2), (2, 2)),
    "overlapping": Pool((7, 6), (3, 2), (1, 1), (1, 1)),
    "dilated": Pool((8, 9), (2, 3), (2, 1), (1, 1), (2, 2)),
    "ceiling": Pool((5, 6), (2, 3), (2, 2), (1, 1), ceil=True),
}


def launch_pool(host: Host, kernel: str, ctype: str, args: list[Any]) -> list[np.ndarray]:
    name = cuda_instances.require("pool", kernel, (ctype,))
    return run(host("pool"), name, (2,), (32,), args)


@pytest.mark.parametrize("ctype", FLOATS)
@pytest.mark.parametrize("case", POOLS)
def test_max_pool_and_its_gradient(
    host: Host, rng: np.random.Generator, ctype: str, case: str
) -> None:
    p = POOLS[case]
    x, g = sample(rng, p.x_shape, ctype), sample(rng, p.y_shape, ctype)
    y, where = np.zeros(p.y_shape), np.zeros(p.y_shape, np.int64)
    gx = np.zeros(p.x_shape)
    for plane, row, column in np.ndindex(p.y_shape):
        best = max(p.window(row, column), key=lambda at, plane=plane: wide(x)[(plane, *at)])
        y[plane, row, column] = wide(x)[(plane, *best)]
        where[plane, row, column] = best[0] * p.size[1] + best[1]
        gx[(plane, *best)] += wide(g)[plane, row, column]
    outs = [Out(p.y_shape, x.dtype), Out(p.y_shape, np.int64)]
    got = launch_pool(host, "max_pool2d_forward", ctype, [*outs, x, p.shape, y.size])
    np.testing.assert_array_equal(wide(got[0]), y)
    np.testing.assert_array_equal(got[1], where)
    args = [Out(p.x_shape, x.dtype), g, where, p.shape, x.size]
    assert_near(launch_pool(host, "max_pool2d_backward", ctype, args)[0], gx, ctype)


def test_padding_never_wins_and_nan_does(host: Host) -> None:
    p = Pool((3, 3), (2, 2), (2, 2), (1, 1), planes=1)
    x = np.full(p.x_shape, -5.0, np.float32)
    x[0, 1, 2] = np.nan
    outs = [Out(p.y_shape, np.float32), Out(p.y_shape, np.int64)]
    y, where, _ = launch_pool(host, "max_pool2d_forward", "float", [*outs, x, p.shape, 4])
    assert y[0, 0].tolist() == [-5.0, -5.0]
    assert np.isnan(y[0, 1, 1])
    assert where[0, 1, 1] == 5


@pytest.mark.parametrize("ctype", FLOATS)
@pytest.mark.parametrize("case", ["halves", "overlapping", "ceiling"])
@pytest.mark.parametrize(("include", "divisor"), [(1, 0), (0, 0), (1, 7)])
def test_average_pool_and_its_gradient(
    host: Host, rng: np.random.Generator, ctype: str, case: str, include: int, divisor: int
) -> None:
    p = POOLS[case]
    x, g = sample(rng, p.x_shape, ctype), sample(rng, p.y_shape, ctype)
    y, gx = np.zeros(p.y_shape), np.zeros(p.x_shape)
    for plane, row, column in np.ndindex(p.y_shape):
        size = p.divisor(row, column, bool(include), divisor)
        for at in p.window(row, column):
            y[plane, row, column] += wide(x)[(plane, *at)] / size
            gx[(plane, *at)] += wide(g)[plane, row, column] / size
    args = [Out(p.y_shape, x.dtype), x, p.shape, y.size, include, divisor]
    assert_near(launch_pool(host, "avg_pool2d_forward", ctype, args)[0], y, ctype)
    args = [Out(p.x_shape, x.dtype), g, p.shape, x.size, include, divisor]
    assert_near(launch_pool(host, "avg_pool2d_backward", ctype, args)[0], gx, ctype)


@pytest.mark.parametrize("ctype", FLOATS)
@pytest.mark.parametrize(
    ("size", "out_size"), [((7, 5), (3, 2)), ((4, 6), (4, 1)), ((3, 2), (5, 4))]
)
def test_adaptive_pools_and_their_gradients(
    host: Host, rng: np.random.Generator, ctype: str, size: Pair, out_size: Pair
) -> None:
    shape = struct(*size, *out_size, *([0] * 8))
    x, g = sample(rng, (2, *size), ctype), sample(rng, (2, *out_size), ctype)
    mean, top, where = np.zeros(g.shape), np.zeros(g.shape), np.zeros(g.shape, np.int64)
    g_mean, g_top = np.zeros(x.shape), np.zeros(x.shape)
    for plane, row, column in np.ndindex(g.shape):
        rows, columns = shares(row, size[0], out_size[0]), shares(column, size[1], out_size[1])
        window = list(product(rows, columns))
        values = [wide(x)[(plane, *at)] for at in window]
        best = window[int(np.argmax(values))]
        mean[plane, row, column], top[plane, row, column] = np.mean(values), max(values)
        where[plane, row, column] = best[0] * size[1] + best[1]
        g_top[(plane, *best)] += wide(g)[plane, row, column]
        for at in window:
            g_mean[(plane, *at)] += wide(g)[plane, row, column] / len(window)
    out, gx = Out(g.shape, x.dtype), Out(x.shape, x.dtype)
    got = launch_pool(host, "adaptive_avg_pool2d_forward", ctype, [out, x, shape, g.size])
    assert_near(got[0], mean, ctype)
    got = launch_pool(host, "adaptive_avg_pool2d_backward", ctype, [gx, g, shape, x.size])
    assert_near(got[0], g_mean, ctype)
    args: list[Any] = [out, Out(g.shape, np.int64), x, shape, g.size]
    got = launch_pool(host, "adaptive_max_pool2d_forward", ctype, args)
    np.testing.assert_array_equal(wide(got[0]), top)
    np.testing.assert_array_equal(got[1], where)
    got = launch_pool(host, "adaptive_max_pool2d_backward", ctype, [gx, g, where, shape, x.size])
    assert_near(got[0], g_top, ctype)
