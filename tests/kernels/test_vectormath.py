"""Elementary functions: accuracy over wide ranges, limits, and the compiled form."""

from __future__ import annotations

import math

import numpy as np
import pytest

from refruntime import _dtypes
from refruntime.kernels import errormath, intrinsics, vectormath
from refruntime.kernels.machine import PlainMachine
from tests.kernels.graphs import run_flat, table_graph

COUNT = 20000


def _each(function):
    return np.vectorize(function, otypes=[np.float64])




# Name -> (reference in float64 or better, what arguments: all, positive, up to 1, from 1).
FUNCTIONS = {
    "exp": (np.exp, "all"), "exp2": (np.exp2, "all"), "expm1": (np.expm1, "all"),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), "all"), "tanh": (np.tanh, "all"),
    "sinh": (np.sinh, "all"), "cosh": (np.cosh, "all"), "log": (np.log, "positive"),
    "log2": (np.log2, "positive"), "log10": (np.log10, "positive"), "log1p": (np.log1p, "all"),
    "asinh": (np.arcsinh, "all"), "acosh": (np.arccosh, "from 1"), "atanh": (np.arctanh, "unit"),
    "atan": (np.arctan, "all"), "asin": (np.arcsin, "unit"), "acos": (np.arccos, "unit"),
    "rsqrt": (lambda x: 1 / np.sqrt(x), "positive"), "sin": (np.sin, "all"), "cos": (np.cos, "all"),
    "tan": (np.tan, "all"), "erf": (_each(math.erf), "all"), "erfc": (_each(math.erfc), "small"),
}  # fmt: skip
SINGLE = {"sin", "cos", "tan"}
CASES = [
    (name, width) for name in FUNCTIONS for width in (32, 64) if width == 32 or name not in SINGLE
]


def function_named(name):
    module = next(m for m in (vectormath, errormath, intrinsics) if name in vars(m))
    return getattr(module, name)


def arguments(kind, width):
    """Return arguments of every size, the special ones included."""
    rng = np.random.default_rng(7)
    dtype = np.float32 if width == 32 else np.float64
    limits = np.finfo(dtype)
    largest = 106.0 if width == 32 else 750.0
    spread = np.exp(rng.uniform(np.log(limits.tiny), np.log(limits.max), COUNT))
    x = np.concatenate(
        [
            rng.uniform(-1, 1, COUNT), rng.uniform(-largest, largest, COUNT),
            spread * rng.choice([-1, 1], COUNT), [0.0, 1.0, -1.0, limits.tiny, limits.tiny / 8],
        ]
    ).astype(dtype)  # fmt: skip
    if kind == "positive":
        return np.abs(x[x != 0])
    if kind == "unit":
        return x[np.abs(x) < 1]
    if kind == "from 1":
        return (1 + np.abs(x[:COUNT])).astype(dtype)
    if kind == "small":
        return x[np.abs(x) < (10 if width == 32 else 26)]
    return x


def errors(got, expected):
    """Return the distance in units of the last place of the expected number."""
    dtype = got.dtype
    with np.errstate(all="ignore"):
        rounded = expected.astype(dtype)
        unit = np.spacing(np.maximum(np.abs(rounded), np.finfo(dtype).tiny))
        distance = np.abs(got.astype(np.longdouble) - expected) / unit
    return np.where((got == rounded) | (np.isnan(got) & np.isnan(rounded)), 0, distance)


@pytest.mark.parametrize(("name", "width"), CASES)
def test_error_stays_below_five_units(name, width):
    reference, kind = FUNCTIONS[name]
    x = arguments(kind, width)
    with np.errstate(all="ignore"):
        got = function_named(name)(PlainMachine(width), x)
        # Libm in float64 is reference enough for float32; long double for float64, where it exists.
        exact = reference in (np.sin, np.cos, np.tan) or name in ("erf", "erfc")
        wide = x.astype(np.float64 if width == 32 or exact else np.longdouble)
        expected = reference(wide)
    distance = errors(got, expected)
    worst = int(np.argmax(distance))
    assert distance[worst] < 5, f"{name}({x[worst]!r}) = {got[worst]!r}, not {expected[worst]!r}"


@pytest.mark.parametrize("width", [32, 64])
def test_erfinv_inverts_erf(width):
    machine = PlainMachine(width)
    y = np.linspace(-5, 5, 301)
    x = _each(math.erf)(y).astype(machine.float_type)
    inside = np.abs(x) < 1
    with np.errstate(all="ignore"):
        got = errormath.erfinv(machine, x[inside])
    # One step of rounding in x moves y by its slope times that.
    slope = np.exp(y[inside] ** 2) * math.sqrt(math.pi) / 2
    room = slope * np.spacing(np.abs(x[inside])) + 4 * np.spacing(np.abs(got))
    assert (np.abs(got - y[inside]) <= room).all()


