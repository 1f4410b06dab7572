"""Short-time Fourier transforms: spectra of overlapping stretches of a signal, and back.

Invariants
----------
* Both directions are composed of views, products and transforms, and so are their gradients.
* The inverse divides by the sum of the squared windows, which must not vanish anywhere.
"""

from __future__ import annotations

from typing import Any

from refruntime._ops.opdef import front, ops, require_tensor
from refruntime.errors import ArgumentValueError, ShapeError


def _window(op: str, x: Any, n_fft: int, length: int | None, window: Any) -> Any:
    """Return the window, padded on both sides to `n_fft`."""
    size = n_fft if length is None else length
    if not 0 < size <= n_fft:
        raise ShapeError(op, expected=f"0 < win_length <= {n_fft}", got=str(size))
    if window is None:
        real = x.dtype.to_real()
        window = ops.ones((size,), dtype=real, device=x.device)
    elif window.dim() != 1 or window.shape[0] != size:
        raise ShapeError(
            op, what=f"expected a 1D window tensor of size equal to win_length={size}",
            expected=f"({size},)", got=str(tuple(window.shape)),
        )  # fmt: skip
    if size == n_fft:
        return window
    left = (n_fft - size) // 2
    return ops.constant_pad_nd(window, (left, n_fft - size - left))


