"""Layout rules: against NumPy for any layout, against PyTorch 2.13's own strides for odd ones."""

import copy
import itertools
import pickle

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided, sliding_window_view

from refruntime import _layout as layout
from refruntime._layout import Size

SIZES = st.lists(st.integers(0, 4), max_size=4)


@st.composite
def arrays(draw, min_dims=0, min_size=0):
    """An int64 array whose elements are their own offsets, under a random chain of views."""
    shape = draw(st.lists(st.integers(min_size, 4), min_size=min_dims, max_size=4))
    array = np.arange(int(np.prod(shape))).reshape(shape)
    array = array.transpose(draw(st.permutations(range(array.ndim))))
    steps = draw(st.lists(st.integers(1, 2), min_size=array.ndim, max_size=array.ndim))
    array = np.asarray(array[tuple(slice(None, None, step) for step in steps)])
    if draw(st.booleans()):
        array = array[..., None]
    if draw(st.booleans()):
        wide = [3 if size == 1 and draw(st.booleans()) else size for size in array.shape]
        array = np.broadcast_to(array, wide)
    return array


def strides_of(array):
    return tuple(stride // array.itemsize for stride in array.strides)


def shown(array, view):
    """Read `array`'s memory through a layout given relative to its first element."""
    shape, strides, offset = view
    flat = as_strided(array, (1,), (8,)) if array.size else array.reshape(-1)
    if 0 in shape or not array.size:
        return np.empty(shape, array.dtype)
    start = as_strided(flat, (offset + 1,), (8,))[offset:]
    return as_strided(start, shape, [stride * 8 for stride in strides])


def check(array, view, expected):
    assert view[0] == expected.shape
    np.testing.assert_array_equal(shown(array, view), expected)


# ---------------------------------------------------------------------------------------------
# Size


def test_size_is_a_tuple_that_prints_and_slices_as_torch_does():
    size = Size([2, 3, 4])
    assert repr(size) == "torch.Size([2, 3, 4])"
    assert size == (2, 3, 4)
    assert hash(size) == hash((2, 3, 4))
    assert size.numel() == 24
    assert size[1] == 3
    assert all(type(s) is Size for s in (size[1:], size + (1,), (1,) + size, size * 2, 2 * size))
    assert (1,) + size == (1, 2, 3, 4)
    assert Size([np.int64(3)])[0].__class__ is int


def test_size_survives_copies():
    for copied in (pickle.loads(pickle.dumps(Size([2, 3]))), copy.deepcopy(Size([2, 3]))):
        assert type(copied) is Size
        assert copied == (2, 3)


@pytest.mark.parametrize(
    "make", [lambda: Size([2.5]), lambda: Size(["a"]), lambda: Size([1]) + [2]]
)
def test_size_takes_integers_and_tuples_only(make):
    with pytest.raises(TypeError, match=r"torch\.Size"):
        make()


# ---------------------------------------------------------------------------------------------
# Strides


@given(SIZES)
def test_contiguous_strides_are_those_of_a_new_array(shape):
    strides = layout.contiguous_strides(shape)
    assert layout.is_contiguous(shape, strides)
    if 0 not in shape:
        assert strides == strides_of(np.empty(shape, np.int64))


def test_contiguous_strides_count_an_empty_dimension_as_one():
    assert layout.contiguous_strides((2, 0, 3)) == (3, 3, 1)


@given(arrays())
def test_is_contiguous_equals_numpy(array):
    assert layout.is_contiguous(array.shape, strides_of(array)) == array.flags.c_contiguous


def test_channels_last_strides_put_channels_innermost():
    assert layout.channels_last_strides((2, 3, 4, 5)) == (60, 1, 15, 3)
    assert layout.channels_last_strides((2, 3, 4, 5, 6)) == (360, 1, 90, 18, 3)
    assert layout.is_contiguous((2, 3, 4, 5), (60, 1, 15, 3), layout.channels_last)
    assert not layout.is_contiguous((2, 3, 4, 5), (60, 20, 5, 1), layout.channels_last)
    assert not layout.is_contiguous((3, 4, 5), (20, 5, 1), layout.channels_last)
    assert layout.is_contiguous((2, 3, 4, 5, 6), (360, 1, 90, 18, 3), layout.channels_last_3d)


# shape, strides, strides of empty_like in PyTorch 2.13
EMPTY_LIKE = [
    ((2, 3), (3, 1), (3, 1)),
    ((2, 3), (1, 2), (1, 2)),
    ((2, 3), (6, 2), (3, 1)),
    ((2, 3), (0, 1), (3, 1)),
    ((2, 3), (1, 0), (3, 1)),
    ((3, 4, 5), (0, 0, 1), (20, 5, 1)),
    ((2, 3, 4), (1, 8, 2), (1, 8, 2)),
    ((2, 1, 4), (4, 77, 1), (4, 77, 1)),
    ((2, 2), (1, 1), (2, 1)),
    ((3, 2), (1, 1), (2, 1)),
    ((2, 3, 2, 2), (12, 1, 6, 3), (12, 1, 6, 3)),
    ((5,), (3,), (1,)),
    ((), (), ()),
    ((2, 3), (1, 4), (1, 2)),
]


@pytest.mark.parametrize(("shape", "strides", "expected"), EMPTY_LIKE)
def test_dense_strides_equal_torch(shape, strides, expected):
    assert layout.dense_strides(shape, strides) == expected


@given(arrays(min_size=1), st.data())
def test_dense_strides_make_a_dense_layout(array, data):
    other = array.transpose(data.draw(st.permutations(range(array.ndim))))
    assume(other.shape == array.shape)
    made = layout.dense_strides(array.shape, strides_of(array), strides_of(other))
    assert layout.is_dense(array.shape, made)
    assert layout.extent(array.shape, made) == (0, array.size - 1)


def test_elementwise_result_of_contiguous_operands_is_contiguous():
    assert layout.elementwise_strides((1, 3), (99, 1), (3, 1)) == (3, 1)
    assert layout.elementwise_strides((2, 3), (1, 2), (1, 2)) == (1, 2)
    assert layout.elementwise_strides((2, 3), (0, 1), (1, 2)) == (1, 2)
    assert layout.elementwise_strides((1, 3, 1, 2), (7, 1, 7, 3)) == (6, 1, 6, 3)


@given(arrays())
def test_extent_bounds_every_element(array):
    low, high = layout.extent(array.shape, strides_of(array))
    if array.size == 0:
        assert (low, high) == (0, -1)
    else:
        assert low == 0
        assert high == array.max() - array.min()


def test_extent_of_negative_strides_goes_below_zero():
    assert layout.extent((3, 2), (-4, 1)) == (-8, 1)


@given(arrays())
def test_internal_overlap_is_an_element_shown_twice(array):
    twice = len(np.unique(array)) < array.size
    assert layout.has_internal_overlap(array.shape, strides_of(array)) == twice
    if layout.is_dense(array.shape, strides_of(array)):
        assert not twice


# ---------------------------------------------------------------------------------------------
# Collapsing loops


@given(arrays(min_dims=1, min_size=1), st.booleans(), st.data())
def test_collapsed_loops_visit_the_same_pairs_of_elements(array, reorder, data):
    other = np.broadcast_to(np.arange(array.shape[-1] if array.ndim else 1), array.shape)
    shape, walks = layout.collapse(
        array.shape, [strides_of(array), strides_of(other)], reorder=reorder
    )
    seen = [shown(array, (shape, walks[0], 0)), shown(other, (shape, walks[1], 0))]
    pairs = list(zip(*(part.ravel().tolist() for part in seen), strict=True))
    expected = list(zip(array.ravel().tolist(), other.ravel().tolist(), strict=True))
    if reorder:
        pairs, expected = sorted(pairs), sorted(expected)
    assert pairs == expected
    assert 1 not in shape


@pytest.mark.parametrize(
    ("shape", "lists", "reorder", "expected"),
    [
        ((2, 3, 4), [(12, 4, 1)], False, ((24,), ((1,),))),
        ((2, 1, 4), [(4, 9, 1), (8, 1, 1)], False, ((2, 4), ((4, 1), (8, 1)))),
        ((2, 3, 4), [(12, 4, 1), (0, 4, 1)], False, ((2, 12), ((12, 1), (0, 1)))),
        ((3, 2), [(1, 3)], False, ((3, 2), ((1, 3),))),
        ((3, 2), [(1, 3)], True, ((6,), ((1,),))),
        ((3, 2), [(1, 3), (2, 1)], True, ((2, 3), ((3, 1), (1, 2)))),
        ((1, 1), [(5, 5)], False, ((), ((),))),
        ((), [(), ()], False, ((), ((), ()))),
        ((5, 4), [(0, 0)], False, ((20,), ((0,),))),
    ],
)  # fmt: skip
def test_collapse_merges_what_all_operands_walk_as_one(shape, lists, reorder, expected):
    assert layout.collapse(shape, lists, reorder=reorder) == expected


# ---------------------------------------------------------------------------------------------
# Dimensions and shapes


@given(st.integers(0, 5), st.integers(-7, 7))
def test_wrap_dim_counts_from_the_end_or_names_the_range(ndim, dim):
    bound = max(ndim, 1)
    if -bound <= dim < bound:
        assert layout.wrap_dim(dim, ndim, "sum") == dim % bound
    else:
        text = (
            rf"sum: Dimension out of range \(expected to be in range of \[{-bound}, {bound - 1}\]"
        )
        with pytest.raises(IndexError, match=text):
            layout.wrap_dim(dim, ndim, "sum")


def test_wrap_dim_refuses_other_types():
    with pytest.raises(TypeError, match="sum: argument 'dim' must be int"):
        layout.wrap_dim(1.0, 2, "sum")


def test_wrap_dims_takes_none_one_or_many_and_refuses_repetition():
    assert layout.wrap_dims(None, 3, "sum") == (0, 1, 2)
    assert layout.wrap_dims(-1, 3, "sum") == (2,)
    assert layout.wrap_dims([0, -1], 3, "sum") == (0, 2)
    with pytest.raises(RuntimeError, match="dim 2 appears multiple times"):
        layout.wrap_dims((2, -1), 3, "sum")


@given(arrays(), st.data(), st.booleans())
def test_reduce_shape_equals_numpy(array, data, keepdim):
    dims = data.draw(st.sets(st.integers(0, array.ndim - 1)) if array.ndim else st.just(set()))
    expected = array.sum(axis=tuple(dims), keepdims=keepdim).shape
    assert layout.reduce_shape(array.shape, tuple(dims), keepdim) == expected


@given(st.lists(st.integers(1, 4), max_size=4), st.data())
def test_infer_shape_fills_the_one_unknown(shape, data):
    count = int(np.prod(shape))
    hidden = list(shape)
    if shape and data.draw(st.booleans()):
        hidden[data.draw(st.integers(0, len(shape) - 1))] = -1
    assert layout.infer_shape(hidden, count, "view") == tuple(shape)


@pytest.mark.parametrize(
    ("shape", "count", "text"),
    [
        ((2, 3), 5, r"view: shape '\[2, 3\]' is invalid for input of size 5"),
        ((2, -1), 5, "is invalid for input of size 5"),
        ((-1, -1), 4, "only one dimension can be inferred"),
        ((-2, 2), 4, "invalid shape dimension -2"),
        ((0, -1), 0, "ambiguous"),
    ],
)
def test_infer_shape_explains_what_does_not_fit(shape, count, text):
    with pytest.raises(RuntimeError, match=text):
        layout.infer_shape(shape, count, "view")


# ---------------------------------------------------------------------------------------------
# Broadcasting


@given(st.lists(st.lists(st.integers(0, 3), max_size=3), min_size=1, max_size=3))
def test_broadcast_shapes_equals_numpy(shapes):
    shapes = [tuple(shape) for shape in shapes]
    try:
        expected = np.broadcast_shapes(*shapes)
    except ValueError:
        with pytest.raises(RuntimeError, match="add: The size of tensor a"):
            layout.broadcast_shapes(*shapes, op="add")
    else:
        assert layout.broadcast_shapes(*shapes) == expected


def test_broadcast_error_names_sizes_and_dimension():
    text = (
        r"size of tensor a \(3\) must match the size of tensor b \(4\) at non-singleton dimension 1"
    )
    with pytest.raises(RuntimeError, match=text):
        layout.broadcast_shapes((2, 3), (4,), op="add")


@given(arrays(), st.lists(st.integers(1, 3), max_size=2))
def test_broadcast_strides_show_repeated_elements(array, extra):
    target = (*extra, *(3 if size == 1 else size for size in array.shape))
    strides = layout.broadcast_strides(array.shape, strides_of(array), target)
    check(array, (target, strides, 0), np.broadcast_to(array, target))


# shape, strides, sizes, result in PyTorch 2.13
EXPAND = [
    ((3, 1), (1, 1), (3, 4), (3, 4), (1, 0)),
    ((3, 1), (1, 1), (2, 3, 1), (2, 3, 1), (0, 1, 1)),
    ((1,), (1,), (1, 1, 1), (1, 1, 1), (1, 1, 1)),
    ((), (), (1,), (1,), (0,)),
    ((), (), (2, 3), (2, 3), (0, 0)),
    ((2, 3), (3, 1), (1, 1, -1, 3), (1, 1, 2, 3), (6, 6, 3, 1)),
    ((1, 3), (9, 1), (0, 3), (0, 3), (0, 1)),
    ((3, 1), (1, 1), (-1, 5), (3, 5), (1, 0)),
]


@pytest.mark.parametrize(("shape", "strides", "sizes", "new_shape", "new_strides"), EXPAND)
def test_expand_equals_torch(shape, strides, sizes, new_shape, new_strides):
    assert layout.expand(shape, strides, sizes) == (new_shape, new_strides, 0)


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ((2, 4), r"The expanded size of the tensor \(4\) must match the existing size \(3\)"),
        ((3,), r"number of sizes provided \(1\)"),
        ((-1, 2, 3), r"The expanded size of the tensor \(-1\)"),
        ((-2, 3), r"The expanded size of the tensor \(-2\)"),
    ],
)
def test_expand_explains_what_does_not_fit(sizes, text):
    with pytest.raises(RuntimeError, match=text):
        layout.expand((2, 3), (3, 1), sizes)


