"""Forward derivatives of every op against its backward: ``<v, J t>`` both ways."""

from __future__ import annotations

import numpy as np
import pytest

import refruntime as torch
from refruntime._impl import TensorImpl
from refruntime._ops.opdef import REGISTRY
from refruntime._ops.samples import front_of, generator_of, realize
from refruntime.func import jvp, vjp, vmap

# Two samples an op: the op-matrix test has all of them, and forward mode adds no shapes of its own.
CASES = [
    pytest.param(op, sample, id=f"{op.name}-{number}")
    for op in sorted(REGISTRY.values(), key=lambda op: op.name)
    if op.samples is not None and op.vjp is not None
    for number, sample in enumerate([s for s in op.samples() if s.grad][:2])
]


def flat(value):
    return (
        [item for part in value for item in flat(part)]
        if isinstance(value, (list, tuple))
        else [value]
    )


def rebuild(value, leaves):
    if isinstance(value, TensorImpl):
        return next(leaves) if value.requires_grad else value
    if isinstance(value, (list, tuple)):
        return type(value)(rebuild(item, leaves) for item in value)
    return value


def problem(op, sample):
    """Return a function of the differentiable arguments of a sample, and these arguments."""
    args = realize(sample.args, generator_of(op, sample), torch.float64, requires_grad=True)
    leaves = [x for x in flat(args) if isinstance(x, TensorImpl) and x.requires_grad]

    def func(*values):
        torch.manual_seed(0)
        kwargs = realize(sample.kwargs, generator_of(op, sample))
        outputs = flat(front_of(op, sample)(*rebuild(args, iter(values)), **kwargs))
        return tuple(
            out
            for out in outputs
            if isinstance(out, TensorImpl) and (out.is_floating_point() or out.is_complex())
        )

    return func, tuple(x.detach() for x in leaves)


def randoms(like, rng):
    made = []
    for x in like:
        numbers = rng.standard_normal(tuple(x.shape))
        if x.is_complex():
            numbers = numbers + 1j * rng.standard_normal(tuple(x.shape))
        made.append(torch.tensor(numbers).to(x.dtype))
    return tuple(made)


def inner(first, second):
    pairs = zip(first, second, strict=True)
    return sum(float((np.conj(a.numpy()) * b.numpy()).sum().real) for a, b in pairs)


@pytest.mark.parametrize(("op", "sample"), CASES)
def test_forward_and_reverse_mode_agree(op, sample):
    func, points = problem(op, sample)
    rng = generator_of(op, sample)
    outputs, pull = vjp(func, *points)
    tangents, cotangents = randoms(points, rng), randoms(outputs, rng)
    values, pushed = jvp(func, points, tangents)
    assert inner(cotangents, pushed) == pytest.approx(
        inner(pull(cotangents), tangents), rel=1e-6, abs=1e-8
    )
    for one, two in zip(values, outputs, strict=True):
        np.testing.assert_array_equal(one.numpy(), two.numpy())


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize(
    ("op", "sample"), [case for case in CASES if not case.values[0].random][::4]
)
def test_a_batch_of_forward_derivatives_is_linear_in_the_direction(op, sample):
    func, points = problem(op, sample)
    tangents = randoms(points, generator_of(op, sample))
    _, pushed = jvp(func, points, tangents)
    batch = [torch.stack([t, -2 * t]) for t in tangents]
    found = vmap(lambda *directions: jvp(func, points, directions)[1])(*batch)
    for one, two in zip(found, pushed, strict=True):
        np.testing.assert_allclose(one[1].numpy(), -2 * two.numpy(), rtol=1e-6, atol=1e-9)


def test_most_ops_have_a_rule_of_their_own():
    derivable = [op for op in REGISTRY.values() if op.vjp is not None]
    without = [op.name for op in derivable if op.jvp is None]
    assert len(without) < len(derivable) / 4
