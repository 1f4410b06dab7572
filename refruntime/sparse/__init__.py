"""torch.sparse: tensors that store their non-zero elements."""

from __future__ import annotations

from typing import Any

from refruntime import _dtypes
from refruntime._dtypes import DType
from refruntime._ops.opdef import METHODS, ops
from refruntime._tensor import Tensor
from refruntime.sparse import rules
from refruntime.sparse.coo import SparseTensor, sparse_coo_tensor, to_sparse

__all__ = ["DoubleTensor", "FloatTensor", "IntTensor", "LongTensor", "addmm", "mm", "spmm", "sum"]

mm = rules.mm
spmm = rules.mm
sum = rules.total


def addmm(mat: Any, mat1: Any, mat2: Any, *, beta: Any = 1.0, alpha: Any = 1.0) -> Any:
    """Return ``beta * mat + alpha * (mat1 @ mat2)`` for a sparse `mat1`."""
    return rules.addmm(mat, mat1, mat2, beta=beta, alpha=alpha)


class _TypedSparse(type):
    """The class of the old sparse types: making an instance makes a sparse tensor of the dtype."""

    dtype: DType

    def __call__(cls, *args: Any) -> SparseTensor:
        if len(args) < 2 or isinstance(args[0], int):
            return sparse_coo_tensor(args or (0,), dtype=cls.dtype)
        return sparse_coo_tensor(*args, dtype=cls.dtype)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, SparseTensor) and instance.dtype is cls.dtype


class FloatTensor(metaclass=_TypedSparse):
    """A sparse float32 tensor."""

    dtype = _dtypes.float32


class DoubleTensor(metaclass=_TypedSparse):
    """A sparse float64 tensor."""

    dtype = _dtypes.float64


class LongTensor(metaclass=_TypedSparse):
    """A sparse int64 tensor."""

    dtype = _dtypes.int64


class IntTensor(metaclass=_TypedSparse):
    """A sparse int32 tensor."""

    dtype = _dtypes.int32


def _to_dense(self: Any, dtype: Any = None, *, masked_grad: bool | None = None) -> Any:
    """Return the tensor itself: it is dense."""
    return self if dtype is None else self.to(dtype)


def _publish() -> None:
    """Give the public namespace and Tensor the functions that lead to sparse tensors."""
    ops.spmm = spmm
    ops.sparse_coo_tensor = sparse_coo_tensor
    METHODS["to_sparse"] = METHODS["to_sparse_coo"] = to_sparse
    METHODS["to_dense"] = _to_dense
    for name in ("to_sparse", "to_sparse_coo", "to_dense"):
        setattr(Tensor, name, METHODS[name])


_publish()
SparseTensor.to_sparse_coo = SparseTensor.to_sparse  # type: ignore[attr-defined]
