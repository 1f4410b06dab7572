"""Starting kernels: over the runtime's threads on a CPU, over a grid on a GPU.

State
-----
A pool of daemon threads, made when a kernel is first large enough to share, and a queue of jobs. A
job is one kernel call cut into chunks that threads claim from a counter.

Invariants
----------
* The calling thread is itself a worker: it claims chunks like the others, and waits only for chunks
  that another thread is already running. So calls from several threads, or from a worker, cannot
  block one another.
* Chunks cover ``[0, total)`` exactly once, whatever the number of threads.
* After a fork the child starts with no pool and an empty queue.
* Kernels return a status (or None): `parallel_for` returns the largest, `raise_status` turns it
  into the error, here and nowhere else.
"""

from __future__ import annotations

import itertools
import os
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from refruntime.config import config
from refruntime.errors import ShapeError
from refruntime.kernels import cuda_instances, jit

# Status codes of kernels; 0 is success.
DIVISION_BY_ZERO = 1

# More chunks than threads, so that a thread that is slowed down (a busy machine) gets fewer.
_CHUNKS_PER_THREAD = 4
# Chunk borders fall on multiples of this many elements: whole vectors and cache lines.
_CHUNK_ALIGNMENT = 64

Kernel = Callable[..., Any]


class _Job:
    """One kernel call that several threads work on."""

    __slots__ = ("args", "chunk", "chunks", "claimed", "done", "ended", "error", "kernel", "status",
                 "total")  # fmt: skip

    def __init__(
        self, kernel: Kernel, total: int, chunk: int, args: tuple[Any, ...]
    ) -> None:
        self.kernel = kernel
        self.total = total
        self.chunk = chunk
        self.chunks = -(-total // chunk)
        self.args = args
        # `next` on a count is atomic under the interpreter lock.
        self.claimed = itertools.count()
        self.ended = itertools.count(1)
        self.done = threading.Lock()
        self.done.acquire()
        self.status = 0
        self.error: BaseException | None = None

    def work(self) -> None:
        """Claim and run chunks until none is left."""
        kernel, args, chunk = self.kernel, self.args, self.chunk
        while (index := next(self.claimed)) < self.chunks:
            start = index * chunk
            try:
                status = kernel(*args, start, min(start + chunk, self.total))
                if status:
                    self.status = max(self.status, status)
            except BaseException as error:  # carried to the caller, whatever it is
                self.error = error
            if next(self.ended) == self.chunks:
                self.done.release()


class _Pool:
    """The worker threads; they wait on one queue of jobs."""

    def __init__(self) -> None:
        self.jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self.size = 0
        self._lock = threading.Lock()

    def grow(self, size: int) -> None:
        with self._lock:
            for number in range(self.size, size):
                name = f"refruntime-kernel-{number}"
                threading.Thread(target=self._serve, name=name, daemon=True).start()
            self.size = max(self.size, size)

    def _serve(self) -> None:
        jobs = self.jobs
        while True:
            jobs.get().work()


_pool = _Pool()


def _forget_threads() -> None:
    global _pool
    _pool = _Pool()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)


def get_num_threads() -> int:
    """Return how many threads share one large CPU kernel."""
    return config.num_threads


def set_num_threads(count: int) -> None:
    """Set how many threads share one large CPU kernel.

    Raises
    ------
    ArgumentValueError
        If `count` is not positive.
    """
    config.num_threads = count


# Threads that run kernels side by side, and divide the threads of large kernels among themselves.
_sharers = 1


def divide_threads(sharers: int) -> None:
    """Let each of `sharers` threads that run kernels at once use its share of the threads."""
    global _sharers
    _sharers = max(1, sharers)


def parallel_for(kernel: Kernel, total: int, grain: int, *args: Any) -> int:
    """Run ``kernel(*args, start, stop)`` over ``[0, total)`` and return the largest status.

    Parameters
    ----------
    kernel : callable
        Releases the interpreter lock while it runs (every `NativeKernel` does).
    total : int
        Length of the range.
    grain : int
        A range up to this long is not split: the pool is not touched at all.
    *args
        The leading arguments of the kernel.
    """
    threads = config.num_threads
    if total <= grain or threads == 1:
        return kernel(*args, 0, total) or 0
    return _share(kernel, total, grain, args, threads)


