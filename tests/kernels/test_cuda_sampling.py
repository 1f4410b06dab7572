"""sampling.cu on the host, against the CPU kernels: the same samples from the same stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from refruntime.kernels import cuda_instances, sampling
from tests.kernels.cuda_host.harness import HostModule, Out, run

Host = Callable[[str], HostModule]
SEED, OFFSET = 12345, 7


def gpu(host: Host, name: str, out: Out, *args: Any) -> list[np.ndarray]:
    expression = cuda_instances.require("sampling", name)
    arguments = [out, out.shape[0], SEED, OFFSET, *args]
    return run(host("sampling"), expression, (3,), (16,), arguments)


def test_categories_are_those_of_the_cpu(host: Host, rng: np.random.Generator) -> None:
    rows, categories, samples = 5, 7, 101
    weights = rng.random((rows, categories)) * (rng.random((rows, categories)) > 0.3)
    weights[:, 3] = 1.0
    sums = np.cumsum(weights, axis=1)
    got, _ = gpu(
        host, "sample_categories", Out((rows * samples,), np.int64), sums, categories, samples
    )
    expected = np.zeros(rows * samples, np.int64)
    sampling.sample_categories(
        expected.ctypes.data, sums.ctypes.data, categories, samples, SEED, OFFSET, 0, expected.size
    )
    np.testing.assert_array_equal(got, expected)
    picked = weights[np.repeat(np.arange(rows), samples), got]
    assert (picked > 0).all()


def test_poisson_counts_are_those_of_the_cpu(host: Host, rng: np.random.Generator) -> None:
    small, large = rng.random(200) * 10, rng.random(200) * 1000
    rates = np.concatenate([np.zeros(3), small, large, [-1.0, np.nan]])
    got, _, invalid = gpu(
        host, "poisson", Out(rates.shape, np.float64), rates, np.zeros(1, np.uint64)
    )
    expected = np.zeros_like(rates)
    bad = sampling.poisson_f64(
        expected.ctypes.data, rates.ctypes.data, SEED, OFFSET, 0, rates.size
    )
    np.testing.assert_array_equal(got, expected)
    assert invalid[0] == bad == 2
    assert got[:3].tolist() == [0.0, 0.0, 0.0]
