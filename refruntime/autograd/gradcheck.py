"""Checking derivatives against finite differences.

Method
------
`gradcheck` compares, for each differentiable output and input, the Jacobian that backward gives
(and, if asked, forward mode) with central differences; with ``fast_mode``, one random directional
derivative: ``v . J u`` with ``v . (f(x + eps u) - f(x - eps u)) / 2 eps``, which needs two
evaluations whatever the size. `gradgradcheck` checks the backward itself the same way.

Further checks: backward gives the same twice; a gradient that is not there counts as zero; a batch
of gradients gives what they give one by one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from refruntime._dtypes import complex128, float64
from refruntime._impl import TensorImpl, requires_grad
from refruntime._layout import has_internal_overlap
from refruntime._ops.opdef import ops
from refruntime.autograd.api import grad
from refruntime.autograd.function import Function
from refruntime.autograd.jacobians import (
    Array,
    Problem,
    as_arguments,
    differentiable,
    random_like,
    real,
    tensor_of,
)
from refruntime.autograd.node import is_differentiable
from refruntime.errors import ArgumentValueError, AutogradError, GradcheckError

__all__ = ["GradcheckError", "gradcheck", "gradgradcheck"]


@dataclass(frozen=True, slots=True)
class _Tolerances:
    atol: float
    rtol: float
    nondet: float


def gradcheck(
    func: Callable[..., Any],
    inputs: Any,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_batched_forward_grad: bool = False,
    check_forward_ad: bool = False,
    check_backward_ad: bool = True,
    fast_mode: bool = False,
    masked: bool | None = None,
    seed: int = 0,
) -> bool:
    """Compare the derivatives of `func` at `inputs` with central differences.

    Parameters
    ----------
    func : callable
        Takes the inputs, returns a tensor or a sequence of tensors.
    inputs : tensor or sequence
        Those that require grad are checked; use float64 or complex128.
    eps, atol, rtol : float
        Step of the differences, and tolerances.
    raise_exception : bool
        Raise `GradcheckError` on a mismatch; else return False.
    nondet_tol : float
        Allowed difference between two backward calls.
    check_undefined_grad : bool
        Check that a gradient which is not there counts as zero.
    check_grad_dtypes : bool
        Check that gradients have the dtype of their inputs.
    check_batched_grad, check_batched_forward_grad : bool
        Check that a batch of derivatives equals the derivatives one by one.
    check_forward_ad, check_backward_ad : bool
        Which modes are checked.
    fast_mode : bool
        Check one random direction instead of the whole Jacobian.
    masked : bool, optional
        Accepted; inputs are dense.
    seed : int
        Of the random directions.
    """
    if not (check_forward_ad or check_backward_ad):
        raise ArgumentValueError(
            "gradcheck", what="Expected at least one of check_forward_ad or check_backward_ad to "
            "be True", got="neither",
        )  # fmt: skip
    if check_batched_grad and not check_backward_ad:
        raise ArgumentValueError(
            "gradcheck", what="Setting check_batched_grad=True requires check_backward_ad=True"
        )
    if check_batched_forward_grad and not check_forward_ad:
        raise ArgumentValueError(
            "gradcheck", what="Setting check_batched_forward_grad=True requires check_forward_ad"
        )
    arguments = as_arguments(inputs)
    _check_inputs(arguments)
    problem = Problem(func, arguments, eps)
    check = _Check(problem, _Tolerances(atol, rtol, nondet_tol), np.random.default_rng(seed))
    try:
        if check_forward_ad:
            (check.forward_direction if fast_mode else check.forward_jacobians)()
        if check_backward_ad:
            check.repeatable()
            (check.reverse_direction if fast_mode else check.reverse_jacobians)()
        if check_backward_ad and check_grad_dtypes:
            check.dtypes()
        if check_backward_ad and check_undefined_grad:
            check.undefined()
        if check_batched_forward_grad:
            check.batched_forward()
        if check_batched_grad:
            check.batched_reverse()
    except GradcheckError:
        if raise_exception:
            raise
        return False
    return True


def _check_inputs(arguments: tuple[Any, ...]) -> None:
    checked = [(k, x) for k, x in enumerate(arguments) if requires_grad(x)]
    if not checked:
        raise ArgumentValueError(
            "gradcheck",
            what="gradcheck expects at least one input tensor to require gradient, but none of "
            "them have requires_grad=True",
            expected="at least one input that requires grad", got="none",
            remedy="set requires_grad=True",
        )  # fmt: skip
    for place, value in checked:
        if not is_differentiable(value.meta):
            raise ArgumentValueError("gradcheck", expected="floating inputs", got=str(value.meta))
        if has_internal_overlap(value.meta.shape, value.meta.strides):
            raise AutogradError(
                "gradcheck",
                what=f"The {place}th input has a dimension with stride 0. gradcheck only supports "
                "inputs that are non-overlapping",
                expected="an input whose elements are apart", got=str(value.meta.strides),
                remedy="call .contiguous() on it first",
            )  # fmt: skip
        if value.meta.dtype not in (float64, complex128):
            warnings.warn(
                f"Input #{place} requires gradient and is not a double precision floating point or "
                "complex. This check will likely fail if all the inputs are not of double "
                "precision floating point or complex.",
                stacklevel=3,
            )


def gradgradcheck(
    func: Callable[..., Any],
    inputs: Any,
    grad_outputs: Any = None,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    gen_non_contig_grad_outputs: bool = False,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_fwd_over_rev: bool = False,
    check_rev_over_rev: bool = True,
    fast_mode: bool = False,
    masked: bool = False,
    seed: int = 0,
) -> bool:
    """Compare the second derivatives of `func` with differences of its first ones.

    Parameters
    ----------
    func, inputs, eps, atol, rtol, raise_exception, nondet_tol, fast_mode, masked, seed
        As in `gradcheck`, as are ``check_undefined_grad``, ``check_grad_dtypes`` and
        ``check_batched_grad``.
    grad_outputs : tensor or sequence, optional
        The gradients of the outputs; random by default.
    gen_non_contig_grad_outputs : bool
        Make the random ones non-contiguous.
    check_fwd_over_rev, check_rev_over_rev : bool
        Differentiate the backward in forward mode, in reverse mode.
    """
    arguments = as_arguments(inputs)
    outputs = [x for x in differentiable(func(*arguments)) if requires_grad(x)]
    if grad_outputs is None:
        rng = np.random.default_rng(seed + 1)
        given = [_cotangent(out, rng, gen_non_contig_grad_outputs) for out in outputs]
    else:
        given = list(as_arguments(grad_outputs))
    for gradient in given:
        gradient.requires_grad_(True)
    count = len(arguments)
    wanted = [k for k, x in enumerate(arguments) if requires_grad(x)]

    def backward_of(*values: Any) -> tuple[Any, ...]:
        primals, cotangents = values[:count], values[count:]
        return _first_derivatives(func, primals, cotangents, wanted)

    return gradcheck(
        backward_of, (*arguments, *given), eps=eps, atol=atol, rtol=rtol,
        raise_exception=raise_exception, nondet_tol=nondet_tol, fast_mode=fast_mode,
        check_undefined_grad=check_undefined_grad, check_grad_dtypes=check_grad_dtypes,
        check_batched_grad=check_batched_grad, check_forward_ad=check_fwd_over_rev,
        check_backward_ad=check_rev_over_rev, masked=masked, seed=seed,
    )  # fmt: skip


def _cotangent(output: TensorImpl, rng: np.random.Generator, apart: bool) -> Any:
    made = tensor_of(random_like(output, rng), output)
    if not apart or not output.meta.ndim:
        return made
    return ops.select(ops.stack([made, made], -1), -1, 0).detach()


def _first_derivatives(
    func: Callable[..., Any], primals: Any, cotangents: Any, wanted: list[int]
) -> tuple[Any, ...]:
    """Return the gradients of a function, also where its arguments are dual tensors."""
    from refruntime.autograd.levels import Level, Wrapper
    from refruntime.autograd.nested import batch_levels, enter, gradients

    if not any(isinstance(x, Wrapper) for x in (*primals, *cotangents)):
        outputs = [x for x in differentiable(func(*primals)) if requires_grad(x)]
        points = [primals[k] for k in wanted]
        found = grad(outputs, points, list(cotangents), create_graph=True, allow_unused=True)
        return tuple(r for r in found if r is not None)
    level = Level()
    batches = batch_levels((*primals, *cotangents))
    args = [enter(x, level, batches) if k in wanted else x for k, x in enumerate(primals)]
    # A wrapper requires grad if what it stands for does.
    outputs = [x for x in differentiable(func(*args)) if x.requires_grad]  # type: ignore[attr-defined]
    points = [args[k] for k in wanted]
    inside = gradients(outputs, points, list(cotangents), create_graph=False)
    return tuple(r for r in inside if r is not None)


class _Undefined(Function):
    """Passes values on, and no gradients back."""

    @staticmethod
    def forward(ctx: Any, *values: Any) -> Any:
        return tuple(ops.view(value, value.meta.shape) for value in values)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return (None,) * len(grads)


class _Check:
    """The comparisons."""

    def __init__(self, problem: Problem, tolerances: _Tolerances, rng: np.random.Generator) -> None:
        self.problem = problem
        self.tolerances = tolerances
        self.rng = rng
        self.numbers = problem.numbers_of_outputs()

    def _close(self, one: Array, two: Array, scale: float = 1.0) -> bool:
        atol = self.tolerances.atol * scale
        return np.allclose(one, two, rtol=self.tolerances.rtol, atol=atol, equal_nan=True)

    # -- whole Jacobians ----------------------------------------------------------------------

    def reverse_jacobians(self) -> None:
        """Compare backward with differences."""
        numerical = [self.problem.numerical(k) for k in range(len(self.problem.checked))]
        for number in self.numbers:
            for which, analytical in enumerate(self.problem.by_reverse(number)):
                self._compare("Jacobian", number, which, numerical[which][number], analytical)

    def forward_jacobians(self) -> None:
        """Compare forward mode with differences."""
        for which in range(len(self.problem.checked)):
            numerical, found = self.problem.numerical(which), self.problem.by_forward(which)
            for number in self.numbers:
                self._compare(
                    "Jacobian computed with forward mode", number, which, numerical[number],
                    found[number],
                )  # fmt: skip

    def _compare(
        self, what: str, number: int, which: int, numerical: Array, analytical: Array
    ) -> None:
        if not self._close(analytical, numerical):
            raise _mismatch(what, number, which, numerical, analytical)

    # -- one direction ------------------------------------------------------------------------

    def _directions(self) -> tuple[list[Array], float]:
        directions = [random_like(x, self.rng) for x in self.problem.checked]
        # A sum of many terms: the tolerance follows the size of the direction.
        return directions, float(sum(np.abs(u).sum() for u in directions)) or 1.0

    def reverse_direction(self) -> None:
        """Compare backward with a difference along one direction."""
        for number in self.numbers:
            directions, scale = self._directions()
            numerical = self.problem.difference(directions)[number]
            cotangent = random_like_array(numerical, self.rng)
            pairs = zip(self.problem.gradients(number, cotangent), directions, strict=True)
            analytical = sum(float(real(g) @ real(np.asarray(u, g.dtype))) for g, u in pairs)
            expected = float(real(cotangent) @ real(numerical))
            if not self._close(np.asarray(analytical), np.asarray(expected), scale):
                self.reverse_jacobians()  # a clearer message, if the whole shows it too
                raise _mismatch("directional derivative", number, 0, expected, analytical)

    def forward_direction(self) -> None:
        """Compare forward mode with a difference along one direction."""
        directions, scale = self._directions()
        numerical, found = self.problem.difference(directions), self.problem.pushed(directions)
        for number in self.numbers:
            if not self._close(real(found[number]), real(numerical[number]), scale):
                self.forward_jacobians()
                raise _mismatch(
                    "directional derivative computed with forward mode", number, 0,
                    numerical[number], found[number],
                )  # fmt: skip

    # -- further checks -----------------------------------------------------------------------

    def repeatable(self) -> None:
        """Check that backward gives the same twice."""
        for number, output in zip(self.numbers, self.problem.outputs(), strict=True):
            cotangent = random_like(output, self.rng)
            first = self.problem.gradients(number, cotangent)
            second = self.problem.gradients(number, cotangent)
            for which, (one, two) in enumerate(zip(first, second, strict=True)):
                if not np.allclose(one, two, rtol=0, atol=self.tolerances.nondet, equal_nan=True):
                    raise _mismatch(
                        "Backward is not reentrant, i.e., running backward with same input and "
                        "grad_output multiple times gives different values: the gradient", number,
                        which, one, two,
                    )  # fmt: skip

    def dtypes(self) -> None:
        """Check that gradients have the dtypes of their inputs."""
        for output in self.problem.outputs():
            seed = tensor_of(random_like(output, self.rng), output)
            found = grad([output], self.problem.checked, [seed], allow_unused=True)
            for which, (one, x) in enumerate(zip(found, self.problem.checked, strict=True)):
                if one is not None and one.meta.dtype is not x.meta.dtype:
                    raise _failed(
                        f"Gradient for input {which} has a dtype mismatch",
                        str(x.meta.dtype), str(one.meta.dtype),
                    )  # fmt: skip

    def undefined(self) -> None:
        """Check that backward takes a gradient that is not there as zero."""
        outputs = self.problem.outputs()
        if not outputs:
            return
        hidden = _Undefined.apply(*outputs)
        seeds = [tensor_of(random_like(out, self.rng), out) for out in outputs]
        found = grad(list(hidden), self.problem.checked, seeds, allow_unused=True)
        for which, one in enumerate(found):
            if one is not None and np.any(ops.detach(one).array() != 0):
                raise _failed(
                    "Expected all input grads to be undefined or zero when all output grads are "
                    "undefined or zero",
                    "zeros", f"a gradient for input {which}",
                )  # fmt: skip

    def batched_reverse(self) -> None:
        """Check that a batch of gradients equals the gradients one by one."""
        from refruntime.autograd.batching import vmap

        for number, output in zip(self.numbers, self.problem.outputs(), strict=True):
            seeds = [tensor_of(random_like(output, self.rng), output) for _ in range(2)]

            def pull(seed: Any, output: Any = output) -> tuple[Any, ...]:
                found = grad(
                    [output], self.problem.checked, [seed], retain_graph=True, allow_unused=True
                )
                return tuple(_or_zeros(g, x) for g, x in zip(found, self.problem.checked))

            self._compare_batch("gradient", number, vmap(pull), pull, seeds)

    def batched_forward(self) -> None:
        """Check that a batch of forward derivatives equals the derivatives one by one."""
        from refruntime.autograd.batching import vmap

        for which, x in enumerate(self.problem.checked):
            seeds = [tensor_of(random_like(x, self.rng), x) for _ in range(2)]

            def push(tangent: Any, which: int = which) -> tuple[Any, ...]:
                return _pushed(self.problem, which, tangent)

            self._compare_batch("forward derivative", 0, vmap(push), push, seeds)

    def _compare_batch(
        self, what: str, number: int, batched: Any, single: Any, seeds: list[Any]
    ) -> None:
        try:
            found = batched(ops.stack(seeds))
        except Exception as error:
            raise _failed(
                f"While testing batched {what}s, vmap raised", "a batch", error
            ) from error
        expected = [ops.stack(list(column)) for column in zip(*map(single, seeds), strict=True)]
        for which, (one, two) in enumerate(zip(found, expected, strict=True)):
            left, right = ops.detach(one).array(), ops.detach(two).array()
            if not self._close(left, right):
                raise _mismatch(f"For output {number} and input {which}, the batched {what}",
                                number, which, right, left)  # fmt: skip


def _or_zeros(gradient: Any, like: Any) -> Any:
    return ops.zeros_like(like).detach() if gradient is None else gradient


def _pushed(problem: Problem, which: int, tangent: Any) -> tuple[Any, ...]:
    from refruntime.autograd import forward_ad

    with forward_ad.dual_level():
        args = [
            forward_ad.make_dual(ops.detach(x), tangent) if x is problem.checked[which] else x
            for x in problem.arguments
        ]
        pairs = [forward_ad.unpack_dual(x) for x in differentiable(problem.func(*args))]
    return tuple(ops.zeros_like(p).detach() if t is None else t for p, t in pairs)


def random_like_array(values: Array, rng: np.random.Generator) -> Array:
    """Return random numbers in the shape of an array, complex where it is."""
    numbers = rng.standard_normal(values.shape)
    if not np.iscomplexobj(values):
        return np.asarray(numbers)
    return np.asarray(numbers + 1j * rng.standard_normal(values.shape))


def _failed(what: str, expected: Any, got: Any) -> GradcheckError:
    return GradcheckError("gradcheck", what=what, expected=str(expected), got=str(got))


def _mismatch(
    what: str, number: int, which: int, numerical: Any, analytical: Any
) -> GradcheckError:
    one, two = np.asarray(numerical), np.asarray(analytical)
    worst = np.max(np.abs(one - two), initial=0.0)
    return GradcheckError(
        "gradcheck",
        what=f"{what} mismatch for output {number} with respect to input {which},\n"
        f"numerical:\n{one}\nanalytical:\n{two}\n"
        f"The max per-element difference is: {worst}",
        remedy="check the derivative rule, and that the inputs are float64 and away from kinks",
    )