def _share(kernel: Kernel, total: int, grain: int, args: tuple[Any, ...], threads: int) -> int:
    threads //= _sharers
    if threads <= 1:
        return kernel(*args, 0, total) or 0
    pieces = min(-(-total // max(grain, 1)), threads * _CHUNKS_PER_THREAD)
    chunk = -(-total // pieces)
    if chunk > _CHUNK_ALIGNMENT:
        chunk += -chunk % _CHUNK_ALIGNMENT
    compile_first = getattr(kernel, "compile", None)
    if compile_first is not None:
        compile_first()
    job = _Job(kernel, total, chunk, args)
    wanted = min(threads, job.chunks) - 1
    if _pool.size < wanted:
        _pool.grow(wanted)
    for _ in range(wanted):
        _pool.jobs.put(job)
    job.work()
    job.done.acquire()
    if job.error is not None:
        raise job.error
    return job.status


def raise_status(op: str, status: int) -> None:
    """Raise the error that a kernel's status stands for; 0 raises nothing."""
    if status == DIVISION_BY_ZERO:
        raise RuntimeError("ZeroDivisionError")
    if status:
        raise RuntimeError(f"{op}: the kernel failed with status {status}")


# ---------------------------------------------------------------------------------------------
# GPU

# As in cuda/common.cuh.
MAX_DIMS = 16

_BLOCK = 256
# Enough blocks to fill any card several times over; the kernels stride over the rest.
_MAX_BLOCKS = 1 << 16


def cover(count: int) -> tuple[tuple[int], tuple[int]]:
    """Return grid and block of a kernel that walks `count` elements with a grid-stride loop."""
    return (min(-(-count // _BLOCK), _MAX_BLOCKS),), (_BLOCK,)


def table_argument(shape: Sequence[int], strides_lists: Sequence[Sequence[int]]) -> Any:
    """Return a ``Table<K>`` of cuda/common.cuh as a kernel argument.

    Parameters
    ----------
    shape : sequence of int
        The iteration space, outermost dimension first.
    strides_lists : sequence of strides
        One entry an operand, in the unit that the kernel expects.

    Raises
    ------
    ShapeError
        For more than 16 dimensions.
    """
    if len(shape) > MAX_DIMS:
        raise ShapeError(
            "launch", expected=f"at most {MAX_DIMS} dimensions that do not merge",
            got=str(len(shape)), remedy="call .contiguous() first",
        )  # fmt: skip
    table = np.zeros(1 + MAX_DIMS * (1 + len(strides_lists)), np.int64)
    table[0] = len(shape)
    for row, numbers in enumerate((shape, *strides_lists)):
        start = 1 + row * MAX_DIMS
        table[start : start + len(numbers)] = numbers
    return table


def raw(
    file: str,
    kernel: str,
    template_args: Sequence[str],
    grid: Sequence[int],
    block: Sequence[int],
    args: Sequence[Any],
    shared: int = 0,
) -> None:
    """Launch a kernel of ``cuda/<file>.cu``.

    Parameters
    ----------
    file, kernel : str
        The file's stem and the name of the kernel template.
    template_args : sequence of str
        Its arguments in CUDA C++ spelling, as `cuda_instances` lists them.
    grid, block : sequence of int
        Up to three extents each.
    args : sequence
        Device addresses and integers as int, floating-point numbers as float, structs as arrays of
        int64 (`table_argument`).
    shared : int
        Bytes of dynamic shared memory.

    Raises
    ------
    KernelMissingError
        If there is no such instance.
    OptionalDependencyError
        If CuPy is missing.
    """
    expression = cuda_instances.require(file, kernel, template_args)
    launcher = jit.compiled_instance(file, expression)
    launcher(tuple(grid), tuple(block), tuple(args), shared_mem=shared)
