"""copy.cu, join.cu and rearrange.cu on the host, against NumPy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from refruntime.kernels import cuda_instances
from tests.kernels.cuda_host.arrays import BITS, DTYPES, sample
from tests.kernels.cuda_host.harness import HostModule, Out, Struct, run, strides_of, table

Host = Callable[[str], HostModule]


def bits(rng: np.random.Generator, shape: tuple[int, ...], name: str) -> np.ndarray:
    dtype = BITS[name]
    if name == "Wide":
        return rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
    return rng.integers(0, np.iinfo(dtype).max, shape, dtype)


@pytest.mark.parametrize("name", BITS)
def test_copy_reads_and_writes_any_strides(host: Host, rng: np.random.Generator, name: str) -> None:
    x = bits(rng, (4, 3, 5), name)
    view = x.transpose(2, 0, 1)[::-1]
    out = np.zeros((5, 8, 3), BITS[name])
    target = out[:, ::2]
    space = table(view.shape, strides_of(target), strides_of(view))
    # A view's address is that of its first element: here not the start of its memory.
    host("copy").launch(
        cuda_instances.require("copy", "copy_bits", (name,)),
        (2,),
        (16,),
        [out.ctypes.data, view.ctypes.data, space.array, view.size],
    )
    np.testing.assert_array_equal(target, view)
    assert not out[:, 1::2].any()


@pytest.mark.parametrize("pair", cuda_instances.KERNELS["copy"]["convert"], ids="-".join)
def test_convert_casts_as_numpy_does(
    host: Host, rng: np.random.Generator, pair: tuple[str, str]
) -> None:
    to, frm = pair
    x = sample(rng, (3, 7), frm)
    if DTYPES[to].kind == "u":
        x = np.abs(x)
    got = run(
        host("copy"),
        cuda_instances.require("copy", "convert", pair),
        (1,),
        (8,),
        [Out((3, 7), DTYPES[to]), x, table((3, 7), (7, 1), (7, 1)), 21],
    )[0]
    expected = x.astype(np.float32 if frm == "__nv_bfloat16" else x.dtype).astype(DTYPES[to])
    np.testing.assert_array_equal(got.astype(np.float64), expected.astype(np.float64))


@pytest.mark.parametrize("to", ["__half", "__nv_bfloat16"])
def test_half_types_round_to_nearest_even(host: Host, rng: np.random.Generator, to: str) -> None:
    exponents = rng.integers(-28, 17, 4000)
    x = (rng.standard_normal(4000) * 2.0**exponents).astype(np.float32)
    x[:8] = [0.0, -0.0, np.inf, -np.inf, np.nan, 65504.0, 65520.0, 2.0**-25]
    expression = cuda_instances.require("copy", "convert", (to, "float"))
    flat = table((x.size,), (1,), (1,))
    got = run(host("copy"), expression, (4,), (64,), [Out(x.shape, DTYPES[to]), x, flat, x.size])[0]
    with np.errstate(over="ignore"):
        expected = x.astype(DTYPES[to])
    nan = np.isnan(x)
    np.testing.assert_array_equal(got[~nan].view(np.uint16), expected[~nan].view(np.uint16))
    assert np.isnan(got[nan].astype(np.float32)).all()
    expression = cuda_instances.require("copy", "convert", ("float", to))
    back = run(
        host("copy"), expression, (4,), (64,), [Out(x.shape, np.float32), expected, flat, x.size]
    )[0]
    np.testing.assert_array_equal(back, expected.astype(np.float32))


@pytest.mark.parametrize("name", BITS)
def test_fill_writes_the_given_bits_and_nothing_between(host: Host, name: str) -> None:
    value = np.array([3 - 2j]) if name == "Wide" else np.array([251], BITS[name])
    words = np.zeros(2, np.int64)
    words.view(np.uint8)[: value.itemsize] = value.view(np.uint8)
    out = np.zeros((3, 4), BITS[name])
    expression = cuda_instances.require("copy", "fill_bits", (name,))
    args = [out, table((3, 2), (4, 2)), 6, int(words[0]), int(words[1])]
    got = run(host("copy"), expression, (1,), (4,), args)[0]
    assert (got[:, ::2] == value[0]).all()
    assert not got[:, 1::2].any()


@pytest.mark.parametrize("name", BITS)
@pytest.mark.parametrize("shape", [(2, 33, 5), (1, 7, 40), (1, 32, 32)])
def test_transpose_turns_each_matrix_of_a_batch(
    host: Host, rng: np.random.Generator, name: str, shape: tuple[int, int, int]
) -> None:
    batch, rows, columns = shape
    x = bits(rng, (batch, columns, rows), name)
    got = run(
        host("copy"),
        cuda_instances.require("copy", "transpose_bits", (name,)),
        (-(-columns // 32) * -(-rows // 32) * batch,),
        (32, 8),
        [Out(shape, BITS[name]), x, rows, columns, rows * columns, rows],
    )[0]
    np.testing.assert_array_equal(got, x.transpose(0, 2, 1))


# --------------------------------------------------------------------------------------------- join


@pytest.mark.parametrize("name", BITS)
def test_cat_joins_rows_of_pieces_of_any_width(
    host: Host, rng: np.random.Generator, name: str
) -> None:
    pieces = [bits(rng, (3, width), name) for width in (4, 1, 0, 6)]
    total = sum(p.shape[1] for p in pieces)
    cells = np.zeros((3, 64), np.int64)
    cells[0, :4] = [p.ctypes.data for p in pieces]
    cells[1, :4] = [p.shape[1] for p in pieces]
    cells[2, :4] = np.cumsum([0] + [p.shape[1] for p in pieces[:-1]])
    got = run(
        host("join"),
        cuda_instances.require("join", "cat_bits", (name,)),
        (2, 4),
        (4,),
        [Out((3, total), BITS[name]), Struct(cells.ravel()), 3, total],
    )[0]
    np.testing.assert_array_equal(got, np.concatenate(pieces, axis=1))


# ---------------------------------------------------------------------------------------- rearrange


@pytest.mark.parametrize("name", BITS)
@pytest.mark.parametrize("diagonal", [-2, 0, 3])
def test_triangles_equal_numpy(
    host: Host, rng: np.random.Generator, name: str, diagonal: int
) -> None:
    x = bits(rng, (2, 4, 6), name)
    for upper, reference in (("false", np.tril), ("true", np.triu)):
        expression = cuda_instances.require("rearrange", "triangle", (upper, name))
        args = [Out(x.shape, x.dtype), x, 4, 6, diagonal, x.size]
        got = run(host("rearrange"), expression, (2,), (16,), args)[0]
        np.testing.assert_array_equal(got, reference(x, diagonal))
