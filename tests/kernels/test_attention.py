from __future__ import annotations

import numpy as np
import pytest

from refruntime import _dtypes
from refruntime._impl import empty_impl, from_array, meta_of
from refruntime.config import config
from refruntime.kernels import attention

SCALE = 0.3


def wrap(array):
    return None if array is None else from_array(array, _dtypes.from_numpy_dtype(array.dtype))


def operands(heads, shared, queries, keys, width, value_width, dtype=np.float64):
    rng = np.random.default_rng(queries)
    shapes = (
        (heads, queries, width), (shared, keys, width), (shared, keys, value_width),
        (heads, queries, value_width),
    )  # fmt: skip
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def weights_of(q, k, mask, causal, heads):
    k = np.repeat(k, len(q) // len(k), 0)
    scores = np.einsum("hqe,hke->hqk", q, k) * SCALE
    if mask is not None:
        whole = np.broadcast_to(mask, (len(q) // heads, heads, *scores.shape[1:]))
        whole = whole.reshape(scores.shape)
        scores = np.where(whole, scores, -np.inf) if mask.dtype == bool else scores + whole
    if causal:
        scores = np.where(np.tril(np.ones(scores.shape[1:], bool)), scores, -np.inf)
    peak = scores.max(-1, keepdims=True)
    powers = np.exp(scores - np.where(np.isinf(peak), 0, peak))
    total = powers.sum(-1, keepdims=True)
    return powers / np.where(total > 0, total, 1)


def gradients(q, k, v, g, weights):
    group = len(q) // len(k)
    wide_k, wide_v = np.repeat(k, group, 0), np.repeat(v, group, 0)
    slopes = np.einsum("hqv,hkv->hqk", g, wide_v)
    scores = weights * (slopes - (slopes * weights).sum(-1, keepdims=True)) * SCALE
    gk = np.einsum("hqk,hqe->hke", scores, q).reshape(len(k), group, *k.shape[1:]).sum(1)
    gv = np.einsum("hqk,hqv->hkv", weights, g).reshape(len(v), group, *v.shape[1:]).sum(1)
    return scores @ wide_k, gk, gv


def run(q, k, v, g, mask=None, causal=False, heads=1):
    dtype = _dtypes.from_numpy_dtype(q.dtype)
    out = empty_impl(meta_of(g.shape, dtype)), empty_impl(meta_of(q.shape[:2], dtype.compute))
    params = {"scale": SCALE, "causal": causal, "heads": heads}
    attention.attention_cpu(out, *map(wrap, (q, k, v, mask)), **params)
    back = tuple(empty_impl(meta_of(x.shape, dtype)) for x in (q, k, v))
    attention.attention_backward_cpu(back, *map(wrap, (g, q, k, v)), *out, wrap(mask), **params)
    return out[0].array(), [x.array() for x in back]


SHAPES = [(4, 4, 5, 7, 3, 2), (4, 2, 70, 130, 16, 24), (6, 2, 200, 300, 33, 17), (1, 1, 1, 1, 1, 1)]


def close(got, want, tolerance):
    np.testing.assert_allclose(got, want, atol=tolerance * max(1.0, np.abs(want).max()))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("causal", [False, True])
def test_attention_and_its_gradients_equal_the_plain_formula(shape, causal):
    q, k, v, g = operands(*shape)
    weights = weights_of(q, k, None, causal, 1)
    result, back = run(q, k, v, g, causal=causal)
    close(result, weights @ np.repeat(v, len(q) // len(v), 0), 1e-12)
    for got, want in zip(back, gradients(q, k, v, g, weights), strict=True):
        close(got, want, 1e-11)


def masks(heads, queries, keys):
    rng = np.random.default_rng(0)
    return {
        "pairs": rng.random((2, heads, queries, keys)) > 0.4,
        "keys of a sample": rng.random((2, 1, 1, keys)) > 0.4,
        "few pairs": rng.random((1, 1, queries, keys)) > 0.97,
        "added": rng.standard_normal((1, heads, queries, keys)),
        "added to keys": rng.standard_normal((2, 1, 1, keys)),
    }


@pytest.mark.parametrize("name", masks(1, 1, 1))
def test_masks_of_any_shape_are_read_in_place(name):
    q, k, v, g = operands(6, 6, 60, 90, 8, 8)
    mask = masks(3, 60, 90)[name]
    weights = weights_of(q, k, mask, False, 3)
    result, back = run(q, k, v, g, mask, heads=3)
    close(result, weights @ v, 1e-12)
    for got, want in zip(back, gradients(q, k, v, g, weights), strict=True):
        close(got, want, 1e-11)


def test_more_keys_than_a_block_are_joined_by_rescaling():
    q, k, v, g = operands(2, 2, 50, attention.FORWARD_KEYS + 100, 8, 8)
    q[:, 1] *= 50
    weights = weights_of(q, k, None, False, 1)
    result, back = run(q, k, v, g)
    close(result, weights @ v, 1e-12)
    for got, want in zip(back, gradients(q, k, v, g, weights), strict=True):
        close(got, want, 1e-10)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 2e-5), (np.float16, 1e-2)])
def test_narrow_types_are_close_to_the_formula(dtype, tolerance):
    q, k, v, g = operands(2, 2, 100, 150, 32, 32, dtype)
    wide = [x.astype(np.float64) for x in (q, k, v, g)]
    weights = weights_of(*wide[:2], None, True, 1)
    result, back = run(q, k, v, g, causal=True)
    close(result, weights @ wide[2], tolerance)
    for got, want in zip(back, gradients(*wide, weights), strict=True):
        close(got, want, tolerance)


def test_results_do_not_depend_on_the_number_of_threads():
    q, k, v, g = operands(3, 3, 200, 100, 16, 16, np.float32)
    results = []
    for threads in (1, 3):
        with config.patch(num_threads=threads):
            result, back = run(q, k, v, g, causal=True)
            results.append([result, *back])
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


def test_large_scores_do_not_overflow():
    q, k, v, g = operands(1, 1, 3, 4, 2, 2, np.float32)
    result, back = run(q * 1e4, k * 1e4, v, g)
    assert np.isfinite(result).all() and all(np.isfinite(x).all() for x in back)
