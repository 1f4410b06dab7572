"""optim.cu on the host, against the formulas of torch.optim in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from refruntime.kernels import cuda_instances
from tests.kernels.cuda_host.arrays import FLOATS, assert_near, sample, wide
from tests.kernels.cuda_host.harness import HostModule, run

Host = Callable[[str], HostModule]
SIZE = 21


@pytest.mark.parametrize("ctype", FLOATS)
@pytest.mark.parametrize(
    ("momentum", "nesterov", "maximize", "first"),
    [(0.0, 0, 0, 0), (0.9, 0, 0, 1), (0.9, 0, 1, 0), (0.8, 1, 0, 0)],
)
def test_sgd_step(
    host: Host, rng: np.random.Generator, ctype: str, momentum: float, nesterov: int, maximize: int,
    first: int,
) -> None:  # fmt: skip
    lr, dampening, decay = 0.1, 0.0 if nesterov else 0.25, 0.01
    param, grad, buffer = (sample(rng, (SIZE,), ctype) for _ in range(3))
    kept: Any = buffer if momentum else 0
    args = [param, grad, kept, SIZE, lr, momentum, dampening, decay, nesterov, maximize, first]
    got = run(host("optim"), cuda_instances.require("optim", "sgd", (ctype,)), (1,), (8,), args)
    g = wide(grad) * (-1 if maximize else 1) + decay * wide(param)
    if momentum:
        new = g if first else momentum * wide(buffer) + (1 - dampening) * g
        assert_near(got[2], new, ctype, scale=2)
        g = g + momentum * new if nesterov else new
    assert_near(got[0], wide(param) - lr * g, ctype, scale=2)


@pytest.mark.parametrize("ctype", FLOATS)
@pytest.mark.parametrize("decoupled", [0, 1])
@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("maximize", [0, 1])
def test_adam_step(
    host: Host, rng: np.random.Generator, ctype: str, decoupled: int, amsgrad: bool, maximize: int
) -> None:
    lr, beta1, beta2, eps, decay, step = 0.05, 0.9, 0.99, 1e-3, 0.1, 3
    param, grad, mean = (sample(rng, (SIZE,), ctype) for _ in range(3))
    square, top = (np.abs(sample(rng, (SIZE,), ctype)) for _ in range(2))
    correction1, correction2 = 1 - beta1**step, 1 - beta2**step
    args = [param, grad, mean, square, top if amsgrad else 0, SIZE, lr, beta1, beta2, eps, decay]
    args += [correction1, correction2, decoupled, maximize]
    got = run(host("optim"), cuda_instances.require("optim", "adam", (ctype,)), (1,), (8,), args)
    p, g = wide(param), wide(grad) * (-1 if maximize else 1)
    p, g = (p * (1 - lr * decay), g) if decoupled else (p, g + decay * p)
    m = beta1 * wide(mean) + (1 - beta1) * g
    v = beta2 * wide(square) + (1 - beta2) * g * g
    assert_near(got[2], m, ctype, scale=2)
    assert_near(got[3], v, ctype, scale=2)
    if amsgrad:
        v = np.maximum(wide(top), v)
        assert_near(got[4], v, ctype, scale=2)
    expected = p - lr * (m / correction1) / (np.sqrt(v / correction2) + eps)
    assert_near(got[0], expected, ctype, scale=4)
