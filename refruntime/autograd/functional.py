"""Derivatives of functions: products with vectors, Jacobians, Hessians.

Invariants
----------
* What goes in as one tensor comes out as one; a tuple comes out as a tuple.
* The function sees tensors of its own: its arguments' gradients are not touched. With
  `create_graph` the results are differentiable with respect to the arguments themselves.
* A derivative that does not exist because the function ignores an argument is zero; `strict` makes
  it an error.
* ``vectorize=True`` computes all rows (or, in forward mode, all columns) at once, as a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from refruntime._impl import TensorImpl
from refruntime._ops.opdef import ops
from refruntime.autograd import nested
from refruntime.autograd.api import grad
from refruntime.autograd.levels import Level, Wrapper
from refruntime.autograd.modes import enable_grad
from refruntime.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    AutogradError,
    KernelMissingError,
    ShapeError,
)

Function = Callable[..., Any]
Tensors = tuple[Any, ...]


def _tuple(op: str, name: str, value: Any) -> tuple[bool, Tensors]:
    """Return whether there is one tensor only, and all as a tuple."""
    single = isinstance(value, TensorImpl)
    values = (value,) if single else tuple(value) if isinstance(value, (tuple, list)) else ()
    if not values or not all(isinstance(one, TensorImpl) for one in values):
        raise ArgumentTypeError(
            op, what=f"The {name} given to {op} must be Tensors or a tuple of Tensors",
            expected="Tensor", got=type(value).__name__,
        )  # fmt: skip
    return single, values


def _own(inputs: Tensors, create_graph: bool) -> Tensors:
    """Return tensors of our own with the values of the inputs, which require gradients."""
    return tuple(
        ops.alias(x) if create_graph and x.requires_grad else x.detach().requires_grad_()
        for x in inputs
    )


def _result(single: bool, values: Tensors, create_graph: bool) -> Any:
    kept = values if create_graph else tuple(value.detach() for value in values)
    return kept[0] if single else kept


def _filled(op: str, grads: Tensors, like: Tensors, strict: bool) -> Tensors:
    """Put zeros where there is no gradient."""
    for place, one in enumerate(grads):
        if strict and one is None:
            raise _independent(op, f"is independent of input {place}")
    pairs = zip(grads, like, strict=True)
    return tuple(ops.zeros_like(x) if g is None else g for g, x in pairs)


def _independent(op: str, what: str) -> AutogradError:
    return AutogradError(
        op, what=f"The output of the user-provided function {what}. This is not allowed in strict "
        "mode (or, for second derivatives, its jacobian is)",
        expected="a function of all its arguments", got="one that ignores some",
    )  # fmt: skip


def _grads(
    op: str, outputs: Tensors, inputs: Tensors, v: Any, create_graph: bool, strict: bool = False
) -> Tensors:
    if strict and not all(out.requires_grad for out in outputs):
        raise _independent(op, "does not require gradients")
    used = [(out, w) for out, w in zip(outputs, v, strict=True) if out.requires_grad]
    if not used:
        found: Tensors = (None,) * len(inputs)
    else:
        roots, weights = zip(*used, strict=True)
        found = grad(roots, inputs, weights, True, create_graph, allow_unused=True)
    return _filled(op, found, inputs, strict)


def _vectors(op: str, v: Any, like: Tensors) -> Tensors:
    """Return the vectors to multiply by; ones for a single number."""
    if v is None:
        if len(like) != 1 or like[0].numel() != 1:
            raise ShapeError(
                op, what="The vector v can only be None if there is a single scalar",
                expected="v", got="None",
            )  # fmt: skip
        return (ops.ones_like(like[0]),)
    _, vectors = _tuple(op, "v", v)
    if [tuple(x.shape) for x in vectors] != [tuple(x.shape) for x in like]:
        raise ShapeError(
            op, what="v has invalid size", expected=str([tuple(x.shape) for x in like]),
            got=str([tuple(x.shape) for x in vectors]),
        )  # fmt: skip
    return vectors


def vjp(
    func: Function, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """Return the outputs, and the product of a vector with the Jacobian.

    Parameters
    ----------
    func : callable
        Takes the inputs and returns a tensor or a tuple of them.
    inputs : Tensor or tuple
        Where.
    v : Tensor or tuple, optional
        Shaped like the outputs; left out for a single number.
    create_graph : bool
        Make the results differentiable.
    strict : bool
        Refuse a function that ignores an input.
    """
    with enable_grad():
        single, given = _tuple("vjp", "inputs", inputs)
        own = _own(given, create_graph)
        lone, outputs = _tuple("vjp", "outputs", func(*own))
        found = _grads("vjp", outputs, own, _vectors("vjp", v, outputs), create_graph, strict)
    return _result(lone, outputs, create_graph), _result(single, found, create_graph)


def jvp(
    func: Function, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """Return the outputs, and the product of the Jacobian with a vector; parameters as in `vjp`."""
    with enable_grad():
        _, given = _tuple("jvp", "inputs", inputs)
        own = _own(given, create_graph)
        vectors = _vectors("jvp", v, given)
        lone, outputs = _tuple("jvp", "outputs", func(*own))
        # The product with a vector is linear in the vector: differentiate it by the vector.
        dummies = tuple(ops.zeros_like(out).requires_grad_() for out in outputs)
        turned = _grads("jvp", outputs, own, dummies, True, strict)
        found = _grads("jvp", turned, dummies, vectors, create_graph)
    return _result(lone, outputs, create_graph), _result(lone, found, create_graph)


def jacobian(
    func: Function, inputs: Any, create_graph: bool = False, strict: bool = False,
    vectorize: bool = False, strategy: str = "reverse-mode",
) -> Any:  # fmt: skip
    """Return the derivative of each output element by each input element.

    Parameters
    ----------
    func, inputs, create_graph, strict
        As in `vjp`.
    vectorize : bool
        Compute all rows at once.
    strategy : {"reverse-mode", "forward-mode"}
        Forward mode needs `vectorize`; it is cheaper for more outputs than inputs.

    Returns
    -------
    Tensor or nested tuple
        Shape ``output shape + input shape``, by output and then by input.
    """
    _check_strategy("jacobian", strategy, vectorize, create_graph, strict)
    single, given = _tuple("jacobian", "inputs", inputs)
    if strategy == "forward-mode":
        lone, parts = _forward_jacobian(func, given)
        rows = tuple(_result(single, row, True) for row in parts)
        return rows[0] if lone else rows
    compute = _rows_at_once if vectorize else _rows
    with enable_grad():
        own = _own(given, create_graph)
        lone, outputs = _tuple("jacobian", "outputs", func(*own))
        found = [compute(out, own, create_graph, strict) for out in outputs]
    rows = tuple(_result(single, row, create_graph) for row in found)
    return rows[0] if lone else rows


def _check_strategy(
    op: str, strategy: str, vectorize: bool, create_graph: bool, strict: bool
) -> None:
    if strategy not in ("forward-mode", "reverse-mode"):
        raise ArgumentValueError(
            op, what='Expected strategy to be either "forward-mode" or "reverse-mode"',
            got=repr(strategy),
        )  # fmt: skip
    if vectorize and strict:
        raise AutogradError(
            op, what="`strict=True` and `vectorized=True` are not supported together",
            remedy="set strict=False or vectorize=False",
        )  # fmt: skip
    if strategy == "forward-mode" and not vectorize:
        raise KernelMissingError(
            op, what="Computing Jacobian using forward-AD or forward-over-reverse Hessian is only "
            "implemented for `vectorize=True`", remedy="set vectorize=True",
        )  # fmt: skip
    if strategy == "forward-mode" and create_graph:
        raise KernelMissingError(
            op, what='`create_graph=True` and `strategy="forward-mode"` are not supported together',
            remedy='set create_graph=False or strategy="reverse-mode"',
        )  # fmt: skip


def _rows(out: Any, inputs: Tensors, create_graph: bool, strict: bool) -> Tensors:
    """Differentiate one output, element by element."""
    found = []
    for position in range(out.numel()):
        weight = ops.zeros((out.numel(),), dtype=out.dtype, device=out.device)
        weight[position] = 1
        weight = ops.reshape(weight, tuple(out.shape))
        found.append(_grads("jacobian", (out,), inputs, (weight,), create_graph, strict))
    shapes = [(*out.shape, *x.shape) for x in inputs]
    if not found:
        return tuple(ops.zeros(s, dtype=out.dtype) for s in shapes)
    columns = zip(*found, strict=True)
    return tuple(
        ops.reshape(ops.stack(column), shape) for column, shape in zip(columns, shapes, strict=True)
    )


def _units(like: Any) -> Any:
    """Return all unit vectors of the space of a tensor, as a batch."""
    count = like.numel()
    return ops.reshape(ops.eye(count, dtype=like.dtype, device=like.device), (count, *like.shape))


def _rows_at_once(out: Any, inputs: Tensors, create_graph: bool, strict: bool) -> Tensors:
    """Differentiate one output, all elements as a batch."""
    from refruntime.autograd.batching import vmap

    def row(weight: Any) -> Tensors:
        return _grads("jacobian", (out,), inputs, (weight,), create_graph, strict)

    found = vmap(row)(_units(out))
    return tuple(
        ops.reshape(one, (*out.shape, *x.shape)) for one, x in zip(found, inputs, strict=True)
    )


def _forward_jacobian(func: Function, inputs: Tensors) -> tuple[bool, list[Tensors]]:
    """Return whether there is one output, and for each the Jacobian by each input, by columns."""
    from refruntime.autograd import forward_ad
    from refruntime.autograd.batching import vmap

    own = tuple(x.detach() for x in inputs)
    shape_of: list[bool] = []
    by_input = []
    for place, x in enumerate(own):

        def column(tangent: Any, place: int = place) -> Tensors:
            with forward_ad.dual_level():
                args = [
                    forward_ad.make_dual(one, tangent if k == place else ops.zeros_like(one))
                    for k, one in enumerate(own)
                ]
                lone, outputs = _tuple("jacobian", "outputs", func(*args))
                shape_of[:] = [lone]
                pairs = [forward_ad.unpack_dual(out) for out in outputs]
            return tuple(ops.zeros_like(p) if t is None else t for p, t in pairs)

        columns = vmap(column, out_dims=-1)(_units(x))
        by_input.append([ops.reshape(c, (*c.shape[:-1], *x.shape)) for c in columns])
    return shape_of[0], [tuple(row) for row in zip(*by_input, strict=True)]


def _scalar(op: str, value: Any) -> Any:
    if not isinstance(value, TensorImpl) or value.meta.numel != 1:
        raise ShapeError(
            op, what=f"The output of the function given to {op} should contain a single element",
            expected="one number", got=str(getattr(value, "shape", type(value).__name__)),
        )  # fmt: skip
    return ops.reshape(value, ())


def _gradient_of(op: str, func: Function, strict: bool) -> Function:
    """Return the function that gives the gradient of a function of one number."""

    def gradient(*inputs: Any) -> Any:
        if any(isinstance(x, Wrapper) for x in inputs):
            return _gradient_inside(op, func, inputs)
        value = _scalar(op, func(*inputs))
        return _grads(op, (value,), inputs, (ops.ones_like(value),), True, strict)

    return gradient


def _gradient_inside(op: str, func: Function, inputs: Tensors) -> Tensors:
    """Return the gradient at dual tensors: its tangents are the second derivatives."""
    level = Level()
    batches = nested.batch_levels(inputs)
    with enable_grad():
        own = [nested.enter(x, level, batches) for x in inputs]
        value = _scalar(op, func(*own))
        found = nested.gradients([value], own, [ops.ones_like(value)], create_graph=False)
    level.alive = False
    return _filled(op, tuple(found), inputs, False)


def hessian(
    func: Function, inputs: Any, create_graph: bool = False, strict: bool = False,
    vectorize: bool = False, outer_jacobian_strategy: str = "reverse-mode",
) -> Any:  # fmt: skip
    """Return the second derivatives of a function that gives one number.

    Parameters
    ----------
    func, inputs, create_graph, strict, vectorize
        As in `jacobian`.
    outer_jacobian_strategy : str
        As `strategy` of `jacobian`.
    """
    _check_strategy("hessian", outer_jacobian_strategy, vectorize, create_graph, strict)
    single, given = _tuple("hessian", "inputs", inputs)
    found = jacobian(
        _gradient_of("hessian", func, strict), given, create_graph, strict, vectorize,
        outer_jacobian_strategy,
    )  # fmt: skip
    return found[0][0] if single else found


def vhp(
    func: Function, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """Return the value of a function, and the product of a vector with its Hessian."""
    single, given = _tuple("vhp", "inputs", inputs)
    with enable_grad():
        own = _own(given, create_graph)
        value = _scalar("vhp", func(*own))
        slope = _grads("vhp", (value,), own, (ops.ones_like(value),), True, strict)
        found = _grads("vhp", slope, own, _vectors("vhp", v, given), create_graph, strict)
    return _result(True, (value,), create_graph), _result(single, found, create_graph)


def hvp(
    func: Function, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """Return the value of a function, and the product of its Hessian with a vector."""
    # The Hessian is symmetric where the second derivatives are continuous.
    return vhp(func, inputs, v, create_graph, strict)
