"""reduce.cu and scan.cu on the host, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from refruntime.kernels import cuda_instances
from tests.kernels.cuda_host.arrays import DTYPES, FLOATS, assert_near, sample, wide
from tests.kernels.cuda_host.harness import HostModule, Out, run, strides_of, table

STATE_BYTES = 32
Host = Callable[[str], HostModule]

REFERENCE: dict[str, Callable[..., Any]] = {
    "Sum": np.sum,
    "Prod": np.prod,
    "Mean": np.mean,
    "Amax": np.max,
    "Amin": np.min,
    "MaxAt": np.max,
    "MinAt": np.min,
    "Argmax": np.argmax,
    "Argmin": np.argmin,
    "Var": lambda x, axis: np.var(x, axis=axis, ddof=1),
    "Std": lambda x, axis: np.std(x, axis=axis, ddof=1),
    "All": lambda x, axis: np.all(x != 0, axis=axis),
    "Any": lambda x, axis: np.any(x != 0, axis=axis),
    "CountNonzero": lambda x, axis: np.count_nonzero(x, axis=axis),
    "PNorm": lambda x, axis: np.sqrt(np.sum(x * x, axis=axis)),
    "NonzeroNorm": lambda x, axis: np.count_nonzero(x, axis=axis),
    "LargestNorm": lambda x, axis: np.max(np.abs(x), axis=axis),
    "SmallestNorm": lambda x, axis: np.min(np.abs(x), axis=axis),
    "NanSum": np.nansum,
    "LogSumExp": lambda x, axis: np.log(np.sum(np.exp(x), axis=axis)),
}
PARAMETER = {"Var": 1.0, "Std": 1.0, "PNorm": 2.0}
PLACES = {"MaxAt": np.argmax, "MinAt": np.argmin}


def reduce_rows(
    host: Host,
    args: tuple[str, str, str],
    x: np.ndarray,
    block: tuple[int, int],
    splits: int = 1,
    parameter: float | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Reduce a matrix over its last dimension, with one or two launches: values, places."""
    op, _, out_ctype = args
    outputs, length = x.shape
    row, column = strides_of(x)
    memory = x if x.flags.c_contiguous else x.T
    number = PARAMETER.get(op, 0.0) if parameter is None else parameter
    out, where = Out((outputs,), DTYPES[out_ctype]), Out((outputs,), np.int64)
    # With splits the first launch writes states alone; a state is smaller than its place.
    partial = np.zeros(splits * outputs * STATE_BYTES, np.uint8)
    results = (0, 0, partial) if splits > 1 else (out, where if op in PLACES else 0, 0)
    arrays = run(
        host("reduce"),
        cuda_instances.require("reduce", "reduce", args),
        (-(-outputs // block[0]), splits),
        block,
        [memory, *results, table((outputs,), (row,)), table((length,), (column,))]
        + [outputs, length, -(-length // splits), number],
        shared=block[0] * block[1] * STATE_BYTES,
    )
    if splits > 1:
        arrays = run(
            host("reduce"),
            cuda_instances.require("reduce", "finish", args),
            (1,),
            (outputs,),
            [arrays[1], splits, out, where if op in PLACES else 0, outputs, length, number],
        )
    return arrays[1], arrays[-1]


@pytest.mark.parametrize("args", cuda_instances.KERNELS["reduce"]["reduce"], ids="-".join)
def test_every_reduction_equals_numpy(
    host: Host, rng: np.random.Generator, args: tuple[str, str, str]
) -> None:
    op, ctype, out_ctype = args
    x = sample(rng, (5, 21), ctype)
    got, places = reduce_rows(host, args, x, (1, 8))
    expected = REFERENCE[op](wide(x), axis=1)
    assert_near(got, expected, out_ctype, scale=4)
    if op in PLACES:
        np.testing.assert_array_equal(places, PLACES[op](wide(x), axis=1))


@pytest.mark.parametrize("args", cuda_instances.KERNELS["reduce"]["finish"], ids="-".join)
def test_split_reduction_equals_numpy(
    host: Host, rng: np.random.Generator, args: tuple[str, str, str]
) -> None:
    op, ctype, out_ctype = args
    x = sample(rng, (3, 40), ctype)
    got, places = reduce_rows(host, args, x, (1, 4), splits=3)
    assert_near(got, REFERENCE[op](wide(x), axis=1), out_ctype, scale=4)
    if op in PLACES:
        np.testing.assert_array_equal(places, PLACES[op](wide(x), axis=1))


@pytest.mark.parametrize("block", [(1, 1), (4, 2), (8, 32), (32, 8)])
def test_columns_of_a_transposed_matrix_reduce_with_any_block(
    host: Host, rng: np.random.Generator, block: tuple[int, int]
) -> None:
    x = sample(rng, (70, 37), "float").T
    got, _ = reduce_rows(host, ("Sum", "float", "float"), x, block)
    np.testing.assert_allclose(got, x.sum(1), rtol=1e-5, atol=1e-5)


def test_nansum_skips_what_is_not_a_number(host: Host) -> None:
    x = np.array([[1.0, np.nan, 2.5], [np.nan, np.nan, np.nan]])
    got, _ = reduce_rows(host, ("NanSum", "double", "double"), x, (1, 2))
    assert got.tolist() == [3.5, 0.0]


@pytest.mark.parametrize("splits", [1, 4])
def test_nan_wins_and_the_first_of_equals_is_reported(host: Host, splits: int) -> None:
    x = np.zeros((3, 19), np.float32)
    x[0, [7, 11]] = np.nan
    x[1, [4, 15]] = 2.0
    for op, place in (("MaxAt", [7, 4, 0]), ("MinAt", [7, 0, 0])):
        values, where = reduce_rows(host, (op, "float", "float"), x, (1, 4), splits)
        assert np.isnan(values[0])
        assert not np.isnan(values[1:]).any()
        np.testing.assert_array_equal(where, place)


def test_rows_of_infinities_keep_their_first_place(host: Host) -> None:
    x = np.full((1, 9), -np.inf, np.float32)
    values, where = reduce_rows(host, ("MaxAt", "float", "float"), x, (1, 4))
    assert values[0] == -np.inf
    assert where[0] == 0
    values, _ = reduce_rows(host, ("LogSumExp", "float", "float"), x, (1, 4))
    assert values[0] == -np.inf


@pytest.mark.parametrize(
    ("op", "expected"),
    [("Sum", 0.0), ("Prod", 1.0), ("All", True), ("Any", False), ("CountNonzero", 0)],
)
def test_an_empty_reduction_gives_the_neutral_element(host: Host, op: str, expected: float) -> None:
    out = {"All": "bool", "Any": "bool", "CountNonzero": "long long"}.get(op, "float")
    got, _ = reduce_rows(host, (op, "float", out), np.zeros((2, 0), np.float32), (1, 4))
    assert got.tolist() == [expected, expected]


def test_variance_does_not_cancel_far_from_zero(host: Host, rng: np.random.Generator) -> None:
    x = (1e4 + rng.standard_normal((2, 500))).astype(np.float32)
    got, _ = reduce_rows(host, ("Var", "float", "float"), x, (1, 32), splits=2)
    np.testing.assert_allclose(got, x.astype(np.float64).var(1, ddof=1), rtol=1e-3)


def test_variance_of_one_element_is_not_a_number(host: Host) -> None:
    got, _ = reduce_rows(host, ("Var", "float", "float"), np.ones((1, 1), np.float32), (1, 2))
    assert np.isnan(got[0])


@pytest.mark.parametrize("p", [1.0, 3.0])
def test_norms_of_other_exponents(host: Host, rng: np.random.Generator, p: float) -> None:
    x = sample(rng, (4, 15), "double")
    got, _ = reduce_rows(host, ("PNorm", "double", "double"), x, (1, 4), parameter=p)
    np.testing.assert_allclose(got, (np.abs(x) ** p).sum(1) ** (1 / p), rtol=1e-12)


# --------------------------------------------------------------------------------------------- scan

SCANS: dict[str, Callable[..., Any]] = {
    "Sum": np.cumsum,
    "Prod": np.cumprod,
    "CumulativeMax": np.maximum.accumulate,
    "CumulativeMin": np.minimum.accumulate,
    "LogSumExp": lambda x, axis: np.log(np.cumsum(np.exp(x), axis=axis)),
}


def scan(
    host: Host, args: tuple[str, str, str], x: np.ndarray, block: tuple[int, int]
) -> list[np.ndarray]:
    op, _, out_ctype = args
    outer, length, inner = x.shape
    where: Any = Out(x.shape, np.int64) if op.startswith("Cumulative") else 0
    return run(
        host("scan"),
        cuda_instances.require("scan", "scan", args),
        (-(-inner // block[0]) * outer,),
        block,
        [x, Out(x.shape, DTYPES[out_ctype]), where, length, inner],
        shared=block[0] * block[1] * STATE_BYTES,
    )[1:]


@pytest.mark.parametrize("args", cuda_instances.KERNELS["scan"]["scan"], ids="-".join)
def test_every_scan_equals_numpy(
    host: Host, rng: np.random.Generator, args: tuple[str, str, str]
) -> None:
    op, ctype, out_ctype = args
    x = sample(rng, (2, 13, 3), ctype)
    got = scan(host, args, x, (2, 4))
    with np.errstate(over="ignore"):
        assert_near(got[0], SCANS[op](wide(x), axis=1), out_ctype, scale=8)


@pytest.mark.parametrize(
    ("op", "beats"), [("CumulativeMax", np.greater_equal), ("CumulativeMin", np.less_equal)]
)
def test_cumulative_extremes_report_the_last_of_equals(
    host: Host, rng: np.random.Generator, op: str, beats: Callable[..., Any]
) -> None:
    x = rng.integers(0, 3, (1, 25, 1)).astype(np.int64)
    _, where = scan(host, (op, "long long", "long long"), x, (1, 8))
    best, expected = 0, []
    for i, value in enumerate(x[0, :, 0]):
        best = i if beats(value, x[0, best, 0]) else best
        expected.append(best)
    assert where[0, :, 0].tolist() == expected


def test_running_maximum_stays_nan_once_it_is(host: Host) -> None:
    x = np.array([1, np.nan, 5, 2], np.float32).reshape(1, 4, 1)
    values, where = scan(host, ("CumulativeMax", "float", "float"), x, (1, 2))
    assert np.isnan(values[0, 1:, 0]).all()
    assert where[0, :, 0].tolist() == [0, 1, 1, 1]


def test_every_float_type_has_every_operation() -> None:
    for ctype in FLOATS:
        ops = {op for op, t, _ in cuda_instances.KERNELS["reduce"]["reduce"] if t == ctype}
        assert ops == set(REFERENCE)
