from __future__ import annotations

import numpy as np
import pytest

import refruntime as torch
from refruntime.autograd import gradcheck, gradgradcheck


def double(*shape):
    rng = np.random.default_rng(sum(shape))
    return torch.from_numpy(rng.standard_normal(shape)).requires_grad_()


@pytest.mark.parametrize(
    ("left", "right"),
    [((4,), (4,)), ((3, 4), (4,)), ((4,), (4, 5)), ((2, 3, 4), (4,)), ((2, 3, 4), (4, 5)),
     ((3, 4), (2, 4, 5)), ((3, 1, 2, 4), (2, 4, 2))],
)  # fmt: skip
def test_every_combination_of_ranks_has_derivatives_of_both_orders(left, right):
    inputs = [double(*left), double(*right)]
    assert gradcheck(torch.matmul, inputs, fast_mode=True)
    assert gradgradcheck(torch.matmul, inputs, fast_mode=True)


def test_errors_name_the_shapes():
    with pytest.raises(RuntimeError, match=r"cannot be multiplied \(2x3 and 4x5\)"):
        torch.ones(2, 3) @ torch.ones(4, 5)
    with pytest.raises(RuntimeError, match="at least 1D, but they are 0D and 1D"):
        torch.matmul(torch.tensor(1.0), torch.ones(2))
    with pytest.raises(RuntimeError, match="1D tensors expected, but got 2D and 1D"):
        torch.dot(torch.ones(2, 2), torch.ones(2))
    with pytest.raises(RuntimeError, match="float != double"):
        torch.ones(2, 2) @ torch.ones(2, 2, dtype=torch.float64)


def test_the_graph_names_nodes_as_torch_does():
    a = torch.ones(2, 2, requires_grad=True)
    v = torch.ones(2)
    made = [a @ a, a @ v, a[0] @ v, torch.addmm(v, a, a), a.expand(2, 2, 2).bmm(a.expand(2, 2, 2))]
    names = [x.grad_fn.name() for x in made]
    assert names == ["MmBackward0", "MvBackward0", "DotBackward0", "AddmmBackward0", "BmmBackward0"]


def test_the_weight_gradient_of_a_batched_product_is_one_product():
    x = torch.ones(3, 5, 4)
    w = torch.ones(4, 2, requires_grad=True)
    (x @ w).sum().backward()
    assert w.grad.tolist() == [[15, 15]] * 4


def test_a_linear_map_without_gradient_of_its_input_makes_none():
    x, w = torch.ones(3, 2), torch.ones(4, 2, requires_grad=True)
    y = torch.nn.functional.linear(x, w)
    assert y.grad_fn.next_functions[0][0] is None
    y.sum().backward()
    assert w.grad.tolist() == [[3, 3]] * 4


@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4)])
def test_linear_maps_have_derivatives_of_both_orders(shape):
    inputs = [double(*shape), double(5, 4), double(5)]
    assert gradcheck(torch.nn.functional.linear, inputs, fast_mode=True)
    assert gradgradcheck(torch.nn.functional.linear, inputs, fast_mode=True)


def test_sums_of_products():
    base, a, b = (double(*shape).detach() for shape in ((3, 2), (4, 3, 5), (4, 5, 2)))
    got = torch.addbmm(base, a, b, beta=2, alpha=0.5).numpy()
    expected = 2 * base.numpy() + 0.5 * (a.numpy() @ b.numpy()).sum(0)
    np.testing.assert_allclose(got, expected)
    got = torch.addmv(base[:, 0], a[0], b[0, :, 0]).numpy()
    np.testing.assert_allclose(got, base.numpy()[:, 0] + a.numpy()[0] @ b.numpy()[0, :, 0])
    got = torch.addr(torch.zeros(2, 3), torch.ones(2), torch.arange(3.0), alpha=2)
    assert got.tolist() == [[0, 2, 4], [0, 2, 4]]


def test_integer_factors_are_cut_as_in_torch():
    a = torch.ones(2, 2, dtype=torch.int64)
    assert torch.addmm(a, a, a, alpha=1.7).tolist() == [[3, 3], [3, 3]]
