"""`assert_close`: whether two results agree, and how far apart they are.

Invariants
----------
* Tolerances depend on the dtype (`TOLERANCES`, torch's values); both are given or neither.
* A failure names what differs, how many elements, and the greatest absolute and relative difference
  with its index; inside containers it names the way to the item.
"""

from __future__ import annotations

import cmath
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from refruntime import _dtypes
from refruntime._dtypes import DType
from refruntime._impl import TensorImpl
from refruntime.interop import from_numpy

# dtype -> (rtol, atol); dtypes that are not listed are compared exactly.
TOLERANCES: dict[DType, tuple[float, float]] = {
    _dtypes.float16: (1e-3, 1e-5),
    _dtypes.bfloat16: (1.6e-2, 1e-5),
    _dtypes.float32: (1.3e-6, 1e-5),
    _dtypes.float64: (1e-7, 1e-7),
    _dtypes.complex64: (1.3e-6, 1e-5),
    _dtypes.complex128: (1e-7, 1e-7),
}
Message = str | Callable[[str], str] | None
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class _Rules:
    """The keyword arguments of one `assert_close`."""

    allow_subclasses: bool
    rtol: float | None
    atol: float | None
    equal_nan: bool
    attributes: tuple[str, ...]


class _MismatchError(Exception):
    """Two items differ: the text, and the keys that lead to them."""

    def __init__(self, text: str, path: tuple[Any, ...]) -> None:
        super().__init__(text)
        self.path = path


def assert_close(
    actual: Any,
    expected: Any,
    *,
    allow_subclasses: bool = True,
    rtol: float | None = None,
    atol: float | None = None,
    equal_nan: bool = False,
    check_device: bool = True,
    check_dtype: bool = True,
    check_layout: bool = True,
    check_stride: bool = False,
    msg: Message = None,
) -> None:
    """Raise AssertionError unless ``|actual - expected| <= atol + rtol |expected|`` everywhere.

    Parameters
    ----------
    actual, expected : Tensor, array, number, bool, None, or sequences and mappings of them
        What to compare.
    allow_subclasses : bool
        Whether one side may be a subclass of the other's class.
    rtol, atol : float, optional
        Tolerances; both or none. Default: by dtype, see `TOLERANCES`.
    equal_nan : bool
        Whether NaN agrees with NaN.
    check_device, check_dtype, check_layout, check_stride : bool
        Which attributes must agree too.
    msg : str or callable, optional
        The text of the failure, or a function of the text that would be used.

    Raises
    ------
    AssertionError
        If they disagree.
    TypeError
        If there is no rule for these types.
    ValueError
        If only one tolerance is given.
    """
    if (rtol is None) != (atol is None):
        missing = "rtol" if rtol is None else "atol"
        raise ValueError(
            "Both 'rtol' and 'atol' must be either specified or omitted, but got no "
            f"{missing}."
        )
    checks = (
        ("device", check_device), ("dtype", check_dtype), ("layout", check_layout),
        ("stride()", check_stride),
    )  # fmt: skip
    names = tuple(name for name, wanted in checks if wanted)
    rules = _Rules(allow_subclasses, rtol, atol, equal_nan, names)
    try:
        _compare(actual, expected, rules, ())
    except _MismatchError as mismatch:
        raise AssertionError(_text(mismatch, msg)) from None


def _text(mismatch: _MismatchError, msg: Message) -> str:
    text = str(mismatch)
    if mismatch.path:
        where = "".join(f"[{key!r}]" for key in mismatch.path)
        text += f"\n\nThe failure occurred for item {where}"
    if msg is None:
        return text
    return msg(text) if callable(msg) else msg


def _compare(actual: Any, expected: Any, rules: _Rules, path: tuple[Any, ...]) -> None:
    """Compare two items by the first rule that knows both of their types."""
    if _are(actual, expected, Sequence) and not isinstance(actual, str):
        _compare_sequences(actual, expected, rules, path)
    elif _are(actual, expected, Mapping):
        _compare_mappings(actual, expected, rules, path)
    elif actual is None or expected is None:
        if actual is not expected:
            raise _MismatchError(f"None mismatch: {actual} is not {expected}", path)
    elif _are(actual, expected, (bool, np.bool_)):
        if bool(actual) is not bool(expected):
            raise _MismatchError(f"Booleans mismatch: {actual} is not {expected}", path)
    elif _are(actual, expected, (int, float, complex, np.number)):
        _compare_numbers(actual, expected, rules, path)
    elif _are_tensors(actual, expected, rules):
        _compare_tensors(_as_tensor(actual), _as_tensor(expected), rules, path)
    else:
        raise TypeError(
            f"No comparison pair was able to handle inputs of type {type(actual)} and "
            f"{type(expected)}."
        )


def _are(actual: Any, expected: Any, kinds: Any) -> bool:
    return isinstance(actual, kinds) and isinstance(expected, kinds)


def _are_tensors(actual: Any, expected: Any, rules: _Rules) -> bool:
    if not _are(actual, expected, (TensorImpl, np.ndarray)):
        return False
    if rules.allow_subclasses:
        return isinstance(actual, type(expected)) or isinstance(expected, type(actual))
    return type(actual) is type(expected)


def _as_tensor(value: Any) -> Any:
    return from_numpy(value.copy()) if isinstance(value, np.ndarray) else value.detach()


def _compare_sequences(actual: Any, expected: Any, rules: _Rules, path: tuple[Any, ...]) -> None:
    if len(actual) != len(expected):
        raise _MismatchError(
            f"The length of the sequences mismatch: {len(actual)} != {len(expected)}", path
        )
    for index, pair in enumerate(zip(actual, expected, strict=True)):
        _compare(*pair, rules, (*path, index))