# ---------------------------------------------------------------------------------------------
# Views

# shape, strides, new shape, strides of view() in PyTorch 2.13 (None: it raises)
VIEWS = [
    ((2, 3, 4), (12, 4, 1), (6, 4), (4, 1)),
    ((2, 3, 4), (12, 4, 1), (2, 12), (12, 1)),
    ((2, 3, 4), (12, 1, 3), (2, 3, 2, 2), (12, 1, 6, 3)),
    ((2, 3, 4), (12, 1, 3), (6, 4), None),
    ((2, 3, 4), (12, 1, 3), (2, 12), None),
    ((3, 1), (5, 7), (3,), (5,)),
    ((3, 1), (5, 7), (1, 3, 1), (15, 5, 7)),
    ((3, 1), (5, 7), (1, 1, 3, 1, 1), (15, 15, 5, 7, 7)),
    ((4,), (0,), (2, 2), (0, 0)),
    ((2, 4), (0, 1), (8,), None),
    ((2, 4), (0, 1), (2, 2, 2), (0, 2, 1)),
    ((), (), (1, 1), (1, 1)),
    ((1, 1), (9, 7), (), ()),
    ((0, 3), (3, 1), (3, 0), (1, 1)),
    ((2, 0, 3), (9, 8, 7), (0,), (1,)),
    ((2, 0, 3), (9, 8, 7), (2, 0, 3), (9, 8, 7)),
    ((6,), (2,), (2, 1, 3), (6, 6, 2)),
    ((1, 6), (100, 1), (6,), (1,)),
    ((2, 1, 3), (3, 50, 1), (6,), (1,)),
    ((2, 2, 2), (4, 2, 1), (1, 8, 1), (8, 1, 1)),
    ((4, 6), (12, 2), (2, 12), (24, 2)),
    ((4, 3), (12, 2), (12,), None),
]


