"""Fourier transforms: complex, real to half a spectrum, and back.

Invariants
----------
* Three ops do everything. Their derivatives are each other: a transform's matrix is symmetric, so
  its adjoint is the transform in the other direction under the same scale.
* `dim` has distinct, wrapped dimensions in the order of transformation; real ops halve the last.
"""

from __future__ import annotations

from typing import Any

from refruntime import _dtypes
from refruntime._dispatch import call
from refruntime._dtypes import DType
from refruntime._impl import TensorMeta, meta_of
from refruntime._layout import wrap_dim, wrap_dims
from refruntime._ops import samples_complex as samples
from refruntime._ops.opdef import OpDef, front, ops, register, require_tensor
from refruntime.errors import ArgumentValueError, DTypeError, ShapeError
from refruntime.kernels import fourier as kernels

_FORWARD = {None: "one", "backward": "one", "ortho": "root", "forward": "n"}
_INVERSE = {None: "n", "backward": "n", "ortho": "root", "forward": "one"}


def _complex_infer(x: TensorMeta, **_: Any) -> TensorMeta:
    return meta_of(tuple(x.shape), x.dtype, x.device)


def _half_infer(x: TensorMeta, *, dim: tuple[int, ...], scale: str) -> TensorMeta:
    shape = list(x.shape)
    shape[dim[-1]] = shape[dim[-1]] // 2 + 1
    return meta_of(tuple(shape), x.dtype.to_complex(), x.device)


def _real_infer(x: TensorMeta, *, dim: tuple[int, ...], scale: str, size: int) -> TensorMeta:
    shape = list(x.shape)
    shape[dim[-1]] = size
    return meta_of(tuple(shape), x.dtype.to_real(), x.device)


def _complex_vjp(g: Any, n: Any) -> Any:
    return call(COMPLEX, (g,), {"dim": n.dim, "scale": n.scale, "inverse": not n.inverse})


def _half_vjp(g: Any, n: Any) -> Any:
    full = _resized(g, {n.dim[-1]: n.metas[0].shape[n.dim[-1]]})
    return ops.real(call(COMPLEX, (full,), {"dim": n.dim, "scale": n.scale, "inverse": True}))


def _real_vjp(g: Any, n: Any) -> Any:
    half = call(HALF, (g,), {"dim": n.dim, "scale": n.scale})
    last = n.dim[-1]
    # Entries whose mirror image was not stored count for both.
    twice = g.shape[last] - half.shape[last]
    if twice <= 0:
        return half
    parts = ops.split(half, [1, twice, half.shape[last] - 1 - twice], last)
    return ops.cat([parts[0], ops.mul(parts[1], 2), parts[2]], last)


COMPLEX = register(
    OpDef("fft_c2c", ("input",), jvp="linear", batch="dims",
          **samples.COMPLEX, infer=_complex_infer,
          cpu=kernels.complex_transform,
          cuda=kernels.complex_transform, vjp=_complex_vjp, backward_name="FftC2CBackward0")
)  # fmt: skip
HALF = register(
    OpDef("fft_r2c", ("input",), jvp="linear", batch="dims", **samples.HALF, infer=_half_infer,
          cpu=kernels.real_transform,
          cuda=kernels.real_transform, vjp=_half_vjp, backward_name="FftR2CBackward0")
)  # fmt: skip
REAL = register(
    OpDef("fft_c2r", ("input",), jvp="linear", batch="dims", **samples.REAL, infer=_real_infer,
          cpu=kernels.to_real_transform,
          cuda=kernels.to_real_transform, vjp=_real_vjp, backward_name="FftC2RBackward0")
)  # fmt: skip


# ---------------------------------------------------------------------------------------------
# Arguments


def _scale(op: str, table: dict[str | None, str], norm: str | None) -> str:
    if norm not in table:
        raise ArgumentValueError(
            op, what=f"Invalid normalization mode: {norm!r}",
            expected="'backward', 'ortho' or 'forward'", got=repr(norm),
        )  # fmt: skip
    return table[norm]


def _floating(dtype: DType) -> DType:
    return dtype if dtype.kind in "fc" else _dtypes.get_default_dtype()


def _as_complex(op: str, x: Any) -> Any:
    require_tensor(op, x)
    return ops.to(x, _floating(x.meta.dtype).to_complex())


def _as_real(op: str, x: Any) -> Any:
    require_tensor(op, x)
    if x.meta.dtype.is_complex:
        raise DTypeError(
            op, what=f"{op} expects a real input tensor, but got {x.meta.dtype.name}",
            expected="a real dtype", got=str(x.meta.dtype), remedy=f"use {op.replace('r', '', 1)}",
        )  # fmt: skip
    return ops.to(x, _floating(x.meta.dtype))


