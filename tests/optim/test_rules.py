"""Every update rule against its NumPy form."""

from __future__ import annotations

import numpy as np
import pytest

import refruntime as torch
from refruntime import nn, optim
from tests.optim import reference as ref

START = np.random.default_rng(0).standard_normal((3, 4))
# Signs change and sizes differ from step to step, so that no term of a rule stays hidden.
GRADS = [g * (0.1 if i % 2 else 2.0) for i, g in
         enumerate(np.random.default_rng(1).standard_normal((9, 3, 4)))]  # fmt: skip

CASES = [
    (optim.SGD, ref.sgd, {"lr": 0.1}, {}),
    (optim.SGD, ref.sgd, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}, {}),
    (optim.SGD, ref.sgd, {"lr": 0.1, "momentum": 0.9, "dampening": 0.3}, {}),
    (optim.SGD, ref.sgd, {"lr": 0.1, "momentum": 0.9, "nesterov": True}, {}),
    (optim.Adam, ref.adam, {"lr": 0.1}, {}),
    (optim.Adam, ref.adam, {"lr": 0.1, "weight_decay": 0.1, "betas": (0.8, 0.95)}, {}),
    (optim.Adam, ref.adam, {"lr": 0.1, "amsgrad": True, "eps": 1e-3}, {}),
    (optim.AdamW, ref.adam, {"lr": 0.1, "weight_decay": 0.2}, {"decoupled": True}),
    (optim.AdamW, ref.adam, {"lr": 0.1, "weight_decay": 0.2, "amsgrad": True},
     {"decoupled": True}),
    (optim.Adamax, ref.adamax, {"lr": 0.1, "weight_decay": 0.1}, {}),
    (optim.NAdam, ref.nadam, {"lr": 0.1, "weight_decay": 0.1}, {}),
    (optim.RAdam, ref.radam, {"lr": 0.1, "weight_decay": 0.1}, {}),
    (optim.Adagrad, ref.adagrad, {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1}, {}),
    (optim.RMSprop, ref.rmsprop, {"lr": 0.1, "weight_decay": 0.1}, {}),
    (optim.RMSprop, ref.rmsprop, {"lr": 0.1, "momentum": 0.9, "centered": True}, {}),
    (optim.Adadelta, ref.adadelta, {"lr": 1.0, "weight_decay": 0.1}, {}),
    (optim.Rprop, ref.rprop, {"lr": 0.1}, {}),
    (optim.ASGD, ref.asgd, {"lr": 0.1, "lambd": 0.1, "weight_decay": 0.1}, {}),
]  # fmt: skip


def _id(case):
    return f"{case[0].__name__}-{'-'.join(case[2])}"


def updated(kind, settings, grads=GRADS):
    p = nn.Parameter(torch.from_numpy(START.copy()))
    opt = kind([p], **settings)
    for g in grads:
        p.grad = torch.from_numpy(g.copy())
        opt.step()
    return p.detach().numpy(), opt.state[p]


@pytest.mark.parametrize("case", CASES, ids=_id)
def test_the_update_follows_its_paper(case):
    kind, rule, settings, extra = case
    ours, _ = updated(kind, settings)
    np.testing.assert_allclose(ours, ref.run(rule, START, GRADS, **settings, **extra), rtol=1e-6)


@pytest.mark.parametrize(
    "kind", [optim.SGD, optim.Adam, optim.AdamW, optim.Adagrad, optim.RMSprop, optim.Adadelta,
             optim.Adamax, optim.NAdam, optim.RAdam, optim.Rprop, optim.ASGD],
)  # fmt: skip
def test_maximize_goes_the_other_way(kind):
    up, _ = updated(kind, {"maximize": True, "lr": 0.1})
    down, _ = updated(kind, {"lr": 0.1}, [-g for g in GRADS])
    np.testing.assert_array_equal(up, down)


def test_asgd_averages_after_its_first_steps():
    _, state = updated(optim.ASGD, {"lr": 0.1, "t0": 3.0})
    again: dict = {}
    x = START
    for t, g in enumerate(GRADS, 1):
        x = ref.asgd(x, g, again, t, lr=0.1, t0=3.0)
    np.testing.assert_allclose(state["ax"].numpy(), again["average"], rtol=1e-6)


def test_decoupled_decay_of_nadam_and_radam_shrinks_the_weights():
    for kind in (optim.NAdam, optim.RAdam):
        settings = {"lr": 0.1, "weight_decay": 0.5, "decoupled_weight_decay": True}
        ours, _ = updated(kind, settings, GRADS[:1])
        plain, _ = updated(kind, {"lr": 0.1}, GRADS[:1])
        np.testing.assert_allclose(ours, plain - START * 0.1 * 0.5, rtol=1e-9)


def test_adagrad_starts_its_sums_where_told():
    ours, state = updated(
        optim.Adagrad, {"lr": 0.1, "initial_accumulator_value": 2.0}, GRADS[:2]
    )
    expected = ref.run(ref.adagrad, START, GRADS[:2], lr=0.1, first=2.0)
    np.testing.assert_allclose(ours, expected, rtol=1e-9)
    assert float(state["step"]) == 2.0


def test_a_learning_rate_may_be_a_tensor():
    ours, _ = updated(optim.Adam, {"lr": torch.tensor(0.1, dtype=torch.float64)})
    plain, _ = updated(optim.Adam, {"lr": 0.1})
    np.testing.assert_array_equal(ours, plain)


def test_half_precision_parameters_are_updated_in_their_dtype():
    p = nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    opt = optim.AdamW([p], lr=0.1)
    p.grad = torch.ones(4, dtype=torch.bfloat16)
    opt.step()
    assert p.dtype is torch.bfloat16
    np.testing.assert_allclose(p.detach().float().numpy(), 0.899, rtol=1e-2)
