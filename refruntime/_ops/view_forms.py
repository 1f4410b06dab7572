"""Forms of the view ops: at least so many dimensions, and views that a tensor takes on itself.

Invariants
----------
* ``unsqueeze_`` and its kin change no element: they give the tensor the metadata (and, under
  autograd, the history) of the view.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from refruntime._ops.opdef import METHODS, front, require_tensor
from refruntime._ops.views import squeeze, t, transpose, unsqueeze, view
from refruntime.errors import AutogradError


def _atleast(ndim: int) -> Callable[..., Any]:
    def raise_to(input: Any) -> Any:
        missing = ndim - input.meta.ndim
        if missing <= 0:
            return input
        # torch puts the size of a vector in the middle of three dimensions.
        if ndim == 3 and input.meta.ndim:
            input = unsqueeze(input, -1)
            return unsqueeze(input, 0) if missing == 2 else input
        return view(input, (1,) * missing + tuple(input.meta.shape))

    def atleast(*tensors: Any) -> Any:
        if len(tensors) == 1 and not isinstance(tensors[0], (tuple, list)):
            return raise_to(tensors[0])
        listed = tensors[0] if len(tensors) == 1 else tensors
        return tuple(raise_to(tensor) for tensor in listed)

    atleast.__name__ = atleast.__qualname__ = f"atleast_{ndim}d"
    atleast.__doc__ = f"Give tensors leading dimensions until they have {ndim}."
    return atleast


for _ndim in (1, 2, 3):
    front(method=False)(_atleast(_ndim))


# ---------------------------------------------------------------------------------------------
# Forms that change the tensor itself


def _metadata_form(name: str, function: Callable[..., Any]) -> None:
    def inplace(self: Any, *args: Any, **kwargs: Any) -> Any:
        require_tensor(name, self)
        shown = function(self, *args, **kwargs)
        leaf = self.autograd is not None and self.autograd.grad_fn is None
        if leaf and shown.autograd is not None:
            raise AutogradError(
                name, what="a leaf Variable that requires grad is being used in an in-place "
                "operation", expected="a tensor that is no leaf, or no_grad mode", got="a leaf",
                remedy=f"use {name.rstrip('_')}(), which makes a new tensor",
            )  # fmt: skip
        self.meta, self.byte_offset = shown.meta, shown.byte_offset
        self.counter.version += 1
        if shown.autograd is not None:
            shown.autograd.view_version = self.counter.version
            self.autograd = shown.autograd
        return self

    inplace.__name__ = inplace.__qualname__ = name
    inplace.__doc__ = f"Change the tensor itself to what ``{name.rstrip('_')}`` shows."
    METHODS[name] = inplace


for _function in (squeeze, unsqueeze, transpose, t):
    _metadata_form(_function.__name__ + "_", _function)
for _name in ("swapaxes_", "swapdims_"):
    _metadata_form(_name, transpose)
