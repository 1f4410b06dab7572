"""Sparse tensors against the dense tensors that they stand for."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import refruntime as torch
from refruntime.errors import IndexRangeError, KernelMissingError, ShapeError

PLACES = [[0, 1, 1, 0], [2, 0, 2, 2]]
DENSE = [[0.0, 0.0, 4.0], [4.0, 0.0, 5.0]]


def matrix(requires_grad: bool = False):
    values = torch.tensor([3.0, 4.0, 5.0, 1.0], requires_grad=requires_grad)
    return torch.sparse_coo_tensor(PLACES, values, (2, 3)), values


def test_values_at_one_place_are_summed():
    sparse, _ = matrix()
    assert sparse.to_dense().tolist() == DENSE
    joined = sparse.coalesce()
    assert joined.indices().tolist() == [[0, 1, 1], [2, 0, 2]]
    assert joined.values().tolist() == [4.0, 4.0, 5.0]
    assert joined.coalesce() is joined


def test_parts_of_an_uncoalesced_tensor_are_refused():
    with pytest.raises(ShapeError, match="coalesce"):
        matrix()[0].indices()


def test_size_is_just_large_enough_when_it_is_not_given():
    sparse = torch.sparse_coo_tensor([[0, 2]], [1.0, 2.0])
    assert sparse.shape == (3,)
    assert sparse.to_dense().tolist() == [1.0, 0.0, 2.0]


def test_values_may_have_dense_dimensions():
    sparse = torch.sparse_coo_tensor([[1]], [[1.0, 2.0]], (2, 2))
    assert (sparse.sparse_dim(), sparse.dense_dim()) == (1, 1)
    assert sparse.to_dense().tolist() == [[0.0, 0.0], [1.0, 2.0]]


def test_places_outside_the_size_are_refused():
    with pytest.raises(IndexRangeError, match="inconsistent"):
        torch.sparse_coo_tensor([[0, 2]], [1.0, 2.0], (2,))
    with pytest.raises(ShapeError):
        torch.sparse_coo_tensor([[0, 1]], [1.0], (2,))


@pytest.mark.parametrize("multiply", [torch.mm, torch.matmul, torch.spmm, torch.sparse.mm])
def test_product_with_a_dense_matrix_and_its_gradients(multiply):
    sparse, values = matrix(requires_grad=True)
    x = torch.randn(3, 4, requires_grad=True)
    multiply(sparse, x).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), np.array(DENSE).sum(0)[:, None].repeat(4, 1))
    row_sums = x.detach().sum(1)
    np.testing.assert_allclose(values.grad.numpy(), row_sums[PLACES[1]].numpy(), rtol=1e-6)


def test_products_of_every_kind_equal_the_dense_ones():
    sparse, _ = matrix()
    dense = torch.tensor(DENSE)
    assert (torch.ones(4, 2) @ sparse).tolist() == (torch.ones(4, 2) @ dense).tolist()
    assert (sparse @ torch.ones(3)).tolist() == (dense @ torch.ones(3)).tolist()
    square = sparse @ sparse.t()
    assert square.is_sparse
    assert square.to_dense().tolist() == (dense @ dense.t()).tolist()
    base = torch.ones(2, 2)
    added = torch.sparse.addmm(base, sparse, torch.ones(3, 2), beta=2, alpha=3)
    assert added.tolist() == (2 * base + 3 * dense @ torch.ones(3, 2)).tolist()


def test_shapes_that_do_not_multiply_are_refused():
    with pytest.raises(ShapeError, match="cannot be multiplied"):
        torch.mm(matrix()[0], torch.ones(2, 2))


def test_arithmetic_equals_the_dense_one():
    sparse, _ = matrix()
    dense = torch.tensor(DENSE)
    for got, want in (
        (sparse + sparse, dense + dense),
        (sparse - sparse * 2, -dense),
        (sparse * dense, dense * dense),
        (-sparse / 2, -dense / 2),
        (torch.sqrt(sparse), dense.sqrt()),
        (torch.sparse.sum(sparse, 0), dense.sum(0)),
    ):
        assert got.is_sparse
        assert got.to_dense().tolist() == want.tolist()
    assert float(sparse.sum()) == 13.0
    assert (dense + sparse).tolist() == (2 * dense).tolist()
    assert dense.clone().add_(sparse).tolist() == (2 * dense).tolist()


def test_operators_without_a_rule_refuse():
    sparse, _ = matrix()
    for act in (torch.exp, torch.cumsum, lambda x: torch.cat([x, x]), lambda x: x[0]):
        with pytest.raises((KernelMissingError, TypeError)):
            act(sparse)
    with pytest.raises(KernelMissingError):
        sparse.numpy()


def test_dense_to_sparse_and_back_passes_gradients():
    dense = torch.tensor([[0.0, 1.0], [2.0, 0.0]], requires_grad=True)
    sparse = dense.to_sparse()
    assert sparse.is_coalesced()
    assert isinstance(sparse, torch.Tensor)
    (sparse.to_dense() * 3).sum().backward()
    assert dense.grad.tolist() == [[0.0, 3.0], [3.0, 0.0]]
    rows = torch.tensor([[0.0, 0.0], [0.0, 2.0]]).to_sparse(1)
    assert rows.values().tolist() == [[0.0, 2.0]]
    assert torch.ones(2).to_dense().tolist() == [1.0, 1.0]


def test_gradient_of_a_sparse_leaf_lies_at_its_places():
    sparse = torch.sparse_coo_tensor(PLACES, [1.0, 2.0, 3.0, 4.0], (2, 3), requires_grad=True)
    torch.mm(sparse, torch.ones(3, 1)).sum().backward()
    assert sparse.is_leaf
    assert sparse.grad._values().tolist() == [1.0] * 4


def test_copies_and_old_constructors():
    sparse = torch.sparse.FloatTensor(torch.tensor(PLACES), torch.ones(4), torch.Size([2, 3]))
    assert isinstance(sparse, torch.sparse.FloatTensor)
    for twin in (copy.deepcopy(sparse), pickle.loads(pickle.dumps(sparse)), sparse.clone()):
        assert twin.to_dense().tolist() == sparse.to_dense().tolist()
        assert twin._values().data_ptr() != sparse._values().data_ptr()
    assert sparse.double().dtype == torch.float64
    assert sparse.to("cpu", torch.float64).to_dense().dtype == torch.float64


def test_text_shows_places_and_values():
    text = repr(torch.sparse_coo_tensor([[0]], [1.0], (2,)))
    assert text == (
        "tensor(indices=tensor([[0]]),\n       values=tensor([1.]),\n       size=(2,), nnz=1, "
        "layout=torch.sparse_coo)"
    )
