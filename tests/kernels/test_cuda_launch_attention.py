"""The GPU launch functions of attention, against the textbook formulas in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from refruntime import _dtypes
from refruntime.errors import KernelMissingError
from refruntime.kernels.attention_cuda import Mask, attention_backward_cuda, attention_cuda
from tests.kernels.cuda_host.launches import Router, filled, tensor

SAMPLES, HEADS, QUERIES, KEYS, WIDTH = 2, 2, 5, 9, 6


def textbook(q: Any, k: Any, v: Any, g: Any, bias: Any, scale: float) -> dict[str, Any]:
    scores = scale * q @ k.transpose(0, 2, 1) + bias
    p = np.exp(scores - scores.max(2, keepdims=True))
    p /= p.sum(2, keepdims=True)
    out = p @ v
    ds = scale * p * (g @ v.transpose(0, 2, 1) - (g * out).sum(2, keepdims=True))
    return {
        "out": out,
        "gq": ds @ k,
        "gk": ds.transpose(0, 2, 1) @ q,
        "gv": p.transpose(0, 2, 1) @ g,
    }


MASKS: dict[str, Any] = {
    "none": None,
    "added, of all samples": lambda rng: rng.standard_normal((1, 1, QUERIES, KEYS)),
    "allowed, of each head": lambda rng: rng.random((SAMPLES, HEADS, QUERIES, KEYS)) < 0.8,
    "allowed keys": lambda rng: (
        np.arange(KEYS)[None, None, None] < np.array([4, 7])[:, None, None, None]
    ),
}


@pytest.mark.parametrize("layout", ["contiguous", "strided"])
@pytest.mark.parametrize("name", MASKS)
def test_attention_and_its_gradients(
    router: Router, rng: np.random.Generator, name: str, layout: str
) -> None:
    heads = SAMPLES * HEADS
    q, g = rng.standard_normal((2, heads, QUERIES, WIDTH))
    k, v = rng.standard_normal((2, heads, KEYS, WIDTH))
    mask, bias = None, np.zeros((heads, QUERIES, KEYS))
    if MASKS[name] is not None:
        values = MASKS[name](rng)
        if values.dtype == bool:
            values[..., 0] = True
        mask = Mask(tensor(values), HEADS)
        full = np.broadcast_to(values, (SAMPLES, HEADS, QUERIES, KEYS)).reshape(bias.shape)
        bias = np.where(full, 0.0, -np.inf) if values.dtype == bool else full
    expected = textbook(q, k, v, g, bias, 0.4)
    operands = [tensor(x, layout) for x in (q, k, v)]
    out = filled(q.shape, _dtypes.float64), filled((heads, QUERIES), _dtypes.float64)
    attention_cuda(out, *operands, mask=mask, scale=0.4)
    np.testing.assert_allclose(out[0].array(), expected["out"], atol=1e-12)
    grads = tuple(filled(x.shape, _dtypes.float64, layout) for x in (q, k, v))
    attention_backward_cuda(grads, tensor(g, layout), *operands, *out, mask=mask, scale=0.4)
    for got, key in zip(grads, ("gq", "gk", "gv"), strict=True):
        np.testing.assert_allclose(got.array(), expected[key], atol=1e-12)
    assert "attention_backward_kv<double, 32, 16, 1>" in router.launched


def test_the_narrowest_tile_that_holds_the_heads_is_taken(
    router: Router, rng: np.random.Generator
) -> None:
    for width, tile in ((32, 32), (33, 64), (200, 256)):
        q = tensor(rng.standard_normal((1, 2, width)).astype(np.float32))
        out = filled(q.shape, q.dtype), filled((1, 2), q.dtype)
        attention_cuda(out, q, q, q, scale=1.0, causal=True)
        assert router.launched[-1].startswith(f"attention_forward<float, {tile},")


def test_heads_that_no_tile_holds_are_refused(router: Router) -> None:
    q = tensor(np.zeros((1, 2, 257), np.float32))
    out = filled(q.shape, q.dtype), filled((1, 2), q.dtype)
    with pytest.raises(KernelMissingError, match="at most 256"):
        attention_cuda(out, q, q, q, scale=1.0)
    assert not router.launched
