"""NumPy twins of the kernels' element types: dtypes, test data and tolerances by CUDA spelling."""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np

DTYPES: dict[str, np.dtype] = {
    "float": np.dtype(np.float32),
    "double": np.dtype(np.float64),
    "__half": np.dtype(np.float16),
    "__nv_bfloat16": np.dtype(ml_dtypes.bfloat16),
    "long long": np.dtype(np.int64),
    "int": np.dtype(np.int32),
    "short": np.dtype(np.int16),
    "signed char": np.dtype(np.int8),
    "unsigned char": np.dtype(np.uint8),
    "bool": np.dtype(np.bool_),
}
BITS: dict[str, np.dtype] = {
    "unsigned char": np.dtype(np.uint8),
    "unsigned short": np.dtype(np.uint16),
    "unsigned int": np.dtype(np.uint32),
    "unsigned long long": np.dtype(np.uint64),
    "Wide": np.dtype(np.complex128),
}
FLOATS = ("float", "double", "__half", "__nv_bfloat16")
TOLERANCE = {"float": 2e-5, "double": 1e-12, "__half": 4e-3, "__nv_bfloat16": 3e-2}


def computing(ctype: str) -> np.dtype:
    """The type that the kernels compute in (``acc_t``)."""
    if ctype not in FLOATS:
        return np.dtype(np.int64)
    return np.dtype(np.float64 if ctype == "double" else np.float32)


def sample(rng: np.random.Generator, shape: Sequence[int], ctype: str) -> np.ndarray:
    """Normal numbers, or integers in [-4, 4) ([0, 4) when unsigned), as the type stores them."""
    dtype = DTYPES[ctype]
    if ctype in FLOATS:
        return rng.standard_normal(shape).astype(dtype)
    low = 0 if dtype.kind in "ub" else -4
    return rng.integers(low, 2 if dtype.kind == "b" else 4, shape).astype(dtype)


def wide(array: np.ndarray) -> np.ndarray:
    """The array in the precision that references are computed in."""
    return array.astype(np.int64 if array.dtype.kind in "iub" else np.float64)


def assert_near(got: np.ndarray, expected: np.ndarray, ctype: str, scale: float = 1.0) -> None:
    """Equal for integers, else up to the rounding of the type (times ``scale``)."""
    expected = np.asarray(expected)
    assert got.shape == expected.shape
    if ctype not in FLOATS:
        np.testing.assert_array_equal(got, expected.astype(got.dtype))
        return
    tolerance = TOLERANCE[ctype] * scale
    np.testing.assert_allclose(wide(got), expected, rtol=tolerance, atol=tolerance)
