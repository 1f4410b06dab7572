"""Jacobians of a function at a point, found in several ways, for `gradcheck` to compare.

State
-----
A `Problem` is a function with its arguments, of which some are checked.

Invariants
----------
* A complex number counts as two real ones, so every Jacobian here is a real matrix: a row for each
  real component of an output, a column for each real component of an input.
* Arguments are shifted in place while differences are taken, and are put back bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from refruntime._impl import TensorImpl, empty_impl, meta_of, requires_grad
from refruntime._ops.opdef import ops
from refruntime.autograd.api import grad
from refruntime.autograd.node import is_differentiable

Array = np.ndarray[Any, Any]
Arrays = list[Array]


def as_arguments(inputs: Any) -> tuple[Any, ...]:
    """Return arguments as a tuple; one tensor is one argument."""
    return tuple(inputs) if isinstance(inputs, Sequence) else (inputs,)


def differentiable(outputs: Any) -> list[TensorImpl]:
    """Return the outputs of a function that have a derivative."""
    several = [outputs] if isinstance(outputs, TensorImpl) else list(outputs)
    return [x for x in several if isinstance(x, TensorImpl) and is_differentiable(x.meta)]


def tensor_of(array: Array, like: TensorImpl) -> Any:
    """Return a tensor with the values of an array and the dtype of another tensor."""
    made = empty_impl(meta_of(tuple(array.shape), like.meta.dtype))
    made.array()[...] = array
    return made


def real(array: Array) -> Array:
    """Return the real components of an array of numbers, flat."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(flat.real.dtype).astype(np.float64)


def random_like(value: TensorImpl, rng: np.random.Generator) -> Array:
    """Return random numbers in the shape of a tensor, complex where it is."""
    shape = tuple(value.meta.shape)
    numbers = rng.standard_normal(shape)
    if not value.meta.dtype.is_complex:
        return np.asarray(numbers)
    return np.asarray(numbers + 1j * rng.standard_normal(shape))


def units(value: TensorImpl) -> list[Array]:
    """Return one array for each real component of a tensor: one there, zero elsewhere."""
    steps = (1.0, 1j) if value.meta.dtype.is_complex else (1.0,)
    kind = complex if value.meta.dtype.is_complex else float
    found = []
    for index in np.ndindex(*value.meta.shape):
        for step in steps:
            one = np.zeros(tuple(value.meta.shape), kind)
            one[index] = step
            found.append(one)
    return found


class Problem:
    """A function at a point.

    Parameters
    ----------
    func : callable
        Takes the arguments and returns a tensor or a sequence of them.
    arguments : tuple
        Those tensors among them that require grad are checked.
    eps : float
        The step of the differences.
    """

    def __init__(self, func: Callable[..., Any], arguments: tuple[Any, ...], eps: float) -> None:
        self.func = func
        self.arguments = arguments
        self.checked = [x for x in arguments if requires_grad(x)]
        self.eps = eps

    def outputs(self) -> list[Any]:
        """Run the function; return the outputs that have a derivative."""
        return [x for x in self._all_outputs() if requires_grad(x)]

    def values(self) -> Arrays:
        """Run the function; return its outputs as arrays."""
        return [ops.detach(x).array().copy() for x in self._all_outputs()]

    def _all_outputs(self) -> list[Any]:
        return differentiable(self.func(*self.arguments))

    def numbers_of_outputs(self) -> list[int]:
        """Return the places, among the outputs, of those that the checked inputs reach."""
        return [k for k, out in enumerate(self._all_outputs()) if requires_grad(out)]

    # -- differences --------------------------------------------------------------------------

    def difference(self, directions: Arrays) -> Arrays:
        """Return the central difference of each output along a direction of all inputs."""
        high, low = self._shifted(directions, self.eps), self._shifted(directions, -self.eps)
        pairs = zip(high, low, strict=True)
        return [(one.astype(two.dtype) - two) / (2 * self.eps) for one, two in pairs]

    def _shifted(self, directions: Arrays, step: float) -> Arrays:
        originals = [value.array().copy() for value in self.checked]
        try:
            for value, direction in zip(self.checked, directions, strict=True):
                value.array()[...] += (step * direction).astype(value.array().dtype)
            return [_wide(value) for value in self.values()]
        finally:
            for value, original in zip(self.checked, originals, strict=True):
                value.array()[...] = original

    def still(self) -> Arrays:
        """Return a direction of no change."""
        return [np.zeros(tuple(x.meta.shape), _kind(x)) for x in self.checked]

    def numerical(self, which: int) -> Arrays:
        """Return for each output its Jacobian by one input, from differences."""
        columns = []
        for unit in units(self.checked[which]):
            directions = self.still()
            directions[which] = unit
            columns.append([real(one) for one in self.difference(directions)])
        return _stacked(columns, [real(one).size for one in self.values()])

    # -- reverse mode -------------------------------------------------------------------------

    def gradients(self, number: int, cotangent: Array, outputs: Any = None) -> Arrays:
        """Return the gradient of ``Re(conj(cotangent) . output)`` for each checked input."""
        output = (self._all_outputs() if outputs is None else outputs)[number]
        found = grad(
            [output], self.checked, [tensor_of(cotangent, output)], retain_graph=True,
            allow_unused=True,
        )  # fmt: skip
        return [
            np.zeros(tuple(value.meta.shape), _kind(value))
            if result is None
            else ops.detach(result).array().copy()
            for value, result in zip(self.checked, found, strict=True)
        ]

    def by_reverse(self, number: int) -> Arrays:
        """Return the Jacobian of an output by each input, from backward, row by row."""
        outputs = self._all_outputs()
        rows = [
            [real(one) for one in self.gradients(number, unit, outputs)]
            for unit in units(outputs[number])
        ]
        if not rows:
            return [np.zeros((0, real(x.array()).size)) for x in self.checked]
        return [np.stack(column) for column in zip(*rows, strict=True)]

    # -- forward mode -------------------------------------------------------------------------

    def pushed(self, directions: Arrays) -> Arrays:
        """Return the forward derivative of each output along a direction of all inputs."""
        from refruntime.autograd import forward_ad

        with forward_ad.dual_level():
            given = iter(zip(self.checked, directions, strict=True))
            args = [_dual(*next(given)) if requires_grad(x) else x for x in self.arguments]
            pairs = [forward_ad.unpack_dual(x) for x in differentiable(self.func(*args))]
            return [
                np.zeros(tuple(p.shape), _kind(p)) if t is None else ops.detach(t).array().copy()
                for p, t in pairs
            ]

    def by_forward(self, which: int) -> Arrays:
        """Return for each output its Jacobian by one input, from forward mode."""
        columns = []
        for unit in units(self.checked[which]):
            directions = self.still()
            directions[which] = unit
            columns.append([real(one) for one in self.pushed(directions)])
        return _stacked(columns, [real(one).size for one in self.values()])


def _dual(value: Any, direction: Array) -> Any:
    from refruntime.autograd import forward_ad

    return forward_ad.make_dual(ops.detach(value), tensor_of(direction, value))


def _kind(value: Any) -> type:
    return complex if value.meta.dtype.is_complex else float


def _wide(values: Array) -> Array:
    return values.astype(np.complex128 if np.iscomplexobj(values) else np.float64)


def _stacked(columns: list[Arrays], sizes: list[int]) -> Arrays:
    if not columns:
        return [np.zeros((size, 0)) for size in sizes]
    return [np.stack(column, axis=1) for column in zip(*columns, strict=True)]
