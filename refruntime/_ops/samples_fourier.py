"""Samples and NumPy references of Fourier transforms.

State: none. Invariants: operands and results are pairs of real numbers where they are complex, so
that differences can check derivatives; references compute in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from refruntime._ops.opdef import ops
from refruntime._ops.samples import ErrorSample, Sample, T


def _complex(x: Any) -> Any:
    return x[..., 0] + 1j * x[..., 1]


def _pairs(x: Any) -> Any:
    return np.stack([x.real, x.imag], -1)


def _case(
    name: str, shape: tuple[int, ...], *args: Any, layout: str = "contiguous", pairs_in: bool = True,
    pairs_out: bool = True,
) -> Sample:  # fmt: skip
    def call(x: Any, *rest: Any) -> Any:
        out = getattr(ops, f"fft_{name}")(ops.view_as_complex(x) if pairs_in else x, *rest)
        return ops.view_as_real(out) if pairs_out else out

    def reference(x: Any, *rest: Any) -> Any:
        out = getattr(np.fft, name)(_complex(x) if pairs_in else x, *rest)
        return _pairs(out) if pairs_out else out

    operand = T((*shape, 2) if pairs_in else shape, layout=layout)
    return Sample(
        (operand, *args), name=name, call=call, reference=reference, rtol=1e-4, atol=1e-5
    )


def _whole() -> list[Sample]:
    return [
        _case("fft", (5,)), _case("fft", (3, 4), None, 0, "ortho"), _case("fft", (2, 6), 4),
        _case("fft", (3,), 5, -1, "forward"), _case("ifft", (2, 5)),
        _case("ifft", (4, 3), 6, 0, "ortho"), _case("fftn", (2, 3, 4)),
        _case("fftn", (2, 3, 4), (4, 2), (0, 2)), _case("ifftn", (3, 4)), _case("fft", (1,)),
    ]  # fmt: skip


def _half() -> list[Sample]:
    return [
        _case("rfft", shape, *rest, pairs_in=False)
        for shape, *rest in (((6,),), ((2, 5),), ((4, 3), None, 0, "ortho"), ((2, 3), 6))
    ] + [
        _case("rfft", (4, 3), layout="transposed", pairs_in=False),
        _case("rfft", (4, 3), None, 0, layout="strided", pairs_in=False),
        _case("rfftn", (2, 3, 4), pairs_in=False),
        _case("ihfft", (5,), pairs_in=False),
    ]


def _real() -> list[Sample]:
    return [
        _case("irfft", shape, *rest, pairs_out=False)
        for shape, *rest in (((4,),), ((2, 3), 5), ((4, 2), 6, 0, "ortho"), ((5,), 4))
    ] + [
        _case("irfftn", (2, 3), (2, 4), (0, 1), pairs_out=False),
        _case("hfft", (4,), pairs_out=False),
    ]


def _errors(name: str) -> Callable[[], list[ErrorSample]]:
    def call(*args: Any) -> Any:
        return getattr(ops, f"fft_{name}")(*args)

    return lambda: [
        ErrorSample((T((4,)), 0), RuntimeError, "Invalid number of data points", call=call),
        ErrorSample((T((4,)), None, 1), IndexError, "Dimension out of range", call=call),
        ErrorSample((T((4,)), None, 0, "half"), ValueError, "normalization mode", call=call),
    ]


WHOLE: dict[str, Any] = {
    "samples": _whole, "error_samples": _errors("fft"), "reference": np.fft.fft,
}  # fmt: skip
HALF: dict[str, Any] = {
    "samples": _half, "error_samples": _errors("rfft"), "reference": np.fft.rfft,
}  # fmt: skip
REAL: dict[str, Any] = {
    "samples": _real, "error_samples": _errors("irfft"), "reference": np.fft.irfft,
}  # fmt: skip
