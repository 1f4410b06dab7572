"""Every registered op is complete: samples, a NumPy reference, a derivative rule, a CUDA kernel.

What an op lacks for a reason stands in a table with that reason; an entry that is no longer needed
fails too, so the tables cannot outlive their reasons.

Two rules need no entry:

* A record whose name ends in ``_backward`` (or ``_backward_<operand>``) computes a derivative. The
  op-matrix test reaches it through its forward op: the first derivatives run its kernel against
  differences, the second ones its own rule or its decomposition.
* An op that draws random numbers has no NumPy twin. Its samples and distributions are checked in
  ``test_random.py``, ``test_sampling.py`` and ``test_dropout.py``.
"""

from __future__ import annotations

import re

import pytest

import refruntime  # noqa: F401  (fills the registry)
from refruntime._ops.opdef import REGISTRY, OpDef

RECORDS = sorted(REGISTRY.values(), key=lambda op: op.name)
OPTIONAL_FIELDS = ("jvp", "batch", "decomposition", "cost")

UNINITIALISED = "its elements are whatever the memory held"
NO_CASE = {"empty": UNINITIALISED}

BOOLEAN = "its result is boolean"
INTEGER = "its result is integer"
FROM_NUMBERS = "it has no tensor operand"
WITHOUT_DERIVATIVE = {
    **dict.fromkeys(("any", "all", "isclose", "isin"), BOOLEAN),
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge"), BOOLEAN),
    **dict.fromkeys(("isnan", "isinf", "isfinite", "isposinf", "isneginf", "signbit"), BOOLEAN),
    **dict.fromkeys(("logical_and", "logical_or", "logical_xor", "logical_not"), BOOLEAN),
    **dict.fromkeys(("argmax", "argmin", "count_nonzero", "nonzero", "searchsorted"), INTEGER),
    **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not"), INTEGER),
    **dict.fromkeys(("bitwise_left_shift", "bitwise_right_shift", "gcd", "lcm"), INTEGER),
    "sample_categories": INTEGER,
    **dict.fromkeys(("empty", "full", "arange", "linspace", "logspace", "eye"), FROM_NUMBERS),
    **dict.fromkeys(("tril_indices", "triu_indices"), FROM_NUMBERS),
    **dict.fromkeys(("rand", "randn", "randint", "randperm"), FROM_NUMBERS),
    "bincount": "it counts; torch has no derivative for its weights either",
    "unique": "torch has no derivative for it either",
    "heaviside": "torch has no derivative for it either",
    "permutation_of_pivots": "its operand is integer",
    "view_dtype": "other bits of the same memory are no function of its values",
    "detach": "it leaves the graph",
    "sgd_step": "an optimizer's step runs outside the graph",
    "adam_step": "an optimizer's step runs outside the graph",
}

ON_THE_HOST = "LAPACK on the host: dense linear algebra has no GPU solver yet"
OTHER_BITS = "it shows the same memory through `run`, as a view does"
HOST_ONLY = "it has a kernel for the CPU alone yet"
WITHOUT_CUDA = {
    **dict.fromkeys(
        ("linalg_inv", "linalg_solve", "linalg_solve_triangular", "linalg_det", "linalg_slogdet",
         "linalg_cholesky", "linalg_qr", "linalg_svd", "linalg_eigh", "linalg_pinv",
         "linalg_lstsq", "linalg_lu_factor", "permutation_of_pivots"), ON_THE_HOST,
    ),
    **dict.fromkeys(("view_dtype", "view_as_real", "view_as_complex"), OTHER_BITS),
    "nonzero": "its kernel is called by `run`: it must count before it can allocate",
    **dict.fromkeys(("bincount", "unique", "searchsorted", "isin", "mode"), HOST_ONLY),
    **dict.fromkeys(("tril_indices", "triu_indices"), HOST_ONLY),
    "_as_strided_backward": HOST_ONLY,
}  # fmt: skip


UNDIFFERENTIATED = {
    "view_as_complex": "its result is complex; the samples of view_as_real differentiate it",
}


def is_backward(op: OpDef) -> bool:
    return re.search(r"_backward(_[a-z]+)?$", op.name) is not None


def needs_case(op: OpDef) -> bool:
    return not (is_backward(op) or op.random)


def derivative_exists(op: OpDef) -> bool:
    return op.vjp is not None or op.decomposition is not None


def runs_on_cuda(op: OpDef) -> bool:
    return op.cuda is not None or op.view is not None


def assert_complete(lacking: set[str], excused: dict[str, str], what: str) -> None:
    unknown = set(excused) - set(REGISTRY)
    assert not unknown, f"excused from {what}, but not registered: {sorted(unknown)}"
    assert not lacking - set(excused), f"without {what}: {sorted(lacking - set(excused))}"
    stale = set(excused) - lacking
    assert not stale, f"excused from {what} without need: {sorted(stale)}"


def test_every_op_has_samples():
    lacking = {op.name for op in RECORDS if needs_case(op) and op.samples is None}
    assert_complete(lacking, NO_CASE, "samples")


def test_every_op_has_a_numpy_reference():
    lacking = {op.name for op in RECORDS if needs_case(op) and op.reference is None}
    assert_complete(lacking, NO_CASE, "a NumPy reference")


def test_samples_are_not_empty():
    assert [op.name for op in RECORDS if op.samples is not None and not list(op.samples())] == []


def test_every_op_has_a_derivative_rule():
    lacking = {op.name for op in RECORDS if not derivative_exists(op)}
    assert_complete(lacking, WITHOUT_DERIVATIVE, "a derivative rule")


def test_every_op_has_a_cuda_kernel():
    lacking = {op.name for op in RECORDS if not runs_on_cuda(op)}
    assert_complete(lacking, WITHOUT_CUDA, "a CUDA kernel")


def test_derivatives_are_checked_where_a_rule_exists():
    unchecked = {
        op.name
        for op in RECORDS
        if needs_case(op) and op.samples is not None and op.vjp is not None
        if not any(sample.grad for sample in op.samples())
    }
    assert_complete(unchecked, UNDIFFERENTIATED, "a differentiated sample")


@pytest.mark.parametrize("field", OPTIONAL_FIELDS)
def test_ops_that_lack_an_optional_field_are_counted(field, record_property):
    record_property(f"ops without {field}", sum(getattr(op, field) is None for op in RECORDS))
