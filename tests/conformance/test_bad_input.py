"""Bad input raises what PyTorch raises, names the op, what was expected and got, and a remedy."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import refruntime as torch
from refruntime import alloc
from refruntime.errors import RefruntimeError
from refruntime.nn import functional as F

CASES = {
    "broadcast": (lambda: torch.ones(2, 3) + torch.ones(4), RuntimeError, "add"),
    "inner dimensions": (lambda: torch.ones(2, 3) @ torch.ones(2, 3), RuntimeError, "2x3 and 2x3"),
    "mixed matmul": (lambda: torch.ones(2, 2) @ torch.ones(2, 2).double(), RuntimeError, "dtype"),
    "view": (lambda: torch.ones(6).view(4, 2), RuntimeError, "view"),
    "view of strided": (lambda: torch.ones(2, 3).t().view(6), RuntimeError, "reshape"),
    "dim": (lambda: torch.ones(2).sum(3), IndexError, "out of range"),
    "index": (lambda: torch.ones(2)[5], IndexError, "out of bounds"),
    "too many indices": (lambda: torch.ones(2)[0, 0], IndexError, "too many indices"),
    "index tensor": (lambda: torch.ones(2)[torch.tensor([7])], IndexError, "out of bounds"),
    "mask shape": (lambda: torch.ones(2)[torch.tensor([True])], IndexError, "mask|shape"),
    "cat": (lambda: torch.cat([torch.ones(2, 3), torch.ones(2, 4)]), RuntimeError, "cat"),
    "float index": (lambda: torch.ones(2)[torch.ones(1)], IndexError, "tensors used as ind"),
    "mean of integers": (lambda: torch.arange(3).mean(), RuntimeError, "mean"),
    "bool minus bool": (lambda: torch.tensor(True) - torch.tensor(True), RuntimeError, "sub"),
    "integer divided in place": (
        lambda: torch.ones(2, dtype=torch.int64).div_(2),
        RuntimeError,
        "cast",
    ),
    "integer requires grad": (lambda: torch.tensor([1], requires_grad=True), RuntimeError, "float"),
    "ragged": (lambda: torch.tensor([[1, 2], [3]]), ValueError, "expected sequence of length"),
    "string": (lambda: torch.tensor("abc"), (TypeError, ValueError), "str"),
    "not a tensor": (lambda: torch.exp([1.0]), TypeError, "exp"),
    "not an operand": (lambda: torch.ones(2) + "x", TypeError, "unsupported operand"),
    "device": (lambda: torch.ones(2, device="cuda"), (RuntimeError, AssertionError), "cuda"),
    "unknown device": (lambda: torch.ones(2, device="toaster"), RuntimeError, "toaster"),
    "negative size": (lambda: torch.ones(-1), RuntimeError, "negative"),
    "item": (lambda: torch.ones(2).item(), RuntimeError, "2 elements"),
    "bool of many": (lambda: bool(torch.ones(2)), RuntimeError, "ambiguous"),
    "integer division by zero": (
        lambda: torch.ones(2, dtype=torch.int64) // 0,
        RuntimeError,
        "Zero",
    ),
    "conv channels": (
        lambda: F.conv2d(torch.ones(1, 3, 5, 5), torch.ones(4, 2, 3, 3)),
        RuntimeError,
        "to have 2 channels",
    ),
    "kernel too large": (
        lambda: F.conv2d(torch.ones(1, 1, 2, 2), torch.ones(1, 1, 3, 3)),
        RuntimeError,
        "ernel",
    ),
    "linear": (
        lambda: F.linear(torch.ones(2, 3), torch.ones(4, 5)),
        RuntimeError,
        "cannot be multiplied",
    ),
    "target out of range": (
        lambda: F.nll_loss(torch.zeros(1, 3), torch.tensor([5])),
        IndexError,
        "out of bounds",
    ),
    "embedding index": (
        lambda: F.embedding(torch.tensor([9]), torch.ones(3, 2)),
        IndexError,
        "range",
    ),
    "reshape": (lambda: torch.ones(6).reshape(4, -1), RuntimeError, "invalid"),
    "expand": (lambda: torch.ones(2, 3).expand(2, 4), RuntimeError, "expand"),
    "unknown keyword": (lambda: torch.ones(2).sum(axis=0, banana=1), TypeError, "banana"),
}


@pytest.mark.parametrize("name", CASES)
def test_bad_input_raises_what_torch_raises(name):
    call, error, part = CASES[name]
    with pytest.raises(error, match=part):
        call()


@pytest.mark.parametrize(
    "name", ["broadcast", "inner dimensions", "view", "dim", "index", "conv channels"]
)
def test_message_names_op_expected_got_and_remedy(name):
    with pytest.raises(RefruntimeError) as caught:
        CASES[name][0]()
    error = caught.value
    assert error.op and error.expected and error.got and error.remedy
    for part in (error.op, error.expected, error.got, error.remedy):
        assert part in str(error)


def test_failed_allocation_leaves_blocks_and_statistics_as_before():
    kept = torch.ones(1000)
    gc.collect()
    host = alloc.host()
    before = {k: v for k, v in host.stats().items() if "current" in k}
    with pytest.raises(RuntimeError, match=r"(?i)out of memory|allocate"):
        torch.empty(1 << 55)
    after = {k: v for k, v in host.stats().items() if "current" in k}
    assert {
        k: v for k, v in after.items() if k.startswith(("allocated", "active", "allocation"))
    } == {k: v for k, v in before.items() if k.startswith(("allocated", "active", "allocation"))}
    np.testing.assert_array_equal(kept.numpy(), np.ones(1000))
    assert torch.ones(10).sum().item() == 10
