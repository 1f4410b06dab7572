"""random.cu on the host, against the CPU kernels: the same numbers from the same stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from refruntime import _dtypes
from refruntime.kernels import cuda_instances
from refruntime.kernels import random as cpu
from tests.kernels.cuda_host.arrays import DTYPES, FLOATS
from tests.kernels.cuda_host.harness import HostModule, Out, run

Host = Callable[[str], HostModule]
SEED, OFFSET = 0x9E3779B97F4A7C15, (5 << 32) - 3
SIZES = (1, 2, 5, 130, 1027)
BITS = {"__half": 11, "__nv_bfloat16": 8}
# Double logarithms and sines are the platform's own.
TOLERANCE = {"double": 1e-14}


def signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def gpu(host: Host, name: str, ctype: str, out: Out, *args: Any) -> list[np.ndarray]:
    template = (ctype,) if ctype else ()
    return run(
        host("random"),
        cuda_instances.require("random", name, template),
        (2,),
        (32,),
        [out, out.shape[0], signed(SEED), signed(OFFSET), *args],
    )


def cpu_fill(kernel: Any, dtype: Any, n: int, words: int, *args: Any) -> np.ndarray:
    out = np.zeros(n, dtype)
    kernel(out.ctypes.data, n, SEED, OFFSET, *args, 0, cpu.blocks_for(n, words))
    return out


def drawn(name: str, ctype: str, n: int, *args: Any) -> np.ndarray:
    """What the CPU draws for a type, rounded to it where it computes in float32."""
    wide = ctype == "double"
    kernel = getattr(cpu, f"{name}_f64" if wide else f"{name}_f32")
    out = cpu_fill(kernel, np.float64 if wide else np.float32, n, 2 if wide else 1, *args)
    return out.astype(DTYPES[ctype])


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("ctype", FLOATS)
def test_uniform_gives_the_numbers_of_the_cpu(host: Host, ctype: str, n: int) -> None:
    bits = BITS.get(ctype, 24)
    got = gpu(host, "uniform", ctype, Out((n,), DTYPES[ctype]), -1.5, 2.0, bits)[0]
    args = (-1.5, 2.0) if ctype == "double" else (-1.5, 2.0, bits)
    np.testing.assert_array_equal(got, drawn("uniform", ctype, n, *args))


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(("name", "args"), [("normal", (0.5, 2.0)), ("exponential", (1.5,))])
@pytest.mark.parametrize("ctype", FLOATS)
def test_continuous_draws_give_the_numbers_of_the_cpu(
    host: Host, ctype: str, name: str, args: tuple[float, ...], n: int
) -> None:
    got = gpu(host, name, ctype, Out((n,), DTYPES[ctype]), *args)[0]
    np.testing.assert_allclose(
        got.astype(np.float64), drawn(name, ctype, n, *args).astype(np.float64),
        rtol=TOLERANCE.get(ctype, 0.0), atol=TOLERANCE.get(ctype, 0.0),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "args", "base", "base_args", "transform"),
    [
        ("log_normal", (0.5, 0.5), "normal", (0.5, 0.5), np.exp),
        ("geometric", (0.7,), "exponential", (0.7,), np.ceil),
        ("cauchy", (0.0, 2.0), "uniform", (0.0, 1.0), lambda u: 2.0 * np.tan(np.pi * (u - 0.5))),
    ],
)
@pytest.mark.parametrize("ctype", ["float", "double"])
def test_transformed_draws_are_functions_of_the_plain_ones(
    host: Host, ctype: str, name: str, args: Any, base: str, base_args: Any, transform: Any
) -> None:
    n = 203
    if base == "uniform" and ctype == "float":
        base_args = (*base_args, 24)
    plain = drawn(base, ctype, n, *base_args).astype(np.float64)
    got = gpu(host, name, ctype, Out((n,), DTYPES[ctype]), *args)[0]
    tolerance = 1e-12 if ctype == "double" else 3e-5
    np.testing.assert_allclose(got, transform(plain), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(("low", "span"), [(-7, 20), (0, 1), (-(2**63), 0), (5, 2**63 + 11)])
def test_integers_are_those_of_the_cpu(host: Host, low: int, span: int, n: int) -> None:
    got = gpu(host, "integers", "", Out((n,), np.int64), low, signed(span))[0]
    np.testing.assert_array_equal(got, cpu_fill(cpu.integers_i64, np.int64, n, 2, low, span))


@pytest.mark.parametrize("n", SIZES)
def test_bernoulli_of_one_chance_is_that_of_the_cpu(host: Host, n: int) -> None:
    threshold = cpu.threshold_of(0.3)
    got = gpu(host, "bernoulli", "", Out((n,), np.bool_), threshold)[0]
    np.testing.assert_array_equal(got, cpu_fill(cpu.bernoulli_u8, np.uint8, n, 1, threshold))


def test_bernoulli_of_many_chances_is_that_of_the_cpu_and_counts_bad_ones(host: Host) -> None:
    n = 203
    chance = np.random.default_rng(3).random(n)
    chance[[7, 90]] = 1.5, np.nan
    got, _, invalid = gpu(
        host, "bernoulli_of", "", Out((n,), np.bool_), chance, np.zeros(1, np.uint64)
    )
    expected = np.zeros(n, np.uint8)
    address, blocks = expected.ctypes.data, cpu.blocks_for(n, 1)
    bad = cpu.bernoulli_of_f64(address, chance.ctypes.data, n, SEED, OFFSET, 0, blocks)
    np.testing.assert_array_equal(got, expected)
    assert invalid[0] == bad == 2


@pytest.mark.parametrize("n", SIZES)
def test_permutation_keys_are_those_of_the_cpu(host: Host, n: int) -> None:
    got = gpu(host, "permutation_keys", "", Out((n,), np.uint64), 11)[0]
    np.testing.assert_array_equal(got, cpu_fill(cpu.permutation_keys, np.uint64, n, 2, 11))


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("ctype", FLOATS)
def test_dropout_keeps_what_the_cpu_keeps(host: Host, ctype: str, n: int) -> None:
    x = np.random.default_rng(2).standard_normal(n).astype(DTYPES[ctype])
    threshold, scale = cpu.threshold_of(0.75), 1 / 0.75
    got = gpu(host, "dropout", ctype, Out((n,), x.dtype), x, threshold, scale)[0]
    names = {"float": "float32", "double": "float64", "__half": "float16"}
    kernel = cpu.dropout.for_dtypes(T=getattr(_dtypes, names.get(ctype, "bfloat16")))
    expected = np.zeros_like(x)
    kernel(
        expected.ctypes.data, x.ctypes.data, n, SEED, OFFSET, threshold, scale, 0,
        cpu.blocks_for(n, 1),
    )  # fmt: skip
    np.testing.assert_array_equal(got, expected)