@pytest.mark.parametrize(("shape", "strides", "new_shape", "expected"), VIEWS)
def test_view_strides_equal_torch(shape, strides, new_shape, expected):
    assert layout.view_strides(shape, strides, new_shape) == expected


@given(arrays(min_size=1), st.data())
def test_view_shows_elements_in_order_or_numpy_must_copy_too(array, data):
    factors = [size for size in array.shape if size > 1]
    cuts = data.draw(st.lists(st.integers(0, len(factors)), max_size=3).map(sorted))
    edges = [0, *cuts, len(factors)]
    new_shape = tuple(int(np.prod(factors[low:high])) for low, high in itertools.pairwise(edges))
    strides = layout.view_strides(array.shape, strides_of(array), new_shape)
    if strides is not None:
        check(array, (new_shape, strides, 0), array.reshape(new_shape))
    else:
        assert not np.shares_memory(array, array.reshape(new_shape))


@given(arrays(min_dims=1), st.data())
def test_dimension_order_views_equal_numpy(array, data):
    shape, strides = array.shape, strides_of(array)
    dims = st.integers(-array.ndim, array.ndim - 1)
    first, second = data.draw(dims), data.draw(dims)
    check(array, layout.transpose(shape, strides, first, second), array.swapaxes(first, second))
    check(array, layout.movedim(shape, strides, first, second), np.moveaxis(array, first, second))
    order = data.draw(st.permutations(range(array.ndim)))
    check(array, layout.permute(shape, strides, order), array.transpose(order))
    check(array, layout.unsqueeze(shape, strides, first), np.expand_dims(array, first))


