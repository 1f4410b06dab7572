"""Fused backwards: the kernel and its decomposition into ops compute the same."""

from __future__ import annotations

import numpy as np
import pytest

import refruntime as torch
from refruntime._dispatch import call
from refruntime._ops.backward import decompose, fused_backward
from refruntime._ops.opdef import REGISTRY
from refruntime.kernels.scalar import Body

FUSED = [
    op for op in REGISTRY.values() if op.body is not None and op.vjp is None and op.decomposition
]
# Values for the keyword parameters of all of them.
NUMBERS = {
    "negative_slope": 0.2, "min_val": -0.5, "max_val": 0.8, "threshold": 0.3, "lambd": 0.4,
    "alpha": 1.2, "scale": 1.1, "input_scale": 0.9, "beta": 1.5, "eps": 0.1,
}  # fmt: skip


def operands(op):
    """Return gradients of both signs, and operands where each of the ops is defined."""
    rng = np.random.default_rng(3)
    low = 1.1 if op.name == "acosh_backward" else 0.05
    made = [torch.from_numpy(rng.uniform(low, low + 0.9, 64)) for _ in op.inputs]
    return [torch.from_numpy(rng.uniform(-1, 1, 64)), *made[1:]]


@pytest.mark.parametrize("op", FUSED, ids=lambda op: op.name)
def test_decomposition_equals_the_kernel(op):
    params = {name: NUMBERS[name] for name in op.body.immediates}
    values = operands(op)
    fused = call(op, tuple(values), params)
    parts = op.decomposition(*values, **params)
    np.testing.assert_allclose(parts.numpy(), fused.numpy(), 1e-12, 1e-12)


def test_an_operand_that_requires_grad_takes_the_decomposition():
    op = REGISTRY["tanh_backward"]
    grad, out = torch.rand(3), torch.rand(3).requires_grad_()
    assert call(op, (grad, out)).grad_fn is not None
    assert call(op, (grad, out.detach())).grad_fn is None


def test_conditions_of_numbers_are_decided_at_once():
    run = decompose(Body.from_source("def f(grad, x, n):\n    return 0 if n == 0 else grad * x"))
    grad, x = torch.tensor([2.0, 3.0]), torch.tensor([5.0, 7.0])
    assert run(grad, x, 0).tolist() == [0.0, 0.0]
    assert run(grad, x, 1).tolist() == [10.0, 21.0]


def test_a_fused_backward_has_no_public_name():
    @fused_backward
    def halved_in_a_test(grad):
        return grad * 0.5

    try:
        assert not hasattr(torch, "halved_in_a_test")
        assert call(halved_in_a_test, (torch.ones(2),)).tolist() == [0.5, 0.5]
    finally:
        del REGISTRY["halved_in_a_test"]
