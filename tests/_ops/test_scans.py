"""Running sums, products and extremes."""

import numpy as np
import pytest

import refruntime as torch


@pytest.mark.parametrize("shape", [(200,), (3, 70), (70, 3), (2, 5, 130), (1, 1)])
@pytest.mark.parametrize("dim", [0, -1])
def test_cumsum_of_any_extents_equals_numpy(shape, dim):
    x = np.random.default_rng(0).random(shape)
    np.testing.assert_allclose(torch.tensor(x).cumsum(dim).numpy(), np.cumsum(x, dim))
    np.testing.assert_allclose(torch.tensor(x).cumprod(dim).numpy(), np.cumprod(x, dim))


def test_float_sums_run_in_double():
    x = np.full(1_000_000, 0.1, np.float32)
    got = torch.tensor(x).cumsum(0)[-1].item()
    assert got == pytest.approx(float(np.sum(x.astype(np.float64))), rel=1e-7)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int16, torch.int32])
def test_integers_give_int64_unless_asked_otherwise(dtype):
    x = torch.tensor([1, 0, 1]).to(dtype)
    assert x.cumsum(0).dtype is torch.int64
    assert x.cumsum(0).tolist() == [1, 1, 2]
    assert x.cumsum(0, dtype=torch.float64).dtype is torch.float64
    assert x.cumsum(0, dtype=torch.int32).dtype is torch.int32


def test_half_types_are_rounded_at_each_store_only():
    x = torch.full((300,), 1.0, dtype=torch.bfloat16)
    assert x.cumsum(0)[-1].item() == 300.0


def test_zero_dim_and_empty():
    assert torch.tensor(2.0).cumsum(0).item() == 2.0
    assert tuple(torch.zeros(0, 3).cumsum(0).shape) == (0, 3)


def test_cumprod_gradient_where_elements_are_zero():
    values = np.array([2.0, 0.0, 3.0, 0.0, 5.0])
    x = torch.tensor(values, requires_grad=True)
    weight = torch.tensor([1.0, 10.0, 100.0, 1000.0, 10000.0], dtype=torch.float64)
    (x.cumprod(0) * weight).sum().backward()
    step = 1e-6
    for k in range(5):
        moved = [values.copy(), values.copy()]
        moved[0][k] += step
        moved[1][k] -= step
        high, low = ((np.cumprod(v) * weight.numpy()).sum() for v in moved)
        assert x.grad[k].item() == pytest.approx((high - low) / (2 * step), abs=1e-4)


def test_extremes_report_the_last_of_equal_places_and_keep_nan():
    values, places = torch.tensor([1.0, 3.0, 3.0, 2.0]).cummax(0)
    assert (values.tolist(), places.tolist()) == ([1.0, 3.0, 3.0, 3.0], [0, 1, 2, 2])
    nan = float("nan")
    values, places = torch.tensor([1.0, nan, 3.0, nan]).cummin(0)
    assert places.tolist() == [0, 1, 1, 3]
    assert np.isnan(values.tolist()).tolist() == [False, True, True, True]


def test_result_of_extremes_is_named():
    result = torch.tensor([2, 1]).cummin(0)
    assert result.values.tolist() == [2, 1]
    assert result.indices.tolist() == [0, 1]


def test_in_place_form():
    x = torch.tensor([1.0, 2.0, 3.0])
    assert x.cumsum_(0) is x
    assert x.tolist() == [1.0, 3.0, 6.0]
    wide = torch.ones(3, 4)
    wide[:, ::2].cumsum_(0)
    assert wide[:, 0].tolist() == [1.0, 2.0, 3.0]
    assert wide[:, 1].tolist() == [1.0] * 3