@front()
def stft(
    input: Any, n_fft: int, hop_length: int | None = None, win_length: int | None = None,
    window: Any = None, center: bool = True, pad_mode: str = "reflect", normalized: bool = False,
    onesided: bool | None = None, return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> Any:  # fmt: skip
    """Return the spectra of overlapping stretches of signals.

    Parameters
    ----------
    input : Tensor
        Shape ``(time,)`` or ``(batch, time)``.
    n_fft : int
        The length of a stretch.
    hop_length : int, optional
        The distance of stretches; default a quarter of `n_fft`.
    win_length : int, optional
        The length of the window, centred in the stretch; default `n_fft`.
    window : Tensor, optional
        The window; default ones.
    center : bool
        Pad, so that a stretch is centred at its time.
    pad_mode : str
        How.
    normalized : bool
        Divide by the root of `n_fft`.
    onesided : bool, optional
        Give half of each spectrum; default for real signals.
    return_complex : bool, optional
        Give complex numbers; False gives pairs in a last dimension.

    Returns
    -------
    Tensor
        Shape ``(..., frequencies, stretches)``.
    """
    require_tensor("stft", input)
    _check_signal(input, n_fft)
    hop = n_fft // 4 if hop_length is None else hop_length
    if hop <= 0:
        raise ShapeError("stft", expected="hop_length > 0", got=str(hop))
    complex_signal = input.dtype.is_complex or (window is not None and window.dtype.is_complex)
    half = not complex_signal if onesided is None else onesided
    if return_complex is None and not complex_signal:
        raise ArgumentValueError(
            "stft", what="stft requires the return_complex parameter be given for real inputs",
            expected="return_complex=True or False", got="None",
        )  # fmt: skip
    rows = ops.unsqueeze(input, 0) if input.dim() == 1 else input
    if center:
        pad = n_fft // 2
        rows = ops.squeeze(ops.pad(ops.unsqueeze(rows, 1), (pad, pad), pad_mode), 1)
    if rows.shape[1] < n_fft:
        raise ShapeError("stft", expected=f"at least {n_fft} samples", got=str(rows.shape[1]))
    frames = ops.unfold(rows, 1, n_fft, hop)
    frames = ops.mul(frames, _window("stft", input, n_fft, win_length, window))
    norm = "ortho" if normalized else "backward"
    spectra = (ops.fft_rfft if half else ops.fft_fft)(frames, norm=norm)
    result = ops.transpose(spectra, 1, 2)
    result = ops.squeeze(result, 0) if input.dim() == 1 else result
    return ops.view_as_real(result.contiguous()) if return_complex is False else result


def _check_signal(input: Any, n_fft: int) -> None:
    if input.dim() not in (1, 2) or not (input.dtype.is_floating_point or input.dtype.is_complex):
        raise ShapeError(
            "stft", what="expected a 1D or 2D tensor of floating types",
            expected="(time,) or (batch, time)", got=f"{input.dtype} {tuple(input.shape)}",
        )  # fmt: skip
    if n_fft <= 0:
        raise ShapeError("stft", expected="n_fft > 0", got=str(n_fft))


@front()
def istft(
    input: Any, n_fft: int, hop_length: int | None = None, win_length: int | None = None,
    window: Any = None, center: bool = True, normalized: bool = False,
    onesided: bool | None = None, length: int | None = None, return_complex: bool = False,
) -> Any:  # fmt: skip
    """Return the signals whose spectra `stft` gave, as closely as they overlap.

    Parameters
    ----------
    input : Tensor
        Complex, shape ``(..., frequencies, stretches)``.
    n_fft, hop_length, win_length, window, center, normalized, onesided
        As `stft` was called with.
    length : int, optional
        How many samples to give.
    return_complex : bool
        Give complex signals.
    """
    require_tensor("istft", input)
    if not input.dtype.is_complex or input.dim() not in (2, 3):
        raise ShapeError(
            "istft", what="istft requires a complex-valued input tensor of 2 or 3 dimensions",
            expected="(..., frequencies, stretches)", got=f"{input.dtype} {tuple(input.shape)}",
        )  # fmt: skip
    half = input.shape[-2] != n_fft if onesided is None else onesided
    hop = n_fft // 4 if hop_length is None else hop_length
    weights = _window("istft", input, n_fft, win_length, window)
    spectra = ops.transpose(ops.unsqueeze(input, 0) if input.dim() == 2 else input, 1, 2)
    norm = "ortho" if normalized else "backward"
    if half or not return_complex:
        # A real signal is told by half of its spectrum.
        kept = ops.narrow(spectra, -1, 0, n_fft // 2 + 1)
        frames = ops.fft_irfft(kept, n_fft, norm=norm)
    else:
        frames = ops.fft_ifft(spectra, norm=norm)
    total = n_fft + hop * (frames.shape[1] - 1)
    signal = _overlapped(ops.mul(frames, weights), total, hop)
    energy = ops.expand(ops.square(weights), (1, frames.shape[1], n_fft))
    energy = _overlapped(energy, total, hop)
    signal, energy = (_kept(x, n_fft, center, length) for x in (signal, energy))
    if float(ops.amin(ops.abs(energy))) <= 1e-11:
        raise ShapeError(
            "istft", what="window overlap add min: 1", expected="windows that overlap everywhere",
            got="a place that no window reaches", remedy="use a smaller hop_length",
        )  # fmt: skip
    result = ops.div(signal, energy)
    if length is not None and result.shape[1] < length:
        result = ops.constant_pad_nd(result, (0, length - result.shape[1]))
    return ops.squeeze(result, 0) if input.dim() == 2 else result


def _overlapped(frames: Any, total: int, hop: int) -> Any:
    """Add stretches at their places in a signal of `total` samples."""
    if frames.dtype.is_complex:
        parts = [_overlapped(part(frames), total, hop) for part in (ops.real, ops.imag)]
        return ops.complex(*parts)
    rows, count, size = frames.shape
    starts = ops.unsqueeze(ops.arange(count, device=frames.device) * hop, 1)
    places = ops.reshape(starts + ops.arange(size, device=frames.device), (-1,))
    zeros = ops.zeros((rows, total), dtype=frames.dtype, device=frames.device)
    return ops.index_add(zeros, 1, places, ops.reshape(frames, (rows, -1)))


def _kept(x: Any, n_fft: int, center: bool, length: int | None) -> Any:
    """Cut what padding added, and what is beyond the wanted length."""
    start = n_fft // 2 if center else 0
    stop = x.shape[1] - start if length is None else min(start + length, x.shape[1])
    return ops.narrow(x, 1, start, stop - start)
