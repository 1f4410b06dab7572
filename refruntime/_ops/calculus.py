"""Integrals and slopes of sampled functions, by differences of neighbours."""

from __future__ import annotations

from typing import Any

from refruntime._impl import TensorImpl
from refruntime._layout import wrap_dim
from refruntime._ops.opdef import front, ops, require_tensor
from refruntime.errors import ShapeError


def _panels(op: str, y: Any, x: Any, dx: Any, dim: int) -> Any:
    """Return the areas between neighbouring samples."""
    require_tensor(op, y)
    dim = wrap_dim(dim, y.dim(), op)
    size = y.shape[dim]
    if size == 0:
        return y
    pairs = ops.add(ops.narrow(y, dim, 1, size - 1), ops.narrow(y, dim, 0, size - 1))
    if x is None:
        return ops.mul(pairs, ops.mul(dx, 0.5) if isinstance(dx, TensorImpl) else dx / 2)
    if x.dim() == 1:
        if x.shape[0] != size:
            raise ShapeError(
                op, what=f"There must be one `x` value for each sample point (got {x.shape[0]})",
                expected=f"{size} values", got=str(x.shape[0]),
            )  # fmt: skip
        widths = ops.reshape(ops.diff(x), (-1, *[1] * (y.dim() - dim - 1)))
    else:
        widths = ops.diff(x, dim=dim - y.dim())
    return ops.div(ops.mul(pairs, widths), 2)


@front(method=False, aliases=("trapz",))
def trapezoid(y: Any, x: Any = None, *, dx: Any = 1, dim: int = -1) -> Any:
    """Return the integral of samples `y` at places `x`, or at the distance `dx`."""
    return ops.sum(_panels("trapezoid", y, x, dx, dim), dim)


@front(method=False)
def cumulative_trapezoid(y: Any, x: Any = None, *, dx: Any = 1, dim: int = -1) -> Any:
    """Return the integrals up to each sample but the first."""
    return ops.cumsum(_panels("cumulative_trapezoid", y, x, dx, dim), dim)


@front(method=False)
def gradient(input: Any, *, spacing: Any = None, dim: Any = None, edge_order: int = 1) -> list[Any]:
    """Return the slopes of a sampled function along each dimension.

    Parameters
    ----------
    input : Tensor
        The samples.
    spacing : number, or a sequence of numbers or of tensors
        The distance of samples (default 1), one for all dimensions or one each; or coordinates.
    dim : int or sequence of int, optional
        The dimensions; default all.
    edge_order : int
        1 or 2: the order of accuracy at the borders.
    """
    require_tensor("gradient", input)
    ndim = input.dim()
    dims = range(ndim) if dim is None else (dim,) if isinstance(dim, int) else dim
    dims = [wrap_dim(d, ndim, "gradient") for d in dims]
    spacing = 1 if spacing is None else spacing
    spacings = list(spacing) if isinstance(spacing, (tuple, list)) else [spacing] * len(dims)
    if len(spacings) != len(dims):
        raise ShapeError(
            "gradient", expected=f"{len(dims)} spacings", got=str(len(spacings)),
            remedy="give one spacing for each dimension",
        )  # fmt: skip
    return [_slope(input, d, s, edge_order) for d, s in zip(dims, spacings, strict=True)]


def _slope(x: Any, dim: int, spacing: Any, order: int) -> Any:
    size = x.shape[dim]
    if size <= order:
        raise ShapeError(
            "gradient", what="expected each dimension size to be at least edge_order+1",
            expected=f"{order + 1} samples", got=str(size),
        )  # fmt: skip
    if not x.dtype.is_floating_point and not x.dtype.is_complex:
        x = ops.to(x, ops.mul(x, 1.0).dtype)

    def at(start: int, count: int = 1) -> Any:
        return ops.narrow(x, dim, start, count)

    if not isinstance(spacing, TensorImpl):
        h0 = h1 = first = second = last = before = spacing
    else:
        widths = ops.reshape(ops.diff(spacing), (-1, *[1] * (x.dim() - dim - 1)))
        h0, h1 = widths[:-1], widths[1:]
        first, last = widths[0], widths[-1]
        second, before = widths[min(1, size - 2)], widths[max(size - 3, 0)]
    inner = size - 2
    below, above = ops.sub(at(1, inner), at(0, inner)), ops.sub(at(2, inner), at(1, inner))
    middle = _weighted(below, above, h0, h1)
    if order == 1:
        left = ops.div(ops.sub(at(1), at(0)), first)
        right = ops.div(ops.sub(at(size - 1), at(size - 2)), last)
    else:
        left = _border(at(0), at(1), at(2), first, second)
        right = ops.neg(_border(at(size - 1), at(size - 2), at(size - 3), last, before))
    return ops.cat([left, middle, right], dim)


def _weighted(below: Any, above: Any, h0: Any, h1: Any) -> Any:
    """Return the slope in the middle of two steps, exact for parabolas."""
    up = ops.mul(ops.div(below, h0), h1)
    down = ops.mul(ops.div(above, h1), h0)
    return ops.div(ops.add(up, down), h0 + h1)


def _border(a: Any, b: Any, c: Any, near: Any, far: Any) -> Any:
    """Return the slope at `a` of the parabola through `a`, `b`, `c`."""
    first = ops.div(ops.sub(b, a), near)
    second = ops.div(ops.sub(c, b), far)
    bend = ops.div(ops.sub(second, first), near + far)
    return ops.sub(first, ops.mul(bend, near))
