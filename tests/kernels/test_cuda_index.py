"""index.cu, embedding.cu and select.cu on the host, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from refruntime.kernels import cuda_instances
from tests.kernels.cuda_host.arrays import BITS, DTYPES, FLOATS, assert_near, sample, wide
from tests.kernels.cuda_host.harness import (
    MAX_DIMS,
    HostModule,
    Out,
    Struct,
    run,
    strides_of,
    table,
)

Host = Callable[[str], HostModule]
MAX_INDICES = 8
CHUNK = 2048


def bits(rng: np.random.Generator, shape: tuple[int, ...], name: str) -> np.ndarray:
    dtype = BITS[name]
    if name == "Wide":
        return rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
    return rng.integers(0, np.iinfo(dtype).max, shape, dtype)


def indices(*entries: tuple[np.ndarray, int, int, tuple[int, ...]]) -> Struct:
    """`Indices` of index.cu from (index, size, step, strides over the space) an index tensor."""
    cells = np.zeros((3, MAX_INDICES), np.int64)
    strides = np.zeros((MAX_INDICES, MAX_DIMS), np.int64)
    for t, (index, size, step, over) in enumerate(entries):
        cells[:, t] = index.ctypes.data, size, step
        strides[t, : len(over)] = over
    return Struct(np.concatenate([np.array([len(entries)]), cells.ravel(), strides.ravel()]))


@pytest.mark.parametrize("name", BITS)
def test_gather_along_a_dimension(host: Host, rng: np.random.Generator, name: str) -> None:
    x = bits(rng, (4, 6, 3), name)
    index = rng.integers(0, 6, (4, 5, 3))
    got = run(
        host("index"),
        cuda_instances.require("index", "index_get", (name,)),
        (2,),
        (16,),
        [Out(index.shape, x.dtype), x, table(index.shape, strides_of(index), (18, 0, 1))]
        + [indices((index, 6, 3, strides_of(index))), index.size, 0, np.zeros(1, np.int64)],
    )
    np.testing.assert_array_equal(got[0], np.take_along_axis(x, index, axis=1))
    assert got[2][0] == 0


@pytest.mark.parametrize("name", BITS)
def test_advanced_indexing_reads_and_writes(
    host: Host, rng: np.random.Generator, name: str
) -> None:
    x = bits(rng, (4, 3, 5), name)
    rows, columns = np.array([[3, -4], [1, 2]]), np.array([-1, 0])
    space = (2, 2, 3)  # the index tensors' broadcast shape, then x's own middle dimension
    over = ((2, 1, 0), (0, 1, 0))
    where = indices((rows, 4, 15, over[0]), (columns, 5, 1, over[1]))
    own = table(space, (6, 3, 1), (0, 0, 5))
    module = host("index")
    expression = cuda_instances.require("index", "index_get", (name,))
    got = run(module, expression, (1,), (4,), [Out(space, x.dtype), x, own, where, 12, 1, 0])[0]
    expected = x.transpose(0, 2, 1)[rows, columns]
    np.testing.assert_array_equal(got, expected)

    values = bits(rng, space, name)
    expression = cuda_instances.require("index", "index_put", (name,))
    got = run(module, expression, (1,), (4,), [x, values, own, where, 12, 1, 0])[0]
    target = x.copy()
    target.transpose(0, 2, 1)[rows, columns] = values
    np.testing.assert_array_equal(got, target)


@pytest.mark.parametrize("wrap", [0, 1])
def test_an_index_out_of_range_moves_nothing_and_is_reported(host: Host, wrap: int) -> None:
    x, index = np.arange(5, dtype=np.uint32), np.array([4, 5, -1])
    args = [np.full(3, 9, np.uint32), x, table((3,), (1,), (0,)), indices((index, 5, 1, (1,)))]
    got = run(
        host("index"),
        "index_get<unsigned int>",
        (1,),
        (4,),
        [*args, 3, wrap, np.zeros(1, np.int64)],
    )
    assert got[0].tolist() == [4, 9, 4 if wrap else 9]
    assert got[2][0] == 1


COMBINE: dict[str, Any] = {
    "Add": np.add,
    "Multiply": np.multiply,
    "Maximum": np.maximum,
    "Minimum": np.minimum,
}


@pytest.mark.parametrize("args", cuda_instances.KERNELS["index"]["index_combine"], ids="-".join)
def test_repeated_places_are_combined(
    host: Host, rng: np.random.Generator, args: tuple[str, str]
) -> None:
    op, ctype = args
    x, values = sample(rng, (7,), ctype), sample(rng, (30,), ctype)
    if op == "Multiply":  # keeps products of few elements, and sums of roundings, in range
        values[6:] = 1
    index = rng.integers(0, 7, 30)
    got = run(
        host("index"),
        cuda_instances.require("index", "index_combine", args),
        (2,),
        (16,),
        [x, values, table((30,), (1,), (0,)), indices((index, 7, 1, (1,))), 30, 0, 0],
        exact=ctype not in FLOATS,
    )[0]
    expected = wide(x)
    COMBINE[op].at(expected, index, wide(values))
    assert_near(got, expected, ctype, scale=8)


# ---------------------------------------------------------------------------------------- embedding


@pytest.mark.parametrize("name", BITS)
def test_embedding_reads_rows(host: Host, rng: np.random.Generator, name: str) -> None:
    weight, index = bits(rng, (6, 5), name), rng.integers(0, 6, (4,))
    expression = cuda_instances.require("embedding", "embedding_forward", (name,))
    args = [Out((4, 5), weight.dtype), weight, index, 4, 6, 5, np.zeros(1, np.int64)]
    got = run(host("embedding"), expression, (1,), (8,), args)
    np.testing.assert_array_equal(got[0], weight[index])
    assert got[-1][0] == 0


def test_embedding_reports_a_row_that_does_not_exist(host: Host) -> None:
    weight, index = np.ones((3, 2), np.uint32), np.array([1, 3])
    args = [np.zeros((2, 2), np.uint32), weight, index, 2, 3, 2, np.zeros(1, np.int64)]
    got = run(host("embedding"), "embedding_forward<unsigned int>", (1,), (4,), args)
    assert got[0].tolist() == [[1, 1], [0, 0]]
    assert got[-1][0] == 1


@pytest.mark.parametrize("ctype", FLOATS)
@pytest.mark.parametrize("by_frequency", [0, 1])
def test_embedding_gradient_sums_rows_and_skips_padding(
    host: Host, rng: np.random.Generator, ctype: str, by_frequency: int
) -> None:
    index = np.array([2, 0, 2, 5, 2, 0, 3])
    position = np.argsort(index, kind="stable")
    g = sample(rng, (7, 6), ctype)
    got = run(
        host("embedding"),
        cuda_instances.require("embedding", "embedding_backward", (ctype,)),
        (7, 2),
        (4,),
        [np.zeros((6, 6), g.dtype), g, index[position], position, 7, 6, 6, 5, by_frequency],
    )[0]
    expected = np.zeros((6, 6))
    np.add.at(expected, index, wide(g))
    expected[5] = 0
    if by_frequency:
        expected /= np.maximum(np.bincount(index, minlength=6), 1)[:, None]
    assert_near(got, expected, ctype, scale=2)


# ------------------------------------------------------------------------------------------- select


def starts(host: Host, x: np.ndarray, ctype: str, space: Struct, count: int) -> np.ndarray:
    """The starts of the blocks' outputs, and the total."""
    blocks = -(-count // CHUNK)
    name = cuda_instances.require("select", "count_true", (ctype,))
    args = [np.zeros(blocks + 1, np.int64), x, space, count]
    counts = run(host("select"), name, (blocks,), (256,), args, shared=256 * 8)[0]
    return run(host("select"), "offsets", (1,), (256,), [counts, blocks], shared=256 * 8)[0]


@pytest.mark.parametrize("ctype", DTYPES)
def test_nonzero_lists_coordinates_in_order(
    host: Host, rng: np.random.Generator, ctype: str
) -> None:
    x = (rng.random((3, 60, 30)) < 0.3).astype(DTYPES[ctype])
    view = x.transpose(1, 0, 2)
    space = table(view.shape, strides_of(view))
    counts = starts(host, x, ctype, space, x.size)
    expected = np.argwhere(view)
    assert counts[-1] == len(expected)
    name = cuda_instances.require("select", "nonzero", (ctype,))
    shape = table(view.shape, (0, 0, 0))
    args = [Out(expected.shape, np.int64), counts, x, space, x.size, shape]
    got = run(host("select"), name, (len(counts) - 1,), (256,), args, shared=256 * 8)[0]
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("name", BITS)
def test_masked_select_and_scatter_follow_the_mask_in_order(
    host: Host, rng: np.random.Generator, name: str
) -> None:
    shape = (50, 90)
    x, mask = bits(rng, shape, name), rng.random(90) < 0.4
    counts = starts(host, mask, "bool", table(shape, (0, 1)), x.size)
    full = np.broadcast_to(mask, shape)
    total = int(full.sum())
    assert counts[-1] == total
    space = table(shape, (0, 1), (90, 1))
    grid = (len(counts) - 1,)
    expression = cuda_instances.require("select", "masked_select", (name,))
    args: list[Any] = [Out((total,), x.dtype), counts, x, mask, space, x.size]
    got = run(host("select"), expression, grid, (256,), args, shared=256 * 8)[0]
    np.testing.assert_array_equal(got, x[full])

    source = bits(rng, (total - 2,), name)
    expression = cuda_instances.require("select", "masked_scatter", (name,))
    args = [x, counts, source, mask, space, x.size, source.size]
    got = run(host("select"), expression, grid, (256,), args, shared=256 * 8)[0]
    expected = x.copy()
    expected[full] = np.concatenate([source, x[full][-2:]])
    np.testing.assert_array_equal(got, expected)


def test_offsets_carry_over_many_blocks(host: Host, rng: np.random.Generator) -> None:
    counts = rng.integers(0, 9, 701)
    counts[-1] = 0
    got = run(host("select"), "offsets", (1,), (256,), [counts, 700], shared=256 * 8)[0]
    np.testing.assert_array_equal(got, np.concatenate([[0], np.cumsum(counts[:-1])]))
