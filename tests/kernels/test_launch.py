"""Splitting kernels over threads, and the arguments of GPU launches."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

from refruntime.config import config
from refruntime.errors import ArgumentValueError, KernelMissingError, ShapeError
from refruntime.kernels import jit, launch


@pytest.mark.parametrize("total", [0, 1, 63, 64, 65, 1000, 100_003])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_chunks_cover_the_range_once(total, threads):
    hits = np.zeros(total, np.int64)

    def kernel(start, stop):
        hits[start:stop] += 1

    with config.patch(num_threads=threads):
        launch.parallel_for(kernel, total, 10)
    assert (hits == 1).all()


def test_short_range_is_one_call_on_the_callers_thread():
    calls = []
    with config.patch(num_threads=4):
        launch.parallel_for(lambda *args: calls.append((args, threading.get_ident())), 10, 10, "a")
    assert calls == [(("a", 0, 10), threading.get_ident())]


def test_long_range_runs_on_several_threads():
    barrier = threading.Barrier(2, timeout=30)
    seen = set()

    def kernel(start, stop):
        if len(seen) < 2 and threading.get_ident() not in seen:
            seen.add(threading.get_ident())
            barrier.wait()

    with config.patch(num_threads=2):
        launch.parallel_for(kernel, 1000, 10)
    assert len(seen) == 2


def test_largest_status_is_returned():
    with config.patch(num_threads=3):
        status = launch.parallel_for(lambda start, stop: int(start <= 500 < stop), 1000, 10)
    assert status == 1
    assert launch.parallel_for(lambda start, stop: None, 5, 10) == 0


def test_error_of_a_chunk_reaches_the_caller():
    def kernel(start, stop):
        raise KeyError(start)

    with config.patch(num_threads=2), pytest.raises(KeyError):
        launch.parallel_for(kernel, 1000, 10)
    # The pool survives.
    with config.patch(num_threads=2):
        assert launch.parallel_for(lambda start, stop: 0, 1000, 10) == 0


def test_calls_from_several_threads_do_not_block_one_another():
    totals = [0] * 8

    def caller(number):
        def kernel(start, stop):
            totals[number] += stop - start

        for _ in range(20):
            launch.parallel_for(kernel, 500, 50)

    with config.patch(num_threads=1):
        threads = [threading.Thread(target=caller, args=(k,)) for k in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
    assert totals == [20 * 500] * 8


def test_a_kernel_may_start_another():
    inner = []

    def kernel(start, stop):
        launch.parallel_for(lambda a, b: inner.append(b - a), 300, 100)

    with config.patch(num_threads=2):
        launch.parallel_for(kernel, 200, 100)
    assert sum(inner) == 300 * 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_child_of_a_fork_has_threads_of_its_own():
    with config.patch(num_threads=2):
        launch.parallel_for(lambda start, stop: None, 1000, 10)
        child = os.fork()
        if child == 0:
            covered = np.zeros(1000, np.int64)

            def kernel(start, stop):
                covered[start:stop] += 1

            launch.parallel_for(kernel, 1000, 10)
            os._exit(0 if (covered == 1).all() else 1)
        _, status = os.waitpid(child, 0)
    assert status == 0


def test_set_num_threads_refuses_zero():
    before = launch.get_num_threads()
    with pytest.raises(ArgumentValueError, match="num_threads"):
        launch.set_num_threads(0)
    assert launch.get_num_threads() == before


def test_status_becomes_the_error_of_torch():
    launch.raise_status("floor_divide", 0)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        launch.raise_status("floor_divide", launch.DIVISION_BY_ZERO)
    with pytest.raises(RuntimeError, match="floor_divide: the kernel failed with status 7"):
        launch.raise_status("floor_divide", 7)


def test_cover_has_a_thread_for_each_element_up_to_a_limit():
    for count in (1, 256, 257, 10**6):
        (blocks,), (threads,) = launch.cover(count)
        assert blocks * threads >= count > (blocks - 1) * threads
    assert launch.cover(10**12)[0] == (65536,)


def test_table_argument_lays_out_sizes_and_strides():
    table = launch.table_argument((2, 3), [(3, 1), (0, 8)])
    assert table.dtype == np.int64
    assert table.tolist() == [2, 2, 3, *[0] * 14, 3, 1, *[0] * 14, 0, 8, *[0] * 14]
    with pytest.raises(ShapeError, match="at most 16"):
        launch.table_argument((2,) * 17, [])


def test_raw_launches_the_instance_by_its_name_expression(monkeypatch):
    launched = []
    monkeypatch.setattr(
        jit, "compiled_instance",
        lambda file, expression: lambda *args, **kw: launched.append((file, expression, args, kw)),
    )  # fmt: skip
    launch.raw("copy", "convert", ("float", "int"), (2, 1), (256,), [1, 2], 64)
    arguments = ((2, 1), (256,), (1, 2))
    assert launched == [("copy", "convert<float, int>", arguments, {"shared_mem": 64})]
    with pytest.raises(KernelMissingError, match="no GPU kernel"):
        launch.raw("copy", "convert", ("float", "float"), (1,), (1,), [])
