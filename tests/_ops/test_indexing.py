"""Indexing against NumPy, for any mixture of ints, slices, None, Ellipsis, masks and tensors."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import refruntime as torch

# ---------------------------------------------------------------------------------------------
# Random index expressions


@st.composite
def tensors(draw):
    """A float tensor of distinct values, possibly transposed, and the same as an array."""
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=4)))
    array = np.arange(float(np.prod(shape))).reshape(shape).astype(np.float32)
    order = draw(st.permutations(range(len(shape))))
    tensor = torch.tensor(array).permute(*order) if shape else torch.tensor(array)
    return tensor, array.transpose(order)


def slices(size):
    bound = st.none() | st.integers(-size - 2, size + 2)
    return st.builds(slice, bound, bound, st.none() | st.integers(1, 3))


@st.composite
def index_for(draw, shape, advanced=True):
    """A tuple index that fits `shape`, in NumPy's objects."""
    items = []
    dim = 0
    used_ellipsis = False
    block = tuple(draw(st.lists(st.integers(1, 3), max_size=2)))
    while dim < len(shape) and draw(st.booleans() | st.just(True)):
        kinds = ["slice", "none", "int", "tensor", "mask", "ellipsis"]
        kind = draw(st.sampled_from(kinds if advanced else ["slice", "none", "int", "ellipsis"]))
        size = shape[dim]
        if kind == "none":
            items.append(None)
        elif kind == "ellipsis":
            if used_ellipsis:
                break
            used_ellipsis = True
            items.append(Ellipsis)
            break
        elif kind == "mask":
            items.append(draw(masks(size)))
            dim += 1
        elif kind == "slice" or size == 0:
            items.append(draw(slices(size)))
            dim += 1
        elif kind == "int":
            items.append(draw(st.integers(-size, size - 1)))
            dim += 1
        else:
            entries = st.integers(-size, size - 1)
            count = int(np.prod(block))
            values = draw(st.lists(entries, min_size=count, max_size=count))
            items.append(np.array(values, np.int64).reshape(block))
            dim += 1
    return tuple(items)


def masks(size):
    return st.lists(st.booleans(), min_size=size, max_size=size).map(lambda m: np.array(m, bool))


def ours(index):
    return tuple(torch.tensor(item) if isinstance(item, np.ndarray) else item for item in index)


def expected(array, index):
    """Index with NumPy, or return None where index tensors and masks do not broadcast.

    torch applies ints, zero-dim index tensors among them, before the other index tensors, where
    NumPy counts them among these: two steps then.
    """
    index = tuple(
        int(item) if isinstance(item, np.ndarray) and item.ndim == 0 else item for item in index
    )
    basic = tuple(slice(None) if isinstance(item, np.ndarray) else item for item in index)
    rest = [slice(None) if item is None or isinstance(item, slice) else item for item in index]
    rest = [item for item in rest if not isinstance(item, int)]
    try:
        return array[basic][tuple(rest)]
    except IndexError:
        return None


def assigned(array, index, values):
    """Write with NumPy, in the same two steps."""
    out = array.copy()
    places = expected(np.arange(array.size).reshape(array.shape), index)
    out.reshape(-1)[places] = values
    return out


@settings(max_examples=300)
@given(tensors(), st.data())
def test_reading_equals_numpy(pair, data):
    tensor, array = pair
    index = data.draw(index_for(array.shape))
    want = expected(array, index)
    if want is None:
        with pytest.raises(IndexError):
            tensor[ours(index)]
        return
    got = tensor[ours(index)]
    assert tuple(got.shape) == want.shape
    np.testing.assert_array_equal(got.numpy(), want)


@settings(max_examples=150)
@given(tensors(), st.data())
def test_basic_index_is_a_view(pair, data):
    tensor, array = pair
    index = data.draw(index_for(array.shape, advanced=False))
    got = tensor[index]
    assert got.untyped_storage() is tensor.untyped_storage()
    np.testing.assert_array_equal(got.numpy(), array[index])


@settings(max_examples=300)
@given(tensors(), st.data(), st.booleans())
def test_writing_equals_numpy(pair, data, scalar):
    tensor, array = pair
    index = data.draw(index_for(array.shape))
    want = expected(array, index)
    assume(want is not None)
    values = -1.0 - np.arange(float(want.size), dtype=np.float32).reshape(want.shape)
    tensor[ours(index)] = -7 if scalar else torch.tensor(values)
    after = assigned(array, index, -7 if scalar else values)
    np.testing.assert_array_equal(tensor.numpy(), after)


@settings(max_examples=100)
@given(tensors(), st.data())
def test_accumulating_equals_numpy(pair, data):
    tensor, array = pair
    assume(array.ndim and 0 not in array.shape)
    count = data.draw(st.integers(1, array.ndim))
    length = data.draw(st.integers(0, 6))
    indices = tuple(
        np.array(
            data.draw(st.lists(st.integers(-n, n - 1), min_size=length, max_size=length)), np.int64
        )
        for n in array.shape[:count]
    )
    values = np.ones(array.shape[count:], np.float32)
    out = tensor.index_put(tuple(torch.tensor(i) for i in indices), torch.tensor(values), True)
    array = array.copy()
    np.add.at(array, indices, values)
    np.testing.assert_array_equal(out.numpy(), array)


