"""Collation: a list of samples becomes one batch.

State
-----
`default_collate_fn_map` maps a type to the function that stacks a list of values of that type;
a program may add to it.

Invariants
----------
* The structure of a sample (mapping, named tuple, sequence) is that of the batch.
"""

from __future__ import annotations

import collections.abc
import copy
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from refruntime._dtypes import float64
from refruntime._impl import TensorImpl
from refruntime._ops.opdef import ops
from refruntime.errors import ArgumentTypeError

__all__ = ["collate", "default_collate", "default_collate_fn_map", "default_convert"]

_TEXT_DTYPES = re.compile(r"[SaUO]")


def _unknown(value: Any) -> ArgumentTypeError:
    return ArgumentTypeError(
        "default_collate",
        what="default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists",
        got=f"found {type(value)}",
        remedy="pass a collate_fn to the DataLoader",
    )


def collate_tensor_fn(batch: list[Any], *, collate_fn_map: Any = None) -> Any:
    """Stack tensors along a new first dimension."""
    return ops.stack(batch, 0)


def collate_numpy_array_fn(batch: list[Any], *, collate_fn_map: Any = None) -> Any:
    """Stack arrays of numbers into a tensor."""
    if _TEXT_DTYPES.search(batch[0].dtype.str) is not None:
        raise _unknown(batch[0])
    return ops.stack([ops.as_tensor(array) for array in batch], 0)


def collate_numpy_scalar_fn(batch: list[Any], *, collate_fn_map: Any = None) -> Any:
    """Put NumPy scalars into a tensor of one dimension."""
    return ops.as_tensor(np.asarray(batch))


def collate_float_fn(batch: list[float], *, collate_fn_map: Any = None) -> Any:
    """Put floats into a float64 tensor."""
    return ops.tensor(batch, dtype=float64)


def collate_int_fn(batch: list[int], *, collate_fn_map: Any = None) -> Any:
    """Put integers (or booleans) into a tensor."""
    return ops.tensor(batch)


def collate_str_fn(batch: list[Any], *, collate_fn_map: Any = None) -> Any:
    """Leave texts as a list."""
    return batch


default_collate_fn_map: dict[Any, Callable[..., Any]] = {
    TensorImpl: collate_tensor_fn,
    np.ndarray: collate_numpy_array_fn,
    (np.bool_, np.number): collate_numpy_scalar_fn,
    float: collate_float_fn,
    int: collate_int_fn,
    str: collate_str_fn,
    bytes: collate_str_fn,
}


def _is_namedtuple(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


def _like(template: Any, built: Any, plain: type) -> Any:
    """Put collated members into a container of the sample's own type, where that can be made."""
    kind = type(template)
    if kind is plain:
        return built
    try:
        if hasattr(template, "update") or hasattr(template, "__setitem__"):
            # A copy keeps what the constructor would need, such as a default factory.
            clone = copy.copy(template)
            if isinstance(built, dict):
                clone.update(built)
            else:
                for i, value in enumerate(built):
                    clone[i] = value
            return clone
        return kind(built)
    except TypeError:
        return built


def _collate_sequence(batch: list[Any], first: Any, fn_map: Any) -> Any:
    if not all(len(sample) == len(first) for sample in batch):
        raise RuntimeError("each element in list of batch should be of equal size")
    columns = list(zip(*batch, strict=True))
    built = [collate(list(column), collate_fn_map=fn_map) for column in columns]
    if _is_namedtuple(first):
        return type(first)(*built)
    # A batch of plain tuples is a list, as in torch.
    return built if isinstance(first, tuple) else _like(first, built, list)


def collate(batch: list[Any], *, collate_fn_map: Any = None) -> Any:
    """Collate a list of samples with the functions of a map, going into containers.

    Parameters
    ----------
    batch : list
        Samples of the same structure.
    collate_fn_map : dict, optional
        Types (or tuples of types) to ``fn(batch, *, collate_fn_map)``.
    """
    first = batch[0]
    fn_map = {} if collate_fn_map is None else collate_fn_map
    exact = fn_map.get(type(first))
    if exact is not None:
        return exact(batch, collate_fn_map=fn_map)
    for kind, function in fn_map.items():
        if isinstance(first, kind):
            return function(batch, collate_fn_map=fn_map)
    if isinstance(first, Mapping):
        members = {
            key: collate([sample[key] for sample in batch], collate_fn_map=fn_map) for key in first
        }
        return _like(first, members, dict)
    if isinstance(first, collections.abc.Sequence):
        return _collate_sequence(batch, first, fn_map)
    raise _unknown(first)


def default_collate(batch: list[Any]) -> Any:
    """Stack tensors, arrays and numbers; keep texts as lists; go into containers.

    Parameters
    ----------
    batch : list
        Samples of the same structure.
    """
    return collate(batch, collate_fn_map=default_collate_fn_map)


def default_convert(data: Any) -> Any:
    """Turn arrays of numbers into tensors, going into containers; all else stays as it is."""
    if isinstance(data, TensorImpl):
        return data
    if isinstance(data, (np.ndarray, np.generic)):
        return data if _TEXT_DTYPES.search(data.dtype.str) else ops.as_tensor(np.asarray(data))
    if isinstance(data, Mapping):
        return _like(data, {key: default_convert(value) for key, value in data.items()}, dict)
    if _is_namedtuple(data):
        return type(data)(*(default_convert(value) for value in data))
    if isinstance(data, tuple):
        return [default_convert(value) for value in data]
    if isinstance(data, collections.abc.Sequence) and not isinstance(data, (str, bytes)):
        return _like(data, [default_convert(value) for value in data], list)
    return data
