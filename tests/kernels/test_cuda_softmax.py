"""softmax.cu and loss.cu on the host, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from refruntime.kernels import cuda_instances
from tests.kernels.cuda_host.arrays import DTYPES, FLOATS, assert_near, computing, sample, wide
from tests.kernels.cuda_host.harness import HostModule, Out, run

Host = Callable[[str], HostModule]
NONE, MEAN, SUM = 0, 1, 2
IGNORE = -100


def log_softmax(x: np.ndarray, axis: int) -> np.ndarray:
    shifted = x - x.max(axis=axis, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True))


def forward(host: Host, log: bool, x: np.ndarray, ctype: str, block: tuple[int, int]) -> np.ndarray:
    outer, length, inner = x.shape
    return run(
        host("softmax"),
        cuda_instances.require("softmax", "softmax_forward", (str(log).lower(), ctype)),
        (-(-inner // block[0]) * outer,),
        block,
        [Out(x.shape, x.dtype), x, length, inner],
        shared=block[0] * block[1] * 16,
    )[0]


@pytest.mark.parametrize("ctype", FLOATS)
@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(("shape", "block"), [((3, 17, 1), (1, 8)), ((2, 9, 5), (4, 4))])
def test_softmax_equals_numpy(
    host: Host,
    rng: np.random.Generator,
    ctype: str,
    log: bool,
    shape: tuple[int, int, int],
    block: tuple[int, int],
) -> None:
    x = sample(rng, shape, ctype)
    expected = log_softmax(wide(x), 1)
    assert_near(forward(host, log, x, ctype, block), expected if log else np.exp(expected), ctype)


@pytest.mark.parametrize("ctype", FLOATS)
@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(("shape", "block"), [((3, 17, 1), (1, 8)), ((2, 9, 5), (4, 4))])
def test_softmax_backward_equals_the_formula(
    host: Host,
    rng: np.random.Generator,
    ctype: str,
    log: bool,
    shape: tuple[int, int, int],
    block: tuple[int, int],
) -> None:
    g, y = sample(rng, shape, ctype), log_softmax(wide(sample(rng, shape, ctype)), 1)
    y = (y if log else np.exp(y)).astype(DTYPES[ctype])
    got = run(
        host("softmax"),
        cuda_instances.require("softmax", "softmax_backward", (str(log).lower(), ctype)),
        (-(-shape[2] // block[0]) * shape[0],),
        block,
        [Out(shape, g.dtype), g, y, shape[1], shape[2]],
        shared=block[0] * block[1] * 16,
    )[0]
    if log:
        expected = wide(g) - np.exp(wide(y)) * wide(g).sum(1, keepdims=True)
    else:
        expected = wide(y) * (wide(g) - (wide(g) * wide(y)).sum(1, keepdims=True))
    assert_near(got, expected, ctype, scale=2)


def test_large_numbers_do_not_overflow(host: Host) -> None:
    x = np.array([1000.0, 1001.0, 1002.0], np.float32).reshape(1, 3, 1)
    expected = np.exp(log_softmax(wide(x), 1))
    np.testing.assert_allclose(forward(host, False, x, "float", (1, 2)), expected, rtol=1e-5)


def test_minus_infinity_is_probability_zero_and_a_column_of_them_is_nan(host: Host) -> None:
    x = np.full((1, 8, 2), -np.inf, np.float32)
    x[0, 5, 0] = 3.0
    got = forward(host, False, x, "float", (2, 4))
    assert got[0, :, 0].tolist() == [0, 0, 0, 0, 0, 1, 0, 0]
    assert np.isnan(got[0, :, 1]).all()


def test_plus_infinity_makes_the_column_nan(host: Host) -> None:
    x = np.array([1.0, np.inf, 2.0], np.float32).reshape(1, 3, 1)
    assert np.isnan(forward(host, False, x, "float", (1, 2))).all()


# --------------------------------------------------------------------------------------------- loss


class Problem:
    """A classification batch (outer, classes, inner) with weights and an ignored row."""

    def __init__(self, rng: np.random.Generator, ctype: str, weighted: bool) -> None:
        self.ctype = ctype
        self.outer, self.classes, self.inner = 6, 5, 3
        self.x = sample(rng, (self.outer, self.classes, self.inner), ctype)
        self.target = rng.integers(0, self.classes, (self.outer, self.inner))
        self.target[1, 2] = IGNORE
        self.weight = np.abs(sample(rng, (self.classes,), ctype)) if weighted else None
        self.rows = self.outer * self.inner

    @property
    def weights(self) -> np.ndarray:
        return np.ones(self.classes) if self.weight is None else wide(self.weight)

    @property
    def row_weights(self) -> np.ndarray:
        return np.where(self.target == IGNORE, 0.0, self.weights[self.target % self.classes])

    def chosen(self, values: np.ndarray) -> np.ndarray:
        index = np.where(self.target == IGNORE, 0, self.target)
        return np.take_along_axis(values, index[:, None, :], axis=1)[:, 0]

    @property
    def one_hot(self) -> np.ndarray:
        return (np.arange(self.classes)[None, :, None] == self.target[:, None, :]).astype(float)

    @property
    def weight_arg(self) -> Any:
        return 0 if self.weight is None else self.weight


def nll(host: Host, p: Problem, reduction: int) -> tuple[np.ndarray, np.ndarray]:
    partial = run(
        host("loss"),
        cuda_instances.require("loss", "nll_loss_partial", (p.ctype,)),
        (3,),
        (1, 4),
        [Out((3, 2), computing(p.ctype)), p.x, p.target, p.weight_arg, p.rows, p.classes, p.inner]
        + [IGNORE, np.zeros(1, np.int64)],
        shared=4 * 16,
    )
    assert partial[-1][0] == 0
    dtype = DTYPES[p.ctype]
    name = cuda_instances.require("loss", "nll_loss_finish", (p.ctype,))
    args = [Out((1,), dtype), Out((1,), computing(p.ctype)), partial[0], 3, reduction]
    out, total, _ = run(host("loss"), name, (1,), (1,), args)
    return out, total


@pytest.mark.parametrize("ctype", FLOATS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", [MEAN, SUM])
def test_nll_loss_and_its_gradient(
    host: Host, rng: np.random.Generator, ctype: str, weighted: bool, reduction: int
) -> None:
    p = Problem(rng, ctype, weighted)
    loss = -(p.row_weights * p.chosen(wide(p.x))).sum()
    total = p.row_weights.sum()
    scale = 1 / total if reduction == MEAN else 1.0
    out, got_total = nll(host, p, reduction)
    assert_near(out, np.array([loss * scale]), ctype, scale=4)
    assert_near(got_total, np.array([total]), ctype, scale=4)
    g = np.array([1.5], DTYPES[ctype])
    gx = run(
        host("loss"),
        cuda_instances.require("loss", "nll_loss_backward", (ctype,)),
        (2,),
        (16,),
        [Out(p.x.shape, p.x.dtype), g, p.target, p.weight_arg, got_total, p.x.size]
        + [p.classes, p.inner, IGNORE, reduction],
    )[0]
    expected = -1.5 * scale * p.row_weights[:, None, :] * p.one_hot
    assert_near(gx, expected, ctype, scale=4)


@pytest.mark.parametrize("ctype", FLOATS)
def test_nll_loss_without_reduction(host: Host, rng: np.random.Generator, ctype: str) -> None:
    p = Problem(rng, ctype, True)
    out = run(
        host("loss"),
        cuda_instances.require("loss", "nll_loss_rows", (ctype,)),
        (1,),
        (8,),
        [Out(p.target.shape, p.x.dtype), p.x, p.target, p.weight_arg, p.rows, p.classes, p.inner]
        + [IGNORE, 0],
    )[0]
    assert_near(out, -p.row_weights * p.chosen(wide(p.x)), ctype)
    g = sample(rng, p.target.shape, ctype)
    gx = run(
        host("loss"),
        cuda_instances.require("loss", "nll_loss_backward", (ctype,)),
        (2,),
        (16,),
        [Out(p.x.shape, p.x.dtype), g, p.target, p.weight_arg, 0, p.x.size]
        + [p.classes, p.inner, IGNORE, NONE],
    )[0]
    assert_near(gx, -(wide(g) * p.row_weights)[:, None, :] * p.one_hot, ctype)


def test_a_target_out_of_range_is_reported(host: Host, rng: np.random.Generator) -> None:
    p = Problem(rng, "float", False)
    p.target[3, 1] = p.classes
    args = [Out(p.target.shape, np.float32), p.x, p.target, 0, p.rows, p.classes, p.inner, IGNORE]
    got = run(host("loss"), "nll_loss_rows<float>", (1,), (8,), [*args, np.zeros(1, np.int64)])
    assert got[-1][0] == 1
    assert got[0][3, 1] == 0


LOSSES: dict[str, Callable[..., Any]] = {
    "SquaredError": lambda d, p: d * d,
    "AbsoluteError": lambda d, p: np.abs(d),
    "SmoothError": lambda d, p: np.where(np.abs(d) < p, d * d / (2 * p), np.abs(d) - p / 2),
    "HuberError": lambda d, p: np.where(np.abs(d) <= p, d * d / 2, p * (np.abs(d) - p / 2)),
}


@pytest.mark.parametrize("args", cuda_instances.KERNELS["loss"]["pair_losses"], ids="-".join)
def test_losses_of_pairs_and_their_sums(
    host: Host, rng: np.random.Generator, args: tuple[str, str]
) -> None:
    name, ctype = args
    x, t = sample(rng, (45,), ctype), sample(rng, (45,), ctype)
    expected = LOSSES[name](wide(x) - wide(t), 0.75)
    module = host("loss")
    kernel = cuda_instances.require("loss", "pair_losses", args)
    out = run(module, kernel, (2,), (16,), [Out((45,), x.dtype), x, t, 45, 0.75])[0]
    assert_near(out, expected, ctype, scale=4)
    kernel = cuda_instances.require("loss", "pair_partial", args)
    sums = [Out((3,), computing(ctype)), x, t, 45, 0.75]
    partial = run(module, kernel, (3,), (1, 4), sums, shared=4 * 8)[0]
    kernel = cuda_instances.require("loss", "pair_finish", (ctype,))
    out = run(module, kernel, (1,), (1,), [Out((1,), x.dtype), partial, 3, 45.0])[0]
    assert_near(out, np.array([expected.mean()]), ctype, scale=4)


@pytest.mark.parametrize("ctype", FLOATS)
def test_binary_cross_entropy(host: Host, rng: np.random.Generator, ctype: str) -> None:
    x, t, weight = (rng.random(20).astype(DTYPES[ctype]) for _ in range(3))
    x[:2] = 0, 1
    kernel = cuda_instances.require("loss", "binary_losses", (ctype,))
    out = run(host("loss"), kernel, (1,), (8,), [Out((20,), x.dtype), x, t, 20])[0]
    p, target = wide(x), wide(t)
    with np.errstate(divide="ignore"):
        yes, no = np.maximum(np.log(p), -100), np.maximum(np.log1p(-p), -100)
    assert_near(out, -(target * yes + (1 - target) * no), ctype, scale=2)

    logits = sample(rng, (20,), ctype)
    kernel = cuda_instances.require("loss", "logit_losses", (ctype,))
    args = [Out((20,), x.dtype), logits, t, weight, 20]
    out = run(host("loss"), kernel, (1,), (8,), args)[0]
    z = wide(logits)
    yes, no = -np.log1p(np.exp(-z)), -np.log1p(np.exp(z))
    assert_near(out, -(wide(weight) * target * yes + (1 - target) * no), ctype, scale=4)
