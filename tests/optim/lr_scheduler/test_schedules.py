"""Schedules: rates epoch by epoch (numbers of PyTorch 2.13), state, chaining, errors."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import refruntime as torch
from refruntime import nn, optim

L = optim.lr_scheduler


def sgd(*rates):
    groups = [{"params": [nn.Parameter(torch.ones(1))], "lr": rate} for rate in rates or (0.1,)]
    return optim.SGD(groups, lr=0.1, momentum=0.9)


def follow(opt, schedule, epochs):
    rates, momenta = [], []
    for _ in range(epochs):
        rates.append(opt.param_groups[0]["lr"])
        momenta.append(opt.param_groups[0]["momentum"])
        assert schedule.get_last_lr()[0] == rates[-1]
        opt.step()
        schedule.step()
    return rates, momenta


# fmt: off
CASES = {
    "step": (
        lambda o: L.StepLR(o, 2, 0.5),
        [0.1, 0.1, 0.05, 0.05, 0.025, 0.025, 0.0125, 0.0125, 0.00625], None),
    "multi-step": (
        lambda o: L.MultiStepLR(o, [2, 5, 5], 0.5),
        [0.1, 0.1, 0.05, 0.05, 0.05, 0.0125, 0.0125, 0.0125, 0.0125], None),
    "constant": (
        lambda o: L.ConstantLR(o, 0.5, 3),
        [0.05, 0.05, 0.05, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1], None),
    "linear": (
        lambda o: L.LinearLR(o, 0.2, 0.8, 4),
        [0.02, 0.035, 0.05, 0.065, 0.08, 0.08, 0.08, 0.08, 0.08], None),
    "exponential": (
        lambda o: L.ExponentialLR(o, 0.8),
        [0.1, 0.08, 0.064, 0.0512, 0.04096, 0.032768, 0.0262144, 0.02097152, 0.016777216], None),
    "cosine": (
        lambda o: L.CosineAnnealingLR(o, 3, 0.01),
        [0.1, 0.0775, 0.0325, 0.01, 0.0325, 0.0775, 0.1, 0.0775, 0.0325], None),
    "warm restarts": (
        lambda o: L.CosineAnnealingWarmRestarts(o, 2, 2, 0.01),
        [0.1, 0.055, 0.1, 0.086819805, 0.055, 0.023180195, 0.1, 0.096574579, 0.086819805], None),
    "polynomial": (
        lambda o: L.PolynomialLR(o, 5, 2.0),
        [0.1, 0.064, 0.036, 0.016, 0.004, 0.0, 0.0, 0.0, 0.0], None),
    "lambda": (
        lambda o: L.LambdaLR(o, lambda epoch: 1 / (epoch + 1)),
        [0.1, 0.05, 0.033333333, 0.025, 0.02, 0.016666667, 0.014285714, 0.0125, 0.011111111], None),
    "multiplicative": (
        lambda o: L.MultiplicativeLR(o, lambda epoch: 0.9),
        [0.1, 0.09, 0.081, 0.0729, 0.06561, 0.059049, 0.0531441, 0.04782969, 0.043046721], None),
    "one cycle": (
        lambda o: L.OneCycleLR(o, 1.0, total_steps=10),
        [0.04, 0.52, 1.0, 0.950484632, 0.811745654, 0.611262022, 0.388741978, 0.188258346,
         0.049519368],
        [0.95, 0.9, 0.85, 0.854951557, 0.86882551, 0.888873953, 0.911126047, 0.93117449,
         0.945048443]),
    "one cycle in three phases": (
        lambda o: L.OneCycleLR(o, 1.0, epochs=2, steps_per_epoch=5, three_phase=True,
                               anneal_strategy="linear"),
        [0.04, 0.52, 1.0, 0.52, 0.04, 0.0320008, 0.0240016, 0.0160024, 0.0080032],
        [0.95, 0.9, 0.85, 0.9, 0.95, 0.95, 0.95, 0.95, 0.95]),
    "cyclic": (
        lambda o: L.CyclicLR(o, 0.01, 0.1, 2, 3),
        [0.01, 0.055, 0.1, 0.07, 0.04, 0.01, 0.055, 0.1, 0.07],
        [0.9, 0.85, 0.8, 0.833333333, 0.866666667, 0.9, 0.85, 0.8, 0.833333333]),
    "cyclic, halved": (
        lambda o: L.CyclicLR(o, 0.01, 0.1, 2, mode="triangular2"),
        [0.01, 0.055, 0.1, 0.055, 0.01, 0.0325, 0.055, 0.0325, 0.01],
        [0.9, 0.85, 0.8, 0.85, 0.9, 0.875, 0.85, 0.875, 0.9]),
    "cyclic, decaying": (
        lambda o: L.CyclicLR(o, 0.01, 0.1, 2, mode="exp_range", gamma=0.9),
        [0.01, 0.0505, 0.0829, 0.042805, 0.01, 0.03657205, 0.05782969, 0.031523361, 0.01],
        [0.9, 0.855, 0.819, 0.86355, 0.9, 0.8704755, 0.8468559, 0.876085155, 0.9]),
    "sequential": (
        lambda o: L.SequentialLR(o, [L.LinearLR(o, 0.1, 1.0, 3), L.CosineAnnealingLR(o, 6)], [3]),
        [0.01, 0.04, 0.07, 0.1, 0.09330127, 0.075, 0.05, 0.025, 0.00669873], None),
    "chained": (
        lambda o: L.ChainedScheduler([L.ConstantLR(o, 0.1, 3), L.ExponentialLR(o, 0.9)]),
        [0.01, 0.009, 0.0081, 0.0729, 0.06561, 0.059049, 0.0531441, 0.04782969, 0.043046721], None),
}
# fmt: on


@pytest.mark.parametrize("name", CASES)
def test_rates_and_momenta_epoch_by_epoch(name):
    make, rates, momenta = CASES[name]
    opt = sgd()
    ours = follow(opt, make(opt), len(rates))
    np.testing.assert_allclose(ours[0], rates, atol=2e-9)
    if momenta is not None:
        np.testing.assert_allclose(ours[1], momenta, atol=2e-9)


@pytest.mark.parametrize("name", [n for n in CASES if n not in ("lambda", "multiplicative")])
def test_a_schedule_goes_on_from_its_state_dict(name):
    make, rates, _ = CASES[name]
    opt = sgd()
    schedule = make(opt)
    follow(opt, schedule, 4)
    other = sgd()
    resumed = make(other)
    other.load_state_dict(opt.state_dict())
    resumed.load_state_dict(copy.deepcopy(schedule.state_dict()))
    np.testing.assert_allclose(follow(other, resumed, 5)[0], rates[4:9], atol=2e-9)


def test_each_group_is_scaled_from_its_own_rate():
    opt = sgd(0.1, 0.5)
    schedule = L.LambdaLR(opt, [lambda epoch: 0.5**epoch, lambda epoch: 1.0])
    opt.step()
    schedule.step()
    assert schedule.get_last_lr() == [0.05, 0.5]
    assert [group["initial_lr"] for group in opt.param_groups] == [0.1, 0.5]


def test_a_callable_object_keeps_its_state_in_the_state_dict():
    class Warm:
        def __init__(self):
            self.length = 3

        def __call__(self, epoch):
            return min(1.0, (epoch + 1) / self.length)

    schedule = L.LambdaLR(sgd(), Warm())
    state = schedule.state_dict()
    assert state["lr_lambdas"] == [{"length": 3}]
    state = copy.deepcopy(state)
    state["lr_lambdas"][0]["length"] = 7
    schedule.load_state_dict(state)
    assert schedule.lr_lambdas[0].length == 7


def test_a_rate_that_is_a_tensor_stays_the_same_tensor():
    opt = optim.SGD([nn.Parameter(torch.ones(1))], lr=torch.tensor(0.1))
    rate = opt.param_groups[0]["lr"]
    schedule = L.StepLR(opt, 1, 0.5)
    opt.step()
    schedule.step()
    assert opt.param_groups[0]["lr"] is rate
    assert float(rate) == pytest.approx(0.05)


def test_stepping_the_schedule_first_warns():
    opt = sgd()
    schedule = L.StepLR(opt, 2)
    with pytest.warns(UserWarning, match="before `optimizer.step"):
        schedule.step()


def test_naming_an_epoch_uses_the_closed_form_and_warns():
    opt = sgd()
    schedule = L.ExponentialLR(opt, 0.5)
    opt.step()
    with pytest.warns(UserWarning, match="epoch parameter"):
        schedule.step(3)
    assert opt.param_groups[0]["lr"] == pytest.approx(0.1 * 0.125)


def test_resuming_needs_initial_rates():
    with pytest.raises(KeyError, match="initial_lr"):
        L.StepLR(sgd(), 2, last_epoch=4)


def test_warm_restarts_take_fractions_of_epochs():
    opt = sgd()
    schedule = L.CosineAnnealingWarmRestarts(opt, 4)
    schedule.step(1.0)
    schedule.step(5.5)
    assert schedule.T_cur == pytest.approx(1.5)
    expected = 0.1 * (1 + np.cos(np.pi * 1.5 / 4)) / 2
    assert opt.param_groups[0]["lr"] == pytest.approx(expected)


def plateau(metrics, **settings):
    opt = sgd()
    schedule = L.ReduceLROnPlateau(opt, **settings)
    rates = []
    for metric in metrics:
        schedule.step(metric)
        rates.append(opt.param_groups[0]["lr"])
    return rates


def test_a_plateau_halves_the_rate_after_patience_is_over():
    rates = plateau([1.0, 0.9, 0.9, 0.9, 0.9, 0.5], factor=0.5, patience=1)
    np.testing.assert_allclose(rates, [0.1, 0.1, 0.1, 0.05, 0.05, 0.05])


def test_a_plateau_waits_while_it_cools_down_and_stops_at_the_lowest_rate():
    rates = plateau([1.0] * 9, factor=0.1, patience=0, cooldown=2, min_lr=0.005)
    np.testing.assert_allclose(rates, [0.1] + [0.01] * 3 + [0.005] * 5)


def test_a_plateau_of_a_metric_to_be_maximized():
    rates = plateau([1.0, 2.0, 2.05, 2.05], mode="max", factor=0.5, patience=1, threshold=0.1)
    np.testing.assert_allclose(rates, [0.1, 0.1, 0.1, 0.05])


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda o: L.LambdaLR(o, [abs, abs]), "lr_lambdas"),
        (lambda o: L.LinearLR(o, 0.0), "Starting multiplicative"),
        (lambda o: L.ConstantLR(o, 2.0), "Constant multiplicative"),
        (lambda o: L.CosineAnnealingWarmRestarts(o, 0), "T_0"),
        (lambda o: L.OneCycleLR(o, 1.0), "total_steps"),
        (lambda o: L.CyclicLR(o, 0.1, 1.0, mode="odd"), "mode is invalid"),
        (lambda o: L.SequentialLR(o, [L.StepLR(o, 1)], [3]), "one more"),
        (lambda o: L.SequentialLR(o, [L.StepLR(sgd(), 1)], []), "same optimizer"),
        (lambda o: L.ChainedScheduler([]), "at least one"),
        (lambda o: L.ReduceLROnPlateau(o, factor=1.0), "Factor"),
        (lambda o: L.ReduceLROnPlateau(o, mode="up"), "mode up"),
    ],
)
def test_settings_that_make_no_sense(make, text):
    with pytest.raises(ValueError, match=text):
        make(sgd())


def test_a_schedule_needs_an_optimizer():
    with pytest.raises(TypeError, match="Optimizer"):
        L.StepLR(nn.Linear(1, 1), 2)


def test_one_cycle_refuses_more_steps_than_it_has():
    opt = sgd()
    schedule = L.OneCycleLR(opt, 1.0, total_steps=2)
    follow(opt, schedule, 2)
    with pytest.raises(ValueError, match="Tried to step"):
        schedule.step()
