"""pool.cu on the host, against loops in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from refruntime.kernels import cuda_instances
from tests.kernels.cuda_host.arrays import DTYPES, FLOATS, assert_near, sample, wide
from tests.kernels.cuda_host.harness import HostModule, Out, Struct, run
from tests.kernels.cuda_host.windows import Pair, Pool, struct

Host = Callable[[str], HostModule]

POOLS = {
    "halves": Pool((6, 8), (2, 2), (2, 2)),
    "overlapping": Pool((7, 6), (3, 2), (1, 1), (1, 1)),
    "dilated": Pool((8, 9), (2, 3), (2, 1), (1, 1), (2, 2)),
    "ceiling": Pool((5, 6), (2, 3), (2, 2), (1, 1), ceil=True),
}


def launch(host: Host, kernel: str, ctype: str, args: list[Any]) -> list[np.ndarray]:
    name = cuda_instances.require("pool", kernel, (ctype,))
    return run(host("pool"), name, (2,), (32,), args)


def shape_of(p: Pool) -> Struct:
    return struct(1, *p.size, 1, *p.out_size, 1, *p.dilation)


def pairs(rows: list[list[Pair]]) -> np.ndarray:
    """A table of ranges: along depth (one of them), height and width."""
    return np.array([(0, 1), *(pair for row in rows for pair in row)], np.int64)


def covers(p: Pool) -> np.ndarray:
    """For each position, the windows whose bounds have it (there may be others between)."""
    rows = []
    for size, bounds in zip(p.size, p.bounds(), strict=True):
        over = [[w for w, (a, b) in enumerate(bounds) if a <= at < b] for at in range(size)]
        rows.append([(found[0], found[-1] + 1) if found else (0, 0) for found in over])
    return pairs(rows)


@pytest.mark.parametrize("ctype", cuda_instances.NUMBERS)
@pytest.mark.parametrize("case", POOLS)
def test_maxima_and_their_places(
    host: Host, rng: np.random.Generator, ctype: str, case: str
) -> None:
    p = POOLS[case]
    x = sample(rng, p.x_shape, ctype)
    y, where = np.zeros(p.y_shape), np.zeros(p.y_shape, np.int64)
    for plane, row, column in np.ndindex(p.y_shape):
        best = max(p.window(row, column), key=lambda at, plane=plane: wide(x)[(plane, *at)])
        y[plane, row, column] = wide(x)[(plane, *best)]
        where[plane, row, column] = best[0] * p.size[1] + best[1]
    outs = [Out(p.y_shape, x.dtype), Out(p.y_shape, np.int64)]
    got = launch(host, "max_pool", ctype, [*outs, x, shape_of(p), pairs(p.bounds()), y.size])
    np.testing.assert_array_equal(wide(got[0]), y)
    np.testing.assert_array_equal(got[1], where)


@pytest.mark.parametrize("ctype", FLOATS)
@pytest.mark.parametrize("case", POOLS)
def test_gradients_go_back_to_the_places(
    host: Host, rng: np.random.Generator, ctype: str, case: str
) -> None:
    p = POOLS[case]
    g = sample(rng, p.y_shape, ctype)
    where, gx = np.zeros(p.y_shape, np.int64), np.zeros(p.x_shape)
    for plane, row, column in np.ndindex(p.y_shape):
        window = p.window(row, column)
        chosen = window[rng.integers(len(window))]
        where[plane, row, column] = chosen[0] * p.size[1] + chosen[1]
        gx[(plane, *chosen)] += wide(g)[plane, row, column]
    args = [Out(p.x_shape, g.dtype), g, where, shape_of(p), covers(p), gx.size]
    assert_near(launch(host, "max_pool_backward", ctype, args)[0], gx, ctype)


def test_three_dimensions(host: Host, rng: np.random.Generator) -> None:
    x = rng.standard_normal((2, 4, 6, 5))
    windows = [[(0, 2), (2, 4)], [(0, 3), (3, 6)], [(0, 3), (2, 5)]]
    y = np.array(
        [
            [[[x[n, a:b, c:d, e:f].max() for e, f in windows[2]] for c, d in windows[1]]
             for a, b in windows[0]]
            for n in range(2)
        ]
    )  # fmt: skip
    table = np.array([pair for row in windows for pair in row], np.int64)
    outs = [Out(y.shape, np.float64), Out(y.shape, np.int64)]
    shape = struct(4, 6, 5, 2, 2, 2, 1, 1, 1)
    got = launch(host, "max_pool", "double", [*outs, x, shape, table, y.size])
    np.testing.assert_array_equal(got[0], y)
    planes = x.reshape(2, -1)
    np.testing.assert_array_equal(
        np.take_along_axis(planes, got[1].reshape(2, -1), 1), y.reshape(2, -1)
    )


def test_nan_wins_and_the_first_of_equals(host: Host) -> None:
    p = Pool((3, 3), (2, 2), (2, 2), (1, 1), planes=1)
    x = np.full(p.x_shape, -5.0, np.float32)
    x[0, 1, 2] = np.nan
    outs = [Out(p.y_shape, np.float32), Out(p.y_shape, np.int64)]
    y, where, *_ = launch(host, "max_pool", "float", [*outs, x, shape_of(p), pairs(p.bounds()), 4])
    assert y[0, 0].tolist() == [-5.0, -5.0]
    assert np.isnan(y[0, 1, 1])
    assert where[0].tolist() == [[0, 1], [3, 5]]


class Taps:
    """Random weighted sums along one dimension, some of them over nothing."""

    def __init__(self, rng: np.random.Generator, size: int, count: int) -> None:
        lengths = rng.integers(0, 4, count)
        self.starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        self.index = rng.integers(0, size, lengths.sum())
        self.weight = rng.standard_normal(lengths.sum())
        self.matrix = np.zeros((count, size))
        np.add.at(self.matrix, (np.repeat(np.arange(count), lengths), self.index), self.weight)

    @property
    def struct(self) -> Struct:
        return struct(self.starts.ctypes.data, self.index.ctypes.data, self.weight.ctypes.data)


@pytest.mark.parametrize("ctype", FLOATS)
def test_weighted_sums_along_rows_and_columns(
    host: Host, rng: np.random.Generator, ctype: str
) -> None:
    x, rows, columns = sample(rng, (3, 5, 7), ctype), Taps(rng, 5, 4), Taps(rng, 7, 6)
    args = [Out((3, 4, 6), x.dtype), x, 5, 7, 4, 6, rows.struct, columns.struct, 72]
    got = launch(host, "resample", ctype, args)[0]
    assert_near(got, rows.matrix @ wide(x) @ columns.matrix.T, ctype, scale=8)


@pytest.mark.parametrize("ctype", FLOATS)
@pytest.mark.parametrize("case", ["overlapping", "dilated"])
def test_windows_as_columns_and_back(
    host: Host, rng: np.random.Generator, ctype: str, case: str
) -> None:
    p = POOLS[case]
    shape = struct(*p.size, *p.kernel, *p.out_size, *p.stride, *p.padding, *p.dilation)
    x = sample(rng, p.x_shape, ctype)
    columns = sample(rng, (p.planes, *p.kernel, *p.out_size), ctype)
    unfolded, folded = np.zeros(columns.shape), np.zeros(x.shape)
    for plane, i, j, row, column in np.ndindex(columns.shape):
        y = row * p.stride[0] - p.padding[0] + i * p.dilation[0]
        z = column * p.stride[1] - p.padding[1] + j * p.dilation[1]
        if 0 <= y < p.size[0] and 0 <= z < p.size[1]:
            unfolded[plane, i, j, row, column] = wide(x)[plane, y, z]
            folded[plane, y, z] += wide(columns)[plane, i, j, row, column]
    args = [Out(columns.shape, DTYPES[ctype]), x, shape, columns.size]
    np.testing.assert_array_equal(wide(launch(host, "im2col", ctype, args)[0]), unfolded)
    args = [Out(x.shape, DTYPES[ctype]), columns, shape, x.size]
    assert_near(launch(host, "col2im", ctype, args)[0], folded, ctype)
