"""Checking derivatives against finite differences.

Method
------
`gradcheck` compares, for each differentiable output, either the whole Jacobian with central
differences (the default, as in torch), or, with ``fast_mode``, one random directional derivative:
``v . J u`` from backward against ``v . (f(x + eps u) - f(x - eps u)) / 2 eps``. The second needs
two evaluations whatever the size. `gradgradcheck` checks the backward itself the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from refruntime._impl import TensorImpl, empty_impl, meta_of, requires_grad
from refruntime._ops.opdef import ops
from refruntime.autograd.api import grad
from refruntime.autograd.node import is_differentiable
from refruntime.errors import ArgumentValueError, GradcheckError

Array = np.ndarray[Any, Any]


def gradcheck(
    func: Callable[..., Any],
    inputs: Any,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    fast_mode: bool = False,
    seed: int = 0,
) -> bool:
    """Compare the gradients of `func` at `inputs` with central differences.

    Parameters
    ----------
    func : callable
        Takes the inputs, returns a tensor or a sequence of tensors.
    inputs : tensor or sequence
        Those that require grad are checked; use float64.
    eps, atol, rtol : float
        Step of the differences, and tolerances.
    raise_exception : bool
        Raise `GradcheckError` on a mismatch; else return False.
    nondet_tol : float
        Allowed difference between two backward calls.
    fast_mode : bool
        Check one random direction instead of the whole Jacobian.
    seed : int
        Of the random directions.
    """
    arguments = tuple(inputs) if isinstance(inputs, Sequence) else (inputs,)
    checked = [x for x in arguments if requires_grad(x)]
    if not checked:
        raise ArgumentValueError(
            "gradcheck", expected="at least one input that requires grad", got="none",
            remedy="set requires_grad=True",
        )  # fmt: skip
    problem = _Problem(func, arguments, checked, eps, np.random.default_rng(seed))
    check = problem.check_direction if fast_mode else problem.check_jacobian
    try:
        problem.check_repeatable(nondet_tol)
        for number in range(problem.count_outputs()):
            check(number, atol, rtol)
    except GradcheckError:
        if raise_exception:
            raise
        return False
    return True


def gradgradcheck(
    func: Callable[..., Any],
    inputs: Any,
    grad_outputs: Any = None,
    *,
    seed: int = 0,
    **kwargs: Any,
) -> bool:
    """Compare the second derivatives of `func` with differences of its first ones.

    Parameters are those of `gradcheck`; `grad_outputs` default to random numbers.
    """
    arguments = tuple(inputs) if isinstance(inputs, Sequence) else (inputs,)
    outputs = _differentiable(func(*arguments))
    if grad_outputs is None:
        rng = np.random.default_rng(seed + 1)
        grad_outputs = [_random_like(output, rng) for output in outputs]
    single = isinstance(grad_outputs, TensorImpl)
    given: list[Any] = [grad_outputs] if single else list(grad_outputs)
    for gradient in given:
        gradient.requires_grad_(True)
    count = len(arguments)

    def backward_of(*values: Any) -> tuple[Any, ...]:
        primals, cotangents = values[:count], values[count:]
        wanted = [x for x in primals if requires_grad(x)]
        results = grad(
            _differentiable(func(*primals)), wanted, list(cotangents), create_graph=True,
            allow_unused=True,
        )  # fmt: skip
        return tuple(r for r in results if r is not None and requires_grad(r))

    return gradcheck(backward_of, (*arguments, *given), seed=seed, **kwargs)


def _differentiable(outputs: Any) -> list[TensorImpl]:
    several = [outputs] if isinstance(outputs, TensorImpl) else list(outputs)
    return [x for x in several if requires_grad(x)]


def _random_like(value: TensorImpl, rng: np.random.Generator) -> Any:
    made = empty_impl(meta_of(value.meta.shape, value.meta.dtype))
    made.array()[...] = rng.standard_normal(tuple(value.meta.shape))
    return made


class _Problem:
    """A function at a point, with the derivatives that both checks need."""

    def __init__(
        self, func: Callable[..., Any], arguments: tuple[Any, ...], checked: list[TensorImpl],
        eps: float, rng: np.random.Generator,
    ) -> None:  # fmt: skip
        self.func = func
        self.arguments = arguments
        self.checked = checked
        self.eps = eps
        self.rng = rng
        for value in checked:
            if not is_differentiable(value.meta):
                raise ArgumentValueError(
                    "gradcheck", expected="floating inputs", got=str(value.meta)
                )

    def outputs(self) -> list[TensorImpl]:
        return _differentiable(self.func(*self.arguments))

    def count_outputs(self) -> int:
        return len(self.outputs())

    def gradients(self, number: int, cotangent: Array) -> list[Array]:
        """Return the gradient of ``cotangent . output`` for each checked input."""
        output = self.outputs()[number]
        seed = empty_impl(meta_of(output.meta.shape, output.meta.dtype))
        seed.array()[...] = cotangent
        results = grad([output], self.checked, [seed], allow_unused=True)
        return [
            np.zeros(value.meta.shape) if result is None else ops.detach(result).array().copy()
            for value, result in zip(self.checked, results, strict=True)
        ]

    def difference(self, number: int, directions: list[Array]) -> Array:
        """Return the central difference of an output along a direction of all inputs."""
        high = self._shifted(number, directions, self.eps)
        low = self._shifted(number, directions, -self.eps)
        difference: Array = (high - low) / (2 * self.eps)
        return difference

    def _shifted(self, number: int, directions: list[Array], step: float) -> Array:
        originals = [value.array().copy() for value in self.checked]
        try:
            for value, direction in zip(self.checked, directions, strict=True):
                value.array()[...] += step * direction
            values: Array = ops.detach(self.outputs()[number]).array().astype(np.float64).copy()
            return values
        finally:
            for value, original in zip(self.checked, originals, strict=True):
                value.array()[...] = original

    def check_repeatable(self, tolerance: float) -> None:
        for number, output in enumerate(self.outputs()):
            cotangent = self.rng.standard_normal(tuple(output.meta.shape))
            first, second = self.gradients(number, cotangent), self.gradients(number, cotangent)
            for one, two in zip(first, second, strict=True):
                if not np.allclose(one, two, rtol=0, atol=tolerance, equal_nan=True):
                    raise _mismatch("backward is not repeatable", number, one, two)

    def check_direction(self, number: int, atol: float, rtol: float) -> None:
        cotangent = self.rng.standard_normal(tuple(self.outputs()[number].meta.shape))
        directions = [self.rng.standard_normal(tuple(x.meta.shape)) for x in self.checked]
        analytic = sum(
            float((g * u).sum())
            for g, u in zip(self.gradients(number, cotangent), directions, strict=True)
        )
        numeric = float((cotangent * self.difference(number, directions)).sum())
        # A sum of many terms: the tolerance follows the size of the direction.
        scale = float(sum(np.abs(u).sum() for u in directions)) or 1.0
        if not abs(analytic - numeric) <= atol * scale + rtol * abs(numeric):
            raise _mismatch("directional derivative", number, analytic, numeric)

    def check_jacobian(self, number: int, atol: float, rtol: float) -> None:
        analytic = self._analytic_jacobian(number)
        for which, value in enumerate(self.checked):
            for index in np.ndindex(*value.meta.shape):
                directions = [np.zeros(x.meta.shape) for x in self.checked]
                directions[which][index] = 1.0
                numeric = self.difference(number, directions)
                column = analytic[which][(..., *index)]
                if not np.allclose(column, numeric, rtol=rtol, atol=atol, equal_nan=True):
                    where = f"Jacobian for input {which} at {index}"
                    raise _mismatch(where, number, column, numeric)

    def _analytic_jacobian(self, number: int) -> list[Array]:
        shape = tuple(self.outputs()[number].meta.shape)
        jacobians = [np.zeros((*shape, *value.meta.shape)) for value in self.checked]
        for index in np.ndindex(*shape):
            cotangent = np.zeros(shape)
            cotangent[index] = 1.0
            for jacobian, row in zip(jacobians, self.gradients(number, cotangent), strict=True):
                jacobian[index] = row
        return jacobians


def _mismatch(what: str, number: int, analytic: Any, numeric: Any) -> GradcheckError:
    return GradcheckError(
        "gradcheck",
        what=f"{what} of output {number} differs",
        expected=f"numerical {np.asarray(numeric)}",
        got=f"analytical {np.asarray(analytic)}",
        remedy="check the derivative rule, and that the inputs are float64 and away from kinks",
    )
