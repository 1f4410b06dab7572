"""Window functions: weights that fade a stretch of a signal in and out.

Invariants
----------
* A periodic window of n samples is the symmetric one of n + 1 without its last.
* Windows are computed in float64 and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from refruntime import _dtypes
from refruntime._dtypes import DType
from refruntime._ops.opdef import front, ops
from refruntime.errors import ArgumentValueError

Array = np.ndarray[Any, Any]


def made(
    op: str, size: int, symmetric: bool, shape: Callable[[Array], Array],
    options: dict[str, Any],
) -> Any:  # fmt: skip
    """Return a window; `shape` maps places from 0 to 1 to weights.

    Parameters
    ----------
    op : str
        For messages.
    size : int
        How many samples.
    symmetric : bool
        Whether the last sample mirrors the first.
    shape : callable
        The window over NumPy arrays.
    options : dict
        ``dtype``, ``device``, ``requires_grad``, as factories take them.
    """
    if size < 0:
        raise ArgumentValueError(op, expected="a size of at least 0", got=str(size))
    dtype: DType = options.get("dtype") or _dtypes.get_default_dtype()
    if not dtype.is_floating_point:
        raise ArgumentValueError(op, expected="a floating dtype", got=str(dtype))
    steps = size - 1 if symmetric else size
    weights = np.ones(size) if size <= 1 else shape(np.arange(size) / steps)
    return ops.tensor(
        weights, dtype=dtype, device=options.get("device"),
        requires_grad=options.get("requires_grad", False),
    )  # fmt: skip


def cosines(coefficients: Sequence[float]) -> Callable[[Array], Array]:
    """Return the window that is a sum of cosines with alternating signs."""
    return lambda t: np.sum(
        [(-1) ** k * a * np.cos(2 * np.pi * k * t) for k, a in enumerate(coefficients)], axis=0
    )


def bartlett(t: Array) -> Array:
    """Rise and fall in straight lines."""
    rises: Array = 1 - np.abs(2 * t - 1)
    return rises


def kaiser(beta: float) -> Callable[[Array], Array]:
    """Return Kaiser's window: Bessel's I0 over an arc."""
    arc: Callable[[Array], Array] = lambda t: np.sqrt(np.maximum(0.0, 1 - (2 * t - 1) ** 2))  # noqa: E731
    return lambda t: np.i0(beta * arc(t)) / np.i0(beta)


@front(method=False)
def hann_window(window_length: int, periodic: bool = True, **options: Any) -> Any:
    """Return Hann's window, one period of a raised cosine."""
    return made("hann_window", window_length, not periodic, cosines([0.5, 0.5]), options)


@front(method=False)
def hamming_window(
    window_length: int, periodic: bool = True, alpha: float = 0.54, beta: float = 0.46,
    **options: Any,
) -> Any:  # fmt: skip
    """Return Hamming's window, ``alpha - beta cos``."""
    return made("hamming_window", window_length, not periodic, cosines([alpha, beta]), options)


@front(method=False)
def blackman_window(window_length: int, periodic: bool = True, **options: Any) -> Any:
    """Return Blackman's window, of three cosines."""
    shape = cosines([0.42, 0.5, 0.08])
    return made("blackman_window", window_length, not periodic, shape, options)


@front(method=False)
def bartlett_window(window_length: int, periodic: bool = True, **options: Any) -> Any:
    """Return Bartlett's window, a triangle."""
    return made("bartlett_window", window_length, not periodic, bartlett, options)


@front(method=False)
def kaiser_window(
    window_length: int, periodic: bool = True, beta: float = 12.0, **options: Any
) -> Any:
    """Return Kaiser's window."""
    if not math.isfinite(beta):
        raise ArgumentValueError("kaiser_window", expected="a finite beta", got=str(beta))
    return made("kaiser_window", window_length, not periodic, kaiser(beta), options)
