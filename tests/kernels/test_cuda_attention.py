"""attention.cu on the host, against the textbook formulas with the whole score matrix in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from refruntime.kernels import cuda_instances
from tests.kernels.cuda_host.arrays import DTYPES, FLOATS, assert_near, computing, sample, wide
from tests.kernels.cuda_host.harness import HostModule, Out, Struct, run

Host = Callable[[str], HostModule]


@dataclass
class Case:
    """q (heads, queries, width), k, v for `group` heads each, a mask (sample, 1, query, key)."""

    ctype: str
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    g: np.ndarray
    scale: float
    group: int = 1
    causal: bool = False
    added: np.ndarray | None = None
    allowed: np.ndarray | None = None
    heads_of_sample: int = 1

    @property
    def shape(self) -> Struct:
        _, queries, width = self.q.shape
        keys, value_width = self.v.shape[1:]
        strides = (0, 0, 0, 0)
        if self.added is not None or self.allowed is not None:
            strides = (queries * keys, 0, keys, 1)
        row = (queries, keys, width, value_width, self.group, self.heads_of_sample, *strides)
        return Struct(np.array(row, np.int64))

    @property
    def tail(self) -> list[Any]:
        masks = [0 if m is None else m for m in (self.added, self.allowed)]
        return [*masks, self.shape, self.scale, int(self.causal)]

    def expected(self) -> dict[str, np.ndarray]:
        q, g = wide(self.q), wide(self.g)
        k, v = (np.repeat(wide(t), self.group, axis=0) for t in (self.k, self.v))
        heads, queries, keys = q.shape[0], q.shape[1], k.shape[1]
        scores = self.scale * q @ k.transpose(0, 2, 1)
        seen = np.ones((heads, queries, keys), bool)
        samples = np.arange(heads) // self.heads_of_sample
        if self.causal:
            seen &= np.tril(np.ones((queries, keys), bool))
        if self.allowed is not None:
            seen &= self.allowed[samples]
        if self.added is not None:
            scores = scores + wide(self.added)[samples]
        scores = np.where(seen, scores, -np.inf)
        top = np.where(seen.any(2), scores.max(2), 0.0)[..., None]
        weights = np.exp(scores - top)
        total = weights.sum(2, keepdims=True)
        p = weights / np.where(total == 0, 1.0, total)
        out = p @ v
        dp = g @ v.transpose(0, 2, 1)
        ds = self.scale * p * (dp - (g * out).sum(2, keepdims=True))
        shared = (-1, self.group, keys)
        with np.errstate(divide="ignore"):
            lse = (top + np.log(total))[..., 0]
        return {
            "out": out,
            "lse": lse,
            "gq": ds @ k,
            "gk": (ds.transpose(0, 2, 1) @ q).reshape(*shared, q.shape[2]).sum(1),
            "gv": (p.transpose(0, 2, 1) @ g).reshape(*shared, g.shape[2]).sum(1),
        }


def make(
    rng: np.random.Generator, ctype: str, heads: int = 2, queries: int = 19, keys: int = 37,
    width: int = 8, value_width: int = 8, group: int = 1, **options: Any,
) -> Case:  # fmt: skip
    shapes = [
        (heads, queries, width),
        (heads // group, keys, width),
        (heads // group, keys, value_width),
    ]
    q, k, v, g = (sample(rng, s, ctype) for s in (*shapes, (heads, queries, value_width)))
    return Case(ctype, q, k, v, g, width**-0.5, group, **options)


def instance(kernel: str, ctype: str, head: int) -> tuple[str, int, int]:
    """Name expression, block side and rows of a tile."""
    for args in cuda_instances.KERNELS["attention"][kernel]:
        if args[:2] == (ctype, str(head)):
            return (
                cuda_instances.expression(kernel, args),
                int(args[2]),
                int(args[2]) * int(args[3]),
            )
    raise AssertionError(f"no instance of {kernel} for {ctype} and a head of {head}")


def forward(host: Host, c: Case, head: int) -> tuple[np.ndarray, np.ndarray]:
    name, side, rows = instance("attention_forward", c.ctype, head)
    heads, queries, _ = c.q.shape
    kind = computing(c.ctype)
    pitch = head + (2 if c.q.itemsize == 2 else 1)
    shared = 2 * rows * pitch * c.q.itemsize + rows * (rows + 4) * kind.itemsize
    assert shared <= 48 * 1024
    outs = [Out(c.g.shape, c.q.dtype), Out((heads, queries), kind)]
    args = [*outs, c.q, c.k, c.v, *c.tail]
    got = run(host("attention"), name, (-(-queries // rows) * heads,), (side, side), args, shared)
    return got[0], got[1]


def backward(host: Host, c: Case, head: int) -> dict[str, np.ndarray]:
    """The gradients, from the exact forward results."""
    known = c.expected()
    dtype, kind = DTYPES[c.ctype], computing(c.ctype)
    heads, queries, _ = c.q.shape
    out, lse = known["out"].astype(dtype), known["lse"].astype(kind)
    name = cuda_instances.require("attention", "attention_delta", (c.ctype,))
    args: list[Any] = [Out((heads, queries), kind), c.g, out, c.g.shape[2]]
    delta = run(host("attention"), name, (heads * queries,), (1, 4), args, 4 * kind.itemsize)[0]

    name, side, rows = instance("attention_backward_q", c.ctype, head)
    pitch = head + (2 if c.q.itemsize == 2 else 1)
    shared = 4 * rows * pitch * c.q.itemsize + 2 * rows * (rows + 1) * kind.itemsize
    assert shared <= 48 * 1024
    args = [Out(c.q.shape, dtype), c.g, c.q, c.k, c.v, lse, delta, *c.tail]
    gq = run(host("attention"), name, (-(-queries // rows) * heads,), (side, side), args, shared)[0]

    name, side, rows = instance("attention_backward_kv", c.ctype, head)
    args = [Out(c.k.shape, dtype), Out(c.v.shape, dtype), c.g, c.q, c.k, c.v, lse, delta, *c.tail]
    grid = (-(-c.k.shape[1] // rows) * (heads // c.group),)
    gk, gv, *_ = run(host("attention"), name, grid, (side, side), args, shared)
    return {"gq": gq, "gk": gk, "gv": gv}


@pytest.mark.parametrize(
    "args", cuda_instances.KERNELS["attention"]["attention_forward"], ids="-".join
)
def test_forward_of_every_instance(
    host: Host, rng: np.random.Generator, args: tuple[str, ...]
) -> None:
    head = int(args[1])
    c = make(rng, args[0], heads=1, width=head - 3, value_width=head - 8)
    out, lse = forward(host, c, head)
    known = c.expected()
    assert_near(out, known["out"], c.ctype)
    np.testing.assert_allclose(lse, known["lse"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "args", cuda_instances.KERNELS["attention"]["attention_backward_q"], ids="-".join
)
def test_backward_of_every_instance(
    host: Host, rng: np.random.Generator, args: tuple[str, ...]
) -> None:
    head = int(args[1])
    c = make(rng, args[0], heads=1, queries=9, keys=11, width=head, value_width=head - 8)
    got, known = backward(host, c, head), c.expected()
    for name in ("gq", "gk", "gv"):
        assert_near(got[name], known[name], c.ctype, scale=4)


OPTIONS: dict[str, Callable[[np.random.Generator], dict[str, Any]]] = {
    "causal": lambda rng: {"causal": True, "queries": 37},
    "grouped": lambda rng: {"heads": 4, "group": 2},
    "added": lambda rng: {"added": rng.standard_normal((1, 19, 37)), "heads_of_sample": 2},
    "allowed": lambda rng: {"allowed": rng.random((2, 19, 37)) < 0.5},
    "unseen": lambda rng: {"allowed": np.arange(19)[None, :, None] >= np.zeros((2, 1, 37)) + 4},
    "more queries than keys": lambda rng: {"queries": 40, "keys": 5, "causal": True},
}


@pytest.mark.parametrize("option", OPTIONS)
def test_masks_and_groups_forward_and_backward(
    host: Host, rng: np.random.Generator, option: str
) -> None:
    c = make(rng, "double", **OPTIONS[option](rng))
    known = c.expected()
    out, lse = forward(host, c, 32)
    np.testing.assert_allclose(out, known["out"], atol=1e-12)
    np.testing.assert_allclose(lse, known["lse"], atol=1e-12)
    got = backward(host, c, 32)
    for name in ("gq", "gk", "gv"):
        np.testing.assert_allclose(got[name], known[name], atol=1e-12)


def test_every_float_type_covers_heads_up_to_256() -> None:
    for kernel in ("attention_forward", "attention_backward_q", "attention_backward_kv"):
        for ctype in FLOATS:
            heads = [
                int(a[1]) for a in cuda_instances.KERNELS["attention"][kernel] if a[0] == ctype
            ]
            assert heads == [32, 64, 128, 256]