def _compare_mappings(actual: Any, expected: Any, rules: _Rules, path: tuple[Any, ...]) -> None:
    missing = sorted(expected.keys() - actual.keys(), key=str)
    additional = sorted(actual.keys() - expected.keys(), key=str)
    if missing or additional:
        raise _MismatchError(
            "The keys of the mappings do not match:\n"
            f"Missing keys in the actual mapping: {missing}\n"
            f"Additional keys in the actual mapping: {additional}",
            path,
        )
    for key in actual:
        _compare(actual[key], expected[key], rules, (*path, key))


# ---------------------------------------------------------------------------------------------
# Numbers


def _allowed(tolerance: float) -> str:
    return f" (up to {tolerance} allowed)" if tolerance else ""


def _verdict(rtol: float, atol: float) -> str:
    return "close" if rtol or atol else "equal"


def _compare_numbers(actual: Any, expected: Any, rules: _Rules, path: tuple[Any, ...]) -> None:
    if "dtype" in rules.attributes and type(actual) is not type(expected):
        raise _MismatchError(
            f"The (d)types do not match: {type(actual)} != {type(expected)}.", path
        )
    exact = _are(actual, expected, (int, np.integer))
    rtol, atol = (0.0, 0.0) if exact else TOLERANCES[_dtypes.float64]
    if rules.rtol is not None and rules.atol is not None:
        rtol, atol = rules.rtol, rules.atol
    _judge_number(actual, expected, (rtol, atol), rules.equal_nan, path)


def _judge_number(
    actual: Any, expected: Any, tolerance: tuple[float, float], equal_nan: bool,
    path: tuple[Any, ...],
) -> None:  # fmt: skip
    if actual == expected:
        return
    if equal_nan and cmath.isnan(actual) and cmath.isnan(expected):
        return
    rtol, atol = tolerance
    difference = abs(actual - expected)
    if cmath.isfinite(difference) and difference <= atol + rtol * abs(expected):
        return
    relative = difference / abs(expected) if expected != 0 else float("inf")
    raise _MismatchError(
        f"Scalars are not {_verdict(rtol, atol)}!\n\nExpected {expected} but got {actual}.\n"
        f"Absolute difference: {difference}{_allowed(atol)}\n"
        f"Relative difference: {relative}{_allowed(rtol)}",
        path,
    )


# ---------------------------------------------------------------------------------------------
# Tensors


def _compare_tensors(actual: Any, expected: Any, rules: _Rules, path: tuple[Any, ...]) -> None:
    for name in ("shape", *rules.attributes):
        first, second = _attribute(actual, name), _attribute(expected, name)
        if first != second:
            raise _MismatchError(
                f"The values for attribute '{name}' do not match: {first} != {second}.", path
            )
    tolerance = _tolerance(actual.meta.dtype, expected.meta.dtype, rules)
    dtype = _dtypes.promote_types(actual.meta.dtype, expected.meta.dtype)
    pair = _values(actual, dtype), _values(expected, dtype)
    if actual.meta.ndim == 0:
        _judge_number(pair[0].item(), pair[1].item(), tolerance, rules.equal_nan, path)
    else:
        _judge_arrays(*pair, tolerance, rules.equal_nan, path)


def _attribute(tensor: Any, name: str) -> Any:
    return tensor.stride() if name == "stride()" else getattr(tensor, name)


def _tolerance(first: DType, second: DType, rules: _Rules) -> tuple[float, float]:
    if rules.rtol is not None and rules.atol is not None:
        return rules.rtol, rules.atol
    pairs = [TOLERANCES.get(dtype, (0.0, 0.0)) for dtype in (first, second)]
    return max(pair[0] for pair in pairs), max(pair[1] for pair in pairs)


def _values(tensor: Any, dtype: DType) -> Array:
    host = tensor if tensor.meta.device.type == "cpu" else tensor.cpu()
    array: Array = host.array()
    if dtype is _dtypes.bfloat16:
        return array.astype(np.float32)
    return array.astype(np.int64 if dtype is _dtypes.bool_ else dtype.np, copy=False)


def _judge_arrays(
    actual: Array, expected: Array, tolerance: tuple[float, float], equal_nan: bool,
    path: tuple[Any, ...],
) -> None:  # fmt: skip
    rtol, atol = tolerance
    with np.errstate(all="ignore"):
        difference = _distance(actual, expected)
        close = actual == expected
        if rtol or atol:
            bound = atol + rtol * np.abs(expected)
            close |= np.isfinite(difference) & (difference <= bound)
        if equal_nan:
            close |= np.isnan(actual) & np.isnan(expected)
        if close.all():
            return
        difference = np.where(close, 0, difference)
        relative = np.where(close, 0, difference / np.abs(expected))
    wrong = int(close.size - np.count_nonzero(close))
    raise _MismatchError(
        f"Tensor-likes are not {_verdict(rtol, atol)}!\n\n"
        f"Mismatched elements: {wrong} / {close.size} ({wrong / close.size:.1%})\n"
        f"Greatest absolute difference: {_greatest(difference)}{_allowed(atol)}\n"
        f"Greatest relative difference: {_greatest(relative)}{_allowed(rtol)}",
        path,
    )


def _distance(actual: Array, expected: Array) -> Array:
    if actual.dtype.kind == "u":
        # Unsigned differences wrap around; the larger minus the smaller does not.
        wrapped: Array = np.maximum(actual, expected) - np.minimum(actual, expected)
        return wrapped
    distance: Array = np.abs(actual - expected)
    return distance


def _greatest(values: Array) -> str:
    index = np.unravel_index(int(np.argmax(values)), values.shape)
    return f"{values[index].item()} at index {tuple(int(i) for i in index)}"
