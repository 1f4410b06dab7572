"""What pointwise ops do beyond their samples: dtypes, numbers, errors, in-place and out= forms."""

from __future__ import annotations

import math

import numpy as np
import pytest

import refruntime as torch

INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_wrap(dtype):
    top = torch.tensor([torch.iinfo(dtype).max], dtype=dtype)
    assert (top + 1).item() == torch.iinfo(dtype).min
    assert (top + 1).dtype is dtype


def test_a_number_does_not_widen_a_tensor():
    assert (torch.ones(2, dtype=torch.float16) * 2.5).dtype is torch.float16
    assert (torch.ones(2, dtype=torch.int8) + 1000).dtype is torch.int8
    assert (torch.ones(2, dtype=torch.int32) * 0.5).dtype is torch.float32
    assert (torch.ones(2, dtype=torch.bool) + 1).dtype is torch.int64


@pytest.mark.parametrize("name", ["sin", "exp", "sqrt", "sigmoid", "erf", "log1p", "reciprocal"])
def test_float_functions_take_integers_to_the_default_dtype(name):
    x = torch.tensor([1, 2, 3])
    assert getattr(torch, name)(x).dtype is torch.float32
    assert getattr(torch, name)(x > 1).dtype is torch.float32


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_types_are_computed_in_float32_and_rounded_once(dtype):
    x = torch.linspace(-3, 3, 101).to(dtype)
    assert torch.equal(x.tanh(), x.float().tanh().to(dtype))
    # The sum is rounded once, from float32, though the product alone does not fit the half type.
    wide = x.float()
    assert torch.equal(torch.addcmul(x, x, x), torch.addcmul(wide, wide, wide).to(dtype))


@pytest.mark.parametrize("call", [
    lambda a, b: a // b, lambda a, b: a % b, torch.fmod, torch.floor_divide,
    lambda a, b: torch.div(a, b, rounding_mode="trunc"),
])  # fmt: skip
def test_integer_division_by_zero_raises(call):
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        call(torch.tensor([1, 2]), torch.tensor([1, 0]))
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        call(torch.tensor([1, 2]), 0)


def test_float_division_by_zero_follows_ieee():
    x = torch.tensor([1.0, -1.0, 0.0])
    assert (x / 0).tolist()[:2] == [math.inf, -math.inf]
    assert torch.isnan(x / 0).tolist() == [False, False, True]


def test_rounding_modes_of_division():
    a, b = torch.tensor([7, -7, 7]), torch.tensor([2, 2, -2])
    assert torch.div(a, b).tolist() == [3.5, -3.5, -3.5]
    assert torch.div(a, b, rounding_mode="floor").tolist() == [3, -4, -4]
    assert torch.div(a, b, rounding_mode="trunc").tolist() == [3, -3, -3]
    with pytest.raises(ValueError, match="rounding_mode"):
        torch.div(a, b, rounding_mode="up")


def test_alpha_scales_the_second_operand():
    a, b = torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0])
    assert torch.add(a, b, alpha=0.5).tolist() == [6.0, 12.0]
    assert a.sub(b, alpha=2).tolist() == [-19.0, -38.0]
    with pytest.raises(RuntimeError, match="alpha must not be a floating point"):
        torch.add(torch.tensor([1]), 1, alpha=0.5)


def test_bool_has_neither_minus_nor_negation():
    x = torch.tensor([True, False])
    with pytest.raises(RuntimeError):
        torch.sub(x, x)
    with pytest.raises(RuntimeError):
        torch.neg(x)
    assert (~x).tolist() == [False, True]
    assert (x + x).tolist() == [True, False]


