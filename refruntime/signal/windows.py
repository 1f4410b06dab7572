"""torch.signal.windows: window functions under their newer names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from refruntime._ops import windows
from refruntime.errors import ArgumentValueError

__all__ = [
    "bartlett", "blackman", "cosine", "exponential", "gaussian", "general_cosine",
    "general_hamming", "hamming", "hann", "kaiser", "nuttall",
]  # fmt: skip


def bartlett(M: int, *, sym: bool = True, **options: Any) -> Any:
    """Return Bartlett's window, a triangle."""
    return windows.made("bartlett", M, sym, windows.bartlett, options)


def general_cosine(
    M: int, *, a: Sequence[float], sym: bool = True, **options: Any
) -> Any:  # fmt: skip
    """Return a sum of cosines with alternating signs."""
    if not len(a):
        raise ArgumentValueError("general_cosine", what="Coefficients must be non-empty")
    return windows.made("general_cosine", M, sym, windows.cosines(a), options)


def general_hamming(
    M: int, *, alpha: float = 0.54, sym: bool = True, **options: Any
) -> Any:  # fmt: skip
    """Return ``alpha - (1 - alpha) cos``."""
    return general_cosine(M, a=[alpha, 1.0 - alpha], sym=sym, **options)


def hamming(M: int, *, sym: bool = True, **options: Any) -> Any:
    """Return Hamming's window."""
    return general_hamming(M, sym=sym, **options)


def hann(M: int, *, sym: bool = True, **options: Any) -> Any:
    """Return Hann's window."""
    return general_hamming(M, alpha=0.5, sym=sym, **options)


def blackman(M: int, *, sym: bool = True, **options: Any) -> Any:
    """Return Blackman's window."""
    return general_cosine(M, a=[0.42, 0.5, 0.08], sym=sym, **options)


def nuttall(M: int, *, sym: bool = True, **options: Any) -> Any:
    """Return Nuttall's window of four cosines."""
    return general_cosine(M, a=[0.3635819, 0.4891775, 0.1365995, 0.0106411], sym=sym, **options)


def cosine(M: int, *, sym: bool = True, **options: Any) -> Any:
    """Return half a period of a sine, sampled in the middle of steps."""
    steps = M if sym else M + 1

    def half_period(t: Any) -> Any:
        return np.sin(np.pi * (np.arange(len(t)) + 0.5) / steps)

    return windows.made("cosine", M, sym, half_period, options)


def _places(count: int) -> Any:
    return np.arange(count)


def exponential(
    M: int, *, center: float | None = None, tau: float = 1.0, sym: bool = True,
    **options: Any,
) -> Any:  # fmt: skip
    """Return a window that decays by a factor e every `tau` samples from its centre."""
    if tau <= 0:
        raise ArgumentValueError("exponential", what="Tau must be positive", got=str(tau))
    if sym and center is not None:
        raise ArgumentValueError("exponential", what="Center must be None for symmetric windows")
    middle = (M - 1 if sym else M) / 2 if center is None else center
    shape = lambda t: np.exp(-np.abs(_places(len(t)) - middle) / tau)  # noqa: E731
    return windows.made("exponential", M, sym, shape, options)


def gaussian(M: int, *, std: float = 1.0, sym: bool = True, **options: Any) -> Any:
    """Return a bell of a standard deviation in samples."""
    if std <= 0:
        raise ArgumentValueError("gaussian", what="Standard deviation must be positive")
    middle = (M - 1 if sym else M) / 2
    shape = lambda t: np.exp(-0.5 * ((_places(len(t)) - middle) / std) ** 2)  # noqa: E731
    return windows.made("gaussian", M, sym, shape, options)


def kaiser(M: int, *, beta: float = 12.0, sym: bool = True, **options: Any) -> Any:
    """Return Kaiser's window."""
    if beta < 0:
        raise ArgumentValueError("kaiser", what="beta must be non-negative", got=str(beta))
    return windows.made("kaiser", M, sym, windows.kaiser(beta), options)