def _resized(x: Any, sizes: dict[int, int]) -> Any:
    """Cut dimensions, or lengthen them with zeros, to their sizes."""
    for dim, size in sizes.items():
        missing = size - x.shape[dim]
        if missing < 0:
            x = ops.narrow(x, dim, 0, size)
        elif missing > 0:
            shape = [*x.shape]
            shape[dim] = missing
            x = ops.cat([x, ops.zeros(shape, dtype=x.dtype, device=x.device)], dim)
    return x


def _one(op: str, x: Any, n: int | None, dim: int) -> tuple[tuple[int, ...], int | None]:
    """Return the dimension of a one-dimensional transform, and its checked size."""
    if n is not None and n < 1:
        raise ShapeError(
            op, what=f"Invalid number of data points ({n}) specified",
            expected="at least one", got=str(n),
        )  # fmt: skip
    return (wrap_dim(dim, x.meta.ndim, op),), n


def _many(op: str, x: Any, s: Any, dim: Any) -> tuple[tuple[int, ...], dict[int, int]]:
    """Return the dimensions of a transform of several, and the sizes that are asked for."""
    ndim = x.meta.ndim
    if dim is None:
        count = ndim if s is None else len(s)
        dims = tuple(range(ndim - count, ndim))
    else:
        dims = tuple(wrap_dims((dim,) if isinstance(dim, int) else tuple(dim), ndim, op))
    if s is None:
        return dims, {}
    sizes = (s,) if isinstance(s, int) else tuple(s)
    if len(sizes) != len(dims):
        raise ShapeError(
            op, what="When given, dim and shape arguments must have the same length",
            expected=f"{len(dims)} sizes", got=str(sizes),
        )  # fmt: skip
    return dims, {d: size for d, size in zip(dims, sizes, strict=True) if size != -1}


def _complex(op: str, x: Any, sizes: dict[int, int], dims: Any, scale: str, inverse: bool) -> Any:
    if not dims:
        return x
    params = {"dim": dims, "scale": scale, "inverse": inverse}
    return call(COMPLEX, (_resized(x, sizes),), params)


def _half(op: str, x: Any, sizes: dict[int, int], dims: Any, scale: str) -> Any:
    return call(HALF, (_resized(x, sizes),), {"dim": dims, "scale": scale})