# ---------------------------------------------------------------------------------------------
# Kinds of items


def cube():
    return torch.arange(24.0).reshape(2, 3, 4)


@pytest.mark.parametrize(
    ("index", "shape"),
    [
        (True, (1, 2, 3, 4)),
        (False, (0, 2, 3, 4)),
        ((slice(None), True), (2, 1, 3, 4)),
        (torch.tensor(1), (3, 4)),
        (np.int64(1), (3, 4)),
        ([0, 1], (2, 3, 4)),
        ([], (0, 3, 4)),
        (range(2), (2, 3, 4)),
        (np.array([1, 0]), (2, 3, 4)),
        (np.array([True, False]), (1, 3, 4)),
        ([True, False], (1, 3, 4)),
        ([[0, 1], [1, 2]], (2, 4)),
        ([slice(0, 1), 0], (1, 4)),
        (torch.tensor([0, 1], dtype=torch.int32), (2, 3, 4)),
        (torch.tensor([0, 1], dtype=torch.uint8), (1, 3, 4)),
        ((torch.tensor(1), torch.tensor([0, 1])), (2, 4)),
        ((slice(torch.tensor(0), torch.tensor(1)),), (1, 3, 4)),
        ((Ellipsis, Ellipsis), (2, 3, 4)),
        (torch.ones(2, 3, dtype=torch.bool), (6, 4)),
        (torch.tensor(True), (1, 2, 3, 4)),
    ],
)
def test_item_is_read_as_in_torch(index, shape):
    assert tuple(cube()[index].shape) == shape


@pytest.mark.parametrize(
    ("index", "error", "text"),
    [
        (2, IndexError, "index 2 is out of bounds for dimension 0 with size 2"),
        ((0, -4), IndexError, "index -4 is out of bounds for dimension 1 with size 3"),
        (torch.tensor([0, 2]), IndexError, "index 2 is out of bounds for dimension 0 with size 2"),
        ((slice(None), [-4]), IndexError, "index -4 is out of bounds for dimension 1"),
        ((0, 0, 0, 0), IndexError, "too many indices for tensor of dimension 3"),
        (slice(None, None, -1), ValueError, "step must be greater than zero"),
        (slice(0, 2, 0), ValueError, "step must be greater than zero"),
        (1.5, IndexError, "only integers, slices"),
        ("a", TypeError, "only integers, slices"),
        (torch.tensor([1.5]), IndexError, "must be long, int, byte or bool"),
        (torch.tensor([1], dtype=torch.int16), IndexError, "must be long, int, byte or bool"),
        ((torch.tensor([0, 1]), torch.tensor([0, 1, 2])), IndexError, "could not be broadcast"),
        (torch.ones(3, dtype=torch.bool), IndexError, "shape of the mask"),
    ],
)
def test_index_that_does_not_fit_is_explained(index, error, text):
    with pytest.raises(error, match=text):
        cube()[index]


def test_zero_dim_tensor_is_not_indexed_by_a_number():
    with pytest.raises(IndexError, match=r"0-dim|too many"):
        torch.tensor(1.0)[0]
    assert torch.tensor(1.0)[None].shape == (1,)
    assert torch.tensor(1.0)[...].item() == 1.0


@pytest.mark.parametrize(
    ("index", "value", "error", "text"),
    [
        (0, [1, 2, 3, 4], TypeError, "can't assign a list"),
        (0, np.ones(4), TypeError, "can't assign a ndarray"),
        (0, "a", TypeError, "can't assign a str"),
        (0, torch.ones(5), RuntimeError, r"copy_: .*|expanded size"),
        (torch.tensor([0]), torch.ones(5), RuntimeError, "cannot be broadcast"),
        (torch.tensor([0]), torch.ones(3, 4, dtype=torch.float64), RuntimeError, "dtypes match"),
        (torch.tensor([7]), 1, IndexError, "index 7 is out of bounds"),
        ((torch.tensor([0]), torch.tensor([-4])), 1.0, IndexError, "index -4 is out of bounds"),
    ],
)
def test_write_that_does_not_fit_leaves_the_tensor_as_it_was(index, value, error, text):
    x = cube()
    with pytest.raises(error, match=text):
        x[index] = value
    assert x.tolist() == cube().tolist()


def test_failed_write_through_several_indices_changes_nothing():
    x = torch.zeros(5)
    with pytest.raises(IndexError):
        x[torch.tensor([0, 1, 2, 9])] = 1.0
    assert x.tolist() == [0.0] * 5


