from __future__ import annotations

import pytest

import refruntime as torch


def gradient(function, values):
    x = torch.tensor(values, requires_grad=True)
    function(x).sum().backward()
    return x.grad.tolist()


TIES = [[1.0, 3.0, 3.0], [2.0, 2.0, 0.0]]


@pytest.mark.parametrize("function", [lambda x: x.amax(1), lambda x: torch.amax(x, -1)])
def test_amax_shares_the_gradient_among_equals(function):
    assert gradient(function, TIES) == [[0, 0.5, 0.5], [0.5, 0.5, 0]]


def test_a_full_max_shares_the_gradient_among_equals():
    assert gradient(lambda x: x.max(), TIES) == [[0, 0.5, 0.5], [0, 0, 0]]


def test_max_over_a_dimension_gives_the_gradient_to_the_returned_place():
    assert gradient(lambda x: x.max(1).values, TIES) == [[0, 1, 0], [1, 0, 0]]
    assert gradient(lambda x: x.min(1, keepdim=True)[0], TIES) == [[1, 0, 0], [0, 0, 1]]


def test_max_of_two_tensors_is_the_elementwise_maximum():
    a, b = torch.tensor([1.0, 4.0]), torch.tensor([3.0, 2.0])
    assert torch.max(a, b).tolist() == a.max(b).tolist() == [3, 4]
    assert torch.min(a, b).tolist() == [1, 2]


def test_results_with_places_have_names_and_unpack():
    result = torch.tensor([[1.0, 5.0], [7.0, 2.0]]).max(1)
    values, indices = result
    assert result.values is values and result.indices is indices
    assert indices.tolist() == [1, 0]
    assert repr(result).startswith("torch.return_types.max(\nvalues=tensor(")


def test_aminmax_gives_both_ends():
    low, high = torch.aminmax(torch.tensor([[3.0, 1.0], [2.0, 9.0]]), dim=0)
    assert low.tolist() == [2, 1] and high.tolist() == [3, 9]


def test_the_graph_names_nodes_as_torch_does():
    x = torch.ones(2, 2, requires_grad=True)
    names = [x.max().grad_fn.name(), x.max(1)[0].grad_fn.name(), x.amin(0).grad_fn.name()]
    assert names == ["MaxBackward1", "MaxBackward0", "AminBackward0"]


def test_a_dimension_of_size_zero_has_no_extreme():
    with pytest.raises(IndexError, match="Expected reduction dim 1 to have non-zero size"):
        torch.zeros(2, 0).max(1)
    assert torch.zeros(0, 3).max(1).values.shape == (0,)


def test_out_receives_values_and_places():
    values, places = torch.zeros(2), torch.zeros(2, dtype=torch.int64)
    torch.max(torch.tensor([[1.0, 5.0], [7.0, 2.0]]), 1, out=(values, places))
    assert values.tolist() == [5, 7] and places.tolist() == [1, 0]


def test_argmax_without_a_dimension_counts_in_row_major_order():
    x = torch.tensor([[1.0, 2.0], [9.0, 3.0]]).t()
    assert x.argmax().item() == 1
    assert torch.argmax(x, dim=0, keepdim=True).tolist() == [[0, 1]] or x.argmax(0).shape == (2,)
