"""Samples and the NumPy reference of scaled dot-product attention.

State: none. Invariants: the reference holds the whole score matrix in float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from refruntime import _dtypes
from refruntime._ops.samples import ErrorSample, Sample, T


def attention(
    query: Any, key: Any, value: Any, mask: Any = None, dropout: float = 0.0, causal: bool = False,
    scale: float | None = None, gqa: bool = False,
) -> Any:  # fmt: skip
    """Compute scores, softmax and the weighted sum one after the other."""
    if gqa:
        group = query.shape[-3] // key.shape[-3]
        key, value = np.repeat(key, group, -3), np.repeat(value, group, -3)
    scores = query @ np.swapaxes(key, -1, -2)
    scores = scores / math.sqrt(query.shape[-1]) if scale is None else scores * scale
    if causal:
        scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    peak = scores.max(-1, keepdims=True)
    powers = np.exp(scores - np.where(np.isinf(peak), 0.0, peak))
    total = powers.sum(-1, keepdims=True)
    return (powers / np.where(total > 0, total, 1.0)) @ value


def _samples() -> Iterable[Sample]:
    query, key, value = T((2, 3, 5, 4)), T((2, 3, 7, 4)), T((2, 3, 7, 6))
    yield Sample((query, key, value))
    yield Sample(
        (T((3, 60, 8)), T((3, 60, 8)), T((3, 60, 8))),
        {"is_causal": True},
        reference=lambda q, k, v, is_causal: attention(q, k, v, causal=is_causal),
    )
    yield Sample((query, key, value, T((5, 7), _dtypes.bool_), 0.0, False, 0.3))
    yield Sample((query, key, value, T((2, 1, 1, 7), grad=False)))
    yield Sample((query, key, value, T((5, 7))), name="learned mask")
    yield Sample((T((2, 4, 5, 3)), T((2, 2, 6, 3)), T((2, 2, 6, 3)), None, 0.0, False, None, True))
    yield Sample((T((4, 3), layout="transposed"), T((5, 3)), T((5, 2), layout="strided")))


def _errors() -> Iterable[ErrorSample]:
    query = T((2, 4, 3))
    mask = T((4, 4), _dtypes.bool_)
    yield ErrorSample((query, T((2, 4, 5)), query), RuntimeError, "must have one width")
    yield ErrorSample((query, query, query, mask, 0.0, True), RuntimeError, "is_causal=True")
    yield ErrorSample((query, query, query, T((4, 4), _dtypes.int64)), RuntimeError, "dtype")


ATTENTION: dict[str, Any] = {
    "samples": _samples, "error_samples": _errors, "reference": attention,
}  # fmt: skip
