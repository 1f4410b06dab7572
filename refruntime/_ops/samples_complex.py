"""Samples and NumPy references of ops on complex numbers.

State: none. Invariants: arguments and results are pairs of real numbers, so that every part can be
perturbed alone and compared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from refruntime._ops.opdef import ops
from refruntime._ops.samples import Sample, T

Function = Callable[..., Any]


def pairs_of(z: Any) -> Any:
    """Return complex numbers as pairs in a new last dimension, for NumPy."""
    return np.stack([z.real, z.imag], -1)


def complex_of(x: Any) -> Any:
    """Return pairs in the last dimension as complex numbers, for NumPy."""
    return x[..., 0] + 1j * x[..., 1]


def to_pairs(name: str) -> Function:
    """Make the call of an op from real to complex numbers."""
    return lambda x, *args: ops.view_as_real(getattr(ops, name)(x, *args))


def from_pairs(name: str) -> Function:
    """Make the call of an op from complex to real numbers."""
    return lambda x, *args: getattr(ops, name)(ops.view_as_complex(x), *args)


def between_pairs(name: str) -> Function:
    """Make the call of an op from complex to complex numbers."""
    return lambda x, *args: ops.view_as_real(getattr(ops, name)(ops.view_as_complex(x), *args))


def _samples(call: Function, *cases: tuple[Any, ...]) -> Callable[[], list[Sample]]:
    return lambda: [Sample(case, call=call, atol=1e-5) for case in cases]


CONJ: dict[str, Any] = {
    "samples": _samples(between_pairs("conj"), (T((3, 2)),), (T((2, 3, 2)),)),
    "reference": lambda x: pairs_of(complex_of(x).conj()),
}
COMPLEX: dict[str, Any] = {
    "samples": _samples(
        between_pairs("fft_fftn"),
        (T((4, 2)),), (T((3, 5, 2)), None, (0,), "ortho"), (T((2, 3, 4, 2)), (3, 2), (2, 0)),
    ),
    "reference": lambda x, *args: pairs_of(np.fft.fftn(complex_of(x), *args)),
}  # fmt: skip
HALF: dict[str, Any] = {
    "samples": _samples(
        to_pairs("fft_rfftn"),
        (T((4,)),), (T((5, 3)), None, (0,), "forward"), (T((2, 3, 4)), (3, 5), (0, 2)),
    ),
    "reference": lambda x, *args: pairs_of(np.fft.rfftn(x, *args)),
}  # fmt: skip
REAL: dict[str, Any] = {
    "samples": _samples(
        from_pairs("fft_irfftn"),
        (T((3, 2)), (5,), (0,)), (T((3, 2)), (4,), (0,)), (T((2, 3, 2)), (3, 4), (0, 1), "ortho"),
    ),
    "reference": lambda x, *args: np.fft.irfftn(complex_of(x), *args),
}  # fmt: skip