LIMITS = {
    "exp": ((-math.inf, 0.0), (math.inf, math.inf), (-1e30, 0.0), (1e30, math.inf)),
    "expm1": ((-math.inf, -1.0), (math.inf, math.inf), (0.0, 0.0)),
    "sigmoid": ((-math.inf, 0.0), (math.inf, 1.0), (0.0, 0.5)),
    "tanh": ((-math.inf, -1.0), (math.inf, 1.0)),
    "sinh": ((-math.inf, -math.inf), (math.inf, math.inf)),
    "cosh": ((-math.inf, math.inf), (math.inf, math.inf)),
    "log": ((0.0, -math.inf), (math.inf, math.inf), (-1.0, math.nan), (-math.inf, math.nan)),
    "log2": ((0.0, -math.inf), (8.0, 3.0), (math.inf, math.inf), (-1.0, math.nan)),
    "log10": ((0.0, -math.inf), (math.inf, math.inf), (-1.0, math.nan)),
    "log1p": ((-1.0, -math.inf), (math.inf, math.inf), (-2.0, math.nan), (0.0, 0.0)),
    "asinh": ((-math.inf, -math.inf), (math.inf, math.inf)),
    "acosh": ((1.0, 0.0), (0.5, math.nan), (-3.0, math.nan), (math.inf, math.inf)),
    "atanh": ((1.0, math.inf), (-1.0, -math.inf), (1.5, math.nan), (math.inf, math.nan)),
    "atan": ((math.inf, math.pi / 2), (-math.inf, -math.pi / 2)),
    "asin": ((1.0, math.pi / 2), (-1.0, -math.pi / 2), (1.5, math.nan)),
    "acos": ((1.0, 0.0), (-1.0, math.pi), (-1.5, math.nan)),
    "erf": ((math.inf, 1.0), (-math.inf, -1.0), (0.0, 0.0)),
    "erfc": ((math.inf, 0.0), (-math.inf, 2.0), (0.0, 1.0)),
    "erfinv": ((1.0, math.inf), (-1.0, -math.inf), (2.0, math.nan), (0.0, 0.0)),
    "rsqrt": ((0.0, math.inf), (math.inf, 0.0), (-1.0, math.nan)),
    "sin": ((math.inf, math.nan), (0.0, 0.0)),
    "cos": ((-math.inf, math.nan), (0.0, 1.0)),
    "tan": ((math.inf, math.nan), (0.0, 0.0)),
}


@pytest.mark.parametrize("dtype", [_dtypes.float32, _dtypes.float64], ids=lambda d: d.name)
def test_compiled_functions_reach_their_limits(dtype):
    names = list(LIMITS)
    count = max(map(len, LIMITS.values())) + 1
    x = np.zeros((len(names), count), dtype.np)
    for row, name in zip(x, names, strict=True):
        row[: len(LIMITS[name])] = [argument for argument, _ in LIMITS[name]]
        row[-1] = math.nan
    flat = np.ascontiguousarray(x.ravel())
    results = run_flat(table_graph(names, dtype), [flat] * 3, (dtype,) * len(names))
    for index, (name, result) in enumerate(zip(names, results, strict=True)):
        got = result.reshape(x.shape)[index]
        expected = np.array([limit for _, limit in LIMITS[name]], dtype.np)
        np.testing.assert_array_equal(got[: len(expected)], expected, err_msg=name)
        assert math.isnan(got[-1]), name


@pytest.mark.parametrize("width", [32, 64])
def test_atan2_finds_every_quadrant_and_axis(width):
    values = np.array([0.0, -0.0, 1.0, -1.0, 2.5, -2.5, np.inf, -np.inf, np.nan])
    y, x = (a.ravel() for a in np.meshgrid(values, values))
    machine = PlainMachine(width)
    dtype = machine.float_type
    with np.errstate(all="ignore"):
        got = vectormath.atan2(machine, y.astype(dtype), x.astype(dtype))
    np.testing.assert_allclose(got, np.arctan2(y.astype(dtype), x.astype(dtype)), 4e-7)


@pytest.mark.parametrize("dtype", [_dtypes.float32, _dtypes.float64], ids=lambda d: d.name)
def test_compiled_functions_equal_the_plain_ones(dtype):
    names = [name for name, width in CASES if width == 8 * dtype.itemsize]
    x = np.random.default_rng(3).uniform(-3, 3, 999).astype(dtype.np)
    results = run_flat(table_graph(names, dtype), [x] * 3, (dtype,) * len(names))
    machine = PlainMachine(8 * dtype.itemsize)
    for name, got in zip(names, results, strict=True):
        with np.errstate(all="ignore"):
            plain = function_named(name)(machine, x)
        # The compiler may contract a product and a sum that the plain form rounds twice.
        np.testing.assert_allclose(got, plain, 8 * np.finfo(dtype.np).eps, 1e-300, err_msg=name)


def test_rounding_a_half_goes_to_the_even_neighbour():
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 2**23 + 1.0], np.float32)
    (got,) = run_flat(table_graph(["round"], _dtypes.float32), [x] * 3, (_dtypes.float32,))
    np.testing.assert_array_equal(got, [0, 2, 2, -0.0, -2, 2**23 + 1])


def test_extremes_treat_nan_as_their_names_say():
    a = np.array([1.0, np.nan, np.nan, 2.0], np.float32)
    b = np.array([np.nan, 1.0, np.nan, 3.0], np.float32)
    names = ["maximum", "minimum", "fmax", "fmin"]
    results = run_flat(table_graph(names, _dtypes.float32), [a, b, a], (_dtypes.float32,) * 4)
    for name, got in zip(names, results, strict=True):
        np.testing.assert_array_equal(got, getattr(np, name)(a, b), err_msg=name)
