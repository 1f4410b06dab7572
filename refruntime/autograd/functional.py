"""Derivatives of functions: products with vectors, Jacobians, Hessians.

Invariants
----------
* What goes in as one tensor comes out as one; a tuple comes out as a tuple.
* The function sees tensors of its own: its arguments' gradients are not touched. With
  `create_graph` the results are differentiable with respect to the arguments themselves.
* A derivative that does not exist because the function ignores an argument is zero; `strict` makes
  it an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from refruntime._impl import TensorImpl
from refruntime._ops.opdef import ops
from refruntime.autograd.api import grad
from refruntime.autograd.modes import enable_grad
from refruntime.errors import ArgumentTypeError, AutogradError, ShapeError

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
    if strict and any(g is None for g in grads):
        raise AutogradError(
            op, what="the output does not depend on every input (strict mode)",
            expected="a function of all its arguments", got="one that ignores some",
        )  # fmt: skip
    pairs = zip(grads, like, strict=True)
    return tuple(ops.zeros_like(x) if g is None else g for g, x in pairs)


def _grads(
    op: str, outputs: Tensors, inputs: Tensors, v: Any, create_graph: bool, strict: bool = False
) -> Tensors:
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
    vectorize, strategy
        How torch may compute it; here one output element is differentiated after the other.

    Returns
    -------
    Tensor or nested tuple
        Shape ``output shape + input shape``, by output and then by input.
    """
    with enable_grad():
        single, given = _tuple("jacobian", "inputs", inputs)
        own = _own(given, create_graph)
        lone, outputs = _tuple("jacobian", "outputs", func(*own))
        rows = tuple(_rows(out, own, create_graph, strict) for out in outputs)
    parts = tuple(_result(single, row, create_graph) for row in rows)
    return parts[0] if lone else parts


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
        value = _scalar(op, func(*inputs))
        return _grads(op, (value,), inputs, (ops.ones_like(value),), True, strict)

    return gradient


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
    single, given = _tuple("hessian", "inputs", inputs)
    found = jacobian(_gradient_of("hessian", func, strict), given, create_graph, strict)
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
        found = _grads("vhp", slope, own, _vectors("vhp", v, given), create_graph)
    return _result(True, (value,), create_graph), _result(single, found, create_graph)


def hvp(
    func: Function, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """Return the value of a function, and the product of its Hessian with a vector."""
    # The Hessian is symmetric where the second derivatives are continuous.
    return vhp(func, inputs, v, create_graph, strict)
