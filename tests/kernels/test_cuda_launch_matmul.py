"""The GPU products with NumPy in the place of CuPy: the same calls, on CPU memory.

What CuPy and cuBLAS do with the calls needs a card; that CuPy has every function and argument named
here is checked against the installed package.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from refruntime import _dtypes
from refruntime._dtypes import DType
from refruntime._impl import TensorImpl
from refruntime.kernels import gpu, matmul, matmul_cuda
from tests.kernels.cuda_host.launches import Router, assert_same, filled, tensor

F32 = _dtypes.float32
LAYOUTS = ("contiguous", "transposed", "strided")


class FakeOptional:
    """NumPy under the name of CuPy."""

    cupy = np


@pytest.fixture
def numpy_as_cupy(router: Router, monkeypatch: pytest.MonkeyPatch) -> Router:
    monkeypatch.setattr(matmul_cuda, "_optional", FakeOptional)
    monkeypatch.setattr(matmul_cuda, "gpu_array", lambda x: x.array())
    return router


def normal(
    rng: np.random.Generator,
    shape: tuple[int, ...],
    layout: str = "contiguous",
    dtype: DType = F32,
) -> TensorImpl:
    return tensor(rng.standard_normal(shape).astype(dtype.np), layout)


def agree(
    name: str, shape: tuple[int, ...], inputs: Any, dtype: DType = F32, **params: Any
) -> None:
    expected, got = filled(shape, dtype), filled(shape, dtype, "strided")
    getattr(matmul, f"{name}_cpu")(expected, *inputs, **params)
    getattr(matmul_cuda, f"{name}_cuda")(got, *inputs, **params)
    assert_same(got, expected, 3e-2 if dtype.itemsize == 2 else 1e-5)


@pytest.mark.usefixtures("numpy_as_cupy")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("a", "b", "out"),
    [
        ((3, 4), (4, 5), (3, 5)),
        ((2, 3, 4), (4, 5), (2, 3, 5)),
        ((2, 1, 3, 4), (6, 4, 5), (2, 6, 3, 5)),
        ((3, 0), (0, 5), (3, 5)),
        ((0, 4), (4, 5), (0, 5)),
    ],
)
def test_products_of_stacks(
    rng: np.random.Generator, layout: str, a: Any, b: Any, out: Any
) -> None:
    agree("matmul", out, (normal(rng, a, layout), normal(rng, b, layout)))


@pytest.mark.usefixtures("numpy_as_cupy")
@pytest.mark.parametrize("dtype", [_dtypes.float64, _dtypes.bfloat16, _dtypes.complex64], ids=str)
def test_products_in_other_dtypes(rng: np.random.Generator, dtype: DType) -> None:
    a, b = normal(rng, (3, 4), dtype=dtype), normal(rng, (4, 5), dtype=dtype)
    agree("matmul", (3, 5), (a, b), dtype)
    agree("mv", (3,), (a, normal(rng, (4,), dtype=dtype)), dtype)
    agree("dot", (), (normal(rng, (7,), dtype=dtype), normal(rng, (7,), dtype=dtype)), dtype)


@pytest.mark.usefixtures("numpy_as_cupy")
def test_the_first_vector_of_vdot_is_conjugated(rng: np.random.Generator) -> None:
    x = (rng.standard_normal(5) + 1j * rng.standard_normal(5)).astype(np.complex64)
    agree("vdot", (), (tensor(x), tensor(x)), _dtypes.complex64)


@pytest.mark.usefixtures("numpy_as_cupy")
@pytest.mark.parametrize(("beta", "alpha"), [(1, 1), (0, 1), (0.5, 2.0)])
@pytest.mark.parametrize("base", [(3, 5), (5,)])
def test_addmm(rng: np.random.Generator, beta: float, alpha: float, base: Any) -> None:
    inputs = normal(rng, base), normal(rng, (3, 4)), normal(rng, (4, 5), "transposed")
    agree("addmm", (3, 5), inputs, beta=beta, alpha=alpha)


@pytest.mark.usefixtures("numpy_as_cupy")
def test_addmm_into_its_own_base(rng: np.random.Generator) -> None:
    base, a, b = normal(rng, (3, 5)), normal(rng, (3, 4)), normal(rng, (4, 5))
    expected = 0.5 * base.array() + a.array() @ b.array()
    matmul_cuda.addmm_cuda(base, base, a, b, beta=0.5, alpha=1)
    np.testing.assert_allclose(base.array(), expected, rtol=1e-5)


@pytest.mark.usefixtures("numpy_as_cupy")
@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4)])
@pytest.mark.parametrize("biased", [True, False])
def test_linear(rng: np.random.Generator, shape: tuple[int, ...], biased: bool) -> None:
    bias = normal(rng, (5,)) if biased else None
    agree("linear", (*shape[:-1], 5), (normal(rng, shape), normal(rng, (5, 4)), bias))


def test_cupy_has_what_is_called() -> None:
    cupy = pytest.importorskip("cupy")
    for name in ("matmul", "multiply", "conjugate"):
        assert isinstance(getattr(cupy, name), cupy.ufunc | cupy._core._gufuncs._GUFunc)
    assert callable(cupy.cuda.runtime.memcpy)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_cupy_sees_our_memory_where_and_as_it_lies(rng: np.random.Generator, layout: str) -> None:
    pytest.importorskip("cupy")
    x = normal(rng, (3, 4), layout)
    shown = gpu.gpu_array(x)
    assert shown.data.ptr == x.address()
    assert shown.shape == x.array().shape
    assert shown.strides == x.array().strides
    assert shown.dtype == np.float32
