"""Every registered op against its NumPy reference, and its derivatives against differences.

The cases are data: each record's samples, in float32 (forward) and float64 (derivatives to order 2
along random directions).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import refruntime as torch
from refruntime._impl import TensorImpl
from refruntime._ops.opdef import REGISTRY
from refruntime._ops.samples import front_of, generator_of, realize

CASES = [
    pytest.param(op, sample, id=f"{op.name}-{number}{'-' * bool(sample.name)}{sample.name}")
    for op in sorted(REGISTRY.values(), key=lambda op: op.name)
    if op.samples is not None
    for number, sample in enumerate(op.samples())
]
ERRORS = [
    pytest.param(op, sample, id=f"{op.name}-{number}")
    for op in sorted(REGISTRY.values(), key=lambda op: op.name)
    if op.error_samples is not None
    for number, sample in enumerate(op.error_samples())
]


def to_numpy(value: Any) -> Any:
    if isinstance(value, TensorImpl):
        array = value.array().copy()
        return array.astype(np.float64) if value.dtype.is_floating_point else array
    if isinstance(value, (list, tuple)):
        return type(value)(to_numpy(item) for item in value)
    if isinstance(value, torch.dtype):
        return value.np
    return value


def flat(value: Any) -> list[Any]:
    return (
        [item for part in value for item in flat(part)]
        if isinstance(value, (list, tuple))
        else [value]
    )


@pytest.mark.filterwarnings("ignore:(invalid|divide|overflow).*:RuntimeWarning")
@pytest.mark.parametrize(("op", "sample"), CASES)
def test_forward_equals_the_numpy_reference(op, sample):
    reference = sample.reference or op.reference
    if reference is None:
        pytest.fail(f"{op.name} has samples and no NumPy reference")
    args = realize(sample.args, generator_of(op, sample))
    kwargs = realize(sample.kwargs, generator_of(op, sample))
    got = flat(front_of(op, sample)(*args, **kwargs))
    want = flat(reference(*to_numpy(args), **{k: to_numpy(v) for k, v in kwargs.items()}))
    assert len(got) == len(want)
    for one, two in zip(got, want, strict=True):
        assert tuple(one.shape) == np.shape(two)
        np.testing.assert_allclose(
            to_numpy(one), two, rtol=sample.rtol or 1e-5, atol=sample.atol or 1e-6
        )


@pytest.mark.parametrize(
    ("op", "sample"),
    [case for case in CASES if case.values[0].vjp is not None and case.values[1].grad],
)
def test_derivatives_to_order_two(op, sample):
    args = realize(sample.args, generator_of(op, sample), torch.float64, requires_grad=True)
    inputs = [x for x in flat(args) if isinstance(x, TensorImpl) and x.requires_grad]
    if not inputs:
        pytest.fail(f"{op.name}: a sample without differentiable tensors must say grad=False")

    def func(*leaves: Any) -> Any:
        replaced = iter(leaves)
        rebuilt = rebuild(args, replaced)
        outputs = flat(
            front_of(op, sample)(*rebuilt, **realize(sample.kwargs, generator_of(op, sample)))
        )
        return [out for out in outputs if out.requires_grad]

    assert torch.autograd.gradcheck(func, inputs, fast_mode=True)
    if sample.gradgrad:
        assert torch.autograd.gradgradcheck(func, inputs, fast_mode=True)


def rebuild(value: Any, leaves: Any) -> Any:
    if isinstance(value, TensorImpl):
        return next(leaves) if value.requires_grad else value
    if isinstance(value, (list, tuple)):
        return type(value)(rebuild(item, leaves) for item in value)
    return value


@pytest.mark.parametrize(("op", "sample"), ERRORS)
def test_bad_input_is_refused(op, sample):
    args = realize(sample.args, generator_of(op, sample))
    with pytest.raises(sample.error, match=sample.match):
        front_of(op, sample)(*args, **sample.kwargs)
