"""The scale: what it does to losses and steps, when it shrinks and grows."""

from __future__ import annotations

import pytest

import refruntime as torch
from refruntime.amp import GradScaler
from refruntime.errors import AutogradError


@pytest.fixture
def weight():
    return torch.ones(2, requires_grad=True)


def test_step_sees_gradients_without_the_scale(weight):
    scaler = GradScaler("cpu", init_scale=1024.0)
    optimizer = torch.optim.SGD([weight], lr=0.5)
    scaler.scale(weight.sum()).backward()
    assert weight.grad.tolist() == [1024.0] * 2
    scaler.step(optimizer)
    scaler.update()
    assert weight.tolist() == [0.5, 0.5]
    assert scaler.get_scale() == 1024.0


def test_overflow_leaves_the_step_out_and_shrinks_the_scale(weight):
    scaler = GradScaler("cpu", init_scale=8.0, growth_interval=2)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    weight.grad = torch.tensor([float("inf"), 1.0])
    assert scaler.step(optimizer) is None
    scaler.update()
    assert weight.tolist() == [1.0, 1.0]
    assert scaler.get_scale() == 4.0
    for _ in range(2):
        weight.grad = torch.zeros(2)
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 8.0


def test_gradients_are_divided_once(weight):
    scaler = GradScaler("cpu", init_scale=4.0)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler.scale(weight.sum()).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_([weight], 0.5)
    scaler.step(optimizer)
    with pytest.raises(AutogradError, match="unscale_"):
        scaler.unscale_(optimizer)
    with pytest.raises(AutogradError, match="step"):
        scaler.step(optimizer)
    scaler.update()
    assert 0.6 < weight[0].item() < 0.7
    with pytest.raises(AutogradError, match="No inf checks"):
        scaler.update()


def test_state_carries_over():
    scaler = GradScaler("cpu", init_scale=4.0)
    scaler.update(2.0)
    other = GradScaler("cpu")
    other.load_state_dict(scaler.state_dict())
    assert other.get_scale() == 2.0
    with pytest.raises(AutogradError, match="empty"):
        other.load_state_dict({})


def test_without_a_gpu_the_gpu_scaler_passes_everything_through(weight):
    with pytest.warns(UserWarning, match="CUDA is not available"):
        scaler = torch.cuda.amp.GradScaler()
    assert not scaler.is_enabled()
    loss = weight.sum()
    assert scaler.scale(loss) is loss
    optimizer = torch.optim.SGD([weight], lr=1.0)
    loss.backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert weight.tolist() == [0.0, 0.0]
    assert scaler.state_dict() == {}
    assert scaler.get_scale() == 1.0
