"""``allow_mutation_on_saved_tensors``: a saved value is copied when something writes over it.

State
-----
A `_Context` for each ``with`` block: for each storage of a saved tensor, the values saved in it.

Invariants
----------
* A value is copied at most once, just before the first write to its memory, and only then.
* All writes pass the dispatcher with a target, so that a mode sees them before they happen.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

from refruntime import _dispatch
from refruntime._impl import TensorImpl, detached
from refruntime._ops.opdef import Inplace, OpDef, ops
from refruntime.autograd import saved
from refruntime.errors import AutogradError


class _Kept:
    """A saved tensor, and the copy that takes its place once its memory is written to."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: TensorImpl) -> None:
        self.tensor = tensor

    def copy(self) -> None:
        """Leave the shared memory for a copy of it."""
        self.tensor = ops.clone(detached(self.tensor))


class _Context:
    """What was saved inside one ``with`` block."""

    def __init__(self) -> None:
        self.kept: weakref.WeakKeyDictionary[Any, list[weakref.ref[_Kept]]] = (
            weakref.WeakKeyDictionary()
        )
        self.open = True

    def pack(self, tensor: TensorImpl) -> _Kept:
        """Keep a tensor that is being saved."""
        kept = _Kept(tensor)
        self.kept.setdefault(tensor.storage, []).append(weakref.ref(kept))
        return kept

    def unpack(self, kept: _Kept) -> TensorImpl:
        """Return the value that was saved."""
        if not self.open:
            raise AutogradError(
                "allow_mutation_on_saved_tensors",
                what="Trying to call backward outside of the 'allow_mutation_on_saved_tensors' "
                "context in which the graph was originally recorded",
                expected="backward inside of the context", got="a call after its end",
                remedy="move backward into the with block",
            )  # fmt: skip
        return kept.tensor

    def mode(self, op: OpDef, inputs: tuple[Any, ...], params: dict[str, Any], out: Any) -> Any:
        """Copy what a call is about to write over, then run the call."""
        if out is not None:
            for target in _targets(out):
                for reference in self.kept.pop(target.storage, ()):
                    kept = reference()
                    if kept is not None:
                        kept.copy()
        return _dispatch.call_under(self.mode, op, inputs, params, out)

    def clear(self) -> None:
        """Forget all that was saved so far."""
        self.kept.clear()


def _targets(out: Any) -> list[TensorImpl]:
    if isinstance(out, Inplace):
        return [out.target]
    outs = out if isinstance(out, (tuple, list)) else (out,)
    return [value for value in outs if isinstance(value, TensorImpl)]


@contextlib.contextmanager
def allow_mutation_on_saved_tensors() -> Iterator[_Context]:
    """Let tensors that were saved for backward be written to: backward sees the old values.

    Gives a context whose ``clear()`` forgets what was saved so far. Backward must run inside.
    """
    context = _Context()
    saved.push_hooks(context.pack, context.unpack)
    _dispatch.modes.append(context.mode)
    try:
        yield context
    finally:
        _dispatch.modes.remove(context.mode)
        saved.pop_hooks()
        context.open = False
        context.clear()
