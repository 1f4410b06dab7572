from __future__ import annotations

import numpy as np
import pytest

import refruntime as torch
from refruntime.config import config
from refruntime.kernels import loss


@pytest.mark.parametrize("function", [torch.mse_loss, torch.l1_loss, torch.huber_loss])
def test_a_sum_over_many_blocks_is_rounded_once(function):
    torch.manual_seed(0)
    x, t = torch.randn(300_001), torch.randn(300_001)
    one = function(x, t, "sum").item()
    each = function(x, t, "none").numpy().astype(np.float64)
    assert one == np.float32(each.sum()) == pytest.approx(each.sum(), rel=1e-6)


def test_reduced_losses_do_not_depend_on_the_number_of_threads():
    torch.manual_seed(0)
    x, t = torch.randn(200_000), torch.randn(200_000)
    results = []
    for threads in (1, 3):
        with config.patch(num_threads=threads):
            results.append(torch.mse_loss(x, t).item())
    assert results[0] == results[1]


def test_targets_over_many_blocks_are_each_counted():
    count = 3 * loss.BLOCK + 17
    logs = torch.log_softmax(torch.randn(count, 3), 1)
    target = torch.randint(0, 3, (count,))
    picked = logs.numpy()[np.arange(count), target.numpy()].astype(np.float64)
    assert torch.nll_loss(logs, target).item() == pytest.approx(-picked.mean(), rel=1e-6)


@pytest.mark.parametrize("place", [0, 20_000])
def test_a_target_outside_the_classes_names_itself(place):
    target = torch.zeros(20_001, dtype=torch.int64)
    target[place] = 7
    with pytest.raises(IndexError, match="Target 7 is out of bounds"):
        torch.nll_loss(torch.zeros(20_001, 3), target)


def test_a_mean_over_ignored_targets_alone_is_nan():
    logs = torch.zeros(2, 3)
    assert np.isnan(torch.nll_loss(logs, torch.tensor([1, 1]), ignore_index=1).item())


def test_binary_losses_are_finite_at_certain_predictions():
    t = torch.tensor([0.0, 1.0, 0.0, 1.0])
    x = torch.tensor([1.0, 0.0, 0.0, 1.0])
    assert torch.binary_cross_entropy(x, t, reduction="none").tolist() == [100, 100, 0, 0]
    logits = torch.tensor([1e4, -1e4, -1e4, 1e4])
    result = torch.binary_cross_entropy_with_logits(logits, t, reduction="none")
    assert result.tolist() == [1e4, 1e4, 0, 0]
