"""torch.fft: discrete Fourier transforms and what goes with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from refruntime import _dtypes
from refruntime._ops.opdef import ops

_ONE = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
_MANY = tuple(f"{name}n" for name in _ONE)
_TWO = tuple(f"{name}2" for name in _ONE)

__all__ = ["fftfreq", "fftshift", "ifftshift", "rfftfreq", *_ONE, *_MANY, *_TWO]


def _over_two(name: str) -> Callable[..., Any]:
    """Make the form of a transform that takes the last two dimensions by default."""
    function = getattr(ops, f"fft_{name}n")

    def transform(
        input: Any, s: Any = None, dim: Any = (-2, -1), norm: str | None = None, *, out: Any = None
    ) -> Any:
        return function(input, s, dim, norm, out=out)

    transform.__name__ = transform.__qualname__ = f"{name}2"
    transform.__doc__ = f"Compute `{name}n` over two dimensions, by default the last."
    return transform


globals().update({name: getattr(ops, f"fft_{name}") for name in (*_ONE, *_MANY)})
globals().update({f"{name}2": _over_two(name) for name in _ONE})


def fftfreq(
    n: int, d: float = 1.0, *, out: Any = None, dtype: Any = None, layout: Any = None,
    device: Any = None, requires_grad: bool = False,
) -> Any:  # fmt: skip
    """Return the frequencies of a transform's entries: positive ones, then negative ones.

    Parameters
    ----------
    n : int
        The length of the signal.
    d : float
        The distance of two samples.
    """
    kind = _dtypes.get_default_dtype() if dtype is None else dtype
    positive = ops.arange((n + 1) // 2, dtype=kind, device=device)
    negative = ops.arange(-(n // 2), 0, dtype=kind, device=device)
    return _finished(ops.cat([positive, negative]), n * d, out, requires_grad)


def rfftfreq(
    n: int, d: float = 1.0, *, out: Any = None, dtype: Any = None, layout: Any = None,
    device: Any = None, requires_grad: bool = False,
) -> Any:  # fmt: skip
    """Return the frequencies of the entries of a real signal's transform."""
    kind = _dtypes.get_default_dtype() if dtype is None else dtype
    positive = ops.arange(n // 2 + 1, dtype=kind, device=device)
    return _finished(positive, n * d, out, requires_grad)


def _finished(counts: Any, span: float, out: Any, requires_grad: bool) -> Any:
    frequencies = ops.mul(counts, 1.0 / span, out=out)
    return frequencies.requires_grad_(requires_grad)


def fftshift(input: Any, dim: Any = None) -> Any:
    """Move the entry of frequency zero to the middle."""
    dims = _dims(input, dim)
    return ops.roll(input, [input.shape[d] // 2 for d in dims], dims)


def ifftshift(input: Any, dim: Any = None) -> Any:
    """Undo `fftshift`."""
    dims = _dims(input, dim)
    return ops.roll(input, [(input.shape[d] + 1) // 2 for d in dims], dims)


def _dims(input: Any, dim: Any) -> list[int]:
    if dim is None:
        return list(range(input.dim()))
    return [dim] if isinstance(dim, int) else list(dim)
