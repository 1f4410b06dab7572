"""Errors: one text from the parts that are known, the right built-in base, picklable."""

import pickle

import pytest

from refruntime import errors

BASES = {
    errors.ShapeError: RuntimeError,
    errors.DTypeError: RuntimeError,
    errors.DeviceError: RuntimeError,
    errors.AutogradError: RuntimeError,
    errors.OutOfMemoryError: RuntimeError,
    errors.IndexRangeError: IndexError,
    errors.IndexValueError: RuntimeError,
    errors.ArgumentTypeError: TypeError,
    errors.ArgumentValueError: ValueError,
    errors.KernelMissingError: NotImplementedError,
    errors.OptionalDependencyError: ImportError,
}


def test_text_joins_all_parts_in_order():
    error = errors.ShapeError(
        "add", what="sizes clash", expected=(2, 3), got=(2, 4), remedy="reshape one"
    )
    assert str(error) == "add: sizes clash; expected (2, 3), got (2, 4); reshape one"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "add"),
        ({"what": "no"}, "add: no"),
        ({"got": "x"}, "add: got x"),
        ({"expected": "y", "remedy": "do z"}, "add: expected y; do z"),
    ],
)
def test_text_leaves_out_parts_that_are_empty(fields, text):
    assert str(errors.DTypeError("add", **fields)) == text


@pytest.mark.parametrize("kind", BASES, ids=lambda kind: kind.__name__)
def test_error_is_caught_as_the_built_in_and_as_ours(kind):
    for base in (BASES[kind], errors.RefruntimeError):
        with pytest.raises(base, match="op: bad"):
            raise kind("op", what="bad")


@pytest.mark.parametrize("kind", BASES, ids=lambda kind: kind.__name__)
def test_error_survives_pickling_with_its_fields(kind):
    error = kind("conv2d", what="w", expected="e", got="g", remedy="r")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert str(copy) == str(error)
    assert (copy.op, copy.what, copy.expected, copy.got, copy.remedy) == (
        "conv2d", "w", "e", "g", "r",
    )  # fmt: skip
