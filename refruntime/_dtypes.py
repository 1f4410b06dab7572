"""Element types, and what type a mixture of them has.

State
-----
One `DType` object a type, made here and never again; and the default floating-point type of the
process, which `set_default_dtype` changes.

Invariants
----------
* A `DType` is compared with ``is``; pickling and copying give the same object back.
* Promotion follows PyTorch: a lattice for two types (`promote_types`), and three categories for
  operands (`result_type`): a tensor with dimensions outranks a zero-dim tensor, which outranks a
  Python number; a lower category matters only if it is of a higher kind (bool < int < float <
  complex).
* ml_dtypes is imported when the NumPy type of bfloat16 is first asked for, not before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, lru_cache
from typing import Any

import numpy as np

from refruntime.errors import ArgumentTypeError, DTypeError

# Category of an operand in `result_type`; a higher one decides.
NUMBER, ZERO_DIM, DIMENSIONED = 0, 1, 2

_KIND_RANK = {"b": 0, "u": 1, "i": 1, "f": 2, "c": 3}


class DType:
    """An element type.

    Attributes
    ----------
    name : str
        PyTorch's name, such as ``"float32"``.
    kind : str
        ``b`` bool, ``i`` signed, ``u`` unsigned, ``f`` floating, ``c`` complex.
    itemsize : int
        Bytes an element.
    np : numpy.dtype
        The same type in NumPy (bfloat16 through ml_dtypes).
    compute : DType
        The type in which CPU kernels compute: float32 for the half types, else the type itself.
    ctype : str
        The spelling in CUDA C++.
    index : int
        A small number that is unique to the type.
    """

    __slots__ = (
        "compute", "ctype", "index", "is_complex", "is_floating_point", "is_signed", "itemsize",
        "kind", "name", "np",
    )  # fmt: skip

    name: str
    kind: str
    itemsize: int
    is_floating_point: bool
    is_complex: bool
    is_signed: bool
    np: np.dtype[Any]
    compute: DType
    ctype: str
    index: int

    def __init__(self, index: int, name: str, kind: str, itemsize: int, ctype: str) -> None:
        fill = object.__setattr__
        fill(self, "index", index)
        fill(self, "name", name)
        fill(self, "kind", kind)
        fill(self, "itemsize", itemsize)
        fill(self, "ctype", ctype)
        fill(self, "is_floating_point", kind == "f")
        fill(self, "is_complex", kind == "c")
        fill(self, "is_signed", kind in "ifc")
        fill(self, "compute", self)
        if name != "bfloat16":
            fill(self, "np", np.dtype(name))

    def __getattr__(self, attribute: str) -> Any:
        # Reached once, by `bfloat16.np`: the slot is empty until ml_dtypes is needed.
        if attribute != "np":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {attribute!r}")
        import ml_dtypes

        object.__setattr__(self, "np", np.dtype(ml_dtypes.bfloat16))
        return self.np

    def __setattr__(self, attribute: str, value: Any) -> None:
        raise AttributeError(f"{self!r} is immutable")

    def __repr__(self) -> str:
        return f"torch.{self.name}"

    def __reduce__(self) -> tuple[Any, ...]:
        return dtype_named, (self.name,)

    def __copy__(self) -> DType:
        return self

    def __deepcopy__(self, memo: Any) -> DType:
        return self

    def to_real(self) -> DType:
        """Return the type of the real part; a real type is its own."""
        return _REAL.get(self, self)

    def to_complex(self) -> DType:
        """Return the complex type whose parts have this type (float32 parts below float64)."""
        if self.kind == "c":
            return self
        return complex128 if self is float64 else complex64


_ROWS = (
    ("bool", "b", 1, "bool"),
    ("uint8", "u", 1, "unsigned char"),
    ("int8", "i", 1, "signed char"),
    ("int16", "i", 2, "short"),
    ("int32", "i", 4, "int"),
    ("int64", "i", 8, "long long"),
    ("uint16", "u", 2, "unsigned short"),
    ("uint32", "u", 4, "unsigned int"),
    ("uint64", "u", 8, "unsigned long long"),
    ("float16", "f", 2, "__half"),
    ("bfloat16", "f", 2, "__nv_bfloat16"),
    ("float32", "f", 4, "float"),
    ("float64", "f", 8, "double"),
    ("complex64", "c", 8, "complex<float>"),
    ("complex128", "c", 16, "complex<double>"),
)

ALL_DTYPES: tuple[DType, ...] = tuple(DType(i, *row) for i, row in enumerate(_ROWS))
_BY_NAME: dict[str, DType] = {dtype.name: dtype for dtype in ALL_DTYPES}

(
    bool_, uint8, int8, int16, int32, int64, uint16, uint32, uint64,
    float16, bfloat16, float32, float64, complex64, complex128,
) = ALL_DTYPES  # fmt: skip

object.__setattr__(float16, "compute", float32)
object.__setattr__(bfloat16, "compute", float32)

half, float_, double, cfloat, cdouble = float16, float32, float64, complex64, complex128
short, int_, long = int16, int32, int64

_REAL = {complex64: float32, complex128: float64}
_LIMITED = frozenset((uint16, uint32, uint64))
FLOATING = (float16, bfloat16, float32, float64)
INTEGRAL = (uint8, int8, int16, int32, int64)


def dtype_named(name: str) -> DType:
    """Return the dtype called `name` (``"float32"``)."""
    return _BY_NAME[name]


# ---------------------------------------------------------------------------------------------
# Promotion


@cache
def promote_types(first: DType, second: DType) -> DType:
    """Return the smallest type that holds both.

    Raises
    ------
    DTypeError
        For uint16, uint32 and uint64 together with another integer, bool or complex type: PyTorch
        leaves these undefined.
    """
    if first is second:
        return first
    low, high = sorted((first, second), key=lambda dtype: _KIND_RANK[dtype.kind])
    if (low in _LIMITED or high in _LIMITED) and high.kind != "f":
        raise DTypeError(
            "promote_types",
            what="Promotion for uint16, uint32, uint64 types is not supported",
            expected="types with a common type",
            got=f"{first} and {second}",
            remedy="convert one of them first",
        )
    if high.kind == "c":
        return complex128 if low is float64 or complex128 in (low, high) else complex64
    if _KIND_RANK[low.kind] < _KIND_RANK[high.kind]:
        return high
    if low.kind == high.kind == "f" and low.itemsize == high.itemsize:
        return float32  # float16 with bfloat16: neither holds the other
    if low.kind != high.kind and low.itemsize == high.itemsize:
        return int16  # uint8 with int8
    return max(low, high, key=lambda dtype: dtype.itemsize)


@cache
def can_cast(frm: DType, to: DType) -> bool:
    """Say whether a result of type `frm` may be written into a tensor of type `to`.

    The kind must not go down: complex to real, floating to integral and anything to bool lose more
    than precision.
    """
    return _KIND_RANK[frm.kind] <= _KIND_RANK[to.kind]


def result_type(*items: Any) -> DType:
    """Return the type of an operation over `items`.

    Parameters
    ----------
    items
        Tensors (anything with ``.meta``) or their metas, Python numbers, or ``(dtype, category)``
        pairs with category `DIMENSIONED`, `ZERO_DIM` or `NUMBER`. One iterable of these also does.
    """
    return promote_operands(tuple(_category(item) for item in _flatten(items)))


@lru_cache(maxsize=4096)
def _promote_with_default(operands: tuple[tuple[DType, int], ...], default: DType) -> DType:
    """Promote inside each category, then let lower categories raise the kind only."""
    by_category: list[DType | None] = [None, None, None]
    for dtype, category in operands:
        if category == NUMBER and dtype.kind in "fc":
            dtype = default if dtype.kind == "f" else default.to_complex()
        current = by_category[category]
        by_category[category] = dtype if current is None else promote_types(current, dtype)
    result: DType | None = None
    for lower in by_category:
        result = _outrank(lower, result)
    if result is None:
        raise ArgumentTypeError("result_type", expected="at least one operand", got="none")
    return result


def promote_operands(operands: tuple[tuple[DType, int], ...]) -> DType:
    """Return the result type of ``(dtype, category)`` operands."""
    return _promote_with_default(operands, _default)


def _outrank(higher: DType | None, lower: DType | None) -> DType | None:
    """Combine the result of a category with that of the categories below it."""
    if higher is None or lower is None:
        return lower if higher is None else higher
    if higher.kind == "c":
        return higher
    if higher.kind == "f":
        return higher.to_complex() if lower.kind == "c" else higher
    if higher.kind == "b":
        return promote_types(higher, lower)
    return lower if lower.kind in "fc" else higher


def _flatten(items: tuple[Any, ...]) -> Iterable[Any]:
    if len(items) == 1 and isinstance(items[0], (list, tuple)):
        only = items[0]
        if not (len(only) == 2 and isinstance(only[0], DType)):
            return only
    return items


def _category(item: Any) -> tuple[DType, int]:
    """Return ``(dtype, category)`` of one operand."""
    if isinstance(item, tuple):
        return item
    meta = getattr(item, "meta", item)
    if hasattr(meta, "ndim") and isinstance(getattr(meta, "dtype", None), DType):
        return meta.dtype, DIMENSIONED if meta.ndim else ZERO_DIM
    return dtype_of_number(item), NUMBER


def dtype_of_number(value: Any) -> DType:
    """Return the type that a Python number has as an operand or as tensor data.

    Raises
    ------
    ArgumentTypeError
        If `value` is not a bool, int, float or complex.
    """
    if isinstance(value, (bool, np.bool_)):
        return bool_
    if isinstance(value, (int, np.integer)):
        return int64
    if isinstance(value, (float, np.floating)):
        return _default
    if isinstance(value, (complex, np.complexfloating)):
        return _default.to_complex()
    raise ArgumentTypeError(
        "result_type",
        expected="a tensor or a number",
        got=type(value).__name__,
        remedy="wrap the value with tensor(...)",
    )


# ---------------------------------------------------------------------------------------------
# The default type, and NumPy's names

_default: DType = float32

# Called when the default changes: caches of promoted dtypes are stale then.
on_default_change: list[Callable[[], None]] = []


def get_default_dtype() -> DType:
    """Return the type of floats that do not say theirs (float32 at start)."""
    return _default


def set_default_dtype(dtype: DType) -> None:
    """Set the type of floats that do not say theirs; floating-point types only."""
    if not isinstance(dtype, DType):
        raise ArgumentTypeError(
            "set_default_dtype", what="invalid dtype object", expected="a dtype",
            got=type(dtype).__name__, remedy="pass a dtype such as torch.float32",
        )  # fmt: skip
    if not dtype.is_floating_point:
        raise ArgumentTypeError(
            "set_default_dtype", what="only floating-point types are supported as the default type",
            expected="a floating-point dtype", got=repr(dtype), remedy="pass torch.float32, say",
        )  # fmt: skip
    global _default
    _default = dtype
    for forget in on_default_change:
        forget()


_FROM_NUMPY: dict[Any, DType] = {d.np: d for d in ALL_DTYPES if d is not bfloat16}


def from_numpy_dtype(np_dtype: Any) -> DType:
    """Return the dtype of a NumPy dtype (native byte order).

    Raises
    ------
    ArgumentTypeError
        If PyTorch has no such type (strings, objects, datetimes, foreign byte order, ...).
    """
    found = _FROM_NUMPY.get(np_dtype)
    if found is not None:
        return found
    normal = np.dtype(np_dtype)
    found = bfloat16 if normal.name == "bfloat16" else _FROM_NUMPY.get(normal)
    if found is None:
        raise ArgumentTypeError(
            "from_numpy",
            what=f"can't convert np.ndarray of type {normal}",
            expected="one of " + ", ".join(dtype.name for dtype in ALL_DTYPES),
            got=str(normal),
            remedy="convert it first with ndarray.astype(...)",
        )
    return found


# ---------------------------------------------------------------------------------------------
# Numeric limits


class finfo:  # noqa: N801 - torch's name
    """Limits of a floating-point type; of its parts, for a complex one.

    Parameters
    ----------
    dtype : DType, optional
        Default: the default dtype.

    Attributes
    ----------
    bits : int
    eps, max, min, resolution, smallest_normal, tiny : float
    dtype : str
    """

    def __init__(self, dtype: DType | None = None) -> None:
        real = (_default if dtype is None else dtype).to_real()
        if real.kind != "f":
            raise ArgumentTypeError(
                "finfo", what="torch.finfo() requires a floating point input type",
                expected="a floating-point dtype", got=repr(dtype), remedy="use iinfo for integers",
            )  # fmt: skip
        # 1 + explicit mantissa bits and the exponent range say everything else (IEEE 754).
        mantissa, exponent, digits = _FLOAT_FORMATS[real]
        self.dtype = real.name
        self.bits = real.itemsize * 8
        self.eps = 2.0**-mantissa
        self.max = (2.0 - self.eps) * 2.0**exponent
        self.min = -self.max
        self.smallest_normal = self.tiny = 2.0 ** (1 - exponent)
        self.resolution = float(f"1e-{digits}")

    def __repr__(self) -> str:
        names = ("resolution", "min", "max", "eps", "smallest_normal", "tiny")
        values = ", ".join(f"{name}={getattr(self, name):g}" for name in names)
        return f"finfo({values}, dtype={self.dtype})"


_FLOAT_FORMATS = {
    float16: (10, 15, 3), bfloat16: (7, 127, 2), float32: (23, 127, 6), float64: (52, 1023, 15),
}  # fmt: skip


class iinfo:  # noqa: N801 - torch's name
    """Limits of an integer type.

    Attributes
    ----------
    bits, max, min : int
    dtype : str
    """

    def __init__(self, dtype: DType) -> None:
        if dtype.kind not in "iu":
            raise ArgumentTypeError(
                "iinfo", what="torch.iinfo() requires an integer input type",
                expected="an integer dtype", got=repr(dtype), remedy="use finfo for floats",
            )  # fmt: skip
        self.dtype = dtype.name
        self.bits = dtype.itemsize * 8
        self.max = 2 ** (self.bits - (dtype.kind == "i")) - 1
        self.min = -(2 ** (self.bits - 1)) if dtype.kind == "i" else 0

    def __repr__(self) -> str:
        return f"iinfo(min={self.min}, max={self.max}, dtype={self.dtype})"
