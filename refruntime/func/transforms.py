"""Function transforms: gradients, products with Jacobians, Jacobians and Hessians.

Invariants
----------
* A transform takes a function and returns a function; transforms nest in any order.
* What a function closes over takes part in outer transforms, and in no inner one.
* Arguments and results may be nested containers of tensors; ``has_aux`` says that the function
  returns a pair whose second part is passed on as it is, without derivatives.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from refruntime._impl import TensorImpl
from refruntime._ops.opdef import ops
from refruntime._pytree import TreeSpec, tree_flatten, tree_leaves, tree_map, tree_unflatten
from refruntime.autograd.batching import VmapLevel, vmap
from refruntime.autograd.dual import DualLevel, join, split
from refruntime.autograd.forward_ad import check_pair
from refruntime.autograd.levels import Level, opened, stack
from refruntime.autograd.modes import enable_grad, state
from refruntime.autograd.nested import depends_on_outside, enter, gradients, leave
from refruntime.autograd.node import is_differentiable
from refruntime.errors import (
    ArgumentValueError,
    AutogradError,
    ShapeError,
)

Function = Callable[..., Any]


def open_batches() -> list[VmapLevel]:
    """Return the levels of `vmap` that are open in this thread, outermost first."""
    return [level for level in stack.levels if isinstance(level, VmapLevel)]


def _with_aux(name: str, result: Any, has_aux: bool) -> tuple[Any, Any]:
    if not has_aux:
        return result, None
    if not isinstance(result, tuple) or len(result) != 2:
        raise AutogradError(
            name, what=f"{name}: output of function f should be a tuple: (output, aux) if has_aux "
            "is True", expected="a pair", got=type(result).__name__,
        )  # fmt: skip
    return result


def _leaving(level: Level, tree: Any) -> Any:
    return tree_map(lambda x: leave(x, level) if isinstance(x, TensorImpl) else x, tree)


def _require_tensors(name: str, what: str, leaves: list[Any]) -> None:
    for leaf in leaves:
        if not isinstance(leaf, TensorImpl):
            raise AutogradError(
                name, what=f"{name}: Expected all {what} to be tensors", expected="Tensor",
                got=type(leaf).__name__,
            )  # fmt: skip


# ---------------------------------------------------------------------------------------------
# Reverse mode


def _chosen(name: str, argnums: Any, args: tuple[Any, ...]) -> tuple[int, ...]:
    """Return the places of the arguments that are differentiated."""
    places = (argnums,) if isinstance(argnums, int) else argnums
    if not isinstance(places, tuple) or not all(isinstance(p, int) for p in places):
        raise AutogradError(
            name, what="argnums must be int or Tuple[int, ...]", got=type(argnums).__name__
        )
    if not places:
        raise AutogradError(name, what="argnums must be non-empty", got="()")
    for place in places:
        if not -len(args) <= place < len(args):
            raise AutogradError(
                name, what=f"Got argnum={place}, but only {len(args)} positional inputs",
                expected=f"a place in [{-len(args)}, {len(args) - 1}]", got=place,
            )  # fmt: skip
    wrapped = tuple(place % len(args) for place in places)
    if len(set(wrapped)) < len(wrapped):
        raise AutogradError(name, what="argnums elements must be unique", got=str(places))
    return wrapped


class _Entered:
    """Arguments of which some are differentiated at a level."""

    def __init__(self, name: str, level: Level, args: tuple[Any, ...], places: Any) -> None:
        leaves, self.spec = tree_flatten(tuple(args[place] for place in places))
        _require_tensors(name, "differentiated arguments", leaves)
        for leaf in leaves:
            if not is_differentiable(leaf.meta):
                raise AutogradError(
                    name, what="only Tensors of floating point and complex dtype can require "
                    "gradients", expected="a floating dtype", got=str(leaf.meta.dtype),
                )  # fmt: skip
        batches = open_batches()
        self.leaves = [enter(leaf, level, batches) for leaf in leaves]
        parts = tree_unflatten(self.leaves, self.spec)
        self.args = list(args)
        for place, part in zip(places, parts, strict=True):
            self.args[place] = part

    def tree(self, leaves: list[Any], single: bool) -> Any:
        """Return what belongs to the leaves in the nesting of the arguments."""
        parts = tree_unflatten(leaves, self.spec)
        return parts[0] if single else parts


def _scalar(name: str, value: Any) -> None:
    if not isinstance(value, TensorImpl):
        raise AutogradError(
            name, what=f"Expected f(*args) to return tensor, got {type(value)}",
            expected="a tensor", got=type(value).__name__,
        )  # fmt: skip
    if value.meta.ndim:
        raise ShapeError(
            name, what="Expected f(*args) to return a scalar tensor, got tensor with "
            f"{value.meta.ndim} dims. Maybe you wanted to use the vjp or jacrev APIs instead?",
        )  # fmt: skip


def _zeros_for(found: list[Any], like: list[Any]) -> list[Any]:
    pairs = zip(found, like, strict=True)
    return [ops.zeros_like(value) if one is None else one for one, value in pairs]


def _grad_and_value(
    name: str, func: Function, argnums: Any, has_aux: bool, args: Any, kwargs: Any
) -> tuple[Any, Any, Any]:
    level, outer = Level(), state.grad
    with opened(level), enable_grad():
        entered = _Entered(name, level, args, _chosen(name, argnums, args))
        value, aux = _with_aux(name, func(*entered.args, **kwargs), has_aux)
        _scalar(name, value)
        again = outer and depends_on_outside((value,), level)
        weight = ops.ones_like(value)
        found = gradients([value], entered.leaves, [weight], create_graph=again, retain_graph=again)
        found = _zeros_for(found, entered.leaves)
        state.grad = outer
        found = [leave(one, level) for one in found]
        value, aux = _leaving(level, value), _leaving(level, aux)
    return entered.tree(found, isinstance(argnums, int)), value, aux


def grad(func: Function, argnums: int | tuple[int, ...] = 0, has_aux: bool = False) -> Function:
    """Return a function that computes the gradient of `func`, which returns one number.

    Parameters
    ----------
    func : callable
        Returns a zero-dim tensor (and something else, with `has_aux`).
    argnums : int or tuple of int
        The arguments to differentiate by.
    has_aux : bool
        Return ``(gradient, aux)``.
    """

    @functools.wraps(func)
    def gradient(*args: Any, **kwargs: Any) -> Any:
        found, _, aux = _grad_and_value("grad", func, argnums, has_aux, args, kwargs)
        return (found, aux) if has_aux else found

    return gradient


def grad_and_value(
    func: Function, argnums: int | tuple[int, ...] = 0, has_aux: bool = False
) -> Function:
    """Return a function that computes the gradient of `func` and its value; see `grad`."""

    @functools.wraps(func)
    def gradient(*args: Any, **kwargs: Any) -> Any:
        found, value, aux = _grad_and_value("grad_and_value", func, argnums, has_aux, args, kwargs)
        return (found, (value, aux)) if has_aux else (found, value)

    return gradient


class _Pullback:
    """The function that multiplies vectors with a Jacobian from the left."""

    def __init__(self, level: Level, outputs: list[Any], spec: TreeSpec, entered: _Entered) -> None:
        self.level = level
        self.outputs = outputs
        self.spec = spec
        self.entered = entered

    def __call__(self, cotangents: Any, retain_graph: bool = True, create_graph: Any = None) -> Any:
        leaves, spec = tree_flatten(cotangents)
        if spec != self.spec:
            raise AutogradError(
                "vjp", what="Expected pytree structure of cotangents to be the same as pytree "
                "structure of outputs to the function",
                expected=str(self.spec), got=str(spec),
            )  # fmt: skip
        for one, out in zip(leaves, self.outputs, strict=True):
            if one.meta.shape != out.meta.shape:
                raise ShapeError(
                    "vjp", what="Mismatch in shape: cotangent and output",
                    expected=str(tuple(out.meta.shape)), got=str(tuple(one.meta.shape)),
                )  # fmt: skip
        again = state.grad if create_graph is None else create_graph
        again = again and depends_on_outside((*self.outputs, *leaves), self.level)
        found = gradients(
            self.outputs, self.entered.leaves, leaves, create_graph=again, retain_graph=retain_graph
        )
        found = _zeros_for(found, self.entered.leaves)
        return self.entered.tree([leave(one, self.level) for one in found], False)


def _vjp(
    name: str, func: Function, primals: tuple[Any, ...], has_aux: bool, places: Any = None
) -> tuple[Any, _Pullback, Any]:
    level, outer = Level(), state.grad
    places = tuple(range(len(primals))) if places is None else places
    with opened(level), enable_grad():
        entered = _Entered(name, level, primals, places)
        result, aux = _with_aux(name, func(*entered.args), has_aux)
        outputs, spec = tree_flatten(result)
        _require_tensors(name, "outputs", outputs)
        state.grad = outer
        outside = tree_unflatten([leave(out, level) for out in outputs], spec)
        aux = _leaving(level, aux)
    return outside, _Pullback(level, outputs, spec, entered), aux


def vjp(func: Function, *primals: Any, has_aux: bool = False) -> Any:
    """Return the value of `func` and the function that multiplies a vector with its Jacobian.

    Parameters
    ----------
    func : callable
        Takes the primals and returns tensors.
    *primals : tensors or containers of them
        Where.
    has_aux : bool
        Return ``(output, vjp_fn, aux)``.
    """
    if not primals:
        raise AutogradError("vjp", what="at least one primal is needed", got="none")
    outputs, pullback, aux = _vjp("vjp", func, primals, has_aux)

    def vjp_fn(*cotangents: Any, retain_graph: bool = True, create_graph: Any = None) -> Any:
        given = cotangents[0] if len(cotangents) == 1 else cotangents
        return pullback(given, retain_graph, create_graph)

    return (outputs, vjp_fn, aux) if has_aux else (outputs, vjp_fn)


def jacrev(
    func: Function, argnums: int | tuple[int, ...] = 0, *, has_aux: bool = False,
    chunk_size: int | None = None, _preallocate_and_copy: bool = False,
) -> Function:  # fmt: skip
    """Return a function that computes the Jacobian of `func`, row by row at once.

    Parameters
    ----------
    func, argnums, has_aux
        As in `grad`; `func` returns tensors of any shape.
    chunk_size : int, optional
        How many rows are computed at once; default all.

    Returns
    -------
    callable
        Its result has, for each output and each argument, shape ``output shape + argument shape``.
    """
    if chunk_size is not None and chunk_size <= 0:
        raise ArgumentValueError(
            "jacrev", what="jacrev: `chunk_size` should be greater than 0", got=chunk_size
        )

    @functools.wraps(func)
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        places = _chosen("jacrev", argnums, args)
        bound = functools.partial(func, **kwargs) if kwargs else func
        outputs, pullback, aux = _vjp("jacrev", bound, args, has_aux, places)
        flat, spec = tree_flatten(outputs)
        rows = _rows(flat, pullback, spec, chunk_size)
        single = isinstance(argnums, int)
        parts = [pullback.entered.tree(row, single) for row in rows]
        result = tree_unflatten(parts, spec)
        return (result, aux) if has_aux else result

    return jacobian


def _rows(flat: list[Any], pullback: _Pullback, spec: TreeSpec, chunk: int | None) -> list[Any]:
    """Return for each output the Jacobian by each leaf of the arguments."""
    basis = _basis(flat)
    run = vmap(lambda *one: pullback(tree_unflatten(one, spec)), chunk_size=chunk)
    found = tree_leaves(run(*basis))
    counts = [out.meta.numel for out in flat]
    columns = [ops.split(one, counts, 0) for one in found]
    rows = []
    for k, out in enumerate(flat):
        shapes = [(*out.meta.shape, *leaf.meta.shape) for leaf in pullback.entered.leaves]
        rows.append([ops.reshape(c[k], shape) for c, shape in zip(columns, shapes, strict=True)])
    return rows


def _basis(flat: list[Any]) -> list[Any]:
    """Return unit vectors of the space of all tensors together, a batch for each tensor."""
    total = sum(value.meta.numel for value in flat)
    made, start = [], 0
    for value in flat:
        count, meta = value.meta.numel, value.meta
        block = ops.zeros((total, count), dtype=meta.dtype, device=meta.device)
        ops.fill_(ops.diagonal(ops.narrow(block, 0, start, count)), 1)
        made.append(ops.reshape(block, (total, *meta.shape)))
        start += count
    return made


# ---------------------------------------------------------------------------------------------
# Forward mode


def _jvp(
    name: str, func: Function, primals: Any, tangents: Any, has_aux: bool, strict: bool = False
) -> tuple[Any, Any, Any]:
    leaves, spec = tree_flatten(primals)
    moved, other = tree_flatten(tangents)
    if spec != other:
        raise AutogradError(
            name, what=f"{name}: Expected primals and tangents to have the same python structure",
            expected=str(spec), got=str(other),
        )  # fmt: skip
    _require_tensors(name, "primals", leaves)
    _require_tensors(name, "tangents", moved)
    level = DualLevel()
    try:
        with opened(level):
            duals = []
            for primal, tangent in zip(leaves, moved, strict=True):
                check_pair(name, primal, tangent)
                duals.append(join(level, ops.alias(primal), tangent))
            result, aux = _with_aux(name, func(*tree_unflatten(duals, spec)), has_aux)
            outputs, out_spec = tree_flatten(result)
            _require_tensors(name, "outputs", outputs)
            pairs = [split(out, level) for out in outputs]
            if strict and any(tangent is None for _, tangent in pairs):
                raise AutogradError(
                    name, what="jvp(f, primals, tangents, strict=True): the output of f is "
                    "independent of the inputs", expected="a function of its arguments",
                )  # fmt: skip
            aux = tree_map(lambda x: split(x, level)[0] if isinstance(x, TensorImpl) else x, aux)
    finally:
        level.close()
    values = [primal for primal, _ in pairs]
    derivatives = [ops.zeros_like(p) if t is None else t for p, t in pairs]
    return tree_unflatten(values, out_spec), tree_unflatten(derivatives, out_spec), aux


def jvp(
    func: Function, primals: Any, tangents: Any, *, strict: bool = False, has_aux: bool = False
) -> Any:
    """Return the value of `func` and the product of its Jacobian with a vector.

    Parameters
    ----------
    func : callable
        Takes the primals and returns tensors.
    primals, tangents : tuple
        Where, and in which direction; of one nesting, shapes and dtypes.
    strict : bool
        Refuse a function that does not depend on its arguments.
    has_aux : bool
        Return ``(output, derivative, aux)``.
    """
    if not isinstance(primals, tuple) or not isinstance(tangents, tuple):
        raise AutogradError(
            "jvp", what="jvp: Expected primals and tangents to be tuples", expected="tuple",
            got=f"{type(primals).__name__} and {type(tangents).__name__}",
        )  # fmt: skip
    if not primals:
        raise AutogradError("jvp", what="jvp: Expected at least one primal", got="none")
    values, derivatives, aux = _jvp("jvp", func, primals, tangents, has_aux, strict)
    return (values, derivatives, aux) if has_aux else (values, derivatives)


def jacfwd(
    func: Function, argnums: int | tuple[int, ...] = 0, has_aux: bool = False, *,
    randomness: str = "error",
) -> Function:  # fmt: skip
    """Return a function that computes the Jacobian of `func`, all columns at once.

    Parameters
    ----------
    func, argnums, has_aux
        As in `jacrev`.
    randomness : str
        As in `vmap`.
    """

    @functools.wraps(func)
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        places = _chosen("jacfwd", argnums, args)
        leaves, spec = tree_flatten(tuple(args[place] for place in places))
        _require_tensors("jacfwd", "differentiated arguments", leaves)
        basis = _basis(leaves)

        def of_chosen(*chosen: Any) -> Any:
            whole = list(args)
            for place, part in zip(places, chosen, strict=True):
                whole[place] = part
            return func(*whole, **kwargs)

        parts = tree_unflatten(leaves, spec)

        def push(*tangents: Any) -> Any:
            directions = tree_unflatten(tangents, spec)
            _, derivatives, aux = _jvp("jacfwd", of_chosen, parts, directions, has_aux)
            return (derivatives, aux) if has_aux else derivatives

        # What is passed on must be the same in all columns: it depends on no direction.
        out_dims: Any = (0, None) if has_aux else 0
        found = vmap(push, out_dims=out_dims, randomness=randomness)(*basis)
        derivatives, aux = found if has_aux else (found, None)
        result = tree_map(
            lambda out: _columns(out, leaves, spec, isinstance(argnums, int)), derivatives
        )
        return (result, aux) if has_aux else result

    return jacobian


def _columns(derivative: Any, leaves: list[Any], spec: TreeSpec, single: bool) -> Any:
    """Turn one output's derivatives, by direction, into its Jacobian by each argument."""
    shape = tuple(derivative.meta.shape[1:])
    last = ops.movedim(derivative, 0, -1)
    pieces = ops.split(last, [leaf.meta.numel for leaf in leaves], -1)
    jacobians = [
        ops.reshape(piece, (*shape, *leaf.meta.shape))
        for piece, leaf in zip(pieces, leaves, strict=True)
    ]
    parts = tree_unflatten(jacobians, spec)
    return parts[0] if single else parts


def hessian(func: Function, argnums: int | tuple[int, ...] = 0) -> Function:
    """Return a function that computes the second derivatives of `func`, forward over reverse."""
    return jacfwd(jacrev(func, argnums), argnums)


def linearize(func: Function, *primals: Any) -> tuple[Any, Function]:
    """Return the value of `func` and the linear function that its Jacobian is there.

    The returned function runs the forward derivative at the same primals each time.
    """
    values = func(*primals)

    def jvp_fn(*tangents: Any) -> Any:
        _, spec = tree_flatten(primals)
        _, other = tree_flatten(tangents)
        if spec != other:
            raise AutogradError(
                "linearize", what="Expected the tangents to have the same structure as the primals",
                expected=str(spec), got=str(other),
            )  # fmt: skip
        return _jvp("linearize", func, primals, tangents, False)[1]

    return values, jvp_fn