def _real(op: str, x: Any, sizes: dict[int, int], dims: Any, scale: str) -> Any:
    last = dims[-1]
    size = sizes.get(last, 2 * (x.shape[last] - 1))
    if size < 1:
        raise ShapeError(
            op, what=f"Invalid number of data points ({size}) specified",
            expected="at least two entries in the last dimension", got=str(x.shape[last]),
        )  # fmt: skip
    x = _resized(x, {**sizes, last: size // 2 + 1})
    return call(REAL, (x,), {"dim": dims, "scale": scale, "size": size})


def _sizes(dims: tuple[int, ...], n: int | None) -> dict[int, int]:
    return {} if n is None else {dims[0]: n}


def _delivered(result: Any, out: Any) -> Any:
    return result if out is None else ops.copy_(out, result)


# ---------------------------------------------------------------------------------------------
# Over one dimension


@front(COMPLEX, method=False)
def fft_fft(input: Any, n: int | None = None, dim: int = -1, norm: str | None = None, *,
            out: Any = None) -> Any:  # fmt: skip
    """Return the Fourier transform over one dimension."""
    x = _as_complex("fft", input)
    dims, n = _one("fft", x, n, dim)
    scale = _scale("fft", _FORWARD, norm)
    return _delivered(_complex("fft", x, _sizes(dims, n), dims, scale, False), out)


@front(COMPLEX, method=False)
def fft_ifft(input: Any, n: int | None = None, dim: int = -1, norm: str | None = None, *,
             out: Any = None) -> Any:  # fmt: skip
    """Return the inverse Fourier transform over one dimension."""
    x = _as_complex("ifft", input)
    dims, n = _one("ifft", x, n, dim)
    scale = _scale("ifft", _INVERSE, norm)
    return _delivered(_complex("ifft", x, _sizes(dims, n), dims, scale, True), out)


@front(HALF, method=False)
def fft_rfft(input: Any, n: int | None = None, dim: int = -1, norm: str | None = None, *,
             out: Any = None) -> Any:  # fmt: skip
    """Return the half of a real signal's transform that tells all."""
    x = _as_real("rfft", input)
    dims, n = _one("rfft", x, n, dim)
    scale = _scale("rfft", _FORWARD, norm)
    return _delivered(_half("rfft", x, _sizes(dims, n), dims, scale), out)


@front(REAL, method=False)
def fft_irfft(input: Any, n: int | None = None, dim: int = -1, norm: str | None = None, *,
              out: Any = None) -> Any:  # fmt: skip
    """Return the real signal of half a spectrum."""
    x = _as_complex("irfft", input)
    dims, n = _one("irfft", x, n, dim)
    scale = _scale("irfft", _INVERSE, norm)
    return _delivered(_real("irfft", x, _sizes(dims, n), dims, scale), out)


@front(REAL, method=False)
def fft_hfft(input: Any, n: int | None = None, dim: int = -1, norm: str | None = None, *,
             out: Any = None) -> Any:  # fmt: skip
    """Return the real transform of a signal with Hermitian symmetry, given half of it."""
    x = ops.conj(_as_complex("hfft", input))
    dims, n = _one("hfft", x, n, dim)
    scale = _scale("hfft", _FORWARD, norm)
    return _delivered(_real("hfft", x, _sizes(dims, n), dims, scale), out)


@front(HALF, method=False)
def fft_ihfft(input: Any, n: int | None = None, dim: int = -1, norm: str | None = None, *,
              out: Any = None) -> Any:  # fmt: skip
    """Return half of the Hermitian inverse transform of a real signal."""
    x = _as_real("ihfft", input)
    dims, n = _one("ihfft", x, n, dim)
    scale = _scale("ihfft", _INVERSE, norm)
    return _delivered(ops.conj(_half("ihfft", x, _sizes(dims, n), dims, scale)), out)


# ---------------------------------------------------------------------------------------------
# Over several dimensions


@front(COMPLEX, method=False)
def fft_fftn(input: Any, s: Any = None, dim: Any = None, norm: str | None = None, *,
             out: Any = None) -> Any:  # fmt: skip
    """Return the Fourier transform over several dimensions."""
    x = _as_complex("fftn", input)
    dims, sizes = _many("fftn", x, s, dim)
    return _delivered(_complex("fftn", x, sizes, dims, _scale("fftn", _FORWARD, norm), False), out)


@front(COMPLEX, method=False)
def fft_ifftn(input: Any, s: Any = None, dim: Any = None, norm: str | None = None, *,
              out: Any = None) -> Any:  # fmt: skip
    """Return the inverse Fourier transform over several dimensions."""
    x = _as_complex("ifftn", input)
    dims, sizes = _many("ifftn", x, s, dim)
    return _delivered(_complex("ifftn", x, sizes, dims, _scale("ifftn", _INVERSE, norm), True), out)


@front(HALF, method=False)
def fft_rfftn(input: Any, s: Any = None, dim: Any = None, norm: str | None = None, *,
              out: Any = None) -> Any:  # fmt: skip
    """Return the transform of a real signal, half of it in the last dimension."""
    x = _as_real("rfftn", input)
    dims, sizes = _many("rfftn", x, s, dim)
    return _delivered(_half("rfftn", x, sizes, dims, _scale("rfftn", _FORWARD, norm)), out)


@front(REAL, method=False)
def fft_irfftn(input: Any, s: Any = None, dim: Any = None, norm: str | None = None, *,
               out: Any = None) -> Any:  # fmt: skip
    """Return the real signal of a spectrum of which half is given in the last dimension."""
    x = _as_complex("irfftn", input)
    dims, sizes = _many("irfftn", x, s, dim)
    return _delivered(_real("irfftn", x, sizes, dims, _scale("irfftn", _INVERSE, norm)), out)


@front(REAL, method=False)
def fft_hfftn(input: Any, s: Any = None, dim: Any = None, norm: str | None = None, *,
              out: Any = None) -> Any:  # fmt: skip
    """Return the real transform of a Hermitian signal, half of it given in the last dimension."""
    x = ops.conj(_as_complex("hfftn", input))
    dims, sizes = _many("hfftn", x, s, dim)
    return _delivered(_real("hfftn", x, sizes, dims, _scale("hfftn", _FORWARD, norm)), out)


@front(HALF, method=False)
def fft_ihfftn(input: Any, s: Any = None, dim: Any = None, norm: str | None = None, *,
               out: Any = None) -> Any:  # fmt: skip
    """Return the Hermitian inverse transform of a real signal, half of it in the last dimension."""
    x = _as_real("ihfftn", input)
    dims, sizes = _many("ihfftn", x, s, dim)
    half = _half("ihfftn", x, sizes, dims, _scale("ihfftn", _INVERSE, norm))
    return _delivered(ops.conj(half), out)
