"""Forms of the view ops: copies, sums and differences of views, and views that a tensor takes on.

Invariants
----------
* ``unsqueeze_`` and its kin change no element: they give the tensor the metadata (and, under
  autograd, the history) of the view.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from refruntime._layout import broadcast_shapes, wrap_dim
from refruntime._ops import parts, splitting, views
from refruntime._ops.arguments import spread_ints
from refruntime._ops.opdef import METHODS, front, ops, require_tensor
from refruntime._ops.views import squeeze, t, transpose, unsqueeze, view
from refruntime.errors import AutogradError, ShapeError


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


@front()
def sum_to_size(input: Any, *size: Any) -> Any:
    """Return the tensor summed over the dimensions that `size` would broadcast."""
    require_tensor("sum_to_size", input)
    target = spread_ints("sum_to_size", "size", size)
    shape = input.meta.shape
    extra = len(shape) - len(target)
    if extra < 0 or tuple(broadcast_shapes(target, shape, op="sum_to_size")) != tuple(shape):
        raise ShapeError(
            "sum_to_size", what=f"size {list(target)} is not expandable to size {list(shape)}",
            expected="a size that broadcasts to the tensor's", got=str(target),
            remedy="check the sizes",
        )  # fmt: skip
    dims = [d for d in range(len(shape)) if d < extra or target[d - extra] != shape[d]]
    return ops.reshape(ops.sum(input, dims, keepdim=True), target) if dims else input


@front()
def diff(input: Any, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> Any:
    """Return the differences of neighbours along a dimension, taken `n` times."""
    require_tensor("diff", input)
    dim = wrap_dim(dim, input.meta.ndim, "diff")
    ends = [part for part in (prepend, input, append) if part is not None]
    joined = ops.cat(ends, dim) if len(ends) > 1 else input
    take = ops.bitwise_xor if joined.dtype.kind == "b" else ops.sub
    for _ in range(min(n, joined.meta.shape[dim])):
        length = joined.meta.shape[dim] - 1
        joined = take(ops.narrow(joined, dim, 1, length), ops.narrow(joined, dim, 0, length))
    return joined


def _copying_form(name: str, function: Callable[..., Any]) -> None:
    def copied(input: Any, *args: Any, **kwargs: Any) -> Any:
        shown = function(input, *args, **kwargs)
        return tuple(map(ops.clone, shown)) if isinstance(shown, tuple) else ops.clone(shown)

    copied.__name__ = copied.__qualname__ = f"{name}_copy"
    copied.__doc__ = f"Return a copy of what ``{name}`` shows."
    front(method=name == "narrow")(copied)


for _function in (
    parts.as_strided, parts.unfold, splitting.split, splitting.split_with_sizes, splitting.unbind,
    views.alias_, views.detach, views.diagonal, views.expand, views.narrow, views.permute,
    views.select, views.slice_, views.squeeze, views.t, views.transpose, views.unsqueeze,
    views.view,
):  # fmt: skip
    _copying_form(_function.__name__.rstrip("_"), _function)


# ---------------------------------------------------------------------------------------------
# Forms that change the tensor itself


def _metadata_form(name: str, function: Callable[..., Any]) -> None:
    def inplace(self: Any, *args: Any, **kwargs: Any) -> Any:
        require_tensor(name, self)
        shown = function(self, *args, **kwargs)
        if hasattr(self, "take_on"):  # it stands for others inside a function transform
            return self.take_on(shown)
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
