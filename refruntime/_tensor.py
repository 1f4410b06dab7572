"""Tensor: the user's face of a TensorImpl.

State
-----
A `Tensor` is its own `TensorImpl` (one object), plus a dictionary for the user's attributes. The
operators' methods come from the registry; what stands here is what only a tensor can do: operators
of the language, conversion to Python, autograd state.

Invariants
----------
* Tensors hash by identity and compare elementwise.
* `data` and `detach` share memory; only `detach` shares the version counter.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from refruntime import _impl, _storage, _tensor_str, interop
from refruntime import serialization as _serialization
from refruntime._device import Device
from refruntime._impl import AutogradMeta, TensorImpl, detached
from refruntime._ops import families
from refruntime._ops.opdef import METHODS, ops
from refruntime._storage import UNTRACKED, Storage, VersionCounter
from refruntime.autograd.api import backward as _backward
from refruntime.autograd.hooks import RemovableHandle
from refruntime.autograd.node import gradient_edge, is_differentiable
from refruntime.errors import ArgumentTypeError, AutogradError, DeviceError, ShapeError

families.load()


class Tensor(TensorImpl):
    """A multi-dimensional array of one dtype on one device, with autograd.

    ``Tensor(2, 3)`` makes an unset float tensor of that shape and ``Tensor([1.0, 2.0])`` one with
    those values, as in torch; `tensor` is the better way.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        made = ops.legacy_tensor(args, kwargs)
        made.__class__ = cls
        return made

    if TYPE_CHECKING:
        # The operators' methods are installed from the registry when this module is loaded.
        def __getattr__(self, name: str) -> Any: ...

    def __class_getitem__(cls, item: Any) -> Any:
        return cls

    # -- what it is ---------------------------------------------------------------------------

    def size(self, dim: int | None = None) -> Any:
        """Return the shape, or the size of one dimension."""
        return self.meta.shape if dim is None else self.meta.shape[self._dim(dim)]

    def stride(self, dim: int | None = None) -> Any:
        """Return the strides in elements, or one of them."""
        return self.meta.strides if dim is None else self.meta.strides[self._dim(dim)]

    def _dim(self, dim: int) -> int:
        from refruntime._layout import wrap_dim

        return wrap_dim(dim, self.meta.ndim, "size")

    def dim(self) -> int:
        """Return the number of dimensions."""
        return self.meta.ndim

    ndimension = dim

    def numel(self) -> int:
        """Return the number of elements."""
        return self.meta.numel

    nelement = numel

    def element_size(self) -> int:
        """Return the size of an element in bytes."""
        return self.meta.dtype.itemsize

    @property
    def itemsize(self) -> int:
        """The size of an element in bytes."""
        return self.meta.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """The size of all elements in bytes."""
        return self.meta.nbytes

    def storage_offset(self) -> int:
        """Return the offset of the first element in the storage, in elements."""
        return self.byte_offset // self.meta.dtype.itemsize

    def untyped_storage(self) -> Storage:
        """Return the storage."""
        return self.storage

    def data_ptr(self) -> int:
        """Return the address of the first element, and pin the storage while it lives."""
        self.storage.exports += 1
        return self.address() if self.meta.numel else 0

    def is_contiguous(self, memory_format: Any = None) -> bool:
        """Whether the elements lie in row-major order without gaps."""
        from refruntime import _layout

        if memory_format is None or memory_format is _layout.contiguous_format:
            return self.meta.contiguous
        return tuple(self.meta.strides) == tuple(_layout.channels_last_strides(self.meta.shape))

    def is_floating_point(self) -> bool:
        """Whether the dtype is a floating one."""
        return self.meta.dtype.is_floating_point

    def is_complex(self) -> bool:
        """Whether the dtype is a complex one."""
        return self.meta.dtype.is_complex

    def is_signed(self) -> bool:
        """Whether the dtype has negative values."""
        return self.meta.dtype.is_signed

    @property
    def is_cuda(self) -> bool:
        """Whether the bytes are on a GPU."""
        return self.meta.device.type == "cuda"

    is_sparse = False
    is_quantized = False
    is_nested = False
    is_meta = False
    is_mps = False
    is_xpu = False
    layout = "torch.strided"

    def get_device(self) -> int:
        """Return the index of the GPU, or -1 on the CPU."""
        index = self.meta.device.index
        return -1 if index is None else index

    @property
    def names(self) -> tuple[None, ...]:
        """One None a dimension: named tensors do not exist here."""
        return (None,) * self.meta.ndim

    # -- conversion to Python ------------------------------------------------------------------

    def item(self) -> Any:
        """Return the only element as a Python number."""
        if self.meta.numel != 1:
            raise ShapeError(
                "item",
                what=f"a Tensor with {self.meta.numel} elements cannot be converted to Scalar",
                expected="one element",
                got=f"shape {tuple(self.meta.shape)}",
                remedy="reduce or index the tensor first, or use .tolist()",
            )
        value = self.array().reshape(()).item()
        return float(value) if self.meta.dtype.is_floating_point else value

    def tolist(self) -> Any:
        """Return nested lists of Python numbers (a number for a zero-dim tensor)."""
        array = self.array()
        if self.meta.dtype.is_floating_point and self.meta.dtype.itemsize == 2:
            array = array.astype(np.float32)
        return array.tolist()

    def numpy(self, *, force: bool = False) -> np.ndarray[Any, Any]:
        """Return a NumPy array over the same memory."""
        return interop.to_numpy(self, force)

    def __bool__(self) -> bool:
        if self.meta.numel != 1:
            raise _ambiguous(self)
        return bool(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __index__(self) -> int:
        if self.meta.dtype.kind in "fc" or self.meta.numel != 1:
            raise ArgumentTypeError(
                "__index__",
                what="only integer tensors of a single element can be converted to an index",
                expected="an integer tensor with one element",
                got=f"{self.meta.dtype} of shape {tuple(self.meta.shape)}",
                remedy="convert it with int(...) or .long()",
            )
        return int(self.item())

    def __len__(self) -> int:
        if self.meta.ndim == 0:
            raise ArgumentTypeError(
                "len", what="len() of a 0-d tensor", expected="at least one dimension",
                got="a zero-dim tensor", remedy="use .numel()",
            )  # fmt: skip
        return self.meta.shape[0]

    def __iter__(self) -> Iterator[Any]:
        if self.meta.ndim == 0:
            raise ArgumentTypeError(
                "iter", what="iteration over a 0-d tensor", expected="at least one dimension",
                got="a zero-dim tensor", remedy="use .item()",
            )  # fmt: skip
        return iter(ops.unbind(self, 0))

    def __contains__(self, value: Any) -> bool:
        return bool(ops.any(ops.eq(self, value)))

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self, *, tensor_contents: str | None = None) -> str:
        return _tensor_str.to_string(self)

    def __format__(self, spec: str) -> str:
        if self.meta.ndim == 0:
            return format(self.item(), spec)
        return object.__format__(self, spec)

    def __dir__(self) -> list[str]:
        return sorted(set(object.__dir__(self)))

    def __copy__(self) -> Any:
        return _serialization.copy_tensor(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return _serialization.deepcopy_tensor(self, memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _serialization.reduce_tensor(self, protocol)

    # -- autograd ------------------------------------------------------------------------------

    @property
    def requires_grad(self) -> bool:
        """Whether gradients flow to this tensor."""
        return self.autograd is not None and self.autograd.requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.requires_grad_(value)

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Say whether gradients flow to this leaf; returns the tensor."""
        if not self.is_leaf:
            if requires_grad:
                return self
            raise AutogradError(
                "requires_grad_",
                what="you can only change requires_grad flags of leaf variables",
                expected="a leaf",
                got=f"an output of {self.grad_fn.name()}",
                remedy="use .detach() to get a tensor that does not require grad",
            )
        if requires_grad and not is_differentiable(self.meta):
            raise AutogradError(
                "requires_grad_",
                what="only Tensors of floating point and complex dtype can require gradients",
                expected="a floating dtype",
                got=str(self.meta.dtype),
                remedy="convert it with .float()",
            )
        if self.autograd is None:
            if not requires_grad:
                return self
            self.autograd = AutogradMeta()
            self.autograd.view_version = self.counter.version
        self.autograd.requires_grad = bool(requires_grad)
        return self

    @property
    def is_leaf(self) -> bool:
        """Whether no recorded operation made this tensor."""
        return self.autograd is None or self.autograd.grad_fn is None

    @property
    def grad_fn(self) -> Any:
        """The node that made this tensor, or None."""
        if self.autograd is None or self.autograd.grad_fn is None:
            return None
        return gradient_edge(self)[0]

    @property
    def output_nr(self) -> int:
        """The place of this tensor among the outputs of its node."""
        return 0 if self.autograd is None else self.autograd.output_nr

    @property
    def grad(self) -> Any:
        """The gradient that backward accumulated, or None."""
        return None if self.autograd is None else self.autograd.grad

    @grad.setter
    def grad(self, value: Any) -> None:
        if value is not None:
            self._check_grad(value)
        if self.autograd is None:
            if value is None:
                return
            self.autograd = AutogradMeta()
        self.autograd.grad = value

    @grad.deleter
    def grad(self) -> None:
        self.grad = None

    def _check_grad(self, value: Any) -> None:
        if not isinstance(value, TensorImpl):
            raise ArgumentTypeError(
                "grad", what="assigned grad expected to be a Tensor or None",
                expected="Tensor or None", got=type(value).__name__, remedy="assign a tensor",
            )  # fmt: skip
        if value is self or value.meta.shape != self.meta.shape:
            raise ShapeError(
                "grad",
                what="assigned grad has data of a different size",
                expected=str(tuple(self.meta.shape)),
                got=str(tuple(value.meta.shape)),
                remedy="assign a gradient shaped like the tensor",
            )

    def backward(
        self, gradient: Any = None, retain_graph: bool | None = None, create_graph: bool = False,
        inputs: Any = None,
    ) -> None:  # fmt: skip
        """Accumulate the gradient of this tensor into the leaves it depends on."""
        _backward(self, gradient, retain_graph, create_graph, inputs)

    def retain_grad(self) -> None:
        """Keep the gradient of this non-leaf tensor in ``grad`` at the next backward."""
        if self.autograd is None or not self.autograd.requires_grad:
            raise AutogradError(
                "retain_grad", what="can't retain_grad on Tensor that has requires_grad=False",
                expected="a tensor that requires grad", got="one that does not",
                remedy="set requires_grad=True on an input",
            )  # fmt: skip
        if self.is_leaf or self.autograd.retains_grad:
            return
        node, number = gradient_edge(self)
        # Looking for the edge may have given a view a new history.
        self.autograd.retains_grad = True
        node.retain_output(number, self)

    @property
    def retains_grad(self) -> bool:
        """Whether this non-leaf tensor keeps its gradient."""
        return self.autograd is not None and self.autograd.retains_grad

    def register_hook(self, hook: Callable[[Any], Any]) -> RemovableHandle:
        """Call ``hook(gradient)`` whenever the gradient of this tensor is computed."""
        if self.autograd is None or not self.autograd.requires_grad:
            raise AutogradError(
                "register_hook",
                what="cannot register a hook on a tensor that doesn't require gradient",
                expected="a tensor that requires grad", got="one that does not",
                remedy="set requires_grad=True first",
            )  # fmt: skip
        if self.is_leaf:
            if self.autograd.hooks is None:
                self.autograd.hooks = OrderedDict()
            return RemovableHandle.enter(self.autograd.hooks, hook)
        node, number = gradient_edge(self)
        return node.register_tensor_hook(number, hook)  # type: ignore[no-any-return]

    def register_post_accumulate_grad_hook(self, hook: Callable[[Any], None]) -> RemovableHandle:
        """Call ``hook(leaf)`` after the gradient of this leaf was accumulated."""
        if not self.requires_grad or not self.is_leaf:
            raise AutogradError(
                "register_post_accumulate_grad_hook",
                what="post accumulate grad hooks cannot be registered on non-leaf tensors",
                expected="a leaf that requires grad", got=repr(self.grad_fn),
                remedy="use register_hook",
            )  # fmt: skip
        assert self.autograd is not None
        if self.autograd.post_accumulate_hooks is None:
            self.autograd.post_accumulate_hooks = OrderedDict()
        return RemovableHandle.enter(self.autograd.post_accumulate_hooks, hook)

    @property
    def data(self) -> Tensor:
        """The same memory without history and with a version counter of its own."""
        plain = detached(self)
        if not self.is_inference():
            plain.counter = VersionCounter(self.counter.version)
        return plain  # type: ignore[return-value]

    @data.setter
    def data(self, value: TensorImpl) -> None:
        if not isinstance(value, TensorImpl):
            raise ArgumentTypeError("data", expected="Tensor", got=type(value).__name__)
        self.counter = VersionCounter(self.counter.version)
        self.storage, self.meta, self.byte_offset = value.storage, value.meta, value.byte_offset

    def detach_(self) -> Tensor:
        """Cut this tensor from its history, in place."""
        self.autograd = None
        return self

    @property
    def _version(self) -> int:
        return self.counter.version

    @property
    def _base(self) -> Any:
        return self.base

    def _is_view(self) -> bool:
        return self.base is not None

    def is_inference(self) -> bool:
        """Whether the tensor was made in inference mode."""
        return self.counter is UNTRACKED

    def is_shared(self) -> bool:
        """Whether the memory is shared between processes."""
        return False

    def share_memory_(self) -> Tensor:
        """Return the tensor: worker processes get their data by value."""
        return self

    def pin_memory(self, device: Any = None) -> Tensor:
        """Return the tensor in page-locked memory: itself if it is there, or without a GPU.

        Raises
        ------
        DeviceError
            If the tensor is not on the CPU.
        """
        if self.is_pinned() or not _storage.gpu_allocators:
            return self
        if self.meta.device.type != "cpu":
            raise DeviceError(
                "pin_memory", what=f"cannot pin a tensor on {self.meta.device}",
                expected="a CPU tensor", got=str(self.meta.device), remedy="call .cpu() first",
            )  # fmt: skip
        meta = _impl.without_overlap(self.meta)
        pinned: Tensor = _impl.wrap(_storage.allocate_pinned(meta.span), meta)  # type: ignore[assignment]
        return pinned.copy_(self)  # type: ignore[no-any-return]

    def is_pinned(self) -> bool:
        """Whether the memory is page-locked."""
        return isinstance(self.storage, _storage.PinnedStorage)

    def is_set_to(self, other: TensorImpl) -> bool:
        """Whether both tensors are the same view of the same memory."""
        return (
            self.storage is other.storage
            and self.meta is other.meta
            and self.byte_offset == other.byte_offset
        )

    def as_subclass(self, cls: type) -> Any:
        """Return the same tensor as an instance of a subclass."""
        made = ops.alias(self)
        made.__class__ = cls
        return made

    # -- dtype and device ----------------------------------------------------------------------

    def cpu(self) -> Any:
        """Return the tensor on the CPU."""
        return ops.to(self, "cpu")

    def cuda(self, device: Any = None, non_blocking: bool = False) -> Any:
        """Return the tensor on a GPU."""
        return ops.to(self, Device("cuda") if device is None else device)

    # -- operators of the language -------------------------------------------------------------

    def __getitem__(self, index: Any) -> Any:
        return ops.getitem(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        ops.setitem(self, index, value)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return interop.array_protocol(self, dtype, copy)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return interop.array_ufunc(ufunc, method, inputs, kwargs)

    __array_priority__ = 1000

    def __dlpack__(self, **kwargs: Any) -> Any:
        return interop.to_dlpack(self, **kwargs)

    def __dlpack_device__(self) -> tuple[int, int]:
        return interop.dlpack_device(self)


def _ambiguous(tensor: TensorImpl) -> Exception:
    kind = "no values" if tensor.meta.numel == 0 else "more than one value"
    return ShapeError(
        "bool",
        what=f"Boolean value of Tensor with {kind} is ambiguous",
        expected="one element",
        got=f"shape {tuple(tensor.meta.shape)}",
        remedy="use .any() or .all()",
    )


_REFLECTED = {
    "add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "floordiv": "floor_divide",
    "mod": "remainder", "pow": "pow", "matmul": "matmul", "and": "bitwise_and",
    "or": "bitwise_or", "xor": "bitwise_xor", "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift",
}  # fmt: skip
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_UNARY = {"neg": "neg", "abs": "abs", "invert": "bitwise_not", "pos": "positive"}


def _guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make an operator of the language: a foreign operand gives NotImplemented."""

    def operator(self: Any, other: Any) -> Any:
        try:
            return function(self, other)
        except ArgumentTypeError:
            return NotImplemented

    return operator


def _reflected(function: Callable[..., Any]) -> Callable[..., Any]:
    def operator(self: Any, other: Any) -> Any:
        try:
            return function(other, self)
        except ArgumentTypeError:
            return NotImplemented

    return operator


def _install() -> None:
    """Give Tensor the methods of the registry and the operators of the language."""
    for name, method in METHODS.items():
        if name not in Tensor.__dict__:
            setattr(Tensor, name, method)
    for symbol, name in _REFLECTED.items():
        function = getattr(ops, name)
        setattr(Tensor, f"__{symbol}__", _guarded(function))
        setattr(Tensor, f"__r{symbol}__", _reflected(function))
        inplace = getattr(ops, name + "_", None)
        if inplace is not None:
            setattr(Tensor, f"__i{symbol}__", _guarded(inplace))
    for symbol in _COMPARISONS:
        setattr(Tensor, f"__{symbol}__", _guarded(getattr(ops, symbol)))
    for symbol, name in _UNARY.items():
        setattr(Tensor, f"__{symbol}__", getattr(ops, name))
    for name in ("T", "mT", "H", "mH", "real", "imag"):
        function = getattr(ops, name, None)
        if function is not None:
            setattr(Tensor, name, property(function))


_install()
_impl.set_shell(Tensor)

__all__ = ["Tensor"]
