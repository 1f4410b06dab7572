"""In-place operations and views under autograd."""

from __future__ import annotations

import numpy as np
import pytest

import refruntime as torch
from refruntime import alloc


def test_leaf_cannot_be_written_in_place():
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="leaf Variable"):
        x.add_(1)


def test_view_of_a_leaf_cannot_be_written_in_place():
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="view of a leaf"):
        x[0].add_(1)


def test_no_grad_allows_writing_a_leaf():
    x = torch.ones(2, requires_grad=True)
    with torch.no_grad():
        x.sub_(0.5)
    assert x.tolist() == [0.5, 0.5] and x.requires_grad and x.is_leaf


def test_inplace_op_becomes_the_history():
    x = torch.tensor([2.0], requires_grad=True)
    y = x * 3
    y.mul_(torch.tensor([5.0]))
    assert y.grad_fn.name() == "MulBackward0"
    y.sum().backward()
    assert x.grad.tolist() == [15.0]


def test_operand_that_shares_memory_with_the_target_is_reported():
    x = torch.tensor([2.0], requires_grad=True)
    y = x * 3
    y.mul_(y.detach())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_inplace_keeps_the_old_value_for_backward():
    x = torch.tensor([2.0], requires_grad=True)
    w = torch.tensor([5.0], requires_grad=True)
    y = x * 1
    y.mul_(w)
    y.sum().backward()
    assert (x.grad.tolist(), w.grad.tolist()) == ([5.0], [2.0])


def test_writing_into_a_view_changes_the_history_of_its_base():
    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    y = x * 2
    y[1].mul_(10)
    y.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), [2.0, 20.0, 2.0])


def test_setitem_routes_gradients_to_the_value():
    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    v = torch.tensor([7.0], requires_grad=True)
    y = x * 2
    y[1:2] = v * 3
    (y * torch.tensor([1.0, 10.0, 100.0])).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), [2.0, 0.0, 200.0])
    assert v.grad.tolist() == [30.0]


def test_setitem_into_a_constant_gives_it_a_history():
    v = torch.tensor([2.0, 3.0], requires_grad=True)
    buffer = torch.zeros(4)
    buffer[1:3] = v
    (buffer * torch.arange(4.0)).sum().backward()
    assert v.grad.tolist() == [1.0, 2.0]


def test_other_views_see_the_new_history():
    x = torch.ones(3, requires_grad=True)
    y = x * 2
    head = y[:2]
    y.mul_(5)
    head.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), [10.0, 10.0, 0.0])


def test_views_and_detach_share_the_version_counter_and_data_does_not():
    x = torch.zeros(2)
    view, detached, data = x[0], x.detach(), x.data
    x.add_(1)
    assert view._version == detached._version == x._version == 1
    data.add_(1)
    assert x._version == 1 and x.tolist() == [2.0, 2.0]


def test_out_argument_refuses_gradients():
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"out=.*automatic differentiation"):
        torch.add(x, x, out=torch.empty(2))


def test_failed_inplace_call_leaves_the_target():
    x = torch.ones(2, 3)
    with pytest.raises(RuntimeError):
        x.add_(torch.ones(4, 2, 3))
    np.testing.assert_array_equal(x.numpy(), np.ones((2, 3)))
    assert x._version == 0


def test_inplace_with_a_partly_overlapping_operand_reads_the_old_values():
    x = torch.arange(6.0)
    x[1:].copy_(x[:-1])
    assert x.tolist() == [0.0, 0.0, 1.0, 2.0, 3.0, 4.0]


def test_views_taken_before_the_first_history_of_their_base_see_it():
    w = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    base = torch.ones(3)
    head, tail = base[:2], base[1:]
    base.mul_(w)
    assert head.requires_grad and tail.requires_grad
    (head.sum() + 10 * tail.sum()).backward()
    assert w.grad.tolist() == [1.0, 11.0, 10.0]


def test_other_views_see_the_history_that_a_write_through_one_view_gives():
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    base = torch.zeros(3)
    head, tail = base[:2], base[1:]
    tail.copy_(w)
    assert base.requires_grad and head.requires_grad
    (head * torch.tensor([5.0, 7.0])).sum().backward()
    assert w.grad.tolist() == [7.0, 0.0]


@pytest.mark.parametrize("several", [lambda t: t.unbind(0)[0], lambda t: t.split([1, 2])[1],
                                     lambda t: t.split([1, 2])[1].view(2)])  # fmt: skip
def test_one_of_several_views_cannot_be_written_in_place(several):
    x = torch.ones(3, requires_grad=True)
    part = several(x * 1)
    with pytest.raises(RuntimeError, match="returns multiple views"):
        part.add_(1)
    with torch.no_grad():
        part.add_(1)


def test_view_made_under_no_grad_cannot_be_written_in_grad_mode():
    x = torch.ones(3, requires_grad=True)
    y = x * 1
    with torch.no_grad():
        part = y[0]
    with pytest.raises(RuntimeError, match="created in no_grad mode"):
        part.add_(1)


def test_inplace_product_with_a_constant_copies_nothing():
    x = torch.ones(1000, requires_grad=True)
    y = x * 1
    before = alloc.host().stats()["allocation.all.allocated"]
    y.mul_(2.0)
    y.mul_(torch.ones(()))
    assert alloc.host().stats()["allocation.all.allocated"] - before == 1
    y.sum().backward()
    assert x.grad.tolist() == [2.0] * 1000
