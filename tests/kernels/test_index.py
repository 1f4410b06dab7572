"""The walk through index tensors: faults, threads, plain Python, any layout."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import refruntime as torch
from refruntime.config import config
from refruntime.kernels import index as walks
from refruntime.kernels.index import Route, run_walk


def rows_route(count, width, size, wrap=True):
    """The walk of ``x[index]`` over the rows of a matrix."""
    return Route((count, width), (width, 1), (0, 1), (((1, 0), size, width),), wrap)


def test_fault_names_the_tensor_and_the_value():
    x, out = torch.zeros(3, 2), torch.zeros(2, 2)
    index = torch.tensor([0, 7])
    assert run_walk(walks.get, x, out, (index,), rows_route(2, 2, 3)) == (0, 7)
    first, second = torch.tensor([0, 1]), torch.tensor([0, -4])
    pairs = Route((2,), (1,), (0,), (((1,), 3, 2), ((1,), 2, 1)))
    assert run_walk(walks.get, x, out[0], (first, second), pairs) == (1, -4)


def test_negative_index_is_a_fault_where_wrapping_is_off():
    x, out = torch.arange(6.0).reshape(3, 2), torch.zeros(1, 2)
    index = torch.tensor([-1])
    assert run_walk(walks.get, x, out, (index,), rows_route(1, 2, 3)) is None
    assert out.tolist() == [[4.0, 5.0]]
    assert run_walk(walks.get, x, out, (index,), rows_route(1, 2, 3, wrap=False)) == (0, -1)


def test_write_with_a_fault_touches_nothing():
    x, values = torch.zeros(3, 2), torch.ones(2, 2)
    index = torch.tensor([0, 3])
    for op in (walks.put, walks.add):
        assert run_walk(op, x, values, (index,), rows_route(2, 2, 3)) == (0, 3)
    assert x.tolist() == [[0.0, 0.0]] * 3


def test_empty_space_is_no_walk():
    x, out = torch.zeros(3, 2), torch.zeros(0, 2)
    index = torch.tensor([], dtype=torch.int64)
    assert run_walk(walks.get, x, out, (index,), rows_route(0, 2, 3)) is None


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("width", [1, 3, 600])
def test_result_does_not_depend_on_the_number_of_threads(threads, width, monkeypatch):
    monkeypatch.setattr(walks, "GRAIN", 8)
    monkeypatch.setattr(walks, "_plans", {})
    rng = np.random.default_rng(0)
    x = rng.standard_normal((50, width)).astype(np.float32)
    index = rng.integers(-50, 50, 400)
    source = rng.standard_normal((400, width)).astype(np.float32)
    with config.patch(num_threads=threads):
        read = torch.tensor(x)[torch.tensor(index)].numpy()
        added = torch.tensor(x).index_put(
            (torch.tensor(index),), torch.tensor(source), accumulate=True
        )
        put = torch.tensor(x).index_put((torch.tensor(index),), torch.tensor(source))
    np.testing.assert_array_equal(read, x[index])
    expected = x.copy()
    np.add.at(expected, index, source)
    np.testing.assert_array_equal(added.numpy(), expected)
    expected[index] = source
    np.testing.assert_array_equal(put.numpy()[index], expected[index])


def test_several_threads_report_a_fault_too(monkeypatch):
    monkeypatch.setattr(walks, "GRAIN", 8)
    monkeypatch.setattr(walks, "_plans", {})
    index = torch.zeros(1000, dtype=torch.int64)
    index[777] = 5
    with config.patch(num_threads=4), pytest.raises(IndexError, match="index 5 is out of bounds"):
        torch.zeros(3)[index]


@given(st.data())
def test_plain_python_body_equals_the_compiled_one(data):
    size = data.draw(st.integers(1, 4))
    entries = data.draw(st.lists(st.integers(-size, size), min_size=1, max_size=5))
    x = torch.arange(float(size * 2)).reshape(size, 2)
    out, plain = torch.zeros(len(entries), 2), torch.zeros(len(entries), 2)
    index = torch.tensor(entries)
    route = rows_route(len(entries), 2, size)
    fault = run_walk(walks.get, x, out, (index,), route)
    kernel = walks.walk.for_dtypes(T=torch.uint32, move=walks.get)
    plan = walks._plan_of(route, True)
    table = plan.table.copy()
    table[plan.slots[0]] = index.address()
    kernel.py_func(table.ctypes.data, plain.address(), x.address(), 0, plan.total)
    assert (fault is not None) == bool(table[walks.FAULT])
    if fault is None:
        assert plain.tolist() == out.tolist() == x.numpy()[entries].tolist()


@pytest.mark.parametrize(
    ("op", "want"),
    [(walks.add, [[5.0, 2.0]]), (walks.multiply, [[6.0, 1.0]]), (walks.maximum, [[3.0, 1.0]]),
     (walks.minimum, [[2.0, 1.0]]), (walks.put, [[3.0, 1.0]])],
)  # fmt: skip
def test_each_operation_combines_in_its_way(op, want):
    x = torch.tensor([[2.0, 1.0]])
    values = torch.tensor([[3.0, 1.0]])
    assert run_walk(op, x, values, (torch.tensor([0]),), rows_route(1, 2, 1)) is None
    assert x.tolist() == want


@pytest.mark.parametrize("op", [walks.maximum, walks.minimum])
def test_nan_wins_in_extremes(op):
    for old, new in ((1.0, float("nan")), (float("nan"), 1.0)):
        x = torch.tensor([[old, old]])
        values = torch.tensor([[new, new]])
        run_walk(op, x, values, (torch.tensor([0]),), rows_route(1, 2, 1))
        assert np.isnan(x.tolist()).all()
