from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import refruntime as torch
from refruntime.autograd import gradcheck

SIZES = dict(zip("abcdef", (2, 3, 4, 2, 3, 1), strict=True))


def operand(labels, seed=0):
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.standard_normal([SIZES[label] for label in labels]))


def agree(equation):
    terms = equation.split("->")[0].replace(" ", "").split(",")
    operands = [operand(term, seed) for seed, term in enumerate(terms)]
    expected = np.einsum(equation, *(x.numpy() for x in operands))
    np.testing.assert_allclose(torch.einsum(equation, *operands).numpy(), expected, atol=1e-12)


@pytest.mark.parametrize(
    "equation",
    ["ab,bc->ac", "abc,acd->abd", "aa->a", "aa", "ab->ba", "a,b->ab", "ab,cb->acb", "abc,bd,cd->ad",
     "ab,ab->", "ab,b", "ba", "abc->", "ab,bc,cd,de->ae", "aab,b->a", "f,ab->ab"],
)  # fmt: skip
def test_equations_mean_what_numpy_takes_them_to_mean(equation):
    agree(equation)


labels = st.text("abcdef", min_size=1, max_size=3)


@settings(max_examples=80, deadline=None)
@given(st.lists(labels, min_size=1, max_size=3), st.data())
def test_any_contraction_equals_numpy(terms, data):
    known = sorted(set("".join(terms)))
    output = "".join(data.draw(st.permutations(known))[: data.draw(st.integers(0, len(known)))])
    agree(",".join(terms) + "->" + output)


def test_an_ellipsis_stands_for_dimensions_that_broadcast():
    a, b = torch.randn(5, 1, 2, 3), torch.randn(4, 3, 2)
    expected = np.einsum("...ij,...jk->...ik", a.numpy(), b.numpy())
    np.testing.assert_allclose(
        torch.einsum("...ij,...jk->...ik", a, b).numpy(), expected, rtol=1e-5, atol=1e-6
    )


def test_sublists_name_dimensions_by_number():
    a, b = torch.randn(2, 3), torch.randn(3, 4)
    np.testing.assert_allclose(
        torch.einsum(a, [0, 1], b, [1, 2], [0, 2]).numpy(), (a @ b).numpy(), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize(
    ("equation", "match"),
    [
        ("ab,c->ac", "does not match"),
        ("ab,ab->abz", "unknown or repeated"),
        ("a,b,c->a", "operands"),
    ],
)
def test_bad_equations_are_refused(equation, match):
    with pytest.raises((RuntimeError, ValueError), match=match):
        torch.einsum(equation, torch.ones(2, 3), torch.ones(3, 3))


def test_einsum_has_derivatives():
    inputs = [operand("abc").requires_grad_(), operand("cb", 1).requires_grad_()]
    assert gradcheck(lambda x, y: torch.einsum("abc,cb->ac", x, y), inputs)


@pytest.mark.parametrize("dims", [0, 1, 2, ([1, 2], [0, 1]), ([0], [2])])
def test_tensordot_equals_numpy(dims):
    a, b = torch.randn(4, 2, 3), torch.randn(2, 3, 4)
    if dims == 1:
        b = torch.randn(3, 5)
    expected = np.tensordot(a.numpy(), b.numpy(), dims)
    np.testing.assert_allclose(torch.tensordot(a, b, dims).numpy(), expected, rtol=1e-4, atol=1e-5)


def test_a_chain_is_multiplied_in_the_cheap_order_and_gives_the_product():
    chain = [torch.randn(2, 30), torch.randn(30, 3), torch.randn(3, 40), torch.randn(40)]
    expected = chain[0].numpy() @ chain[1].numpy() @ chain[2].numpy() @ chain[3].numpy()
    np.testing.assert_allclose(
        torch.linalg.multi_dot(chain).numpy(), expected, rtol=1e-4, atol=1e-4
    )


def test_kronecker_cross_and_bilinear_products():
    a, b = torch.randn(2, 3), torch.randn(4, 5, 2)
    np.testing.assert_allclose(torch.kron(a, b).numpy(), np.kron(a.numpy(), b.numpy()))
    x, y = torch.randn(5, 3), torch.randn(5, 3)
    np.testing.assert_allclose(
        torch.cross(x, y, dim=1).numpy(), np.cross(x.numpy(), y.numpy()), rtol=1e-5, atol=1e-6
    )
    w, bias = torch.randn(2, 3, 3), torch.randn(2)
    expected = np.einsum("bi,kij,bj->bk", x.numpy(), w.numpy(), y.numpy()) + bias.numpy()
    np.testing.assert_allclose(
        torch.bilinear(x, y, w, bias).numpy(), expected, rtol=1e-4, atol=1e-5
    )
    assert torch.trace(torch.arange(9.0).reshape(3, 3)).item() == 12
