"""Checkpointing: same numbers, less memory."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import refruntime as torch
from refruntime import nn
from refruntime.utils.checkpoint import checkpoint, checkpoint_sequential


def build():
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(6)])


def gradients(run):
    net = build()
    x = torch.ones(3, 8, requires_grad=True)
    run(net, x).sum().backward()
    return [x.grad.numpy(), *(p.grad.numpy() for p in net.parameters())]


@pytest.mark.parametrize(
    "run",
    [
        lambda net, x: checkpoint(net, x, use_reentrant=False),
        lambda net, x: net[3:](checkpoint(net[:3], x)),
        lambda net, x: checkpoint_sequential(net, 3, x),
        lambda net, x: checkpoint_sequential([m.forward for m in net], 4, x, use_reentrant=True),
    ],
)
def test_gradients_are_those_of_the_plain_run(run):
    for ours, plain in zip(gradients(run), gradients(lambda net, x: net(x)), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-6)


def test_parameters_get_gradients_when_no_input_does():
    net = build()
    checkpoint(net, torch.ones(3, 8)).sum().backward()
    assert all(p.grad is not None for p in net.parameters())


def test_the_second_run_draws_the_same_numbers_and_leaves_the_generator_alone():
    drop = nn.Dropout(0.5)
    x = torch.ones(200, requires_grad=True)
    torch.manual_seed(3)
    out = checkpoint(drop, x)
    mark = torch.get_rng_state().tolist()
    out.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), out.detach().numpy())
    assert torch.get_rng_state().tolist() == mark


def test_several_outputs_other_arguments_and_keywords():
    def both(x, factor, *, plus):
        return x * factor, x + plus

    x = torch.ones(2, requires_grad=True)
    first, second = checkpoint(both, x, 3.0, plus=1.0)
    (first.sum() + 2 * second.sum()).backward()
    assert x.grad.tolist() == [5.0, 5.0]
    y = torch.ones(2, requires_grad=True)
    first, _ = checkpoint(both, y, 3.0, plus=1.0)
    first.sum().backward()
    assert y.grad.tolist() == [3.0, 3.0]


def test_activations_are_not_kept():
    from refruntime import alloc

    def kept(run):
        net, x = build(), torch.ones(4096, 8, requires_grad=True)
        gc.collect()
        before = alloc.host().stats()["allocated_bytes.all.current"]
        out = run(net, x)
        gc.collect()
        return alloc.host().stats()["allocated_bytes.all.current"] - before, out

    plain, _ = kept(lambda net, x: net(x))
    thrifty, _ = kept(lambda net, x: checkpoint(net, x))
    assert thrifty < plain / 3


def test_without_gradients_the_function_is_just_called():
    with torch.no_grad():
        assert not checkpoint(build(), torch.ones(1, 8)).requires_grad
    with pytest.raises(TypeError, match="a function"):
        checkpoint(3)
