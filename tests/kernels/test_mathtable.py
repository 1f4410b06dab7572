"""The math table and the scalar functions behind it."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from refruntime import _dtypes
from refruntime.kernels import intrinsics, mathtable, scalarmath
from tests.kernels.graphs import run_flat, table_graph, table_outputs

KNOWN = {"math", "inf", "not", "True", "False", "abs", "pow", "hypot"}


def apply(names, arrays, dtype):
    arrays = [np.asarray(a, dtype.np) for a in arrays]
    arrays += [arrays[-1]] * (3 - len(arrays))
    results = run_flat(table_graph(names, dtype), arrays, table_outputs(names, dtype))
    return dict(zip(names, results, strict=True))


@pytest.mark.parametrize("function", mathtable.TABLE.values(), ids=lambda f: f.name)
def test_cpu_templates_name_functions_that_exist(function):
    for kind in "fiu":
        text = function.template("cpu", kind).format("x0", "x1", "x2", C="C", w=32)
        for word in set(re.findall(r"[A-Za-z_]\w*", text)) - KNOWN - {"C", "x0", "x1", "x2"}:
            assert hasattr(intrinsics, word) or hasattr(scalarmath, word), word


@pytest.mark.parametrize("function", mathtable.TABLE.values(), ids=lambda f: f.name)
def test_a_function_has_both_targets_or_neither(function):
    assert bool(function.cpu) == bool(function.cuda)
    assert bool(function.cpu_int) == bool(function.cuda_int)
    assert function.cpu or function.cpu_int


def test_bodies_may_use_other_spellings():
    assert mathtable.find("max") is mathtable.TABLE["maximum"]
    assert mathtable.find("nothing") is None


def test_unknown_function_cannot_be_imported():
    with pytest.raises(AttributeError, match="no function 'cosecant'"):
        mathtable.cosecant  # noqa: B018


@pytest.mark.parametrize("dtype", [_dtypes.int64, _dtypes.int32, _dtypes.int8],
                         ids=lambda d: d.name)  # fmt: skip
def test_integer_division_and_remainder_round_as_they_say(dtype):
    a, b = (x.ravel() for x in np.meshgrid([-7, -6, -1, 0, 1, 6, 7], [-3, -2, -1, 1, 2, 3]))
    got = apply(["floordiv", "truncdiv", "remainder", "fmod"], [a, b], dtype)
    np.testing.assert_array_equal(got["floordiv"], a // b)
    np.testing.assert_array_equal(got["truncdiv"], np.trunc(a / b))
    np.testing.assert_array_equal(got["remainder"], a % b)
    np.testing.assert_array_equal(got["fmod"], np.fmod(a, b))


def test_unsigned_division_uses_all_bits():
    a, b = [2**64 - 1, 2**63, 7], [2, 2**63, 3]
    got = apply(["floordiv", "remainder"], [a, b], _dtypes.uint64)
    assert got["floordiv"].tolist() == [2**63 - 1, 1, 2]
    assert got["remainder"].tolist() == [1, 0, 1]


def test_integer_power_wraps_and_cuts_fractions():
    got = apply(["pow"], [[2, 3, -2, 2, 1, -1, -1, 0], [10, 5, 3, -1, -5, -3, -4, 0]],
                _dtypes.int64)["pow"]  # fmt: skip
    assert got.tolist() == [1024, 243, -8, 0, 1, -1, 1, 1]


def test_shift_distances_outside_the_width_leave_the_sign():
    a, b = [1, 1, -8, -8, 5, 5], [3, 40, 1, 99, -1, 32]
    got = apply(["shl", "shr"], [a, b], _dtypes.int32)
    assert got["shl"].tolist() == [8, 0, -16, 0, 0, 0]
    assert got["shr"].tolist() == [0, 0, -4, -1, 0, 0]


def test_greatest_common_divisor():
    a, b = [12, -12, 0, 7, 0], [18, 18, 5, 13, 0]
    assert apply(["gcd"], [a, b], _dtypes.int64)["gcd"].tolist() == [6, 6, 5, 1, 0]


@pytest.mark.parametrize("dtype", [_dtypes.float32, _dtypes.float64], ids=lambda d: d.name)
def test_next_number_in_a_direction(dtype):
    a = np.array([0.0, 1.0, -1.0, 1.0, np.inf, np.nan, 2.0, 0.0])
    b = np.array([1.0, 2.0, 0.0, 0.0, 0.0, 1.0, 2.0, -1.0])
    got = apply(["nextafter"], [a, b], dtype)["nextafter"]
    np.testing.assert_array_equal(got, np.nextafter(a.astype(dtype.np), b.astype(dtype.np)))


def test_digamma_obeys_recurrence_and_reflection():
    x = np.array([0.1, 0.7, 1.5, 3.2, 9.7, 40.25, -0.3, -2.6])
    psi = apply(["digamma"], [x], _dtypes.float64)["digamma"]
    following = apply(["digamma"], [x + 1], _dtypes.float64)["digamma"]
    reflected = apply(["digamma"], [1 - x], _dtypes.float64)["digamma"]
    np.testing.assert_allclose(following - psi, 1 / x, 1e-12)
    np.testing.assert_allclose(reflected - psi, math.pi / np.tan(math.pi * x), 1e-11, 1e-11)
    one = apply(["digamma"], [[1.0]], _dtypes.float64)["digamma"][0]
    assert one == pytest.approx(-0.5772156649015329, abs=1e-15)


def test_digamma_at_its_poles():
    got = apply(["digamma"], [[0.0, -0.0, -1.0, np.inf, np.nan]], _dtypes.float64)["digamma"]
    np.testing.assert_array_equal(got, [-np.inf, np.inf, np.nan, np.inf, np.nan])


def test_zeta_has_the_known_values():
    got = apply(["zeta"], [[2.0, 4.0, 2.0, 3.0, 1.0, 0.5], [1.0, 1.0, 2.0, 0.5, 1.0, 1.0]],
                _dtypes.float64)["zeta"]  # fmt: skip
    apery = 1.2020569031595942
    expected = [math.pi**2 / 6, math.pi**4 / 90, math.pi**2 / 6 - 1, 7 * apery, math.inf, math.nan]
    np.testing.assert_allclose(got, expected, 1e-14)


def test_scaled_bessel_function():
    x = np.array([0.0, 0.5, -3.0, 12.0, 19.9, 20.1, 100.0, np.inf])
    got = apply(["i0e"], [x], _dtypes.float64)["i0e"]
    np.testing.assert_allclose(got[:6], np.i0(x[:6]) * np.exp(-np.abs(x[:6])), 1e-12)
    # Hankel's expansion to second order.
    assert got[6] == pytest.approx((1 + 1 / 800 + 9 / 1280000) / math.sqrt(200 * math.pi), rel=1e-7)
    assert got[7] == 0.0


def test_scaled_bessel_function_of_order_one():
    x = np.array([0.0, 0.5, -3.0, 12.0, 19.9, 20.1, np.inf])
    got = apply(["i1e"], [x], _dtypes.float64)["i1e"]
    # Its integral representation, by the trapezoidal rule, which converges fast for it.
    angles = np.linspace(0, math.pi, 401)
    weights = np.where((angles == 0) | (angles == math.pi), 0.5, 1.0) / 400
    values = np.exp(x[:6, None] * np.cos(angles) - np.abs(x[:6, None])) * np.cos(angles)
    np.testing.assert_allclose(got[:6], (values * weights).sum(-1), 1e-12, 1e-16)
    assert got[6] == 0.0


def test_scaled_complementary_error_function():
    x = np.array([-2.0, 0.0, 1.0, 4.9, 5.1, 10.0, 1e10, np.inf])
    got = apply(["erfcx"], [x], _dtypes.float64)["erfcx"]
    expected = [math.exp(v * v) * math.erfc(v) for v in x[:6]]
    np.testing.assert_allclose(got[:6], expected, 1e-13)
    assert got[6] == pytest.approx(1 / (1e10 * math.sqrt(math.pi)), rel=1e-14)
    assert got[7] == 0.0


def test_lgamma_at_whole_numbers_and_poles():
    x = [1.0, 2.0, 5.0, 0.0, -3.0, -np.inf, np.inf]
    got = apply(["lgamma"], [x], _dtypes.float64)["lgamma"]
    np.testing.assert_allclose(got[:3], [0, 0, math.log(24)], atol=1e-15)
    assert np.isposinf(got[3:]).all()
