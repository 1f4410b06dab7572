"""Which instances of which CUDA kernels exist: read by the launcher and by the tests alike.

State: ``KERNELS``, built once at import: file stem -> kernel name -> the template arguments of its
instances, in CUDA C++ spelling. Invariants: a launch outside this table is refused with
`KernelMissingError` before any compiler runs, and every entry is compiled by NVRTC and run on the
host by the tests, so no instance that a launcher can ask for is untested.

A name expression (``"reduce<Sum, float, float>"``) is what NVRTC, CuPy and the host harness all
call an instance by.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from refruntime.errors import KernelMissingError

__all__ = ["KERNELS", "expand", "expression", "expressions", "files", "require", "source"]

FOLDER = Path(__file__).parent / "cuda"

FLOATS = ("float", "double", "__half", "__nv_bfloat16")
INTEGERS = ("long long", "int", "short", "signed char", "unsigned char")
NUMBERS = FLOATS + INTEGERS
ALL = (*NUMBERS, "bool")
BITS = ("unsigned char", "unsigned short", "unsigned int", "unsigned long long", "Wide")
"""Types of 1, 2, 4, 8 and 16 bytes, for kernels that move elements without looking at them."""

FLOAT_REDUCTIONS = (
    "Mean", "Var", "Std", "PNorm", "NonzeroNorm", "LargestNorm", "SmallestNorm", "NanSum",
    "LogSumExp",
)  # fmt: skip

LOSSES = ("SquaredError", "AbsoluteError", "SmoothError", "HuberError")

Instances = tuple[tuple[str, ...], ...]


def _each(types: Iterable[str]) -> Instances:
    return tuple((t,) for t in types)


def _pairs(first: Iterable[str], second: Iterable[str]) -> Instances:
    second = tuple(second)
    return tuple((a, b) for a in first for b in second)


def _reductions() -> Iterator[tuple[str, str, str]]:
    """``(operation, input type, output type)`` of every reduction."""
    for t in ALL:
        widened = t if t in FLOATS else "long long"
        yield from (("Sum", t, widened), ("Prod", t, widened))
        yield from ((op, t, t) for op in ("Amax", "Amin", "MaxAt", "MinAt"))
        yield from ((op, t, "bool") for op in ("All", "Any"))
        yield ("CountNonzero", t, "long long")
        if t != "bool":
            yield from ((op, t, "long long") for op in ("Argmax", "Argmin"))
        if t in FLOATS:
            yield from ((op, t, t) for op in FLOAT_REDUCTIONS)
    # The one dtype for which torch's tests do not answer with bool.
    yield from ((op, "unsigned char", "unsigned char") for op in ("All", "Any"))




def _scans() -> Iterator[tuple[str, str, str]]:
    """``(operation, input type, output type)`` of every running reduction."""
    for t in NUMBERS:
        widened = t if t in FLOATS else "long long"
        yield from (("Sum", t, widened), ("Prod", t, widened))
        yield from (("CumulativeMax", t, t), ("CumulativeMin", t, t))
        if t in FLOATS:
            yield ("LogSumExp", t, t)
    yield from (("Sum", "bool", "long long"), ("Prod", "bool", "long long"))


def _attention() -> Iterator[tuple[str, ...]]:
    """``(type, head width, block side, patch)``: the largest tiles that fit into 48 KiB."""
    for t in ("float", "__half", "__nv_bfloat16"):
        yield from ((t, "32", "16", "2"), (t, "64", "16", "2"), (t, "128", "16", "2"))
    yield from (("__half", "256", "16", "2"), ("__nv_bfloat16", "256", "16", "2"))
    yield ("float", "256", "16", "1")
    yield from (("double", "32", "16", "2"), ("double", "64", "16", "2"))
    yield from (("double", "128", "16", "1"), ("double", "256", "8", "1"))


def _attention_backward() -> Iterator[tuple[str, ...]]:
    """As forward, with four tiles instead of two."""
    for t in ("__half", "__nv_bfloat16"):
        yield from ((t, "32", "16", "2"), (t, "64", "16", "2"), (t, "128", "16", "2"))
        yield (t, "256", "16", "1")
    yield from (("float", "32", "16", "2"), ("float", "64", "16", "2"))
    yield from (("float", "128", "16", "1"), ("float", "256", "8", "1"))
    yield from (("double", "32", "16", "1"), ("double", "64", "16", "1"))
    yield from (("double", "128", "8", "1"), ("double", "256", "4", "1"))


_REDUCTIONS: Instances = tuple(_reductions())
_SCANS: Instances = tuple(_scans())
_FLOATS: Instances = _each(FLOATS)
_BITS: Instances = _each(BITS)
_NONE: Instances = ((),)
_SWITCHED: Instances = _pairs(("false", "true"), FLOATS)
"""Kernels whose first parameter is a flag."""

KERNELS: dict[str, dict[str, Instances]] = {
    "attention": {
        "attention_forward": tuple(_attention()),
        "attention_delta": _FLOATS,
        "attention_backward_q": tuple(_attention_backward()),
        "attention_backward_kv": tuple(_attention_backward()),
    },
    "batch_norm": {
        "batch_norm_statistics": _FLOATS,
        "batch_norm_recall": _FLOATS,
        "batch_norm_forward": _FLOATS,
        "batch_norm_sums": _FLOATS,
        "batch_norm_backward": _SWITCHED,
    },
    "conv": {
        "conv": _pairs(("Forward", "Input", "Weight"), FLOATS),
        "conv_weight_finish": _FLOATS,
    },
    "copy": {
        "copy_bits": _BITS,
        "convert": tuple(pair for pair in _pairs(ALL, ALL) if pair[0] != pair[1]),
        "fill_bits": _BITS,
        "transpose_bits": _BITS,
    },
    "embedding": {"embedding_forward": _BITS, "embedding_backward": _FLOATS},
    "index": {
        "index_get": _BITS,
        "index_put": _BITS,
        "index_combine": _pairs(("Add", "Multiply", "Maximum", "Minimum"), NUMBERS),
    },
    "join": {"cat_bits": _BITS},
    "loss": {
        "nll_loss_rows": _FLOATS,
        "nll_loss_partial": _FLOATS,
        "nll_loss_finish": _FLOATS,
        "nll_loss_backward": _FLOATS,
        "pair_losses": _pairs(LOSSES, FLOATS),
        "pair_partial": _pairs(LOSSES, FLOATS),
        "pair_finish": _FLOATS,
        "binary_losses": _FLOATS,
        "logit_losses": _FLOATS,
    },
    "norm": {
        "row_norm_forward": _SWITCHED,
        "row_norm_backward": _SWITCHED,
        "affine_norm_backward": _SWITCHED,
        "affine_finish": _FLOATS,
        "channel_norm_backward": _FLOATS,
    },
    "optim": {"sgd": _FLOATS, "adam": _FLOATS},
    "pool": {
        "max_pool": _each(NUMBERS),
        "max_pool_backward": _FLOATS,
        "resample": _FLOATS,
        "im2col": _FLOATS,
        "col2im": _FLOATS,
    },
    "random": {
        "uniform": _FLOATS,
        "normal": _FLOATS,
        "exponential": _FLOATS,
        "log_normal": _FLOATS,
        "cauchy": _FLOATS,
        "geometric": _FLOATS,
        "integers": _NONE,
        "bernoulli": _NONE,
        "bernoulli_of": _NONE,
        "permutation_keys": _NONE,
        "dropout": _FLOATS,
    },
    "rearrange": {"triangle": _pairs(("false", "true"), BITS)},
    "reduce": {"reduce": _REDUCTIONS, "finish": _REDUCTIONS},
    "sampling": {"sample_categories": _NONE, "poisson": _NONE},
    "scan": {"scan": _SCANS},
    "select": {
        "count_true": _each(ALL),
        "offsets": _NONE,
        "nonzero": _each(ALL),
        "masked_select": _BITS,
        "masked_scatter": _BITS,
    },
    "sequence": {
        "arange": _each(NUMBERS),
        "arange_integers": _each(ALL),
        "linspace": _each(NUMBERS),
        "logspace": _each(NUMBERS),
    },
    "softmax": {"softmax_forward": _SWITCHED, "softmax_backward": _SWITCHED},
    "sort": {"sort_tiles": _each(ALL), "merge_runs": _each(ALL)},
}


def files() -> tuple[str, ...]:
    """Stems of the kernel files, in the order of the table."""
    return tuple(KERNELS)


def expression(name: str, template_args: Iterable[str] = ()) -> str:
    """The C++ spelling of an instance; a kernel without parameters is its bare name."""
    args = ", ".join(template_args)
    return f"{name}<{args}>" if args else name


def expressions(file: str) -> tuple[str, ...]:
    """Every instance of a file, as name expressions."""
    kernels = KERNELS[file].items()
    return tuple(expression(name, args) for name, instances in kernels for args in instances)


@cache
def _known(file: str) -> frozenset[str]:
    return frozenset(expressions(file)) if file in KERNELS else frozenset()


def require(file: str, name: str, template_args: Iterable[str] = ()) -> str:
    """The name expression of an instance, checked against the table.

    Raises
    ------
    KernelMissingError
        When no such instance exists (for example a dtype that the kernel has no version for).
    """
    wanted = expression(name, template_args)
    if wanted not in _known(file):
        raise KernelMissingError(
            name,
            what="no GPU kernel for these dtypes",
            expected=f"an instance listed for {file}.cu",
            got=wanted,
            remedy="convert the operands to a dtype that the kernel has",
        )
    return wanted


_INCLUDE = re.compile(r'^#include "([^"]+)"$', re.MULTILINE)


def expand(text: str) -> str:
    """The text with our own headers put in place of their includes, each once.

    A compiler cache keyed by the text then notices a change of a header, and no include path is
    needed but that of CUDA itself.
    """
    seen: set[str] = set()

    def header(match: re.Match[str]) -> str:
        name = match.group(1)
        if name in seen:
            return ""
        seen.add(name)
        return _INCLUDE.sub(header, (FOLDER / name).read_text(encoding="utf-8"))

    return _INCLUDE.sub(header, text)


@cache
def source(file: str) -> str:
    """The text of a kernel file, expanded."""
    return expand((FOLDER / f"{file}.cu").read_text(encoding="utf-8"))
