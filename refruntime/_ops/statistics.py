"""Quantiles, medians without NaN, modes, covariances, histograms.

Invariants
----------
* Quantiles sort once and read two neighbours, so their gradients are those of `gather`.
* Where a slice holds NaN, `quantile` gives NaN and `nanquantile` leaves it out.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from refruntime import _dtypes
from refruntime._dispatch import call
from refruntime._impl import TensorImpl, TensorMeta, meta_of
from refruntime._layout import wrap_dim
from refruntime._ops.opdef import OpDef, front, ops, register, require_tensor
from refruntime._ops.results import named_result
from refruntime._ops.samples import Sample, T
from refruntime.errors import ArgumentValueError, DTypeError, ShapeError

# ---------------------------------------------------------------------------------------------
# Quantiles

_INTERPOLATIONS = ("linear", "lower", "higher", "midpoint", "nearest")


@front()
def quantile(
    input: Any, q: Any, dim: int | None = None, keepdim: bool = False, *,
    interpolation: str = "linear", out: Any = None,
) -> Any:  # fmt: skip
    """Return the values below which the shares `q` of the elements lie."""
    return _into(_quantile("quantile", input, q, dim, keepdim, interpolation), out)


@front()
def nanquantile(
    input: Any, q: Any, dim: int | None = None, keepdim: bool = False, *,
    interpolation: str = "linear", out: Any = None,
) -> Any:  # fmt: skip
    """Return the values below which the shares `q` of the elements lie, without NaN."""
    return _into(_quantile("nanquantile", input, q, dim, keepdim, interpolation), out)


def _into(result: Any, out: Any) -> Any:
    return result if out is None else ops.copy_(out, result)


def _quantile(
    op: str, input: Any, q: Any, dim: int | None, keepdim: bool, interpolation: str
) -> Any:
    shares = _shares(op, input, q, interpolation)
    ndim = input.dim()
    rows = ops.reshape(input, (1, -1)) if dim is None else ops.movedim(_vector(input), dim, -1)
    ranked = ops.sort(rows, -1)[0]
    ranks = _ranks(op, ranked, ops.reshape(shares, (-1,)))
    values = ops.movedim(_between(ranked, ranks, interpolation), -1, 0)
    if dim is None:
        values = ops.reshape(values, (-1, *([1] * ndim if keepdim else [])))
    elif keepdim:
        values = ops.unsqueeze(values, wrap_dim(dim, max(ndim, 1), op) + 1)
    if ndim == 0:
        values = ops.reshape(values, (-1,))
    return ops.select(values, 0, 0) if shares.dim() == 0 else values


def _vector(x: Any) -> Any:
    return x if x.dim() else ops.reshape(x, (1,))


def _shares(op: str, input: Any, q: Any, interpolation: str) -> Any:
    require_tensor(op, input)
    if input.dtype not in (_dtypes.float32, _dtypes.float64):
        raise DTypeError(
            op, what=f"{op}() input tensor must be either float or double dtype",
            expected="float32 or float64", got=str(input.dtype), remedy="convert with .float()",
        )  # fmt: skip
    if interpolation not in _INTERPOLATIONS:
        raise ArgumentValueError(
            op, expected=f"interpolation to be one of {', '.join(_INTERPOLATIONS)}",
            got=repr(interpolation),
        )  # fmt: skip
    if not input.numel():
        raise ShapeError(op, what=f"{op}() input tensor must be non-empty", expected="elements",
                         got=str(tuple(input.shape)))  # fmt: skip
    if isinstance(q, TensorImpl):
        return q
    if not 0 <= q <= 1:
        raise ShapeError(op, what=f"{op}() q must be in the range [0, 1] but got {q}")
    return ops.tensor(q, dtype=input.dtype, device=input.device)


def _ranks(op: str, ranked: Any, shares: Any) -> Any:
    """Return the fractional place of each share in each row; NaN stands last in a row."""
    last = ranked.shape[-1] - 1
    bad = ops.isnan(ops.detach(ranked))
    if op == "nanquantile":
        counts = ops.sum(ops.logical_not(bad), -1, keepdim=True)
        return ops.clamp(ops.mul(shares, ops.sub(counts, 1)), min=0)
    ranks = ops.expand(ops.mul(shares, last), (*ranked.shape[:-1], shares.shape[0]))
    return ops.masked_fill(ranks, ops.any(bad, -1, keepdim=True), float(last))


def _between(ranked: Any, ranks: Any, interpolation: str) -> Any:
    if interpolation == "nearest":
        ranks = ops.round(ranks)
    elif interpolation == "lower":
        ranks = ops.floor(ranks)
    elif interpolation == "higher":
        ranks = ops.ceil(ranks)
    low = ops.floor(ranks)
    below = ops.gather(ranked, -1, ops.to(low, _dtypes.int64))
    if interpolation not in ("linear", "midpoint"):
        return below
    above = ops.gather(ranked, -1, ops.to(ops.ceil(ranks), _dtypes.int64))
    share = ops.full_like(ranks, 0.5) if interpolation == "midpoint" else ops.sub(ranks, low)
    return ops.lerp(below, above, ops.to(share, ranked.dtype))


# ---------------------------------------------------------------------------------------------
# Medians and modes


@front()
def nanmedian(input: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """Return the lower median of what is not NaN: of all, or along a dimension with its place."""
    require_tensor("nanmedian", input)
    if dim is None:
        return nanmedian(ops.reshape(input, (-1,)), 0)[0] if input.numel() else ops.median(input)
    vector = _vector(input)
    dim = wrap_dim(dim, vector.dim(), "nanmedian")
    order = ops.argsort(ops.detach(vector), dim, stable=True)
    counts = ops.sum(ops.logical_not(ops.isnan(ops.detach(vector))), dim, keepdim=True)
    middle = ops.clamp(ops.floor_divide(ops.sub(counts, 1), 2), min=0)
    places = ops.gather(order, dim, middle)
    values = ops.gather(vector, dim, places)
    if not keepdim or not input.dim():
        values, places = ops.squeeze(values, dim), ops.squeeze(places, dim)
    return named_result("nanmedian", "values", "indices")((values, places))


def _mode_infer(input: TensorMeta, *, dim: int) -> tuple[TensorMeta, TensorMeta]:
    shape = list(input.shape)
    shape[dim] = 1
    value = meta_of(tuple(shape), input.dtype, input.device)
    return value, meta_of(tuple(shape), _dtypes.int64, input.device)


def _mode_kernel(out: Any, x: TensorImpl, *, dim: int) -> None:
    values, places = (one.array() for one in out)
    array = np.moveaxis(x.array(), dim, -1)
    order = np.argsort(array, -1, kind="stable")
    ranked = np.take_along_axis(array, order, -1)
    ends = np.ones(ranked.shape, bool)
    ends[..., :-1] = ranked[..., 1:] != ranked[..., :-1]
    count = np.arange(1, ranked.shape[-1] + 1)
    # The length of the run that ends at each place, 0 within a run.
    stops = np.where(ends, count, 0)
    before = np.zeros_like(stops)
    before[..., 1:] = np.maximum.accumulate(stops, -1)[..., :-1]
    best = np.argmax(np.where(ends, count - before, 0), -1)[..., None]
    values[...] = np.moveaxis(np.take_along_axis(ranked, best, -1), -1, dim)
    places[...] = np.moveaxis(np.take_along_axis(order, best, -1), -1, dim)


def _mode_vjp(g: Any, n: Any) -> Any:
    zeros = ops.zeros(tuple(n.metas[0].shape), dtype=g[0].dtype, device=g[0].device)
    return ops.scatter(zeros, n.dim, n.out1, g[0])


def _mode_reference(x: Any, dim: int) -> list[Any]:
    def most(row: Any) -> Any:
        found, counts = np.unique(row, return_counts=True)
        return found[np.argmax(counts)]

    values = np.expand_dims(np.apply_along_axis(most, dim, x), dim)
    last = x.shape[dim] - 1 - np.argmax(np.flip(x == values, dim), dim)
    return [values, np.expand_dims(last, dim)]


MODE = register(
    OpDef("mode", ("input",), batch="along",
          infer=_mode_infer, cpu=_mode_kernel, vjp=_mode_vjp, saves=("out1",),
          nondiff_outputs=(1,), reference=_mode_reference,
          samples=lambda: [
              Sample((T((5,), values=[1.0, 2.0, 2.0, 3.0, 1.0], grad=False), 0), grad=False,
                     call=_mode),
              Sample((T((3, 4)), 1), call=_mode),
              Sample((T((3, 4), layout="transposed"), 0), call=_mode),
          ])
)  # fmt: skip


def _mode(input: Any, dim: int) -> Any:
    return call(MODE, (input,), {"dim": dim})


@front(MODE)
def mode(input: Any, dim: int = -1, keepdim: bool = False) -> Any:
    """Return the commonest value along a dimension (the smallest of them) and its last place."""
    require_tensor("mode", input)
    vector = _vector(input)
    dim = wrap_dim(dim, vector.dim(), "mode")
    values, places = _mode(vector, dim)
    if not keepdim or not input.dim():
        values, places = ops.squeeze(values, dim), ops.squeeze(places, dim)
    return named_result("mode", "values", "indices")((values, places))


# ---------------------------------------------------------------------------------------------
# Covariances


@front()
def cov(input: Any, *, correction: int = 1, fweights: Any = None, aweights: Any = None) -> Any:
    """Return the covariances of variables, which are rows, over observations, which are columns.

    Parameters
    ----------
    input : Tensor
        One or two dimensions.
    correction : int
        What is taken from the number of observations.
    fweights, aweights : Tensor, optional
        How often each observation was made (integers), and how much each counts.
    """
    require_tensor("cov", input)
    if input.dim() > 2:
        raise ShapeError("cov", what="expected input to have two or fewer dimensions",
                         expected="a matrix", got=str(tuple(input.shape)))  # fmt: skip
    rows = ops.reshape(input, (1, -1)) if input.dim() < 2 else input
    if not (rows.dtype.is_floating_point or rows.dtype.is_complex):
        rows = ops.to(rows, _dtypes.get_default_dtype())
    weights = aweights if fweights is None else fweights
    if fweights is not None and aweights is not None:
        weights = ops.mul(fweights, aweights)
    total = rows.shape[1] if weights is None else ops.sum(weights)
    if weights is None:
        mean = ops.mean(rows, 1, keepdim=True)
    else:
        mean = ops.div(ops.sum(ops.mul(rows, weights), 1, keepdim=True), total)
    centred = ops.sub(rows, mean)
    count = _observations(total, correction, weights, aweights)
    weighted = centred if weights is None else ops.mul(centred, weights)
    product = ops.matmul(weighted, ops.adjoint(centred))
    return ops.squeeze(ops.div(product, count)) if rows.shape[0] == 1 else ops.div(product, count)


def _observations(total: Any, correction: int, weights: Any, aweights: Any) -> Any:
    """Return what the sum of products is divided by."""
    if weights is None:
        return max(total - correction, 0)
    lost: Any = correction
    if aweights is not None and correction:
        lost = ops.mul(ops.div(ops.sum(ops.mul(weights, aweights)), total), correction)
    return ops.clamp(ops.sub(total, lost), min=0)


@front()
def corrcoef(input: Any) -> Any:
    """Return the correlation coefficients of variables, which are rows."""
    product = cov(input)
    if not product.dim():
        return ops.div(product, product)
    spread = ops.sqrt(ops.diagonal(product))
    if spread.dtype.is_complex:
        spread = ops.real(spread)
    scaled = ops.div(ops.div(product, ops.unsqueeze(spread, 1)), ops.unsqueeze(spread, 0))
    return scaled if scaled.dtype.is_complex else ops.clamp(scaled, -1, 1)


# ---------------------------------------------------------------------------------------------
# Histograms


def _range(op: str, input: Any, low: float, high: float, margin: float) -> tuple[float, float]:
    """Return the range, or that of the elements, widened by a margin if it is one point."""
    if low == high and input.numel():
        low, high = float(ops.amin(input)), float(ops.amax(input))
    if not (np.isfinite(low) and np.isfinite(high)) or low > high:
        raise ShapeError(
            op, what=f"range of [{low}, {high}] is not finite or max is below min",
            expected="a finite range", got=f"[{low}, {high}]",
        )  # fmt: skip
    return (low - margin, high + margin) if low == high else (low, high)


def _bins(input: Any, edges: Any) -> tuple[Any, Any]:
    """Return the bin of each element, and whether it is in any; the last bin is closed."""
    flat = ops.reshape(ops.detach(input), (-1,)).contiguous()
    count = edges.shape[0] - 1
    places = ops.sub(ops.searchsorted(edges, flat, right=True), 1)
    inside = ops.logical_and(ops.ge(flat, edges[0]), ops.le(flat, edges[-1]))
    return ops.clamp(places, 0, max(count - 1, 0)), inside


@front()
def histc(input: Any, bins: int = 100, min: float = 0, max: float = 0, *, out: Any = None) -> Any:
    """Count the elements in `bins` equal parts of a range (of all elements if it is empty)."""
    require_tensor("histc", input)
    if bins <= 0:
        raise ShapeError("histc", what="bins must be > 0", expected="at least 1", got=str(bins))
    low, high = _range("histc", input, float(min), float(max), 1.0)
    edges = ops.linspace(low, high, bins + 1, dtype=input.dtype, device=input.device)
    places, inside = _bins(input, edges)
    counts = ops.bincount(places[inside], minlength=bins)
    return _into(ops.to(counts, input.dtype), out)


@front()
def histogram(
    input: Any, bins: Any, *, range: Any = None, weight: Any = None, density: bool = False,
    out: Any = None,
) -> Any:  # fmt: skip
    """Count the elements between edges, or add their weights.

    Parameters
    ----------
    input : Tensor
    bins : int or Tensor
        The number of equal bins, or the increasing edges themselves.
    range : (float, float), optional
        What equal bins cover; default: all elements.
    weight : Tensor, optional
        What each element counts.
    density : bool
        Divide by the total and the width of the bins.
    """
    require_tensor("histogram", input)
    if isinstance(bins, TensorImpl):
        edges: Any = bins
    else:
        first, last = range or (0.0, 0.0)
        low, high = _range("histogram", input, first, last, 0.5)
        edges = ops.linspace(low, high, bins + 1, dtype=input.dtype, device=input.device)
    places, inside = _bins(input, edges)
    weights = None if weight is None else ops.reshape(weight, (-1,))[inside]
    counts = ops.bincount(places[inside], weights, minlength=edges.shape[0] - 1)
    counts = ops.to(counts, input.dtype)
    if density:
        widths = ops.sub(edges[1:], edges[:-1])
        counts = ops.div(ops.div(counts, ops.sum(counts)), widths)
    return named_result("histogram", "hist", "bin_edges")((counts, edges))
