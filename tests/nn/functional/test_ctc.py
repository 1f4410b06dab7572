"""CTC against the sum over all alignments, written out."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import refruntime as torch
from refruntime.errors import ArgumentValueError, ShapeError

F = torch.nn.functional
RNG = np.random.default_rng(0)


def collapsed(path):
    """Merge repeats, then drop blanks (class 0)."""
    return [label for label, _ in itertools.groupby(path) if label]


def brute(log_probs, labels):
    steps, classes = log_probs.shape
    total = -np.inf
    for path in itertools.product(range(classes), repeat=steps):
        if collapsed(path) == list(labels):
            total = np.logaddexp(total, sum(log_probs[t, c] for t, c in enumerate(path)))
    return -total


def table(steps, batch, classes):
    logits = RNG.standard_normal((steps, batch, classes))
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


@pytest.mark.parametrize("labels", [[], [1], [1, 2], [2, 2], [1, 2, 1]])
def test_loss_is_the_sum_over_alignments(labels):
    lp = table(5, 1, 3)
    target = torch.tensor(labels, dtype=torch.int64).reshape(1, -1)
    got = F.ctc_loss(torch.tensor(lp), target, [5], [len(labels)], reduction="none")
    np.testing.assert_allclose(got.numpy(), [brute(lp[:, 0], labels)])


def test_lengths_cut_each_sequence_and_targets_may_lie_in_one_row():
    lp = torch.tensor(table(5, 2, 3))
    want = [brute(lp[:4, 0].numpy(), [1, 2]), brute(lp[:5, 1].numpy(), [2])]
    padded, flat = torch.tensor([[1, 2], [2, 1]]), torch.tensor([1, 2, 2])
    for targets in (padded, flat):
        got = F.ctc_loss(lp, targets, torch.tensor([4, 5]), torch.tensor([2, 1]), reduction="none")
        np.testing.assert_allclose(got.numpy(), want)
    mean = torch.nn.CTCLoss()(lp, padded, (4, 5), (2, 1))
    assert mean.item() == pytest.approx((want[0] / 2 + want[1]) / 2)
    alone = F.ctc_loss(lp[:, 1], torch.tensor([2]), 5, 1, reduction="sum")
    assert alone.item() == pytest.approx(want[1])


def test_sequences_that_do_not_fit():
    lp = torch.tensor(table(1, 1, 3), requires_grad=True)
    target = torch.tensor([[1, 2]])
    assert F.ctc_loss(lp, target, [1], [2]).item() == float("inf")
    loss = F.ctc_loss(lp, target, [1], [2], zero_infinity=True)
    loss.backward()
    assert loss.item() == 0.0
    assert not lp.grad.numpy().any()


def test_gradient():
    logits = torch.tensor(RNG.standard_normal((4, 2, 3)), requires_grad=True)
    target = torch.tensor([[1, 2], [2, 2]])

    def loss(logits):
        return F.ctc_loss(F.log_softmax(logits, 2), target, [4, 4], [2, 1], reduction="sum")

    assert torch.autograd.gradcheck(loss, [logits], fast_mode=True)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"reduction": "other"}, ArgumentValueError),
        ({"blank": 3}, ShapeError),
        ({"input_lengths": [6]}, ShapeError),
        ({"input_lengths": [1, 1]}, ShapeError),
    ],
)
def test_bad_arguments_are_refused(options, error):
    arguments = {"input_lengths": [5], "target_lengths": [1], **options}
    with pytest.raises(error):
        F.ctc_loss(torch.tensor(table(5, 1, 3)), torch.tensor([[1]]), **arguments)
