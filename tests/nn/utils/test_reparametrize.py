"""Weight norm, spectral norm, parametrizations: old hooks and new."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import refruntime as torch
from refruntime import nn
from refruntime.nn.utils import (
    parametrizations,
    parametrize,
    remove_spectral_norm,
    remove_weight_norm,
    spectral_norm,
    weight_norm,
)


def values(t):
    return t.detach().numpy()


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(2)


@pytest.mark.parametrize(("dim", "shape"), [(0, (4, 1)), (1, (1, 3)), (None, ())])
def test_weight_norm_splits_length_and_direction(dim, shape):
    layer = nn.Linear(3, 4)
    before = values(layer.weight).copy()
    x = torch.randn(2, 3)
    expected = values(layer(x))
    weight_norm(layer, dim=dim)
    assert sorted(layer.state_dict()) == ["bias", "weight_g", "weight_v"]
    assert tuple(layer.weight_g.shape) == shape
    np.testing.assert_allclose(values(layer(x)), expected, rtol=1e-5, atol=1e-6)
    layer.weight_g.data.mul_(2)
    layer(x).sum().backward()
    np.testing.assert_allclose(values(layer.weight), 2 * before, rtol=1e-5)
    assert layer.weight_v.grad is not None
    remove_weight_norm(layer)
    assert sorted(layer.state_dict()) == ["bias", "weight"]
    np.testing.assert_allclose(values(layer.weight), 2 * before, rtol=1e-5)


def test_weight_norm_is_put_on_once():
    layer = weight_norm(nn.Linear(2, 2))
    with pytest.raises(RuntimeError, match="two weight_norm hooks"):
        weight_norm(layer)
    with pytest.raises(ValueError, match="not found"):
        remove_weight_norm(nn.Linear(2, 2))


def test_spectral_norm_brings_the_largest_singular_value_to_one():
    layer = spectral_norm(nn.Linear(5, 4), n_power_iterations=30)
    layer(torch.randn(1, 5))
    assert np.linalg.norm(values(layer.weight), 2) == pytest.approx(1.0, abs=1e-3)
    assert sorted(layer.state_dict()) == ["bias", "weight_orig", "weight_u", "weight_v"]
    u = values(layer.weight_u).copy()
    layer.eval()(torch.randn(1, 5))
    np.testing.assert_array_equal(values(layer.weight_u), u)
    remove_spectral_norm(layer)
    assert sorted(layer.state_dict()) == ["bias", "weight"]
    assert np.linalg.norm(values(layer.weight), 2) == pytest.approx(1.0, abs=1e-3)


def test_parametrized_weight_norm_trains_length_and_direction():
    layer = nn.Linear(3, 4)
    before = values(layer.weight).copy()
    parametrizations.weight_norm(layer)
    np.testing.assert_allclose(values(layer.weight), before, rtol=1e-5, atol=1e-7)
    assert sorted(layer.state_dict()) == [
        "bias", "parametrizations.weight.original0", "parametrizations.weight.original1",
    ]  # fmt: skip
    layer(torch.randn(2, 3)).sum().backward()
    assert all(p.grad is not None for p in layer.parameters())


def test_parametrized_spectral_norm():
    layer = parametrizations.spectral_norm(nn.Linear(5, 4), n_power_iterations=20)
    assert np.linalg.norm(values(layer.weight), 2) == pytest.approx(1.0, abs=1e-3)


class Symmetric(nn.Module):
    def forward(self, x):
        return x.triu() + x.triu(1).t()

    def right_inverse(self, x):
        return x.triu()


class Doubled(nn.Module):
    def forward(self, x):
        return 2 * x

    def right_inverse(self, x):
        return x / 2


def test_a_parametrization_computes_the_attribute_and_can_be_assigned():
    layer = nn.Linear(3, 3)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    assert parametrize.is_parametrized(layer)
    assert type(layer).__name__ == "ParametrizedLinear"
    assert isinstance(layer, nn.Linear)
    w = values(layer.weight)
    np.testing.assert_array_equal(w, w.T)
    target = np.arange(9.0, dtype=np.float32).reshape(3, 3)
    layer.weight = torch.from_numpy(target + target.T)
    np.testing.assert_array_equal(values(layer.weight), target + target.T)


def test_parametrizations_are_applied_in_order_and_keep_the_value():
    layer = nn.Linear(3, 3)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    before = values(layer.weight).copy()
    parametrize.register_parametrization(layer, "weight", Doubled())
    np.testing.assert_allclose(values(layer.weight), before, rtol=1e-6)
    assert len(layer.parametrizations.weight) == 2


def test_a_cached_block_computes_once():
    layer, calls = nn.Linear(2, 2), []

    class Counting(nn.Module):
        def forward(self, x):
            calls.append(1)
            return x

    parametrize.register_parametrization(layer, "weight", Counting())
    calls.clear()
    with parametrize.cached():
        assert layer.weight is layer.weight
    assert calls == [1]


def test_removing_leaves_the_value_or_the_original():
    for leave, factor in ((True, 2.0), (False, 1.0)):
        layer = nn.Linear(2, 2)
        original = values(layer.weight).copy()
        parametrize.register_parametrization(layer, "weight", Doubled())
        layer.parametrizations.weight.original.data.copy_(torch.from_numpy(original))
        parametrize.remove_parametrizations(layer, "weight", leave_parametrized=leave)
        assert type(layer) is nn.Linear
        np.testing.assert_allclose(values(layer.weight), factor * original, rtol=1e-6)


def test_a_parametrized_module_is_copied_with_its_own_tensors():
    layer = nn.Linear(2, 2)
    parametrize.register_parametrization(layer, "weight", Doubled())
    twin = copy.deepcopy(layer)
    twin.parametrizations.weight.original.data.zero_()
    assert float(twin.weight.abs().sum()) == 0.0
    assert float(layer.weight.abs().sum()) > 0.0


def test_what_parametrizations_refuse():
    with pytest.raises(ValueError, match="does not have a parameter"):
        parametrize.register_parametrization(nn.Linear(2, 2), "absent", Doubled())
    with pytest.raises(ValueError, match="does not have a parametrization"):
        parametrize.remove_parametrizations(nn.Linear(2, 2), "weight")

    class Longer(nn.Module):
        def forward(self, x):
            return torch.cat([x, x], 0)

    with pytest.raises(ValueError, match="may not change the shape"):
        parametrize.register_parametrization(nn.Linear(2, 2), "weight", Longer())
