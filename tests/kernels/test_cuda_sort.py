"""sort.cu on the host, against NumPy's stable sort."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from refruntime.kernels import cuda_instances
from tests.kernels.cuda_host.arrays import DTYPES, sample, wide
from tests.kernels.cuda_host.harness import HostModule, Out, run

Host = Callable[[str], HostModule]
TILE = 512


def sort_rows(
    host: Host, x: np.ndarray, ctype: str, descending: bool
) -> tuple[np.ndarray, np.ndarray]:
    rows, length = x.shape
    module, flag = host("sort"), int(descending)
    outs = [Out(x.shape, x.dtype), Out(x.shape, np.int64)]
    name = cuda_instances.require("sort", "sort_tiles", (ctype,))
    grid = (-(-length // TILE) * rows,)
    keys, places, _ = run(module, name, grid, (256,), [*outs, x, length, flag], shared=TILE * 16)
    name = cuda_instances.require("sort", "merge_runs", (ctype,))
    run_length = TILE
    while run_length < length:
        args = [*outs, keys, places, rows, length, run_length, flag]
        keys, places, *_ = run(module, name, (-(-x.size // 256),), (256,), args)
        run_length *= 2
    return keys, places


def stable_order(x: np.ndarray, descending: bool) -> np.ndarray:
    if not descending:
        return np.argsort(x, axis=1, kind="stable")
    # Sorting the reversed row upwards and reading it backwards is the stable way down.
    return x.shape[1] - 1 - np.argsort(x[:, ::-1], axis=1, kind="stable")[:, ::-1]


@pytest.mark.parametrize("ctype", DTYPES)
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("length", [1, 100, 512, 1300])
def test_rows_are_sorted_stably(
    host: Host, rng: np.random.Generator, ctype: str, descending: bool, length: int
) -> None:
    x = sample(rng, (2, length), ctype)
    keys, places = sort_rows(host, x, ctype, descending)
    order = stable_order(wide(x), descending)
    np.testing.assert_array_equal(places, order)
    np.testing.assert_array_equal(wide(keys), np.take_along_axis(wide(x), order, axis=1))


@pytest.mark.parametrize("descending", [False, True])
def test_nan_is_the_largest(host: Host, rng: np.random.Generator, descending: bool) -> None:
    x = sample(rng, (1, 700), "float")
    x[0, [3, 600]], x[0, 5], x[0, 650] = np.nan, np.inf, -np.inf
    keys, places = sort_rows(host, x, "float", descending)
    ends = keys[0, ::-1] if not descending else keys[0]
    assert np.isnan(ends[:2]).all()
    assert ends[2] == np.inf
    assert ends[-1] == -np.inf
    nans = places[0, :2] if descending else places[0, -2:]
    assert nans.tolist() == [3, 600]
