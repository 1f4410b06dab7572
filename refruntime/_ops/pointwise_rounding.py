"""Rounding: to whole numbers, to decimals, and the fraction left over.

Invariants
----------
* Integers stay as they are. Halves round to even. Derivatives are zero but for `frac`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from refruntime._dispatch import call
from refruntime._ops import samples_inner as inner
from refruntime._ops.elementwise import pointwise
from refruntime._ops.opdef import NO_PARAMS, front, ops
from refruntime._ops.samples import Sample, T, unary
from refruntime.kernels.mathtable import ceil, floor, trunc


def _zero(g: Any, n: Any) -> Any:
    return ops.zeros_like(g)


@pointwise(vjp=_zero, reference=np.floor, refuse="b", samples=unary(-3.0, 3.0))
def floor_(input: Any) -> Any:
    """Return the largest whole number that is not above."""
    return floor(input)


@pointwise(vjp=_zero, reference=np.ceil, refuse="b", samples=unary(-3.0, 3.0))
def ceil_(input: Any) -> Any:
    """Return the smallest whole number that is not below."""
    return ceil(input)


@pointwise(vjp=_zero, reference=np.trunc, refuse="b", samples=unary(-3.0, 3.0), aliases=("fix",))
def trunc_(input: Any) -> Any:
    """Return the whole part."""
    return trunc(input)


@pointwise(vjp=lambda g, n: g, reference=lambda x: x - np.trunc(x), refuse="biu",
           samples=unary(-3.0, 3.0))  # fmt: skip
def frac(input: Any) -> Any:
    """Return the fraction that `trunc` drops."""
    return input - trunc(input)


def _round_samples() -> Any:
    yield from unary(-3.0, 3.0)()
    yield Sample((T((5,), values=[0.5, 1.5, 2.5, -0.5, -1.5]),), grad=False, name="halves")


@pointwise(publish=False, vjp=_zero, reference=np.round, refuse="b", samples=_round_samples)
def round_(input: Any) -> Any:
    """Nearest whole number."""
    return round(input)


@pointwise(publish=False, name="round_decimals", **inner.ROUND_DECIMALS, vjp=_zero, refuse="biu",
           backward_name="RoundBackward1")  # fmt: skip
def _round_decimals(input: Any, *, scale: Any) -> Any:
    return round(input * scale) / scale


@pointwise(publish=False, name="round_tens", **inner.ROUND_TENS, vjp=_zero, refuse="biu",
           backward_name="RoundBackward1")  # fmt: skip
def _round_tens(input: Any, *, scale: Any) -> Any:
    return round(input / scale) * scale


ROUND: Any = round_
ROUND_DECIMALS: Any = _round_decimals
ROUND_TENS: Any = _round_tens


@front(ROUND, inplace=True, name="round")
def round_to(input: Any, *, decimals: int = 0, out: Any = None) -> Any:
    """Return the nearest number with so many decimals; halves go to the even neighbour."""
    if decimals == 0:
        return call(ROUND, (input,), NO_PARAMS, out)
    record = ROUND_DECIMALS if decimals > 0 else ROUND_TENS
    return call(record, (input,), {"scale": 10.0 ** abs(decimals)}, out)
