"""L-BFGS on functions whose minimum is known, and its bookkeeping."""

from __future__ import annotations

import numpy as np
import pytest

import refruntime as torch
from refruntime import nn, optim


def rosenbrock(p):
    return (1 - p[0]) ** 2 + 100 * (p[1] - p[0] ** 2) ** 2


def minimize(settings, steps, start=(-1.2, 1.0)):
    p = nn.Parameter(torch.tensor(start, dtype=torch.float64))
    opt = optim.LBFGS([p], **settings)

    def closure():
        opt.zero_grad()
        loss = rosenbrock(p)
        loss.backward()
        return loss

    losses = [float(opt.step(closure).detach()) for _ in range(steps)]
    return p.detach().numpy(), losses, opt.state[p]


def test_the_line_search_finds_the_minimum_of_a_curved_valley():
    p, losses, _ = minimize({"line_search_fn": "strong_wolfe"}, 3)
    np.testing.assert_allclose(p, [1.0, 1.0], atol=1e-4)
    assert losses[0] == pytest.approx(24.2)
    assert losses[-1] < 1e-6


def test_without_a_line_search_a_quadratic_is_solved():
    rng = np.random.default_rng(0)
    a = rng.standard_normal((5, 5))
    a = a @ a.T + np.eye(5)
    b = rng.standard_normal(5)
    first, second = nn.Parameter(torch.zeros(2, dtype=torch.float64)), nn.Parameter(
        torch.zeros(3, dtype=torch.float64)
    )
    opt = optim.LBFGS([first, second], lr=0.5, max_iter=10)

    def closure():
        x = np.concatenate([first.detach().numpy(), second.detach().numpy()])
        g = a @ x - b
        first.grad, second.grad = torch.from_numpy(g[:2].copy()), torch.from_numpy(g[2:].copy())
        return torch.tensor(0.5 * x @ a @ x - b @ x)

    for _ in range(4):
        opt.step(closure)
    x = np.concatenate([first.detach().numpy(), second.detach().numpy()])
    np.testing.assert_allclose(x, np.linalg.solve(a, b), atol=1e-4)


def test_evaluations_and_iterations_are_counted_and_history_is_bounded():
    _, _, state = minimize({"max_iter": 8, "history_size": 3, "line_search_fn": "strong_wolfe"}, 2)
    assert 8 < state["n_iter"] <= 16
    assert state["n_iter"] < state["func_evals"] <= 2 * (8 * 25 + 1)
    assert len(state["old_dirs"]) == len(state["old_stps"]) == len(state["ro"]) == 3


def test_max_eval_ends_a_step():
    _, _, state = minimize({"max_iter": 20, "max_eval": 5, "line_search_fn": "strong_wolfe"}, 1)
    assert state["n_iter"] < 20


def test_a_start_at_the_minimum_stays():
    p, _, state = minimize({}, 1, start=(1.0, 1.0))
    assert p.tolist() == [1.0, 1.0]
    assert state["n_iter"] == 0


def test_what_lbfgs_refuses():
    p = nn.Parameter(torch.ones(1))
    with pytest.raises(ValueError, match="parameter groups"):
        optim.LBFGS([{"params": [p]}, {"params": [nn.Parameter(torch.ones(1))]}])
    with pytest.raises(RuntimeError, match="strong_wolfe"):
        optim.LBFGS([p], line_search_fn="weak")
    with pytest.raises(TypeError, match="closure"):
        optim.LBFGS([p]).step()