@given(arrays(min_dims=1), st.data())
def test_select_and_slice_equal_numpy(array, data):
    shape, strides = array.shape, strides_of(array)
    dim = data.draw(st.integers(0, array.ndim - 1))
    bound = st.none() | st.integers(-6, 6)
    start, stop, step = data.draw(bound), data.draw(bound), data.draw(st.integers(1, 3))
    expected = array[(slice(None),) * dim + (slice(start, stop, step),)]
    check(array, layout.slice_(shape, strides, dim, start, stop, step), expected)
    index = data.draw(st.integers(-5, 5))
    if -shape[dim] <= index < shape[dim]:
        check(array, layout.select(shape, strides, dim, index), array.take(index, dim))
    else:
        with pytest.raises(IndexError, match=f"select: index {index} is out of bounds"):
            layout.select(shape, strides, dim, index)


@given(arrays(min_dims=1), st.data())
def test_narrow_takes_a_range_that_lies_inside(array, data):
    dim = data.draw(st.integers(0, array.ndim - 1))
    size = array.shape[dim]
    start, length = data.draw(st.integers(-6, 6)), data.draw(st.integers(-1, 5))
    narrow = (array.shape, strides_of(array), dim, start, length)
    first = start + size if start < 0 else start
    if not -size <= start <= size:
        with pytest.raises(IndexError, match="narrow: start out of range"):
            layout.narrow(*narrow)
    elif length < 0 or first + length > size:
        with pytest.raises(RuntimeError, match=r"narrow: .*length"):
            layout.narrow(*narrow)
    else:
        expected = array[(slice(None),) * dim + (slice(first, first + length),)]
        check(array, layout.narrow(*narrow), expected)


