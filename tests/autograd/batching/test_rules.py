"""Each op on a whole batch against the op on each sample."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import refruntime as torch
from refruntime._impl import TensorImpl
from refruntime._ops.opdef import REGISTRY
from refruntime._ops.samples import front_of, generator_of, realize
from refruntime.func import vmap

SIZE = 3
# What gives other shapes for other samples, or writes into an argument that no sample owns.
EXCUSED = {"assign", "bincount", "nonzero", "unique", "isin", "adam_step", "sgd_step"}
# What runs once a sample, and says so.
LOOPS = {"_embedding_backward", "_index", "nll_loss"}

CASES = [
    pytest.param(op, sample, id=f"{op.name}-{number}")
    for op in sorted(REGISTRY.values(), key=lambda op: op.name)
    if op.samples is not None and op.inputs and not op.random and op.name not in EXCUSED
    for number, sample in enumerate(list(op.samples())[:2])
]


def flat(value):
    return (
        [item for part in value for item in flat(part)]
        if isinstance(value, (list, tuple))
        else [value]
    )


def rebuild(value, leaves):
    if isinstance(value, TensorImpl):
        return next(leaves)
    if isinstance(value, (list, tuple)):
        return type(value)(rebuild(item, leaves) for item in value)
    return value


def samples_of(sample):
    """Return the arguments of each sample of a batch, and their tensors."""
    args = [realize(sample.args, np.random.default_rng(k), torch.float64) for k in range(SIZE)]
    return args[0], [[x for x in flat(one) if isinstance(x, TensorImpl)] for one in args]


def check(op, sample, chosen):
    """Compare a batch of the `chosen` tensors with one sample after the other."""
    args, tensors = samples_of(sample)
    kwargs = realize(sample.kwargs, generator_of(op, sample))

    def func(*leaves):
        result = front_of(op, sample)(*rebuild(args, iter(leaves)), **kwargs)
        return tuple(x for x in flat(result) if isinstance(x, TensorImpl))

    def pick(k):
        return [tensors[k][i] if i in chosen else tensors[0][i] for i in range(len(tensors[0]))]

    want = [func(*pick(k)) for k in range(SIZE)]
    stacked = [
        torch.stack([one[i] for one in tensors]) if i in chosen else tensors[0][i]
        for i in range(len(tensors[0]))
    ]
    dims = tuple(0 if i in chosen else None for i in range(len(stacked)))
    got = vmap(func, in_dims=dims)(*stacked)
    for place, found in enumerate(got):
        expected = np.stack([one[place].numpy() for one in want])
        assert found.dtype is want[0][place].dtype
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("op", "sample"), CASES)
def test_the_batch_equals_its_samples(op, sample):
    count = len(samples_of(sample)[1][0])
    if not count:
        pytest.fail(f"{op.name}: a sample without tensors")
    with warnings.catch_warnings():
        if op.name not in LOOPS:
            warnings.filterwarnings("error", message="There is a performance drop")
        else:
            warnings.simplefilter("ignore")
        check(op, sample, set(range(count)))
        for place in range(count if count > 1 else 0):
            check(op, sample, {place})


def leaves_of(sample):
    args = [
        realize(sample.args, np.random.default_rng(k), torch.float64, requires_grad=True)
        for k in range(SIZE)
    ]
    return args[0], [[x for x in flat(one) if isinstance(x, TensorImpl)] for one in args]


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize(
    ("op", "sample"),
    [case for case in CASES if case.values[0].vjp is not None and case.values[1].grad],
)
def test_gradients_of_the_batch_are_those_of_its_samples(op, sample):
    args, tensors = leaves_of(sample)
    kwargs = realize(sample.kwargs, generator_of(op, sample))
    count = len(tensors[0])

    def func(*leaves):
        result = front_of(op, sample)(*rebuild(args, iter(leaves)), **kwargs)
        return tuple(x for x in flat(result) if isinstance(x, TensorImpl) and x.requires_grad)

    stacked = [torch.stack([one[i].detach() for one in tensors]) for i in range(count)]
    for value, one in zip(stacked, tensors[0], strict=True):
        if one.requires_grad:
            value.requires_grad_()
    outputs = vmap(func)(*stacked)
    rng = generator_of(op, sample)
    weights = [torch.tensor(rng.standard_normal(tuple(out.shape))).to(out.dtype) for out in outputs]
    wanted = [value for value in stacked if value.requires_grad]
    found = torch.autograd.grad(outputs, wanted, weights, allow_unused=True)
    for k in range(SIZE):
        points = [x for x in tensors[k] if x.requires_grad]
        single = func(*tensors[k])
        rows = [weight[k] for weight in weights]
        expected = torch.autograd.grad(single, points, rows, allow_unused=True)
        for one, two in zip(found, expected, strict=True):
            if two is None:
                assert one is None or not one[k].any()
            else:
                np.testing.assert_allclose(one[k].numpy(), two.numpy(), rtol=1e-6, atol=1e-9)


def test_an_op_without_a_rule_runs_once_a_sample_and_says_so(monkeypatch):
    monkeypatch.setattr(REGISTRY["sin"], "batch", None)
    x = torch.arange(6.0).reshape(3, 2)
    with pytest.warns(UserWarning, match="performance drop"):
        out = vmap(torch.sin)(x)
    np.testing.assert_allclose(out.numpy(), np.sin(x.numpy()), rtol=1e-6)
