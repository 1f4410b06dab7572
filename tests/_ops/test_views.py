"""Views: what they share with their source, and what cannot be one."""

import numpy as np
import pytest

import refruntime as torch


def matrix():
    return torch.arange(12.0).reshape(3, 4)


VIEWS = {
    "view": lambda x: x.view(4, 3),
    "reshape": lambda x: x.reshape(2, 6),
    "flatten": lambda x: x.flatten(),
    "unflatten": lambda x: x.unflatten(1, (2, 2)),
    "transpose": lambda x: x.transpose(0, 1),
    "t": lambda x: x.t(),
    "T": lambda x: x.T,
    "mT": lambda x: x.mT,
    "permute": lambda x: x.permute(1, 0),
    "movedim": lambda x: x.movedim(0, 1),
    "expand": lambda x: x.expand(2, 3, 4),
    "squeeze": lambda x: x.squeeze(0),
    "unsqueeze": lambda x: x.unsqueeze(0),
    "select": lambda x: x.select(0, 1),
    "narrow": lambda x: x.narrow(1, 1, 2),
    "diagonal": lambda x: x.diagonal(),
    "unfold": lambda x: x.unfold(1, 2, 1),
    "as_strided": lambda x: x.as_strided((2, 2), (4, 1), 1),
    "view_as": lambda x: x.view_as(torch.zeros(12)),
    "int index": lambda x: x[1],
    "slices": lambda x: x[1:, ::2],
    "None": lambda x: x[:, None],
    "unbind": lambda x: x.unbind()[1],
    "split": lambda x: x.split(2, 1)[1],
    "chunk": lambda x: x.chunk(3)[2],
    "view dtype": lambda x: x.view(torch.int32),
    "swapaxes": lambda x: x.swapaxes(0, 1),
    "detach": lambda x: x.detach(),
}


@pytest.mark.parametrize("name", VIEWS)
def test_view_shares_storage_and_version_counter(name):
    x = matrix()
    view = VIEWS[name](x)
    assert view.untyped_storage() is x.untyped_storage()
    before = view._version
    x.add_(1)
    assert view._version == before + 1
    view_of_new = VIEWS[name](x)
    np.testing.assert_array_equal(view.numpy(), view_of_new.numpy())


@pytest.mark.parametrize("name", [n for n in VIEWS if n not in ("expand", "unfold", "view dtype")])
def test_write_through_a_view_reaches_the_source(name):
    x = matrix()
    VIEWS[name](x).fill_(-1)
    shown = {float(value) for value in VIEWS[name](x).flatten()}
    assert shown == {-1.0}
    assert -1.0 in x.flatten().tolist()


def test_base_is_the_tensor_that_owns_the_memory_and_detach_has_none():
    x = torch.zeros(3, 4)
    assert x[1:].t()[0]._base is x
    assert x._base is None
    assert x[1:].detach()._base is None


def test_reshape_copies_only_what_no_strides_can_show():
    x = matrix()
    assert x.reshape(4, 3).data_ptr() == x.data_ptr()
    assert x.t().reshape(12).data_ptr() != x.data_ptr()
    assert x.t().reshape(4, 3, 1).data_ptr() == x.data_ptr()
    assert x.t().reshape(12).tolist() == x.t().flatten().tolist() == x.numpy().T.ravel().tolist()


def test_view_that_needs_a_copy_is_refused_with_the_remedy():
    with pytest.raises(RuntimeError, match=r"view: .*use \.reshape"):
        matrix().t().view(12)


def test_expanded_tensor_refuses_writes_that_would_hit_an_element_twice():
    with pytest.raises(RuntimeError, match="single memory location"):
        torch.zeros(3, 1).expand(3, 4).add_(1)


def test_contiguous_and_flatten_give_the_tensor_itself_when_nothing_changes():
    x = matrix()
    assert x.contiguous() is x
    assert x[0].flatten() is not x
    row = x[0]
    assert row.flatten() is row
    assert x.t().contiguous().is_contiguous()