def test_reflected_operators_keep_the_order():
    x = torch.tensor([2.0, 4.0])
    assert (1 - x).tolist() == [-1.0, -3.0]
    assert (8 / x).tolist() == [4.0, 2.0]
    assert (2**x).tolist() == [4.0, 16.0]
    assert (9 // x).tolist() == [4.0, 2.0]
    assert (9 % x).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("exponent", [2, 3, 0.5, -0.5, -1, 0, 1, 2.5, -2])
def test_powers_by_usual_exponents(exponent):
    x = np.array([0.3, 1.0, 2.5])
    got = torch.from_numpy(x) ** exponent
    np.testing.assert_allclose(got.numpy(), x**exponent, 1e-14)


def test_negative_power_of_integers_is_refused():
    with pytest.raises(RuntimeError, match="negative integer powers"):
        torch.tensor([2]) ** -1
    assert (torch.tensor([2]) ** -1.0).item() == 0.5


def test_history_has_the_names_that_torch_gives():
    x = torch.tensor([0.5], requires_grad=True)
    names = {
        "AddBackward0": x + 1, "MulBackward0": x * 2, "DivBackward0": x / 2, "PowBackward0": x**2,
        "ExpBackward0": x.exp(), "Log1PBackward0": x.log1p(), "ReluBackward0": torch.relu(x),
        "ClampBackward1": x.clamp(0, 1), "SigmoidBackward0": x.sigmoid(), "SubBackward0": x - 1,
        "MaximumBackward0": torch.maximum(x, x), "NegBackward0": -x, "Atan2Backward0": x.atan2(x),
    }  # fmt: skip
    assert {name: type(y.grad_fn).__name__ for name, y in names.items()} == {n: n for n in names}


def test_in_place_forms_write_into_the_tensor_and_return_it():
    x = torch.tensor([1.0, -2.0])
    address = x.data_ptr()
    assert x.add_(1) is x
    assert x.relu_() is x
    assert x.mul_(torch.tensor([3.0, 4.0])).tolist() == [6.0, 0.0]
    assert x.data_ptr() == address
    with pytest.raises(RuntimeError, match="can't be cast"):
        torch.tensor([1]).add_(0.5)


def test_out_receives_the_result():
    out = torch.empty(2)
    assert torch.add(torch.ones(2), 2, out=out) is out
    assert out.tolist() == [3.0, 3.0]


def test_masked_fill_takes_bool_masks_only():
    x = torch.zeros(2, dtype=torch.int32)
    mask = torch.tensor([True, False])
    assert x.masked_fill(mask, 1.5).tolist() == [1, 0]
    with pytest.raises(RuntimeError, match="boolean masks"):
        x.masked_fill(torch.tensor([1.0, 0.0]), 1)


def test_where_with_one_argument_gives_indices():
    (rows,) = torch.where(torch.tensor([False, True, True]))
    assert rows.tolist() == [1, 2]


def test_clamp_needs_a_bound_and_lets_nan_through():
    with pytest.raises(ValueError, match="At least one"):
        torch.tensor([1.0]).clamp()
    x = torch.tensor([math.nan, -5.0, 5.0])
    assert torch.isnan(x.clamp(-1, 1)).tolist() == [True, False, False]
    assert torch.tensor([1, 2]).clamp(min=1.5).tolist() == [1.5, 2.0]


def test_gradient_at_a_tie_of_maximum_is_shared():
    a = torch.tensor([1.0, 2.0], requires_grad=True)
    b = torch.tensor([1.0, 1.0], requires_grad=True)
    torch.maximum(a, b).sum().backward()
    assert a.grad.tolist() == [0.5, 1.0]
    assert b.grad.tolist() == [0.5, 0.0]


def test_nan_to_num_uses_the_limits_of_the_dtype():
    x = torch.tensor([math.nan, math.inf, -math.inf])
    limits = torch.finfo(torch.float32)
    assert x.nan_to_num().tolist() == [0.0, limits.max, limits.min]
    assert torch.tensor([1, 2]).nan_to_num().tolist() == [1, 2]


def test_isclose_compares_equal_dtypes():
    a = torch.tensor([1.0, math.nan])
    assert torch.isclose(a, a).tolist() == [True, False]
    assert torch.isclose(a, a, equal_nan=True).tolist() == [True, True]
    assert torch.isclose(torch.tensor([10]), torch.tensor([11]), rtol=0.1).tolist() == [True]
    with pytest.raises(RuntimeError, match="Float did not match Double"):
        torch.isclose(a, a.double())


def test_allclose_and_equal_give_one_answer():
    a, b = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.00001])
    assert torch.allclose(a, b)
    assert not torch.allclose(a, b, rtol=1e-7)
    assert torch.equal(a, a.clone())
    assert not torch.equal(a, b)
    assert not torch.equal(a, a[:1])


def test_round_to_decimals_and_tens():
    x = torch.tensor([123.456, -0.55], dtype=torch.float64)
    assert x.round(decimals=2).tolist() == [123.46, -0.55]
    assert x.round(decimals=-1).tolist() == [120.0, 0.0]


def test_bits_of_floats_are_refused():
    with pytest.raises(NotImplementedError, match="not implemented for 'Float"):
        torch.bitwise_and(torch.ones(2), torch.ones(2))


def test_filling_keeps_the_dtype_of_the_tensor():
    mask = torch.tensor([True, False])
    assert torch.zeros(2).bool().masked_fill(mask, 3).tolist() == [True, False]
    assert torch.zeros(2, dtype=torch.int64).masked_fill(mask, 1.5).tolist() == [1, 0]
    filled = torch.zeros(2, dtype=torch.complex64).masked_fill(mask, 1 - 2j)
    assert filled.tolist() == [1 - 2j, 0]
