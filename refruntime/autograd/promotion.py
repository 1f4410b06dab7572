"""Making a tensor a wrapper in place: what happens when a wrapper is written into a plain tensor.

Invariants
----------
* A tensor is promoted together with the tensor that it is a view of, and with that one's other
  views, so that all of them go on showing the same elements.
* Views that are plain tensors are found among the objects that the garbage collector tracks, and
  only if something else than the tensor and the view at hand knows the memory.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any, Protocol

from refruntime._impl import TensorImpl
from refruntime._ops.opdef import ops
from refruntime.autograd.levels import Wrapper, is_wrapper_of

Show = Callable[[Any], Any]

_SLOTS = ("autograd", "byte_offset", "counter", "meta", "storage")


class Promotes(Protocol):
    """What a level does for promotion."""

    def take_root(self, tensor: Any) -> None:
        """Make a tensor that is no view a wrapper of the level."""

    def take_view(self, tensor: Any, source: Any, show: Show) -> None:
        """Make a tensor the wrapper of the level that ``show`` shows of a promoted one."""


def become(tensor: Any, other: Any) -> None:
    """Make a tensor what another one is."""
    tensor.__dict__.clear()
    tensor.__class__ = type(other)
    for name in _SLOTS:
        setattr(tensor, name, getattr(other, name))
    if not isinstance(other, Wrapper):
        tensor.base = other.base
    tensor.__dict__.update(other.__dict__)


def copy_of(tensor: Any) -> Any:
    """Return another object that is what a tensor is."""
    made = object.__new__(type(tensor))
    become(made, tensor)
    return made


def promote(tensor: Any, level: Any, known: int = 0) -> None:
    """Make a tensor a wrapper of a level in place, with all that shows the same memory.

    Parameters
    ----------
    tensor : tensor
        A plain one, or a wrapper of a lower level.
    level : Level
        Provides `Promotes`.
    known : int
        How many views of the tensor the caller takes care of.
    """
    origin = origin_of(tensor)
    if origin is None:
        views = _plain_views(tensor, known)
        level.take_root(tensor)
        for view in views:
            promote(view, level)
        return
    source, show = origin
    if not is_wrapper_of(source, level):
        promote(source, level, known=1)
    if not is_wrapper_of(tensor, level):
        level.take_view(tensor, source, show)


def origin_of(tensor: Any) -> tuple[Any, Show] | None:
    """Return what a tensor is a view of, and the function that shows the view; or None."""
    if isinstance(tensor, Wrapper):
        return tensor.origin
    base: Any = tensor.base
    meta = tensor.meta
    if base is None:
        return None
    shift = (tensor.byte_offset - base.byte_offset) // meta.dtype.itemsize
    return base, lambda whole: ops.as_strided(
        whole, meta.shape, meta.strides, shift + whole.byte_offset // meta.dtype.itemsize
    )


# References to a storage that one tensor knows: its slots `storage` and `counter`, and the argument
# of getrefcount; each view has two more.
_LONE, _EACH_VIEW = 3, 2


def _plain_views(tensor: Any, known: int) -> list[Any]:
    if isinstance(tensor, Wrapper):
        return []
    if sys.getrefcount(tensor.storage) <= _LONE + _EACH_VIEW * known:
        return []
    return [
        view
        for view in gc.get_referrers(tensor)
        if not isinstance(view, Wrapper) and isinstance(view, TensorImpl) and view.base is tensor
    ]
