"""Element types: promotion against PyTorch 2.13's own tables, limits, NumPy names."""

import copy
import pickle
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from refruntime import _dtypes
from refruntime._dtypes import ALL_DTYPES, DIMENSIONED, NUMBER, ZERO_DIM, DType, result_type
from refruntime.errors import DTypeError

# One letter a type, in the order of ALL_DTYPES; "." where PyTorch refuses.
LETTERS = "?ubhilHIQegfdcC"

# Row: first operand, column: second; both tensors with dimensions (also torch.promote_types).
SAME_CATEGORY = (
    "?ubhil...egfdcC",
    "uuhhil...egfdcC",
    "bhbhil...egfdcC",
    "hhhhil...egfdcC",
    "iiiiil...egfdcC",
    "llllll...egfdcC",
    "......H..egfd..",
    ".......I.egfd..",
    "........Qegfd..",
    "eeeeeeeeeeffdcC",
    "gggggggggfgfdcC",
    "ffffffffffffdcC",
    "dddddddddddddCC",
    "cccccc...cccCcC",
    "CCCCCC...CCCCCC",
)

# Row: a tensor with dimensions, column: a zero-dim tensor. PyTorch's complex32 (float16 with a
# complex) has no counterpart here; complex64 stands in its place.
WITH_ZERO_DIM = (
    "?ubhil...egfdcC",
    "uuuuuuuuuegfdcC",
    "bbbbbbbbbegfdcC",
    "hhhhhhhhhegfdcC",
    "iiiiiiiiiegfdcC",
    "lllllllllegfdcC",
    "HHHHHHHHHegfdcC",
    "IIIIIIIIIegfdcC",
    "QQQQQQQQQegfdcC",
    "eeeeeeeeeeeeecc",
    "gggggggggggggcc",
    "fffffffffffffcc",
    "dddddddddddddCC",
    "ccccccccccccccc",
    "CCCCCCCCCCCCCCC",
)

# Row: a tensor (of either category), column: True, 1, 1.5, 1j.
WITH_NUMBER = (
    "?lfc", "uufc", "bbfc", "hhfc", "iifc", "llfc", "HHfc", "IIfc", "QQfc", "eeec", "gggc", "fffc",
    "dddC", "cccc", "CCCC",
)  # fmt: skip
WITH_NUMBER_AND_FLOAT64_DEFAULT = (
    "?ldC", "uudC", "bbdC", "hhdC", "iidC", "lldC", "HHdC", "IIdC", "QQdC", "eeec", "gggc", "fffc",
    "dddC", "cccc", "CCCC",
)  # fmt: skip

CAN_CAST = ["1" * 15] + ["0" + "1" * 14] * 8 + ["0" * 9 + "1" * 6] * 4 + ["0" * 13 + "11"] * 2


def letter(compute, *operands):
    try:
        return LETTERS[compute(*operands).index]
    except DTypeError:
        return "."


def operand(dtype, ndim):
    return SimpleNamespace(meta=SimpleNamespace(dtype=dtype, ndim=ndim))


@pytest.mark.parametrize("first", ALL_DTYPES, ids=str)
def test_promotion_of_two_types_equals_torch(first):
    row = "".join(letter(_dtypes.promote_types, first, d) for d in ALL_DTYPES)
    assert row == SAME_CATEGORY[first.index]


@pytest.mark.parametrize("ndim", [0, 1])
@pytest.mark.parametrize("first", ALL_DTYPES, ids=str)
def test_promotion_inside_a_category_equals_torch(first, ndim):
    row = "".join(letter(result_type, operand(first, ndim), operand(d, ndim)) for d in ALL_DTYPES)
    assert row == SAME_CATEGORY[first.index]


@pytest.mark.parametrize("first", ALL_DTYPES, ids=str)
def test_zero_dim_tensor_raises_only_the_kind(first):
    row = "".join(letter(result_type, (first, DIMENSIONED), (d, ZERO_DIM)) for d in ALL_DTYPES)
    swapped = "".join(letter(result_type, (d, ZERO_DIM), (first, DIMENSIONED)) for d in ALL_DTYPES)
    assert row == swapped == WITH_ZERO_DIM[first.index]


@pytest.mark.parametrize("ndim", [0, 3])
@pytest.mark.parametrize("first", ALL_DTYPES, ids=str)
def test_python_number_raises_only_the_kind(first, ndim):
    row = "".join(letter(result_type, operand(first, ndim), n) for n in (True, 1, 1.5, 1j))
    assert row == WITH_NUMBER[first.index]


@pytest.mark.parametrize("first", ALL_DTYPES, ids=str)
def test_python_floats_have_the_default_dtype(first):
    _dtypes.set_default_dtype(_dtypes.float64)
    try:
        row = "".join(letter(result_type, operand(first, 2), n) for n in (True, 1, 1.5, 1j))
    finally:
        _dtypes.set_default_dtype(_dtypes.float32)
    assert row == WITH_NUMBER_AND_FLOAT64_DEFAULT[first.index]


def test_three_categories_combine_from_the_lowest():
    # int8 tensor, zero-dim float16, Python complex: that lifts float16, which lifts int8.
    items = ((_dtypes.int8, DIMENSIONED), (_dtypes.float16, ZERO_DIM), (_dtypes.complex64, NUMBER))
    assert result_type(*items) is _dtypes.complex64
    assert result_type((_dtypes.int8, DIMENSIONED), (_dtypes.int64, ZERO_DIM), 3) is _dtypes.int8
    assert result_type([1, True]) is _dtypes.int64
    assert result_type(operand(_dtypes.int16, 0), True) is _dtypes.int16


