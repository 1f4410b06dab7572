from __future__ import annotations

import numpy as np
import pytest

import refruntime as torch
from refruntime import _dtypes
from refruntime._impl import empty_impl, from_array, meta_of
from refruntime.config import config
from refruntime.kernels import batch_norm, norm


def outputs(*shapes, dtype=_dtypes.float32):
    return tuple(empty_impl(meta_of(shape, dtype)) for shape in shapes)


def wrapped(*arrays):
    return [from_array(a, _dtypes.from_numpy_dtype(a.dtype)) for a in arrays]


def test_statistics_of_numbers_far_from_zero_keep_their_digits():
    rng = np.random.default_rng(0)
    array = (1e4 + rng.standard_normal((3, 5000))).astype(np.float32)
    out = outputs((3, 5000), (3,), (3,))
    norm.layer_norm_cpu(out, *wrapped(array), None, None, n=5000, eps=0.0)
    wide = array.astype(np.float64)
    np.testing.assert_allclose(out[1].array(), wide.mean(1), rtol=1e-7)
    np.testing.assert_allclose(out[2].array(), 1 / wide.std(1), rtol=1e-4)
    np.testing.assert_allclose(out[0].array().mean(1), 0, atol=1e-3)


@pytest.mark.parametrize("size", [1, 12])
def test_batch_statistics_are_those_of_each_channel(size):
    rng = np.random.default_rng(1)
    shape = (6, 5) if size == 1 else (6, 5, 3, 4)
    array = (100 + rng.standard_normal(shape)).astype(np.float32)
    out = outputs(shape, (5,), (5,), (5,))
    batch_norm.batch_norm_cpu(out, *wrapped(array), *[None] * 4, training=True, eps=0.0)
    rows = np.moveaxis(array, 1, 0).reshape(5, -1).astype(np.float64)
    np.testing.assert_allclose(out[1].array(), rows.mean(1), rtol=1e-6)
    np.testing.assert_allclose(out[3].array(), rows.var(1, ddof=1), rtol=1e-5)
    result = np.moveaxis(out[0].array(), 1, 0).reshape(5, -1)
    np.testing.assert_allclose(result.std(1), 1, rtol=1e-4)


@pytest.mark.parametrize("rows", [3, 700])
def test_weight_gradients_do_not_depend_on_the_number_of_threads(rows):
    results = []
    for threads in (1, 3):
        with config.patch(num_threads=threads):
            torch.manual_seed(0)
            x = torch.randn(rows, 257)
            weight = torch.ones(257, requires_grad=True)
            bias = torch.zeros(257, requires_grad=True)
            y = torch.layer_norm(x, (257,), weight, bias)
            results.append(torch.autograd.grad((y * x).sum(), [weight, bias]))
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_are_normalised_in_float32(dtype):
    x = (torch.arange(512).reshape(2, 256) / 16).to(dtype)
    y = torch.layer_norm(x, (256,))
    assert y.dtype is dtype
    wide = x.float().numpy().astype(np.float64)
    want = (wide - wide.mean(1, keepdims=True)) / wide.std(1, keepdims=True)
    np.testing.assert_allclose(y.float().numpy(), want, atol=2e-2)


def test_group_norm_over_one_channel_groups_equals_instance_norm():
    x = torch.randn(3, 4, 5, 6)
    one, other = torch.group_norm(x, 4), torch.instance_norm(x)
    np.testing.assert_array_equal(one.numpy(), other.numpy())
