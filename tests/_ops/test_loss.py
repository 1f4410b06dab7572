from __future__ import annotations

import numpy as np
import pytest

import refruntime as torch
from refruntime._ops.opdef import ops
from refruntime.autograd import gradcheck, gradgradcheck


def double(*shape):
    rng = np.random.default_rng(sum(shape))
    return torch.from_numpy(rng.standard_normal(shape)).requires_grad_()


TARGET = torch.tensor([1, 0, -100, 2])
WEIGHT = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)


def logs_of(x):
    rows = x - x.max(1, keepdims=True)
    return rows - np.log(np.exp(rows).sum(1, keepdims=True))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weight", [None, WEIGHT])
def test_cross_entropy_of_classes_has_derivatives_of_both_orders(reduction, smoothing, weight):
    def function(x):
        return ops.cross_entropy(x, TARGET, weight, -100, reduction, smoothing)

    assert gradcheck(function, [double(4, 3)], fast_mode=True)
    assert gradgradcheck(function, [double(4, 3)], fast_mode=True)


def test_smoothing_is_the_cross_entropy_of_smoothed_probabilities():
    x = double(3, 4).detach()
    target = torch.tensor([2, 0, 3])
    one_hot = torch.eye(4, dtype=torch.float64)[target]
    by_class = ops.cross_entropy(x, target, label_smoothing=0.3).item()
    soft = ops.cross_entropy(x, one_hot, label_smoothing=0.3).item()
    smoothed = one_hot.numpy() * 0.7 + 0.3 / 4
    expected = -(smoothed * logs_of(x.numpy())).sum(1).mean()
    assert by_class == pytest.approx(expected) and soft == pytest.approx(expected)


def test_cross_entropy_of_images_equals_that_of_their_pixels():
    x, target = double(2, 3, 4, 5), torch.randint(0, 3, (2, 4, 5))
    pixels = x.permute(0, 2, 3, 1).reshape(-1, 3)
    whole = ops.cross_entropy(x, target).item()
    assert whole == pytest.approx(ops.cross_entropy(pixels, target.flatten()).item())


def test_one_sample_needs_no_batch():
    x = torch.tensor([1.0, 2.0, 3.0])
    assert ops.cross_entropy(x, torch.tensor(2)).item() == pytest.approx(0.40760595)


def test_the_graph_names_the_loss_as_torch_does():
    x = torch.zeros(2, 3, requires_grad=True)
    assert ops.cross_entropy(x, torch.tensor([0, 1])).grad_fn.name() == "NllLossBackward0"
    assert ops.mse_loss(x, torch.ones(2, 3)).grad_fn.name() == "MseLossBackward0"


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_binary_losses_have_derivatives_of_both_orders(reduction):
    def of_logits(x, t, weight):
        return ops.binary_cross_entropy_with_logits(x, t.sigmoid(), None, weight.exp(), reduction)

    def of_probabilities(x, t):
        return ops.binary_cross_entropy(x.sigmoid(), t.sigmoid(), None, reduction)

    inputs = [double(4, 3), double(4, 3), double(3)]
    for function, count in ((of_logits, 3), (of_probabilities, 2)):
        assert gradcheck(function, inputs[:count], fast_mode=True)
        assert gradgradcheck(function, inputs[:count], fast_mode=True)


def test_weights_scale_each_element():
    x, t = torch.tensor([0.0, 0.0]), torch.tensor([1.0, 0.0])
    loss = ops.binary_cross_entropy_with_logits(x, t, torch.tensor([2.0, 0.0]), reduction="none")
    assert loss.tolist() == pytest.approx([2 * np.log(2), 0])


def test_losses_of_pairs_broadcast():
    x, t = double(4, 3), double(3)
    expected = np.square(x.detach().numpy() - t.detach().numpy()).mean()
    assert ops.mse_loss(x, t).item() == pytest.approx(expected)
    assert gradcheck(ops.mse_loss, [x, t], fast_mode=True)


def test_a_beta_of_zero_is_the_absolute_error_and_a_negative_one_is_refused():
    x, t = torch.tensor([1.0, 5.0]), torch.tensor([2.0, 2.0])
    assert ops.smooth_l1_loss(x, t, beta=0).item() == 2
    with pytest.raises(RuntimeError, match="negative values for beta"):
        ops.smooth_l1_loss(x, t, beta=-1.0)
    with pytest.raises(RuntimeError, match="non-positive values for delta"):
        ops.huber_loss(x, t, delta=0.0)


def test_kl_divergence_of_log_targets_equals_that_of_targets():
    x = torch.log_softmax(double(3, 4), 1)
    t = torch.softmax(double(4, 3).t(), 1)
    one = ops.kl_div(x, t, "batchmean").item()
    other = ops.kl_div(x, t.log(), "batchmean", log_target=True).item()
    probabilities = t.detach().numpy()
    expected = (probabilities * (np.log(probabilities) - x.detach().numpy())).sum() / 3
    assert one == pytest.approx(expected) and other == pytest.approx(expected)