def test_value_may_have_leading_ones_and_another_dtype_in_a_slice():
    x = cube()
    x[:] = torch.ones(1, 1, 2, 3, 4)
    assert x.sum().item() == 24
    x[0] = torch.zeros(3, 4, dtype=torch.float64)
    assert x.sum().item() == 12
    x[torch.tensor([1])] = torch.zeros(1, 1, 1, 3, 4)
    assert x.sum().item() == 0


def test_last_of_repeated_places_stays():
    x = torch.zeros(3)
    x[torch.tensor([1, 1, 1])] = torch.tensor([5.0, 6.0, 7.0])
    assert x.tolist() == [0.0, 7.0, 0.0]


def test_augmented_assignment_writes_back():
    x = torch.zeros(2, 3)
    x[:, 1] += 2
    x[torch.tensor([0]), torch.tensor([2])] -= 1
    assert x.tolist() == [[0.0, 2.0, -1.0], [0.0, 2.0, 0.0]]


@pytest.mark.parametrize(
    "dtype",
    [torch.bool, torch.uint8, torch.int16, torch.int32, torch.float16, torch.bfloat16,
     torch.float64, torch.complex64, torch.complex128],
)  # fmt: skip
def test_elements_of_every_size_are_read_and_written(dtype):
    x = torch.tensor([[1, 0, 1], [0, 1, 1]]).to(dtype)
    index = torch.tensor([1, 0, 1])
    read = x[:, index]
    assert read.dtype is dtype
    assert read.to(torch.float64).tolist() == [[0.0, 1.0, 0.0], [1.0, 0.0, 1.0]]
    x[index[:2]] = torch.zeros(2, 3, dtype=dtype)
    assert not x.to(torch.bool).any()


# ---------------------------------------------------------------------------------------------
# Derivatives


def numeric_gradient(function, values, step=1e-6):
    gradient = np.zeros_like(values)
    for place in np.ndindex(values.shape):
        moved = [values.copy(), values.copy()]
        moved[0][place] += step
        moved[1][place] -= step
        high, low = (function(torch.tensor(v)).item() for v in moved)
        gradient[place] = (high - low) / (2 * step)
    return gradient


WEIGHTS = torch.tensor(np.linspace(0.5, 2.0, 12).reshape(3, 4))


def into_a_row(t):
    y = t * 2
    y[0] = t[1] * t[2]
    return (y * WEIGHTS).sum()


def into_overlapping_slices(t):
    y = t * 2
    y[:, 1:3] = t[:, :2] * 3
    y[0, 0] = 5.0
    return (y * y * WEIGHTS).sum()


def into_places(t):
    y = t * t
    y[torch.tensor([0, 2])] = t[torch.tensor([1, 1])] * 2
    return (y * WEIGHTS).sum()


def into_a_mask(t):
    y = t * t
    y[t.detach() > 0.5] = 0
    return (y * WEIGHTS).sum()


def into_a_transposed_view(t):
    y = (t * t).t()
    y[1] = t[0, :3]
    return (y.t() * WEIGHTS).sum()


def into_a_view_of_a_view(t):
    y = t * 1
    y.view(-1)[2:10][3] = t[0, 0] * t[1, 1]
    return (y * WEIGHTS).sum()


def into_what_is_joined_later(t):
    y = t * 1
    y[0] = t[1] * 2
    return (torch.cat([t, y]) * torch.cat([WEIGHTS * 3, WEIGHTS])).sum()


def accumulated(t):
    y = t * t
    y.index_put_((torch.tensor([0, 0]), torch.tensor([1, 1])), t[0, :2], accumulate=True)
    return (y * WEIGHTS).sum()


@pytest.mark.parametrize(
    "function",
    [into_a_row, into_overlapping_slices, into_places, into_a_mask, into_a_transposed_view,
     into_a_view_of_a_view, into_what_is_joined_later, accumulated],
)  # fmt: skip
def test_gradient_of_a_write(function):
    values = np.random.default_rng(0).random((3, 4))
    t = torch.tensor(values, requires_grad=True)
    function(t).backward()
    np.testing.assert_allclose(t.grad.numpy(), numeric_gradient(function, values), atol=1e-6)


def test_repeated_reads_add_their_gradients():
    x = torch.zeros(4, requires_grad=True)
    x[torch.tensor([1, 1, 3])].sum().backward()
    assert x.grad.tolist() == [0.0, 2.0, 0.0, 1.0]
    y = torch.zeros(2, 3, requires_grad=True)
    y[torch.tensor([[True, False, True], [False, False, True]])].sum().backward()
    assert y.grad.tolist() == [[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]]


def test_write_into_a_leaf_that_requires_grad_is_refused():
    x = torch.zeros(3, requires_grad=True)
    for index in (0, slice(1, None), torch.tensor([0])):
        with pytest.raises(RuntimeError, match="leaf Variable"):
            x[index] = 1.0
    with torch.no_grad():
        x[0] = 1.0
    assert x.tolist() == [1.0, 0.0, 0.0]
