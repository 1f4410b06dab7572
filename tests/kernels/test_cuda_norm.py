"""norm.cu and batch_norm.cu on the host, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from refruntime.kernels import cuda_instances
from tests.kernels.cuda_host.arrays import DTYPES, FLOATS, assert_near, computing, sample, wide
from tests.kernels.cuda_host.harness import HostModule, Out, run

Host = Callable[[str], HostModule]
EPS = 1e-5


class Rows:
    """Rows of a norm as norm.cu sees them, and what NumPy says of them (float64)."""

    def __init__(
        self, rng: np.random.Generator, ctype: str, shape: tuple[int, int], groups: int, span: int,
        centred: bool = True,
    ) -> None:  # fmt: skip
        rows, columns = shape
        self.ctype, self.shape, self.groups, self.span, self.centred = (
            ctype,
            shape,
            groups,
            span,
            centred,
        )
        self.x, self.g = sample(rng, shape, ctype), sample(rng, shape, ctype)
        affine = groups * columns // span
        kind = computing(ctype)
        self.weight, self.bias = (sample(rng, (affine,), ctype).astype(kind) for _ in range(2))
        row, column = np.indices(shape)
        self.affine = row % groups * (columns // span) + column // span
        x = wide(self.x)
        self.mean = x.mean(1) if centred else np.zeros(rows)
        self.rstd = 1 / np.sqrt(((x - self.mean[:, None]) ** 2).mean(1) + EPS)
        self.h = (x - self.mean[:, None]) * self.rstd[:, None]

    @property
    def y(self) -> np.ndarray:
        return self.h * wide(self.weight)[self.affine] + wide(self.bias)[self.affine]

    @property
    def gx(self) -> np.ndarray:
        d = wide(self.g) * wide(self.weight)[self.affine]
        middle = d.mean(1, keepdims=True) if self.centred else 0.0
        inner = d - middle - self.h * (d * self.h).mean(1, keepdims=True)
        return self.rstd[:, None] * inner

    def summed(self, values: np.ndarray) -> np.ndarray:
        out = np.zeros(self.weight.shape)
        np.add.at(out, self.affine, values)
        return out

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        kind = computing(self.ctype)
        return self.mean.astype(kind), self.rstd.astype(kind)


LAYOUTS = {  # (rows, columns), groups, span: layer_norm, group_norm of 2 groups of 3 channels of 4
    "layer": ((5, 24), 1, 1),
    "group": ((6, 12), 2, 4),
}


@pytest.mark.parametrize("ctype", FLOATS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_row_norm_forward(host: Host, rng: np.random.Generator, ctype: str, layout: str) -> None:
    shape, groups, span = LAYOUTS[layout]
    r = Rows(rng, ctype, shape, groups, span)
    kind = computing(ctype)
    out, *_, mean, rstd = run(
        host("norm"),
        cuda_instances.require("norm", "row_norm_forward", ("true", ctype)),
        (shape[0],),
        (1, 8),
        [Out(shape, r.x.dtype), r.x, r.weight, r.bias, Out(shape[:1], kind), Out(shape[:1], kind)]
        + [shape[1], groups, span, EPS],
        shared=8 * 24,
    )
    assert_near(out, r.y, ctype, scale=2)
    np.testing.assert_allclose(mean, r.mean, atol=1e-5)
    np.testing.assert_allclose(rstd, r.rstd, rtol=1e-4)


@pytest.mark.parametrize("ctype", FLOATS)
def test_rms_norm_without_affine_map(host: Host, rng: np.random.Generator, ctype: str) -> None:
    r = Rows(rng, ctype, (4, 10), 1, 1, centred=False)
    out, _, rstd = run(
        host("norm"),
        cuda_instances.require("norm", "row_norm_forward", ("false", ctype)),
        (4,),
        (1, 4),
        [Out((4, 10), r.x.dtype), r.x, 0, 0, 0, Out((4,), computing(ctype)), 10, 1, 1, EPS],
        shared=4 * 24,
    )
    assert_near(out, r.h, ctype)
    np.testing.assert_allclose(rstd, r.rstd, rtol=1e-4)


@pytest.mark.parametrize("ctype", FLOATS)
@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_row_norm_backward_of_the_input(
    host: Host, rng: np.random.Generator, ctype: str, centred: bool, layout: str
) -> None:
    shape, groups, span = LAYOUTS[layout]
    r = Rows(rng, ctype, shape, groups, span, centred)
    mean, rstd = r.moments()
    gx = run(
        host("norm"),
        cuda_instances.require("norm", "row_norm_backward", (str(centred).lower(), ctype)),
        (shape[0],),
        (1, 8),
        [Out(shape, r.x.dtype), r.g, r.x, r.weight, mean if centred else 0, rstd]
        + [shape[1], groups, span],
        shared=8 * 16,
    )[0]
    assert_near(gx, r.gx, ctype, scale=3)


@pytest.mark.parametrize("ctype", FLOATS)
@pytest.mark.parametrize("centred", [True, False])
def test_affine_gradients_of_layer_norm_in_splits(
    host: Host, rng: np.random.Generator, ctype: str, centred: bool
) -> None:
    rows, columns, splits = 13, 7, 3
    r = Rows(rng, ctype, (rows, columns), 1, 1, centred)
    mean, rstd = r.moments()
    partial = run(
        host("norm"),
        cuda_instances.require("norm", "affine_norm_backward", (str(centred).lower(), ctype)),
        (2, splits),
        (4, 2),
        [Out((2, splits, columns), computing(ctype)), r.g, r.x, mean if centred else 0, rstd]
        + [rows, columns, -(-rows // splits)],
        shared=8 * 16,
    )[0]
    gweight, gbias, _ = run(
        host("norm"),
        cuda_instances.require("norm", "affine_finish", (ctype,)),
        (1,),
        (8,),
        [Out((columns,), partial.dtype), Out((columns,), partial.dtype), partial, splits, columns],
    )
    assert_near(gweight, r.summed(wide(r.g) * r.h), ctype, scale=3)
    assert_near(gbias, r.summed(wide(r.g)), ctype, scale=3)


@pytest.mark.parametrize("ctype", FLOATS)
def test_affine_gradients_of_group_norm(host: Host, rng: np.random.Generator, ctype: str) -> None:
    shape, groups, span = LAYOUTS["group"]
    r = Rows(rng, ctype, shape, groups, span)
    mean, rstd = r.moments()
    channels = r.weight.size
    gweight, gbias, *_ = run(
        host("norm"),
        cuda_instances.require("norm", "channel_norm_backward", (ctype,)),
        (channels,),
        (1, 4),
        [Out((channels,), mean.dtype), Out((channels,), mean.dtype), r.g, r.x, mean, rstd]
        + [shape[0], shape[1], groups, span],
        shared=4 * 16,
    )
    assert_near(gweight, r.summed(wide(r.g) * r.h), ctype, scale=3)
    assert_near(gbias, r.summed(wide(r.g)), ctype, scale=3)


# --------------------------------------------------------------------------------------- batch norm

BATCH, CHANNELS, SPAN = 4, 3, 5


def channelwise(values: np.ndarray) -> np.ndarray:
    return values[None, :, None]


def moments_of(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return x.mean((0, 2)), 1 / np.sqrt(x.var((0, 2)) + EPS)


@pytest.mark.parametrize("ctype", FLOATS)
def test_batch_statistics(host: Host, rng: np.random.Generator, ctype: str) -> None:
    x = sample(rng, (BATCH, CHANNELS, SPAN), ctype)
    outs = [Out((CHANNELS,), computing(ctype)) for _ in range(3)]
    _, mean, rstd, var = run(
        host("batch_norm"),
        cuda_instances.require("batch_norm", "batch_norm_statistics", (ctype,)),
        (CHANNELS,),
        (1, 8),
        [x, *outs, BATCH, CHANNELS, SPAN, EPS],
        shared=8 * 24,
    )
    expected = moments_of(wide(x))
    np.testing.assert_allclose(mean, expected[0], atol=1e-5)
    np.testing.assert_allclose(rstd, expected[1], rtol=1e-4)
    np.testing.assert_allclose(var, wide(x).var((0, 2), ddof=1), rtol=1e-4)


@pytest.mark.parametrize("ctype", FLOATS)
def test_evaluation_uses_the_running_moments(host: Host, ctype: str) -> None:
    kind = computing(ctype)
    mean, var = np.array([1.0, -2.0, 0.5], kind), np.array([4.0, 0.25, 1.0], kind)
    args: list[Any] = [*(Out((3,), kind) for _ in range(3)), mean, var, 3, EPS]
    name = cuda_instances.require("batch_norm", "batch_norm_recall", (ctype,))
    got = run(host("batch_norm"), name, (1,), (4,), args)
    np.testing.assert_array_equal(got[0], mean)
    np.testing.assert_allclose(got[1], 1 / np.sqrt(wide(var) + EPS), rtol=1e-6)
    np.testing.assert_array_equal(got[2], var)


@pytest.mark.parametrize("ctype", FLOATS)
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_and_its_gradients(
    host: Host, rng: np.random.Generator, ctype: str, training: bool
) -> None:
    shape = (BATCH, CHANNELS, SPAN)
    x, g = sample(rng, shape, ctype), sample(rng, shape, ctype)
    kind, dtype = computing(ctype), DTYPES[ctype]
    weight, bias = (sample(rng, (CHANNELS,), ctype).astype(kind) for _ in range(2))
    exact_mean, exact_rstd = moments_of(wide(x))
    mean, rstd = exact_mean.astype(kind), exact_rstd.astype(kind)
    module = host("batch_norm")
    h = (wide(x) - channelwise(exact_mean)) * channelwise(exact_rstd)

    name = cuda_instances.require("batch_norm", "batch_norm_forward", (ctype,))
    args = [Out(shape, dtype), x, weight, bias, mean, rstd, CHANNELS, SPAN, x.size]
    y = run(module, name, (2,), (16,), args)[0]
    assert_near(y, h * channelwise(wide(weight)) + channelwise(wide(bias)), ctype, scale=2)

    name = cuda_instances.require("batch_norm", "batch_norm_sums", (ctype,))
    outs = [Out((CHANNELS,), kind), Out((CHANNELS,), kind)]
    sum_g, sum_gh, *_ = run(
        module, name, (CHANNELS,), (1, 8), [*outs, g, x, mean, rstd, BATCH, CHANNELS, SPAN], 8 * 16
    )
    assert_near(sum_gh, (wide(g) * h).sum((0, 2)), ctype, scale=3)
    assert_near(sum_g, wide(g).sum((0, 2)), ctype, scale=3)

    name = cuda_instances.require(
        "batch_norm", "batch_norm_backward", (str(training).lower(), ctype)
    )
    args = [Out(shape, dtype), g, x, weight, mean, rstd, sum_g, sum_gh, CHANNELS, SPAN, x.size]
    gx = run(module, name, (2,), (16,), args)[0]
    inner = wide(g)
    if training:
        average = (wide(g) * h).mean((0, 2))
        inner = inner - channelwise(wide(g).mean((0, 2))) - h * channelwise(average)
    assert_near(gx, channelwise(wide(weight) * exact_rstd) * inner, ctype, scale=3)