def test_result_type_refuses_what_is_neither_tensor_nor_number():
    with pytest.raises(TypeError, match=r"result_type: .*got str"):
        result_type(1, "x")


@pytest.mark.parametrize("frm", ALL_DTYPES, ids=str)
def test_can_cast_equals_torch(frm):
    row = "".join("01"[_dtypes.can_cast(frm, to)] for to in ALL_DTYPES)
    assert row == CAN_CAST[frm.index]


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_numpy_type_has_same_size_and_leads_back(dtype):
    assert dtype.np.itemsize == dtype.itemsize
    assert _dtypes.from_numpy_dtype(dtype.np) is dtype
    assert _dtypes.from_numpy_dtype(np.zeros(1, dtype.np).dtype) is dtype
    assert dtype.is_signed == (dtype.kind in "ifc")


def test_numpy_spellings_of_one_type_give_one_dtype():
    assert _dtypes.from_numpy_dtype(np.float32) is _dtypes.float32
    assert _dtypes.from_numpy_dtype("i8") is _dtypes.int64
    assert _dtypes.from_numpy_dtype(np.dtype(np.longlong)) is _dtypes.int64
    assert _dtypes.from_numpy_dtype(ml_dtypes.bfloat16) is _dtypes.bfloat16


@pytest.mark.parametrize("np_dtype", ["U3", "O", "M8[s]", ">f4", "f2,f2"])
def test_numpy_types_without_counterpart_are_refused(np_dtype):
    with pytest.raises(TypeError, match=r"can't convert np\.ndarray"):
        _dtypes.from_numpy_dtype(np.dtype(np_dtype))


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_dtype_is_one_immutable_object(dtype):
    assert pickle.loads(pickle.dumps(dtype)) is dtype
    assert copy.deepcopy(dtype) is copy.copy(dtype) is dtype
    assert repr(dtype) == f"torch.{dtype.name}"
    with pytest.raises(AttributeError, match="immutable"):
        dtype.name = "other"
    with pytest.raises(AttributeError, match="no_such"):
        _ = dtype.no_such


def test_half_types_compute_in_float32_and_others_in_themselves():
    for dtype in ALL_DTYPES:
        half = dtype in (_dtypes.float16, _dtypes.bfloat16)
        assert dtype.compute is (_dtypes.float32 if half else dtype)


def test_complex_and_real_counterparts():
    assert _dtypes.float64.to_complex() is _dtypes.complex128
    assert _dtypes.int8.to_complex() is _dtypes.complex64
    assert _dtypes.complex128.to_real() is _dtypes.float64
    assert _dtypes.int8.to_real() is _dtypes.int8


@pytest.mark.parametrize("value", [_dtypes.int64, "float32", np.float64])
def test_default_dtype_must_be_a_floating_point_dtype(value):
    with pytest.raises(TypeError, match="set_default_dtype"):
        _dtypes.set_default_dtype(value)
    assert _dtypes.get_default_dtype() is _dtypes.float32


@pytest.mark.parametrize("dtype", [d for d in ALL_DTYPES if d.kind == "f"], ids=str)
def test_finfo_equals_the_numpy_limits(dtype):
    ours, theirs = _dtypes.finfo(dtype), ml_dtypes.finfo(dtype.np)
    assert ours.bits == theirs.bits
    for name in ("eps", "max", "min", "tiny", "smallest_normal", "resolution"):
        assert getattr(ours, name) == pytest.approx(float(getattr(theirs, name)), rel=1e-2)
    for name in ("eps", "max", "min", "tiny"):
        assert getattr(ours, name) == float(getattr(theirs, name))


@pytest.mark.parametrize("dtype", [d for d in ALL_DTYPES if d.kind in "iu"], ids=str)
def test_iinfo_equals_numpy(dtype):
    ours, theirs = _dtypes.iinfo(dtype), np.iinfo(dtype.np)
    assert (ours.bits, ours.min, ours.max) == (theirs.bits, theirs.min, theirs.max)


def test_limits_print_as_torch_prints_them():
    assert repr(_dtypes.finfo(_dtypes.float32)) == (
        "finfo(resolution=1e-06, min=-3.40282e+38, max=3.40282e+38, eps=1.19209e-07, "
        "smallest_normal=1.17549e-38, tiny=1.17549e-38, dtype=float32)"
    )
    assert repr(_dtypes.iinfo(_dtypes.int8)) == "iinfo(min=-128, max=127, dtype=int8)"
    assert _dtypes.finfo(_dtypes.complex64).dtype == "float32"


@pytest.mark.parametrize("limits", [_dtypes.finfo, _dtypes.iinfo])
def test_limits_of_the_wrong_kind_are_refused(limits):
    wrong = _dtypes.int32 if limits is _dtypes.finfo else _dtypes.bool_
    with pytest.raises(TypeError, match=limits.__name__):
        limits(wrong)


def test_aliases_are_the_same_objects():
    assert _dtypes.half is _dtypes.float16
    assert _dtypes.long is _dtypes.int64
    assert _dtypes.float_ is _dtypes.float32
    assert all(isinstance(dtype, DType) for dtype in ALL_DTYPES)
