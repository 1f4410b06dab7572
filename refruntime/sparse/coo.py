"""Sparse tensors in coordinate form: the places of the elements that are stored, and their values.

State
-----
`SparseTensor` holds two dense tensors: `_coordinates`, int64 of shape ``(sparse dimensions, n)``,
and `_elements`, of shape ``(n, *dense dimensions)``.

Invariants
----------
* History and gradients belong to the values, which are ordinary tensors; whatever is computed from
  a sparse tensor is computed from them by ordinary operators.
* An operator that knows nothing of sparse tensors never sees one: the dispatcher hands calls over
  to `SparseTensor.call_op`, which refuses what it has no rule for.
* A coalesced tensor has its places in ascending order, each once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from refruntime import _dtypes
from refruntime._device import Device
from refruntime._dtypes import DType
from refruntime._impl import TensorImpl, meta_of, wrap
from refruntime._layout import Size
from refruntime._ops.opdef import OpDef, ops
from refruntime._storage import allocate
from refruntime._tensor import Tensor
from refruntime.errors import ArgumentTypeError, IndexRangeError, KernelMissingError, ShapeError

LAYOUT = "torch.sparse_coo"
Rule = Callable[..., Any]


class SparseTensor(Tensor):
    """A tensor of which only some elements are stored; the others are zero."""

    rules: ClassVar[dict[str, Rule]] = {}
    _coordinates: Any
    _elements: Any
    _coalesced: bool

    is_sparse = True
    layout = LAYOUT

    @classmethod
    def call_op(cls, op: OpDef, inputs: tuple[Any, ...], params: dict[str, Any]) -> Any:
        """Run an operator that has a sparse operand.

        Raises
        ------
        KernelMissingError
            If there is no rule for it.
        """
        rule = cls.rules.get(op.name)
        if rule is None:
            raise KernelMissingError(
                op.name,
                what=f"Could not run '{op.name}' with arguments from the 'SparseCPU' backend",
                expected="one of " + ", ".join(sorted(cls.rules)),
                got="a sparse tensor",
                remedy="convert it with .to_dense()",
            )
        return rule(*inputs, **params)

    # -- what it is ---------------------------------------------------------------------------

    def sparse_dim(self) -> int:
        """Return how many dimensions the coordinates have."""
        return int(self._coordinates.shape[0])

    def dense_dim(self) -> int:
        """Return how many dimensions each value has."""
        return int(self._elements.dim()) - 1

    def _nnz(self) -> int:
        return int(self._elements.shape[0])

    def is_coalesced(self) -> bool:
        """Whether the places are known to be in order, each once."""
        return self._coalesced

    def _indices(self) -> Any:
        return self._coordinates

    def _values(self) -> Any:
        return self._elements

    def indices(self) -> Any:
        """Return the places of a coalesced tensor."""
        self._require_coalesced("indices")
        return self._coordinates

    def values(self) -> Any:
        """Return the values of a coalesced tensor."""
        self._require_coalesced("values")
        return self._elements

    def _require_coalesced(self, name: str) -> None:
        if not self._coalesced:
            raise ShapeError(
                name,
                what=f"Cannot get {name} on an uncoalesced tensor, please call .coalesce() first",
                expected="a coalesced tensor", got="one that may repeat places",
            )  # fmt: skip

    def stride(self, dim: int | None = None) -> Any:
        """Refuse: the elements lie nowhere in the order of the dimensions."""
        raise _no_memory("stride")

    def array(self) -> Any:
        """Refuse: there is no memory that holds all elements."""
        raise _no_memory("array")

    def address(self) -> int:
        """Refuse: there is no memory that holds all elements."""
        raise _no_memory("address")

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        indices = repr(self._coordinates).replace("\n", "\n" + " " * 15)
        values = repr(self._elements).replace("\n", "\n" + " " * 14)
        return (
            f"tensor(indices={indices},\n       values={values},\n       size={tuple(self.shape)}, "
            f"nnz={self._nnz()}, layout={LAYOUT})"
        )

    # -- history ------------------------------------------------------------------------------

    @property
    def requires_grad(self) -> bool:
        """Whether gradients flow to the values."""
        return bool(self._elements.requires_grad)

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self._elements.requires_grad_(value)

    def requires_grad_(self, requires_grad: bool = True) -> SparseTensor:
        """Say whether gradients flow to the values; returns the tensor."""
        self._elements.requires_grad_(requires_grad)
        return self

    @property
    def is_leaf(self) -> bool:
        """Whether no recorded operation made the values."""
        return bool(self._elements.is_leaf)

    @property
    def grad_fn(self) -> Any:
        """The node that made the values, or None."""
        return self._elements.grad_fn

    @property
    def grad(self) -> Any:
        """The gradient of the values at their places, or None."""
        grad = self._elements.grad
        return None if grad is None else self._with(grad)

    @grad.setter
    def grad(self, value: Any) -> None:
        self._elements.grad = None if value is None else value._values()

    # -- other forms --------------------------------------------------------------------------

    def _with(self, values: Any) -> SparseTensor:
        """Return other values at the same places."""
        return build(self._coordinates, values, self.shape, self._coalesced)

    def to_dense(self, dtype: Any = None, *, masked_grad: bool | None = None) -> Any:
        """Return all elements; what is stored twice for a place is summed."""
        values = self._elements if dtype is None else self._elements.to(dtype)
        zeros = ops.zeros(tuple(self.shape), dtype=values.dtype, device=values.device)
        return ops.index_put(zeros, tuple(ops.unbind(self._coordinates, 0)), values, True)

    def to_sparse(self, *args: Any, **kwargs: Any) -> SparseTensor:
        """Return the tensor itself."""
        return self

    def coalesce(self) -> SparseTensor:
        """Return the same tensor with its places in order, and values at one place summed."""
        if self._coalesced:
            return self
        keys = _linear(self._coordinates, self.shape)
        places, inverse = ops.unique(keys, return_inverse=True)
        shape = (places.shape[0], *self._elements.shape[1:])
        zeros = ops.zeros(shape, dtype=self.dtype, device=self.device)
        values = ops.index_add(zeros, 0, inverse, self._elements)
        sizes = tuple(self.shape[: self.sparse_dim()])
        return build(_unlinear(places, sizes), values, self.shape, True)

    def transpose(self, dim0: int, dim1: int) -> SparseTensor:
        """Swap two of the sparse dimensions."""
        order = list(range(self.dim()))
        order[dim0], order[dim1] = order[dim1], order[dim0]
        rows = [self._coordinates[place] for place in order[: self.sparse_dim()]]
        shape = tuple(self.shape[place] for place in order)
        return build(ops.stack(rows), self._elements, shape, False)

    def t(self) -> SparseTensor:
        """Transpose a matrix."""
        return self.transpose(0, 1)

    T = property(t)

    def detach(self) -> SparseTensor:
        """Return the same tensor without history."""
        return self._with(self._elements.detach())

    def clone(self, *, memory_format: Any = None) -> SparseTensor:
        """Return a copy."""
        places = ops.clone(self._coordinates)
        return build(places, ops.clone(self._elements), self.shape, self._coalesced)

    def to(self, *args: Any, **kwargs: Any) -> SparseTensor:
        """Return the tensor in another dtype or on another device."""
        values = self._elements.to(*args, **kwargs)
        places = self._coordinates.to(values.device)
        return build(places, values, self.shape, self._coalesced)

    def cpu(self) -> SparseTensor:
        """Return the tensor on the CPU."""
        return self.to("cpu")

    def cuda(self, device: Any = None, non_blocking: bool = False) -> SparseTensor:
        """Return the tensor on a GPU."""
        return self.to(Device("cuda") if device is None else device)

    def float(self) -> SparseTensor:
        """Return the tensor in float32."""
        return self.to(_dtypes.float32)

    def double(self) -> SparseTensor:
        """Return the tensor in float64."""
        return self.to(_dtypes.float64)

    def __copy__(self) -> SparseTensor:
        return self._with(self._elements)

    def __deepcopy__(self, memo: dict[int, Any]) -> SparseTensor:
        return self.detach().clone().requires_grad_(self.requires_grad)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return build, (self._coordinates, self._elements, tuple(self.shape), self._coalesced)


def _no_memory(op: str) -> Exception:
    return KernelMissingError(
        op, what="sparse tensors do not have strides or a memory of all elements",
        expected="a dense tensor", got="a sparse one", remedy="convert it with .to_dense()",
    )  # fmt: skip


def build(indices: Any, values: Any, size: Any, coalesced: bool) -> SparseTensor:
    """Make a sparse tensor over its parts, which are not checked."""
    shape = Size(size)
    # One element repeated: enough for shape, dtype and device, and nothing that could be read past.
    storage = allocate(values.dtype.itemsize, values.device)
    made: Any = wrap(storage, meta_of(shape, values.dtype, values.device, (0,) * len(shape)))
    made.__class__ = SparseTensor
    made._coordinates, made._elements, made._coalesced = indices, values, coalesced
    result: SparseTensor = made
    return result


def _linear(indices: Any, shape: Any) -> Any:
    """Return each place as one number, in row-major order."""
    keys = indices[0]
    for row in range(1, indices.shape[0]):
        keys = keys * shape[row] + indices[row]
    return keys


def _unlinear(keys: Any, sizes: tuple[int, ...]) -> Any:
    rows = []
    for size in reversed(sizes):
        rows.append(ops.remainder(keys, max(size, 1)))
        keys = ops.floor_divide(keys, max(size, 1))
    return ops.stack(rows[::-1])


def sparse_coo_tensor(
    indices: Any, values: Any = None, size: Any = None, *, dtype: DType | None = None,
    device: Any = None, requires_grad: bool = False, check_invariants: bool | None = None,
    is_coalesced: bool | None = None, pin_memory: bool = False,
) -> SparseTensor:  # fmt: skip
    """Make a sparse tensor from the places and the values of its elements.

    Parameters
    ----------
    indices : Tensor or sequence
        Shape ``(sparse dimensions, n)``: a column for each element. With neither values nor size:
        the size of a tensor that stores nothing.
    values : Tensor or sequence
        Shape ``(n, *dense dimensions)``.
    size : sequence of int, optional
        The shape; default: just large enough.
    dtype, device, requires_grad
        As in `tensor`.
    is_coalesced : bool, optional
        Say that the places are in order, each once.
    """
    if values is None and size is None:
        size, indices = indices, ops.zeros((len(indices), 0), dtype=_dtypes.int64)
        values = ops.zeros((0,), dtype=dtype)
    places = ops.as_tensor(indices, dtype=_dtypes.int64, device=device)
    if not isinstance(values, TensorImpl):
        values = ops.tensor(values, dtype=dtype, device=device)
    elements = values.to(dtype=dtype or values.dtype, device=device or values.device)
    if places.dim() == 1 and elements.dim() == 1:
        places = ops.unsqueeze(places, 0)
    shape = _checked_size(places, elements, size)
    if requires_grad:
        elements = elements.detach().requires_grad_(True)
    return build(places, elements, shape, bool(is_coalesced))


def _checked_size(indices: Any, values: Any, size: Any) -> tuple[int, ...]:
    """Return the shape, after checking that places and values fit it and each other."""
    if indices.dim() != 2 or values.dim() < 1 or indices.shape[1] != values.shape[0]:
        raise ShapeError(
            "sparse_coo_tensor",
            expected="indices of shape (sparse dimensions, n) and n values",
            got=f"{tuple(indices.shape)} and {tuple(values.shape)}",
            remedy="give each value a column of indices",
        )
    top = ops.amax(indices, 1).tolist() if indices.shape[1] else [-1] * indices.shape[0]
    if size is None:
        return (*(place + 1 for place in top), *values.shape[1:])
    shape = tuple(int(extent) for extent in size)
    if len(shape) != indices.shape[0] + values.dim() - 1:
        raise ShapeError(
            "sparse_coo_tensor", what="number of dimensions must be sparse_dim + dense_dim",
            expected=f"{indices.shape[0]} + {values.dim() - 1} sizes", got=str(shape),
        )  # fmt: skip
    low = int(ops.amin(indices)) if indices.shape[1] else 0
    if low < 0 or any(place >= extent for place, extent in zip(top, shape, strict=False)):
        raise IndexRangeError(
            "sparse_coo_tensor",
            what="size is inconsistent with indices",
            expected=f"indices inside {shape}",
            got=f"indices from {low} to {top}",
        )
    return shape


def to_sparse(input: Any, sparse_dim: int | None = None, *, layout: Any = None) -> SparseTensor:
    """Return the elements that are not zero, with their places.

    Parameters
    ----------
    input : Tensor
    sparse_dim : int, optional
        How many of the first dimensions get coordinates; the others stay dense. Default all.
    layout : optional
        ``sparse_coo``, the one there is.
    """
    if layout not in (None, LAYOUT):
        raise ArgumentTypeError("to_sparse", expected=LAYOUT, got=repr(layout))
    count = input.dim() if sparse_dim is None else sparse_dim
    nonzero = ops.ne(input.detach(), 0)
    if count < input.dim():
        nonzero = ops.any(ops.flatten(nonzero, count), -1)
    places = ops.nonzero(nonzero)
    rows = ops.unbind(places, 1)
    values = input[tuple(rows)] if rows else ops.reshape(input, (-1,))
    return build(ops.transpose(places, 0, 1).contiguous(), values, input.shape, True)