@given(arrays(), st.data())
def test_squeeze_drops_dimensions_of_size_one_only(array, data):
    shape, strides = array.shape, strides_of(array)
    check(array, layout.squeeze(shape, strides), array.squeeze())
    dims = data.draw(st.sets(st.integers(0, array.ndim - 1)) if array.ndim else st.just(set()))
    ones = tuple(dim for dim in dims if shape[dim] == 1)
    check(array, layout.squeeze(shape, strides, tuple(dims)), array.squeeze(ones))


@given(arrays(min_dims=1, min_size=1), st.data())
def test_unfold_shows_windows(array, data):
    dim = data.draw(st.integers(0, array.ndim - 1))
    size = data.draw(st.integers(1, array.shape[dim]))
    step = data.draw(st.integers(1, 3))
    windows = sliding_window_view(array, size, dim)
    expected = windows[(slice(None),) * dim + (slice(None, None, step),)]
    check(array, layout.unfold(array.shape, strides_of(array), dim, size, step), expected)


@given(arrays(min_dims=2), st.data())
def test_diagonal_equals_numpy(array, data):
    first, second = data.draw(st.permutations(range(array.ndim)))[:2]
    offset = data.draw(st.integers(-4, 4))
    made = layout.diagonal(array.shape, strides_of(array), offset, first, second)
    check(array, made, array.diagonal(offset, first, second))


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: layout.permute((2, 3), (3, 1), (0,)), RuntimeError, "permute"),
        (lambda: layout.permute((2, 3), (3, 1), (0, 0)), RuntimeError, "multiple times"),
        (lambda: layout.movedim((2, 3), (3, 1), (0, 1), 0), RuntimeError, "source"),
        (lambda: layout.select((), (), 0, 0), IndexError, "0-dim"),
        (lambda: layout.slice_((3,), (1,), 0, None, None, -1), ValueError, "greater than zero"),
        (lambda: layout.slice_((3,), (1,), 0, None, None, 0), ValueError, "greater than zero"),
        (lambda: layout.narrow((), (), 0, 0, 1), RuntimeError, "0-dim"),
        (lambda: layout.unfold((3,), (1,), 0, 4, 1), RuntimeError, "maximum size for tensor"),
        (lambda: layout.unfold((3,), (1,), 0, 2, 0), RuntimeError, "step is 0"),
        (lambda: layout.diagonal((2, 2), (2, 1), 0, 1, -1), RuntimeError, "identical"),
        (lambda: layout.flatten_shape((2, 3), 1, 0), RuntimeError, "start_dim cannot come after"),
        (lambda: layout.unflatten_shape((4,), 0, (3, -1)), RuntimeError, "input of size 4"),
        (lambda: layout.unflatten_shape((4,), 0, ()), RuntimeError, "non-empty"),
        (lambda: layout.unflatten_shape((), 0, (1,)), RuntimeError, "0-dim"),
        (lambda: layout.as_strided((2,), (1, 1), 9), RuntimeError, "mismatch in length"),
        (lambda: layout.as_strided((2,), (-1,), 9), RuntimeError, "Negative strides"),
        (lambda: layout.as_strided((-2,), (1,), 9), RuntimeError, "must not be negative"),
        (lambda: layout.as_strided((2, 5), (5, 1), 10, 1), RuntimeError, "require 11 elements"),
    ],
)
def test_view_that_is_not_there_is_explained(make, error, text):
    with pytest.raises(error, match=text):
        make()