@pytest.mark.parametrize(
    ("act", "shape"),
    [
        (lambda x: x.unsqueeze_(0), (1, 3, 4)),
        (lambda x: x.transpose_(0, 1), (4, 3)),
        (lambda x: x.t_(), (4, 3)),
        (lambda x: x.unsqueeze_(0).squeeze_(), (3, 4)),
    ],
)
def test_metadata_forms_change_the_tensor_itself(act, shape):
    x = matrix()
    values = sorted(x.flatten().tolist())
    pointer, version = x.data_ptr(), x._version
    assert act(x) is x
    assert tuple(x.shape) == shape
    assert x.data_ptr() == pointer
    assert x._version > version
    assert sorted(x.flatten().tolist()) == values


def test_metadata_form_on_a_leaf_needs_no_grad():
    x = torch.ones(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="leaf Variable"):
        x.unsqueeze_(0)
    assert tuple(x.shape) == (3,)
    with torch.no_grad():
        x.unsqueeze_(0)
    assert x.is_leaf
    assert tuple(x.shape) == (1, 3)


def test_metadata_form_keeps_the_gradient_flowing():
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    y = x * 3
    y.unsqueeze_(1)
    (y * torch.tensor([[1.0], [10.0]])).sum().backward()
    assert x.grad.tolist() == [3.0, 30.0]


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda x: x.view(4, 3), "ViewBackward0"),
        (lambda x: x.transpose(0, 1), "TransposeBackward0"),
        (lambda x: x.permute(1, 0), "PermuteBackward0"),
        (lambda x: x[1], "SelectBackward0"),
        (lambda x: x[1:], "SliceBackward0"),
        (lambda x: x.narrow(0, 0, 1), "SliceBackward0"),
        (lambda x: x.unsqueeze(0), "UnsqueezeBackward0"),
        (lambda x: x.expand(2, 3, 4), "ExpandBackward0"),
        (lambda x: x.diagonal(), "DiagonalBackward0"),
        (lambda x: x.unfold(0, 2, 1), "UnfoldBackward0"),
        (lambda x: x.as_strided((2,), (1,)), "AsStridedBackward0"),
        (lambda x: x.unbind()[0], "UnbindBackward0"),
        (lambda x: x.split(1)[0], "SplitBackward0"),
    ],
)
def test_node_is_named_as_in_torch(make, name):
    x = matrix().requires_grad_()
    assert make(x).grad_fn.name() == name
    assert not x.detach().requires_grad


def test_parts_of_one_split_share_one_node():
    first, second = matrix().requires_grad_().split([1, 2])
    assert first.grad_fn is second.grad_fn
    assert (first.output_nr, second.output_nr) == (0, 1)


def test_unused_parts_get_zero_gradient():
    x = matrix().requires_grad_()
    x.unbind()[1].sum().backward()
    assert x.grad.tolist() == [[0.0] * 4, [1.0] * 4, [0.0] * 4]


def test_overlapping_windows_add_their_gradients():
    x = torch.ones(5, requires_grad=True)
    x.unfold(0, 3, 1).sum().backward()
    assert x.grad.tolist() == [1.0, 2.0, 3.0, 2.0, 1.0]
    y = torch.ones(4, requires_grad=True)
    y.as_strided((3, 2), (1, 1)).sum().backward()
    assert y.grad.tolist() == [1.0, 2.0, 2.0, 1.0]


def test_as_strided_counts_from_the_start_of_the_storage():
    x = matrix()
    assert x[1].as_strided((2,), (1,)).tolist() == [4.0, 5.0]
    assert x[1].as_strided((2,), (1,), 0).tolist() == [0.0, 1.0]


