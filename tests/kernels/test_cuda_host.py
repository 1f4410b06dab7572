"""The host harness itself: it runs kernels as CUDA would, and notices what would go wrong."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from refruntime.errors import KernelMissingError
from refruntime.kernels import cuda_instances
from tests.kernels.cuda_host import harness
from tests.kernels.cuda_host.harness import HostModule, Order, Out, Struct, run

KERNELS = """
typedef long long index_t;

__global__ void where_am_i(index_t* out) {
    index_t block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    index_t thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    out[block * (blockDim.x * blockDim.y * blockDim.z) + thread] = block * 1000 + thread;
}

template <bool BARRIER> __global__ void turn(index_t* out) {
    __shared__ index_t cells[64];
    cells[threadIdx.x] = threadIdx.x;
    if (BARRIER) __syncthreads();
    out[threadIdx.x] = cells[blockDim.x - 1 - threadIdx.x];
}

__global__ void past_the_end(index_t* out, index_t n) { out[n] = 1; }

__global__ void half_written(index_t* out) { if (threadIdx.x % 2) out[threadIdx.x] = 1; }

__global__ void unset_shared(unsigned char* out) {
    out[threadIdx.x] = cuda_host::dynamic_shared[threadIdx.x];
}

__global__ void leaves_early(index_t* out) {
    if (threadIdx.x == 0) return;
    __syncthreads();
    out[threadIdx.x] = 1;
}

__global__ void count(index_t* out) { atomicAdd(out, index_t(1)); }

template <bool RETRY> __global__ void count_by_swaps(index_t* out) {
    index_t seen = *out, expected;
    do {
        expected = seen;
        seen = atomicCAS(out, expected, expected + 1);
    } while (RETRY && seen != expected);
}

struct Pair { index_t first, second; };
__global__ void scalars(double* out, index_t i, double x, const Pair pair) {
    out[0] = i, out[1] = x, out[2] = pair.first, out[3] = pair.second;
}
"""
EXPRESSIONS = (
    "where_am_i", "turn<true>", "turn<false>", "past_the_end", "half_written", "unset_shared",
    "leaves_early", "count", "count_by_swaps<true>", "count_by_swaps<false>", "scalars",
)  # fmt: skip


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> HostModule:
    if shutil.which(harness.COMPILER) is None:
        pytest.skip(f"{harness.COMPILER} is not installed")
    folder: Path = tmp_path_factory.mktemp("harness")
    return HostModule(harness.build_text("harness", KERNELS, EXPRESSIONS, folder))


def test_every_thread_of_every_block_runs_once(module: HostModule) -> None:
    got = run(module, "where_am_i", (3, 2, 2), (4, 3, 2), [Out((12, 24), np.int64)])[0]
    np.testing.assert_array_equal(got, np.arange(12)[:, None] * 1000 + np.arange(24))


def test_a_barrier_separates_writes_from_reads(module: HostModule) -> None:
    got = run(module, "turn<true>", (1,), (64,), [Out((64,), np.int64)])[0]
    np.testing.assert_array_equal(got, np.arange(64)[::-1])


def test_a_missing_barrier_is_noticed(module: HostModule) -> None:
    with pytest.raises(AssertionError, match="order of threads"):
        run(module, "turn<false>", (1,), (64,), [Out((64,), np.int64)])


@pytest.mark.parametrize("at", [4, -1])
def test_a_write_outside_an_array_is_noticed(module: HostModule, at: int) -> None:
    with pytest.raises(AssertionError, match="wrote outside"):
        run(module, "past_the_end", (1,), (1,), [np.zeros(4, np.int64), at])


def test_an_output_left_unwritten_is_noticed(module: HostModule) -> None:
    with pytest.raises(AssertionError, match="stray memory"):
        run(module, "half_written", (1,), (8,), [Out((8,), np.int64)])


def test_reading_shared_memory_before_writing_it_is_noticed(module: HostModule) -> None:
    with pytest.raises(AssertionError, match="stray memory"):
        run(module, "unset_shared", (1,), (8,), [Out((8,), np.uint8)], shared=8)


def test_a_thread_that_leaves_before_a_barrier_is_noticed_and_leaves_no_trace(
    module: HostModule,
) -> None:
    out = np.zeros(4, np.int64)
    for order in Order:
        with pytest.raises(AssertionError, match="diverged"):
            module.launch("leaves_early", (1,), (4,), [out.ctypes.data], order=order)
    got = run(module, "turn<true>", (1,), (8,), [Out((8,), np.int64)])[0]
    np.testing.assert_array_equal(got, np.arange(8)[::-1])


def test_atomics_count_every_thread(module: HostModule) -> None:
    assert run(module, "count", (5,), (7,), [np.zeros(1, np.int64)])[0][0] == 35


TWICE = """
#include "common.cuh"

