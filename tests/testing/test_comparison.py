"""assert_close: the rules, and the words of its failures (PyTorch 2.13's)."""

from __future__ import annotations

import numpy as np
import pytest

import refruntime as torch
from refruntime.testing import assert_close


def failure(actual, expected, **kwargs) -> str:
    with pytest.raises(AssertionError) as caught:
        assert_close(actual, expected, **kwargs)
    return str(caught.value)


@pytest.mark.parametrize(
    ("dtype", "rtol", "atol"),
    [
        (torch.float16, 1e-3, 1e-5), (torch.bfloat16, 1.6e-2, 1e-5), (torch.float32, 1.3e-6, 1e-5),
        (torch.float64, 1e-7, 1e-7),
    ],
)  # fmt: skip
def test_tolerances_depend_on_the_dtype(dtype, rtol, atol):
    expected = torch.tensor([1024.0], dtype=dtype)
    step = 1024.0 * rtol + atol
    near = torch.tensor([1024.0 + 0.5 * step], dtype=torch.float64).to(dtype)
    assert_close(near, expected)
    far = torch.tensor([1024.0 + 4 * step], dtype=torch.float64).to(dtype)
    assert "are not close" in failure(far, expected)


def test_the_failure_counts_and_locates_the_differences():
    text = failure(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 2.0, 4.0]))
    assert text == (
        "Tensor-likes are not close!\n\nMismatched elements: 1 / 3 (33.3%)\n"
        "Greatest absolute difference: 1.0 at index (2,) (up to 1e-05 allowed)\n"
        "Greatest relative difference: 0.25 at index (2,) (up to 1.3e-06 allowed)"
    )


def test_integers_and_bools_are_compared_exactly():
    assert failure(torch.tensor([1, 2]), torch.tensor([1, 3])).startswith(
        "Tensor-likes are not equal!\n\nMismatched elements: 1 / 2 (50.0%)\n"
        "Greatest absolute difference: 1 at index (1,)\n"
    )
    assert "1 / 1 (100.0%)" in failure(torch.tensor([True]), torch.tensor([False]))
    assert "1 at index (0,)" in failure(
        torch.tensor([0], dtype=torch.uint8), torch.tensor([1], dtype=torch.uint8)
    )


def test_numbers_are_compared_by_type_and_value():
    assert failure(1.0, 2.0) == (
        "Scalars are not close!\n\nExpected 2.0 but got 1.0.\n"
        "Absolute difference: 1.0 (up to 1e-07 allowed)\n"
        "Relative difference: 0.5 (up to 1e-07 allowed)"
    )
    assert failure(1, 1.0) == "The (d)types do not match: <class 'int'> != <class 'float'>."
    assert failure(torch.tensor(1), torch.tensor(2)) == (
        "Scalars are not equal!\n\nExpected 2 but got 1.\n"
        "Absolute difference: 1\nRelative difference: 0.5"
    )
    assert_close(1, 1.0, check_dtype=False)


def test_nan_agrees_with_nan_only_on_request():
    x = torch.tensor([float("nan"), 1.0])
    assert "1 / 2 (50.0%)" in failure(x, x.clone())
    assert_close(x, x.clone(), equal_nan=True)
    assert_close(float("nan"), float("nan"), equal_nan=True)


def test_infinities_agree_only_with_themselves():
    inf = torch.tensor([float("inf"), -float("inf")])
    assert_close(inf, inf.clone())
    assert "2 / 2" in failure(inf, -inf)
    assert "inf at index (0,)" in failure(inf[:1], torch.ones(1))


@pytest.mark.parametrize(
    ("actual", "expected", "relaxed", "attribute"),
    [
        (torch.ones(1), torch.ones(1, dtype=torch.float64), "check_dtype", "dtype"),
        (torch.ones(1), torch.ones(1, 1), None, "shape"),
        (torch.ones(2, 2).t(), torch.ones(2, 2), None, "stride()"),
    ],
)
def test_attributes_must_agree_unless_relaxed(actual, expected, relaxed, attribute):
    strict = {"check_stride": True} if attribute == "stride()" else {}
    text = failure(actual, expected, **strict)
    assert text.startswith(f"The values for attribute '{attribute}' do not match: ")
    if relaxed is not None:
        assert_close(actual, expected, **{relaxed: False})


def test_containers_are_compared_item_by_item():
    assert_close([torch.ones(1), {"a": 1.0}, None], (torch.ones(1), {"a": 1.0}, None))
    one, two = torch.tensor([1.0]), torch.tensor([2.0])
    assert failure([one, {"b": [two]}], [one, {"b": [one]}]).endswith(
        "The failure occurred for item [1]['b'][0]"
    )
    assert failure([one], [one, two]) == "The length of the sequences mismatch: 1 != 2"
    assert "Missing keys in the actual mapping: ['b']" in failure({"a": one}, {"b": one})


def test_tolerances_are_given_together():
    with pytest.raises(ValueError, match="got no atol"):
        assert_close(1.0, 1.0, rtol=1e-3)
    assert_close(1.0, 1.0005, rtol=1e-3, atol=0.0)
    assert "are not equal" in failure(torch.tensor([1.0]), torch.tensor([2.0]), rtol=0, atol=0)


def test_types_without_a_rule_are_refused():
    with pytest.raises(TypeError, match="No comparison pair"):
        assert_close("a", "a")
    with pytest.raises(TypeError, match="No comparison pair"):
        assert_close(torch.ones(1), np.ones(1))


def test_arrays_and_subclasses_are_compared():
    assert_close(np.ones(2), np.ones(2))
    assert "are not close" in failure(np.ones(2), np.zeros(2))
    parameter = torch.nn.Parameter(torch.ones(1))
    assert_close(parameter, torch.ones(1))
    with pytest.raises(TypeError, match="No comparison pair"):
        assert_close(parameter, torch.ones(1), allow_subclasses=False)


def test_the_text_can_be_replaced_or_extended():
    assert failure(1, 2, msg="mine") == "mine"
    assert failure(1, 2, msg=lambda text: "see: " + text).startswith("see: Scalars are not equal")


def test_none_and_bools():
    assert_close(None, None)
    assert failure(None, 1) == "None mismatch: None is not 1"
    assert failure(True, False) == "Booleans mismatch: True is not False"


def test_inputs_are_left_alone():
    x = torch.ones(2, requires_grad=True)
    array = np.ones(2)
    assert_close(x, x)
    assert_close(array, array)
    assert x.requires_grad
    assert array.tolist() == [1.0, 1.0]