def test_sizes_are_read_in_every_spelling():
    x = matrix()
    for made in (
        x.view(2, 6), x.view((2, 6)), x.view([2, 6]), x.view(torch.Size([2, 6])), x.view(2, -1),
        x.view(np.int64(2), torch.tensor(6)), torch.reshape(x, (2, 6)), x.reshape(shape=(2, 6)),
        x.view(size=(2, 6)),
    ):  # fmt: skip
        assert tuple(made.shape) == (2, 6)
    with pytest.raises(TypeError, match="must be int"):
        x.view(2.0, 6)


def test_t_takes_at_most_two_dimensions():
    assert torch.tensor([1.0, 2.0]).t().tolist() == [1.0, 2.0]
    assert torch.tensor(3.0).t().item() == 3.0
    with pytest.raises(RuntimeError, match="<= 2 dimensions"):
        torch.zeros(1, 2, 3).t()
    with pytest.raises(RuntimeError, match="mT"):
        _ = torch.zeros(3).mT


def test_broadcast_tensors_and_shapes_agree():
    first, second = torch.broadcast_tensors(torch.zeros(3, 1), torch.zeros(4))
    assert first.shape == second.shape == torch.broadcast_shapes((3, 1), (4,)) == (3, 4)
    assert first.stride() == (1, 0)


@pytest.mark.parametrize(
    ("function", "shapes"),
    [("atleast_1d", [(1,), (2,), (2, 3)]), ("atleast_2d", [(1, 1), (1, 2), (2, 3)]),
     ("atleast_3d", [(1, 1, 1), (1, 2, 1), (2, 3, 1)])],
)  # fmt: skip
def test_atleast_adds_dimensions_as_numpy_does(function, shapes):
    tensors = [torch.tensor(1.0), torch.zeros(2), torch.zeros(2, 3)]
    made = getattr(torch, function)(*tensors)
    assert [tuple(t.shape) for t in made] == shapes
    assert [getattr(np, function)(t.numpy()).shape for t in tensors] == shapes
    assert tuple(getattr(torch, function)(tensors[0]).shape) == shapes[0]


def test_sum_to_size_undoes_a_broadcast():
    x = torch.ones(2, 3, 4)
    assert x.sum_to_size(3, 1).tolist() == [[8.0]] * 3
    assert x.sum_to_size((2, 3, 4)) is x
    for size in ((5, 4), (1, 2, 3, 4), (6, 2, 3, 4)):
        with pytest.raises(RuntimeError, match="sum_to_size"):
            x.sum_to_size(size)


@pytest.mark.parametrize("n", [0, 1, 2, 9])
def test_diff_equals_numpy(n):
    x = np.array([[1.0, 4.0, 9.0], [0.0, 1.0, 5.0]])
    assert torch.tensor(x).diff(n).tolist() == np.diff(x, n).tolist()
    assert torch.tensor(x).diff(n, dim=0).tolist() == np.diff(x, n, 0).tolist()
    ends = torch.tensor(x).diff(prepend=torch.zeros(2, 1, dtype=torch.float64))
    assert ends.tolist() == np.diff(x, prepend=np.zeros((2, 1))).tolist()


def test_copying_forms_own_their_memory():
    x = torch.arange(6.0).reshape(2, 3)
    for copied in (
        torch.t_copy(x),
        torch.view_copy(x, (3, 2)),
        torch.unbind_copy(x)[0],
        x.narrow_copy(0, 0, 1),
    ):
        assert copied.untyped_storage() is not x.untyped_storage()
    assert torch.t_copy(x).tolist() == x.t().tolist()


def test_conjugate_transposes_conjugate_complex_numbers_only():
    z = torch.tensor([[1 + 2j, 3j]])
    for turned in (z.H, z.mH, z.adjoint()):
        assert turned.tolist() == [[1 - 2j], [-3j]]
    real = torch.ones(2, 3, 4)
    assert real.mH.shape == (2, 4, 3)
    assert real.mH.untyped_storage() is real.untyped_storage()
    with pytest.raises(RuntimeError, match="only supported on matrices"):
        _ = real.H