__global__ void combine_twice(index_t* out) {
    index_t* cells = shared_memory<index_t>();
    index_t sum = combine_y<Plus<index_t>>(index_t(threadIdx.y), cells);
    out[threadIdx.y] = combine_y<Plus<index_t>>(sum + 1 + threadIdx.y, cells);
}
"""


def test_a_block_combines_again_in_the_same_cells(tmp_path: Path) -> None:
    if shutil.which(harness.COMPILER) is None:
        pytest.skip(f"{harness.COMPILER} is not installed")
    text = cuda_instances.expand(TWICE)
    built = HostModule(harness.build_text("twice", text, ("combine_twice",), tmp_path))
    got = run(built, "combine_twice", (1,), (1, 8), [Out((8,), np.int64)], shared=8 * 8)[0]
    assert got.tolist() == [8 * 29 + 28] * 8


def test_a_swap_fails_when_another_thread_was_faster(module: HostModule) -> None:
    got = run(module, "count_by_swaps<true>", (3,), (8,), [np.zeros(1, np.int64)])[0]
    assert got[0] == 24
    got = run(module, "count_by_swaps<false>", (3,), (8,), [np.zeros(1, np.int64)])[0]
    assert got[0] == 3


def test_scalars_and_structs_arrive_by_value(module: HostModule) -> None:
    pair = Struct(np.array([7, -8], np.int64))
    got = run(module, "scalars", (1,), (1,), [Out((4,), np.float64), -5, 0.5, pair])[0]
    assert got.tolist() == [-5.0, 0.5, 7.0, -8.0]


def test_arguments_of_the_wrong_kind_or_number_are_refused(module: HostModule) -> None:
    out, pair = np.zeros(4), np.zeros(2, np.int64)
    for args in ([0.5, 5, 0.5, pair], [1, 0.5, 0.5, pair], [1, 1, 1, pair], [1, 1, 0.5, out]):
        with pytest.raises(TypeError, match="parameter"):
            module.launch("scalars", (1,), (1,), args)
    with pytest.raises(TypeError, match="takes 4 arguments"):
        module.launch("scalars", (1,), (1,), [1, 1, 0.5])


def test_a_block_that_no_card_would_run_is_refused(module: HostModule) -> None:
    with pytest.raises(AssertionError, match="too large"):
        module.launch("count", (1,), (1025,), [0])
    with pytest.raises(AssertionError, match="too large"):
        module.launch("count", (1, 65536), (1,), [0])
    with pytest.raises(AssertionError, match="too large"):
        module.launch("count", (1,), (1,), [0], shared=49153)


def test_kernels_take_pointers_long_longs_doubles_and_structs_only(
    host: Callable[[str], HostModule],
) -> None:
    for file in cuda_instances.files():
        for expression in cuda_instances.expressions(file):
            for parameter in host(file).parameters(expression):
                assert parameter.kind in "pifs"
                assert parameter.size % 8 == 0, f"{expression} takes a short scalar"


def test_an_instance_that_is_not_in_the_table_is_refused() -> None:
    with pytest.raises(KernelMissingError, match="float8"):
        cuda_instances.require("softmax", "softmax_forward", ("false", "float8"))
    with pytest.raises(KernelMissingError):
        cuda_instances.require("nothing", "softmax_forward", ("false", "float"))


def test_every_kernel_file_is_in_the_table() -> None:
    stems = {path.stem for path in cuda_instances.FOLDER.glob("*.cu")}
    assert stems == set(cuda_instances.files())


def test_source_has_each_own_header_once_and_no_own_include_left() -> None:
    text = cuda_instances.source("reduce")
    assert '#include "' not in text
    assert text.count("struct Table {") == 1
