"""Parameter and Buffer: tensors that a Module registers when they are set as attributes.

State
-----
A Parameter is an ordinary leaf tensor of another class: it shares the memory and the version
counter of the tensor that it was made from. Its storage is tagged PARAMETER.

Invariants
----------
* The class alone says that a tensor is a parameter; results of operations are plain tensors.
* A Buffer carries `persistent`, which `Module.__setattr__` reads once.
"""

from __future__ import annotations

from typing import Any

from refruntime._impl import TensorImpl, plain_types
from refruntime._ops.opdef import ops
from refruntime._tensor import Tensor
from refruntime.alloc import categories
from refruntime.errors import ArgumentTypeError, AutogradError

__all__ = ["Buffer", "Parameter"]


def _retyped(cls: type[Tensor], data: TensorImpl, requires_grad: bool) -> Any:
    """Make a leaf of class `cls` over the memory of `data`."""
    leaf = object.__new__(cls)
    leaf.storage = data.storage
    leaf.meta = data.meta
    leaf.byte_offset = data.byte_offset
    leaf.counter = data.counter
    leaf.base = None
    leaf.autograd = None
    return leaf.requires_grad_(requires_grad)


def _as_data(what: str, data: Any) -> TensorImpl:
    if data is None:
        return ops.empty(0)  # type: ignore[no-any-return]
    if not isinstance(data, TensorImpl):
        raise ArgumentTypeError(
            what, expected="Tensor or None", got=type(data).__name__,
            remedy="make a tensor of it first",
        )  # fmt: skip
    return data


class Parameter(Tensor):
    """A tensor that a Module counts among its parameters.

    Parameters
    ----------
    data : Tensor, optional
        The values; the memory is shared, not copied. An empty tensor if None.
    requires_grad : bool
        Whether gradients are accumulated into ``grad``.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        plain_types.add(cls)

    def __new__(cls, data: Any = None, requires_grad: bool = True) -> Parameter:
        """Make a leaf over the memory of `data`."""
        source = _as_data("Parameter", data)
        if requires_grad and not (source.dtype.is_floating_point or source.dtype.is_complex):
            raise AutogradError(
                "Parameter",
                what="Only Tensors of floating point and complex dtype can require gradients",
                got=repr(source.dtype),
                remedy="pass requires_grad=False",
            )
        source.storage.tag(categories.PARAMETER)
        made: Parameter = _retyped(cls, source, requires_grad)
        return made

    def __init__(self, data: Any = None, requires_grad: bool = True) -> None:
        # Everything is done in __new__; this keeps `object.__init__` from seeing the arguments.
        super().__init__()

    def __deepcopy__(self, memo: dict[int, Any]) -> Parameter:
        if id(self) in memo:
            known: Parameter = memo[id(self)]
            return known
        copied = type(self)(ops.clone(ops.detach(self)), self.requires_grad)
        copied.__dict__.update(self.__dict__)
        memo[id(self)] = copied
        return copied

    def __repr__(self, *, tensor_contents: str | None = None) -> str:  # type: ignore[override]
        return f"Parameter containing:\n{super().__repr__()}"

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _rebuild_parameter, (
            type(self), ops.detach(self), self.requires_grad, dict(self.__dict__)
        )  # fmt: skip


class Buffer(Tensor):
    """A tensor that a Module counts among its buffers when it is set as an attribute.

    Parameters
    ----------
    data : Tensor, optional
        The values; the memory is shared. An empty tensor if None.
    persistent : bool
        Whether the buffer stands in the module's ``state_dict``.
    """

    persistent: bool

    def __new__(cls, data: Any = None, *, persistent: bool = True) -> Buffer:
        """Make a buffer over the memory of `data`."""
        source = _as_data("Buffer", data)
        made: Buffer = _retyped(cls, source, False)
        made.persistent = persistent
        return made

    def __init__(self, data: Any = None, *, persistent: bool = True) -> None:
        pass

    def __deepcopy__(self, memo: dict[int, Any]) -> Buffer:
        if id(self) in memo:
            known: Buffer = memo[id(self)]
            return known
        copied = type(self)(ops.clone(ops.detach(self)), persistent=self.persistent)
        memo[id(self)] = copied
        return copied


# Results of operations on them are plain tensors: the dispatcher need not look twice.
plain_types.update((Parameter, Buffer))


def _rebuild_parameter(
    cls: type[Parameter], data: Any, requires_grad: bool, extras: dict[str, Any]
) -> Parameter:
    made = cls(data, requires_grad)
    made.__dict__.update(extras)
    return made
