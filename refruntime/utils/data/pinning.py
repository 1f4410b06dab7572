"""Pinning of batches: the tensors in them move to page-locked memory, their structure stays.

Invariants
----------
* Containers of the caller are never changed; a container that cannot be made anew from its parts
  becomes a dict or a list.
* What pins itself (any object with a `pin_memory` method) is asked to; all else passes through.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def pin_memory(data: Any, device: Any = None) -> Any:
    """Return a batch with its tensors in page-locked memory."""
    if hasattr(data, "pin_memory"):
        return data.pin_memory()
    if isinstance(data, (str, bytes)):
        return data
    if isinstance(data, Mapping):
        return _made_like(data, {key: pin_memory(value) for key, value in data.items()})
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(pin_memory(part) for part in data))
    if isinstance(data, tuple):
        return tuple(pin_memory(part) for part in data)
    if isinstance(data, Sequence):
        return _made_like(data, [pin_memory(part) for part in data])
    return data


def _made_like(container: Any, parts: Any) -> Any:
    """Return the parts in a container of the same type, if it takes them."""
    try:
        return type(container)(parts)
    except TypeError:
        return parts
