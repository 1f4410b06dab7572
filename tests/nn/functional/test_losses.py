"""Losses against NumPy: values, reductions, modules, and their refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest

import refruntime as torch
import refruntime.nn.functional as F
from refruntime import nn

RNG = np.random.default_rng(0)
X, Y, Z = RNG.standard_normal((3, 4, 5))
P = RNG.uniform(0.05, 0.95, (4, 5))
CLASSES = np.array([0, 3, 1, 4])
WEIGHT = RNG.uniform(0.2, 1.0, 5)
SIGNS = np.sign(RNG.standard_normal((4, 5)))
ROW_SIGNS = np.array([1.0, -1.0, 1.0, -1.0])
COUNTS = RNG.integers(0, 5, (4, 5)).astype(float)


def t(array):
    return torch.from_numpy(np.array(array))


def log_softmax(x):
    shifted = x - x.max(1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(1, keepdims=True))


def softplus(x):
    return np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0)


def distance(a, b):
    return np.linalg.norm(a - b + 1e-6, axis=1)


def cosine(a, b):
    return (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


D = np.abs(X - Y)
LOGS = log_softmax(X)
# fmt: off
CASES = {
    "mse": (lambda r: nn.MSELoss(reduction=r)(t(X), t(Y)), D**2),
    "l1": (lambda r: nn.L1Loss(reduction=r)(t(X), t(Y)), D),
    "smooth l1": (lambda r: nn.SmoothL1Loss(reduction=r, beta=0.7)(t(X), t(Y)),
                  np.where(D < 0.7, D**2 / 1.4, D - 0.35)),
    "smooth l1, beta 0": (lambda r: F.smooth_l1_loss(t(X), t(Y), reduction=r, beta=0.0), D),
    "huber": (lambda r: nn.HuberLoss(reduction=r, delta=0.7)(t(X), t(Y)),
              np.where(D < 0.7, D**2 / 2, 0.7 * (D - 0.35))),
    "bce": (lambda r: nn.BCELoss(t(WEIGHT), reduction=r)(t(P), t(COUNTS / 4)),
            -WEIGHT * (COUNTS / 4 * np.log(P) + (1 - COUNTS / 4) * np.log(1 - P))),
    "bce with logits": (
        lambda r: nn.BCEWithLogitsLoss(t(WEIGHT), reduction=r, pos_weight=t(WEIGHT))(t(X), t(P)),
        WEIGHT * (WEIGHT * P * softplus(-X) + (1 - P) * softplus(X))),
    "nll": (lambda r: nn.NLLLoss(reduction=r)(t(LOGS), t(CLASSES)), -LOGS[range(4), CLASSES]),
    "cross entropy": (lambda r: nn.CrossEntropyLoss(reduction=r)(t(X), t(CLASSES)),
                      -LOGS[range(4), CLASSES]),
    "cross entropy, smoothed": (
        lambda r: nn.CrossEntropyLoss(reduction=r, label_smoothing=0.2)(t(X), t(CLASSES)),
        -0.8 * LOGS[range(4), CLASSES] - 0.2 * LOGS.mean(1)),
    "cross entropy, probabilities": (
        lambda r: nn.CrossEntropyLoss(reduction=r)(t(X), t(P)), -(P * LOGS).sum(1)),
    "kl": (lambda r: nn.KLDivLoss(reduction=r)(t(LOGS), t(P)), P * (np.log(P) - LOGS)),
    "kl of logs": (lambda r: nn.KLDivLoss(reduction=r, log_target=True)(t(LOGS), t(np.log(P))),
                   P * (np.log(P) - LOGS)),
    "poisson": (lambda r: nn.PoissonNLLLoss(reduction=r)(t(X), t(COUNTS)), np.exp(X) - COUNTS * X),
    "poisson of rates": (
        lambda r: nn.PoissonNLLLoss(log_input=False, reduction=r)(t(P), t(COUNTS)),
        P - COUNTS * np.log(P + 1e-8)),
    "gaussian": (lambda r: nn.GaussianNLLLoss(full=True, reduction=r)(t(X), t(Y), t(P)),
                 0.5 * (np.log(P) + (X - Y) ** 2 / P + math.log(2 * math.pi))),
    "soft margin": (lambda r: nn.SoftMarginLoss(reduction=r)(t(X), t(SIGNS)), softplus(-SIGNS * X)),
    "hinge embedding": (lambda r: nn.HingeEmbeddingLoss(0.8, reduction=r)(t(X), t(SIGNS)),
                        np.where(SIGNS == 1, X, np.maximum(0.8 - X, 0))),
    "margin ranking": (lambda r: nn.MarginRankingLoss(0.3, reduction=r)(t(X), t(Y), t(SIGNS)),
                       np.maximum(-SIGNS * (X - Y) + 0.3, 0)),
    "cosine embedding": (
        lambda r: nn.CosineEmbeddingLoss(0.1, reduction=r)(t(X), t(Y), t(ROW_SIGNS)),
        np.where(ROW_SIGNS == 1, 1 - cosine(X, Y), np.maximum(cosine(X, Y) - 0.1, 0))),
    "triplet": (lambda r: nn.TripletMarginLoss(reduction=r)(t(X), t(Y), t(Z)),
                np.maximum(distance(X, Y) - distance(X, Z) + 1, 0)),
    "triplet, swapped": (
        lambda r: nn.TripletMarginLoss(reduction=r, swap=True)(t(X), t(Y), t(Z)),
        np.maximum(distance(X, Y) - np.minimum(distance(X, Z), distance(Y, Z)) + 1, 0)),
    "triplet of a distance": (
        lambda r: nn.TripletMarginWithDistanceLoss(
            distance_function=lambda a, b: (a - b).abs().sum(-1), reduction=r)(t(X), t(Y), t(Z)),
        np.maximum(D.sum(1) - np.abs(X - Z).sum(1) + 1, 0)),
    "multi margin": (
        lambda r: nn.MultiMarginLoss(margin=0.8, reduction=r)(t(X), t(CLASSES)),
        (np.maximum(0.8 - X[range(4), CLASSES][:, None] + X, 0).sum(1) - 0.8) / 5),
    "multi label soft margin": (
        lambda r: nn.MultiLabelSoftMarginLoss(reduction=r)(t(X), t((SIGNS > 0).astype(float))),
        np.where(SIGNS > 0, softplus(-X), softplus(X)).mean(1)),
}
# fmt: on


@pytest.mark.filterwarnings("ignore:reduction. 'mean':UserWarning")
@pytest.mark.parametrize("name", CASES)
def test_values_and_reductions(name):
    loss, expected = CASES[name]
    np.testing.assert_allclose(loss("none").numpy(), expected, rtol=1e-8, atol=1e-10)
    assert float(loss("mean")) == pytest.approx(expected.mean(), rel=1e-8)
    assert float(loss("sum")) == pytest.approx(expected.sum(), rel=1e-8)


def test_class_weights_and_ignored_targets_change_the_mean():
    targets = np.array([0, 3, 2, 4])
    loss = F.cross_entropy(t(X), t(targets), t(WEIGHT), ignore_index=2)
    kept = [0, 1, 3]
    w = WEIGHT[targets[kept]]
    expected = -(w * LOGS[kept, targets[kept]]).sum() / w.sum()
    assert float(loss) == pytest.approx(expected)


def test_images_of_classes():
    x = RNG.standard_normal((2, 3, 4, 5))
    y = RNG.integers(0, 3, (2, 4, 5))
    picked = np.take_along_axis(log_softmax(x), y[:, None], 1)[:, 0]
    np.testing.assert_allclose(F.cross_entropy(t(x), t(y), reduction="none").numpy(), -picked)


def test_weights_of_elements_divide_the_mean():
    loss = F.mse_loss(t(X), t(Y), weight=t(P))
    assert float(loss) == pytest.approx((P * D**2).sum() / P.sum())
    loss = F.huber_loss(t(X), t(Y), weight=t(P), reduction="sum")
    assert float(loss) == pytest.approx((P * np.where(D < 1, D**2 / 2, D - 0.5)).sum())


def test_batchmean_is_the_divergence():
    loss = F.kl_div(t(LOGS), t(P), reduction="batchmean")
    assert float(loss) == pytest.approx((P * (np.log(P) - LOGS)).sum() / 4)
    with pytest.warns(UserWarning, match="batchmean"):
        F.kl_div(t(LOGS), t(P))


def test_multi_label_targets_end_at_minus_one():
    x = np.array([[0.1, 0.2, 0.4, 0.8]])
    y = np.array([[3, 0, -1, 1]])
    # The example of the definition: 0.25 * sum over (targets 3, 0) and (others 1, 2).
    expected = 0.25 * sum(max(0, 1 - (x[0, i] - x[0, j])) for i in (3, 0) for j in (1, 2))
    assert float(F.multilabel_margin_loss(t(x), t(y))) == pytest.approx(expected)
    assert float(nn.MultiLabelMarginLoss()(t(x[0]), t(y[0]))) == pytest.approx(expected)


def test_stirling_is_added_for_counts_above_one():
    full = F.poisson_nll_loss(t(X), t(COUNTS), full=True, reduction="none").numpy()
    plain = np.exp(X) - COUNTS * X
    n = np.maximum(COUNTS, 2)
    stirling = n * np.log(n) - n + 0.5 * np.log(2 * math.pi * n)
    np.testing.assert_allclose(full, plain + np.where(COUNTS > 1, stirling, 0), rtol=1e-8)


@pytest.mark.parametrize(
    ("size_average", "reduce", "reduction"),
    [(None, False, "none"), (True, None, "mean"), (False, True, "sum")],
)
def test_the_older_settings_mean_a_reduction(size_average, reduce, reduction):
    with pytest.warns(UserWarning, match="use reduction instead"):
        loss = nn.MSELoss(size_average, reduce)
    assert loss.reduction == reduction


def test_gradients_flow_to_the_input():
    x = t(X).requires_grad_(True)
    nn.CrossEntropyLoss()(x, t(CLASSES)).backward()
    expected = np.exp(LOGS)
    expected[range(4), CLASSES] -= 1
    np.testing.assert_allclose(x.grad.numpy(), expected / 4, rtol=1e-8)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: F.mse_loss(t(X), t(Y), reduction="avg"), ValueError, "avg"),
        (lambda: F.binary_cross_entropy(t(P), t(P[:1])), ValueError, "target size"),
        (lambda: F.binary_cross_entropy_with_logits(t(X), t(X[0])), ValueError, "Target size"),
        (lambda: F.gaussian_nll_loss(t(X), t(Y), t(-P)), ValueError, "negative"),
        (lambda: F.gaussian_nll_loss(t(X), t(Y), t(P[:3, :3])), ValueError, "incorrect size"),
        (lambda: F.smooth_l1_loss(t(X), t(Y), beta=-1.0), RuntimeError, "beta"),
        (lambda: F.huber_loss(t(X), t(Y), delta=0.0), RuntimeError, "delta"),
        (lambda: nn.TripletMarginLoss(margin=0.0), ValueError, "margin"),
        (lambda: nn.MultiMarginLoss(p=3), ValueError, "p == 1"),
        (lambda: F.cosine_embedding_loss(t(X), t(Y), t(SIGNS)), RuntimeError, "one dimension more"),
    ],
)
def test_what_losses_refuse(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_sizes_that_broadcast_warn():
    with pytest.warns(UserWarning, match="different to the input size"):
        F.mse_loss(t(X), t(Y[:1]))
