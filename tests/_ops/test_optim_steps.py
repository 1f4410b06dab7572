"""Optimizer steps as ops: in place, out of place, in any layout, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest

import refruntime as torch
from refruntime._ops.opdef import ops


def array(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def start(shape=(4, 3), dtype=torch.float64):
    arrays = [array(*shape, seed=i) for i in range(3)]
    arrays.append(np.abs(array(*shape, seed=3)))
    return [torch.from_numpy(a).to(dtype) for a in arrays]


SETTINGS = {"betas": (0.9, 0.99), "eps": 1e-3, "weight_decay": 0.1, "maximize": True}


def test_without_out_the_operands_stay():
    p, g, m, v = start()
    before = [t.numpy().copy() for t in (p, g, m, v)]
    results = ops.adam_step(p, g, m, v, None, 0.1, 2, **SETTINGS)
    for tensor, values in zip((p, g, m, v), before, strict=True):
        np.testing.assert_array_equal(tensor.numpy(), values)
    assert len(results) == 3
    assert not np.array_equal(results[0].numpy(), before[0])


@pytest.mark.parametrize("turned", [(0,), (1,), (0, 2, 3), (0, 1, 2, 3)])
def test_any_layout_is_updated_in_place(turned):
    expected = ops.adam_step(*start(), None, 0.1, 2, **SETTINGS)
    p, g, m, v = [
        t.t().contiguous().t() if place in turned else t for place, t in enumerate(start())
    ]
    ops.adam_step(p, g, m, v, None, 0.1, 2, **SETTINGS, out=(p, m, v))
    for tensor, values in zip((p, m, v), expected, strict=True):
        np.testing.assert_allclose(tensor.numpy(), values.numpy(), rtol=1e-12)


def test_versions_of_what_is_written_are_counted():
    p, g, m, v = start()
    versions = [t._version for t in (p, g, m, v)]
    ops.adam_step(p, g, m, v, None, 0.1, 2, out=(p, m, v))
    changes = [t._version - old for t, old in zip((p, g, m, v), versions, strict=True)]
    assert changes == [1, 0, 1, 1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_narrow_types_compute_in_float32_and_round_at_the_end(dtype):
    p, g, m, v = start(dtype=dtype)
    wide = [t.float() for t in (p, g, m, v)]
    expected = ops.adam_step(*wide, None, 0.1, 3, weight_decay=0.1, decoupled=True)
    ops.adam_step(p, g, m, v, None, 0.1, 3, weight_decay=0.1, decoupled=True, out=(p, m, v))
    for tensor, values in zip((p, m, v), expected, strict=True):
        np.testing.assert_array_equal(tensor.float().numpy(), values.to(dtype).float().numpy())


def test_a_large_parameter_is_shared_among_threads_with_the_same_result():
    shape = (300, 1000)
    p, g = torch.from_numpy(array(*shape)), torch.from_numpy(array(*shape, seed=1))
    v = torch.zeros(*shape, dtype=torch.float64)
    expected = p.numpy() - 0.1 * (0.5 * g.numpy() + 0.1 * 0.5 * p.numpy())
    expected_v = 0.5 * (g.numpy() + 0.1 * p.numpy())
    ops.sgd_step(p, g, v, 0.1, momentum=0.9, dampening=0.5, weight_decay=0.1, out=(p, v))
    np.testing.assert_allclose(v.numpy(), expected_v, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(p.numpy(), expected, rtol=1e-9, atol=1e-12)


def test_an_empty_parameter_is_no_work():
    p, g = torch.ones(0, 3), torch.ones(0, 3)
    assert ops.sgd_step(p, g, None, 0.1, out=p) is p


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda t: t.float(), "expected torch.float64, got torch.float32"),
        (lambda t: t[:2], r"expected torch.Size\(\[4, 3\]\)"),
    ],
)
def test_state_that_does_not_fit_is_named(change, text):
    p, g, m, v = start()
    with pytest.raises(RuntimeError, match=f"mean.*{text}"):
        ops.adam_step(p, g, change(m), v, None, 0.1, 1)
    with pytest.raises(RuntimeError, match="floating-point parameter"):
        ops.sgd_step(p.long(), g.long(), None, 0.1)