def test_as_strided_takes_any_layout_inside_the_storage():
    assert layout.as_strided((2, 5), (5, 1), 10) == ((2, 5), (5, 1), 0)
    assert layout.as_strided((3, 4), (1, 2), 10, 1) == ((3, 4), (1, 2), 1)
    assert layout.as_strided((0, 4), (100, 100), 1, 0) == ((0, 4), (100, 100), 0)


def test_flatten_and_unflatten_shapes_are_inverse():
    assert layout.flatten_shape((2, 3, 4, 5), 1, -2) == (2, 12, 5)
    assert layout.unflatten_shape((2, 12, 5), 1, (3, -1)) == (2, 3, 4, 5)
    assert layout.flatten_shape(()) == (1,)
    assert layout.flatten_shape((2, 0, 3)) == (0,)
    assert layout.unfold((), (), 0, 1, 1) == ((1,), (1,), 0)


@pytest.mark.parametrize(
    "memory_format", [layout.contiguous_format, layout.channels_last, layout.preserve_format]
)
def test_memory_formats_are_singletons_that_print_as_torch_does(memory_format):
    assert repr(memory_format) == f"torch.{memory_format.name}"
    assert pickle.loads(pickle.dumps(memory_format)) is memory_format
    assert copy.deepcopy(memory_format) is memory_format
