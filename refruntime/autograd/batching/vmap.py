"""`vmap`: a function of one sample, run on a whole batch at once.

Invariants
----------
* The batch goes through the function as one tensor each operand; how an operator runs on it stands
  in its record.
* Nested calls nest: each has a level and a batch dimension of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from refruntime import _dispatch
from refruntime._impl import TensorImpl
from refruntime._ops.opdef import ops
from refruntime._pytree import tree_broadcast, tree_flatten, tree_unflatten
from refruntime.autograd.batching.batched import RANDOMNESS, VmapLevel, is_tensor
from refruntime.autograd.levels import opened
from refruntime.errors import ArgumentValueError, ShapeError

Function = Callable[..., Any]


def vmap(
    func: Function, in_dims: Any = 0, out_dims: Any = 0, randomness: str = "error", *,
    chunk_size: int | None = None,
) -> Function:  # fmt: skip
    """Return a function that runs `func` on every sample of a batch at once.

    Parameters
    ----------
    func : callable
        Takes one sample of each argument; returns tensors (in any nesting of containers).
    in_dims : int, None or nested
        The dimension of each argument that is the batch; None for an argument that all samples
        share. One for all, one an argument, or the nesting of an argument.
    out_dims : int or nested
        Where the batch stands in each result.
    randomness : {"error", "same", "different"}
        What random operators do.
    chunk_size : int, optional
        How many samples run at once; default all.

    Raises
    ------
    ArgumentValueError
        If the arguments do not fit `in_dims`, or batches differ in size.
    """
    if randomness not in RANDOMNESS:
        raise ArgumentValueError(
            "vmap", what="Only allowed values for randomness are 'error', 'different', or 'same'",
            got=repr(randomness),
        )  # fmt: skip
    if chunk_size is not None and chunk_size <= 0:
        raise ArgumentValueError(
            "vmap", what="vmap: chunk_size should be None or greater than 0", got=chunk_size
        )

    @functools.wraps(func)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        flat_args, spec = tree_flatten((args, kwargs))
        dims = _dims_of(in_dims, args, kwargs, flat_args)
        size = _batch_size(dims, flat_args)
        if chunk_size is None or chunk_size >= size:
            return _run(func, flat_args, dims, spec, out_dims, size, randomness)
        return _run_chunks(func, flat_args, dims, spec, out_dims, size, randomness, chunk_size)

    return mapped


def _dims_of(in_dims: Any, args: Any, kwargs: Any, flat_args: list[Any]) -> list[int | None]:
    """Return the batch dimension of each leaf of the arguments; keywords are batched along 0."""
    if not isinstance(in_dims, (int, tuple, list, dict)) and in_dims is not None:
        raise ArgumentValueError(
            "vmap", what="expected `in_dims` to be int or a (potentially nested) tuple",
            got=type(in_dims).__name__,
        )  # fmt: skip
    if not args and not kwargs:
        raise ArgumentValueError(
            "vmap", what="Got no inputs. Maybe you forgot to add inputs, or you are trying to vmap "
            "over a function with no inputs", expected="at least one argument", got="none",
        )  # fmt: skip
    given = tree_broadcast(in_dims, list(args) if isinstance(in_dims, list) else args)
    if given is None:
        raise ArgumentValueError(
            "vmap",
            what="in_dims is not compatible with the structure of inputs",
            expected="one dimension for all, one an argument, or the nesting of an argument",
            got=f"in_dims={in_dims!r} for {len(args)} argument(s)",
        )
    keywords = [0 if is_tensor(value) else None for value in tree_flatten(kwargs)[0]]
    dims = [*given, *keywords]
    return [_checked_dim(dim, value) for dim, value in zip(dims, flat_args, strict=True)]


def _checked_dim(dim: Any, value: Any) -> int | None:
    if dim is None or (not is_tensor(value) and isinstance(dim, int)):
        if dim is not None and not is_tensor(value):
            raise ArgumentValueError(
                "vmap",
                what=f"Got in_dim={dim} for an input but the input is of type {type(value)}. We "
                "cannot vmap over non-Tensor arguments, please use None as the respective in_dim",
            )
        return None
    if not isinstance(dim, int):
        raise ArgumentValueError(
            "vmap", what="Got in_dim that is neither an int nor None", got=repr(dim)
        )
    ndim = value.meta.ndim
    if not -ndim <= dim < ndim:
        raise ArgumentValueError(
            "vmap",
            what=f"Got in_dim={dim} for some input, but that input is a Tensor of dimensionality "
            f"{ndim}", expected=f"0 <= in_dim < {ndim}", got=dim,
        )  # fmt: skip
    return int(dim % ndim)


def _batch_size(dims: list[int | None], flat_args: list[Any]) -> int:
    sizes = [v.meta.shape[d] for d, v in zip(dims, flat_args, strict=True) if d is not None]
    if not sizes:
        raise ArgumentValueError(
            "vmap", what="at least one input must have a batch dimension",
            expected="an in_dim that is not None", got="None for all",
        )  # fmt: skip
    if any(size != sizes[0] for size in sizes):
        raise ArgumentValueError(
            "vmap", what="Expected all tensors to have the same size in the mapped dimension",
            expected=str(sizes[0]), got=str(sizes),
        )  # fmt: skip
    return int(sizes[0])


def _run(
    func: Function, flat_args: list[Any], dims: list[int | None], spec: Any, out_dims: Any,
    size: int, randomness: str,
) -> Any:  # fmt: skip
    outs, out_spec, places = _outputs(func, flat_args, dims, spec, out_dims, size, randomness)
    return tree_unflatten(
        [_moved(out, dim) for out, dim in zip(outs, places, strict=True)], out_spec
    )


def _outputs(
    func: Function, flat_args: list[Any], dims: list[int | None], spec: Any, out_dims: Any,
    size: int, randomness: str,
) -> tuple[list[Any], Any, list[Any]]:  # fmt: skip
    """Return the results with the batch in front, their nesting, and where the batch goes."""
    from refruntime.autograd.batching.draws import watched

    level = VmapLevel(size, randomness)
    _dispatch.enter_mode(watched)
    try:
        with opened(level):
            samples = [
                value if dim is None else level.batched(ops.movedim(value, dim, 0))
                for value, dim in zip(flat_args, dims, strict=True)
            ]
            args, kwargs = tree_unflatten(samples, spec)
            results = func(*args, **kwargs)
            flat, out_spec = tree_flatten(results)
            places = _places_of(out_dims, results)
            outs = [
                _lowered(level, value, place) for value, place in zip(flat, places, strict=True)
            ]
    finally:
        _dispatch.leave_mode(watched)
    return outs, out_spec, places


def _places_of(out_dims: Any, results: Any) -> list[Any]:
    places = tree_broadcast(out_dims, results)
    if places is None or any(not isinstance(p, int) and p is not None for p in places):
        raise ArgumentValueError(
            "vmap",
            what="out_dims is not compatible with the structure of outputs",
            expected="one dimension for all outputs, or the nesting of the outputs",
            got=f"out_dims={out_dims!r}",
        )
    return places


def _lowered(level: VmapLevel, value: Any, place: Any) -> Any:
    if not isinstance(value, TensorImpl):
        raise ArgumentValueError(
            "vmap",
            what=f"vmap must only return Tensors, got type {type(value)}. Did you forget to wrap "
            "a value",
            expected="tensors", got=type(value).__name__,
        )  # fmt: skip
    if place is not None:
        return level.lower(value)
    if level.is_batched(value):
        raise ArgumentValueError(
            "vmap", what="an output with out_dims=None differs between samples",
            expected="an output that does not depend on the batch", got="a batched output",
            remedy="name a dimension in out_dims",
        )  # fmt: skip
    return value


def _moved(value: Any, place: Any) -> Any:
    if place is None or place == 0:
        return value
    ndim = value.meta.ndim
    if not -ndim <= place < ndim:
        raise ShapeError(
            "vmap", what="Dimension out of range for out_dims",
            expected=f"a dimension in [{-ndim}, {ndim - 1}]", got=place,
        )  # fmt: skip
    return ops.movedim(value, 0, place)


def _run_chunks(
    func: Function, flat_args: list[Any], dims: list[int | None], spec: Any, out_dims: Any,
    size: int, randomness: str, chunk: int,
) -> Any:  # fmt: skip
    rows = []
    out_spec: Any = None
    places: list[Any] = []
    for start in range(0, size, chunk):
        count = min(chunk, size - start)
        part = [
            value if dim is None else ops.narrow(value, dim, start, count)
            for value, dim in zip(flat_args, dims, strict=True)
        ]
        outs, out_spec, places = _outputs(func, part, dims, spec, out_dims, count, randomness)
        rows.append(outs)
    joined = [
        column[0] if place is None else _moved(ops.cat(list(column), 0), place)
        for column, place in zip(zip(*rows, strict=True), places, strict=True)
    ]
    return tree_unflatten(joined, out_spec)
