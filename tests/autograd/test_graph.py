"""The graph: nodes, edges, leaves, and what the issue's first program prints."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import refruntime as torch
from refruntime import alloc


def test_first_program_prints_the_gradient(capsys):
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    y = torch.tensor([3.0, 4.0], requires_grad=True)
    (x * y).sum().backward()
    print(x.grad)
    assert capsys.readouterr().out == "tensor([3., 4.])\n"


def test_grad_fn_leads_from_sum_over_mul_to_two_accumulators():
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    y = torch.tensor([3.0, 4.0], requires_grad=True)
    out = (x * y).sum()
    assert out.grad_fn.name() == "SumBackward0"
    ((mul, number),) = out.grad_fn.next_functions
    assert (mul.name(), number) == ("MulBackward0", 0)
    names = [node.name() for node, _ in mul.next_functions]
    assert names == ["AccumulateGrad", "AccumulateGrad"]
    assert mul.next_functions[0][0].variable is x


def test_a_leaf_has_one_accumulator_while_the_graph_lives():
    x = torch.ones(2, requires_grad=True)
    first, second = x * 2, x + 1
    assert first.grad_fn.next_functions[0][0] is second.grad_fn.next_functions[0][0]


def test_constants_have_no_edge():
    x = torch.ones(2, requires_grad=True)
    out = x * torch.ones(2)
    assert out.grad_fn.next_functions[1] == (None, 0)


def test_gradients_accumulate_over_calls():
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    for _ in range(3):
        (x * x).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), [6.0, 12.0])


def test_a_value_used_twice_gets_the_sum():
    x = torch.tensor([2.0], requires_grad=True)
    y = x * 3
    (y * y + y).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), [2 * 9 * 2.0 + 3])


def test_broadcast_operands_get_gradients_of_their_own_shape():
    x = torch.ones(3, 1, requires_grad=True)
    y = torch.ones(4, requires_grad=True)
    z = torch.ones((), requires_grad=True)
    (x * y + z).sum().backward()
    assert (x.grad.shape, y.grad.shape, z.grad.shape) == ((3, 1), (4,), ())
    np.testing.assert_array_equal(x.grad.numpy(), np.full((3, 1), 4.0))
    np.testing.assert_array_equal(y.grad.numpy(), np.full(4, 3.0))
    assert z.grad.item() == 12.0


def test_mixed_dtypes_get_gradients_of_their_own_dtype():
    x = torch.ones(2, dtype=torch.float64, requires_grad=True)
    y = torch.ones(2, requires_grad=True)
    (x * y).sum().backward()
    assert (x.grad.dtype, y.grad.dtype) == (torch.float64, torch.float32)


def test_second_backward_without_retain_raises():
    x = torch.ones(2, requires_grad=True)
    out = (x * x).sum()
    out.backward()
    with pytest.raises(RuntimeError, match=r"second time.*retain_graph"):
        out.backward()


def test_retain_graph_allows_a_second_backward():
    x = torch.ones(2, requires_grad=True)
    out = (x * x).sum()
    out.backward(retain_graph=True)
    out.backward()
    np.testing.assert_array_equal(x.grad.numpy(), [4.0, 4.0])


def test_saved_value_modified_in_place_is_reported():
    x = torch.ones(2, requires_grad=True)
    y = x * 1
    out = (y * y).sum()
    with torch.no_grad():
        y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


def test_no_graph_means_no_history():
    x = torch.ones(2, requires_grad=True)
    with torch.no_grad():
        y = x * 2
    assert not y.requires_grad and y.grad_fn is None and y.is_leaf


def test_backward_of_a_constant_raises():
    with pytest.raises(RuntimeError, match="does not require grad"):
        torch.ones(1).backward()


def test_backward_of_several_elements_needs_a_gradient():
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="scalar outputs"):
        (x * 2).backward()
    (x * 2).backward(torch.tensor([1.0, 10.0]))
    np.testing.assert_array_equal(x.grad.numpy(), [2.0, 20.0])


def test_given_gradient_is_not_shared_with_the_leaf():
    x = torch.ones(2, requires_grad=True)
    given = torch.ones(2)
    (x + 0).backward(given)
    given.fill_(7)
    np.testing.assert_array_equal(x.grad.numpy(), [1.0, 1.0])


def test_gradients_of_two_leaves_do_not_share_memory():
    x = torch.ones(2, requires_grad=True)
    y = torch.ones(2, requires_grad=True)
    (x + y).backward(torch.ones(2))
    x.grad.fill_(5)
    np.testing.assert_array_equal(y.grad.numpy(), [1.0, 1.0])


def test_integer_tensors_cannot_require_grad():
    with pytest.raises(RuntimeError, match="floating point"):
        torch.ones(2, dtype=torch.int64).requires_grad_()


def test_graph_dies_without_the_collector():
    x = torch.ones(2, requires_grad=True)
    gc.collect()
    gc.disable()
    try:
        out = torch.exp(x * 2).sum()
        node = weakref.ref(out.grad_fn)
        del out
        assert node() is None
    finally:
        gc.enable()


def test_deep_graph_runs_and_dies_without_recursion():
    x = torch.ones(1, requires_grad=True)
    y = x
    for _ in range(20_000):
        y = y + 1
    y.backward()
    assert x.grad.item() == 1.0
    del y


def test_retain_grad_keeps_the_gradient_of_an_intermediate():
    x = torch.ones(2, requires_grad=True)
    y = x * 3
    y.retain_grad()
    (y * 2).sum().backward()
    np.testing.assert_array_equal(y.grad.numpy(), [2.0, 2.0])


def test_hooks_see_and_replace_gradients():
    x = torch.ones(2, requires_grad=True)
    y = x * 3
    seen = []
    y.register_hook(lambda g: seen.append(g.tolist()))
    handle = x.register_hook(lambda g: g * 10)
    y.sum().backward()
    assert seen == [[1.0, 1.0]]
    np.testing.assert_array_equal(x.grad.numpy(), [30.0, 30.0])
    handle.remove()
    x.grad = None
    (x * 3).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), [3.0, 3.0])


def test_post_accumulate_hook_runs_with_the_gradient_in_place():
    x = torch.ones(2, requires_grad=True)
    seen = []
    x.register_post_accumulate_grad_hook(lambda leaf: seen.append(leaf.grad.tolist()))
    (x * 2).sum().backward()
    assert seen == [[2.0, 2.0]]


def test_node_hooks_run_around_the_node():
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    events = []
    y.grad_fn.register_prehook(lambda grads: events.append("pre"))
    y.grad_fn.register_hook(lambda inputs, outputs: events.append("post"))
    y.sum().backward()
    assert events == ["pre", "post"]


def test_a_gradient_that_nobody_else_has_is_taken_over_and_any_other_is_copied():
    x = torch.ones(1000, requires_grad=True)
    seen = []
    held = torch.ones(1000)
    (x + 0.0).backward(held)
    assert x.grad.data_ptr() != held.data_ptr()
    x.grad = None
    handle = x.register_hook(seen.append)
    (x * 2).sum().backward()
    assert x.grad is not seen[0] and x.grad.data_ptr() != seen[0].data_ptr()
    handle.remove()
    x.grad = None
    counted = alloc.host().stats()["allocation.all.allocated"]
    (x * 2.0).sum().backward()
    # The product, the sum, and the one gradient that the leaf takes over.
    assert alloc.host().stats()["allocation.all.allocated"] - counted == 3
