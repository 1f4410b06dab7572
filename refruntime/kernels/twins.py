"""Three GPU kernels in Python: readable twins of pointwise.cuh, reduce.cu and a tiled matmul.

The runtime does not launch them. They show, in numba.cuda's dialect, the three patterns that the
CUDA C++ kernels are made of, and run in numba's simulator without a card: there a thread is a
Python function, every line can be printed, and an index out of bounds is an IndexError.

1. A grid-stride loop: any number of threads covers any number of elements.
2. A tree in shared memory: the threads of a block halve their number at each step, with a barrier
   between steps, and the order of additions depends on the block alone.
3. Tiles in shared memory: each element of a tile is read from far memory once and used by a whole
   row or column of threads.

State
-----
``cuda``, the module numba.cuda: None until a kernel is first compiled, so that importing this
module imports nothing. It is a global because the simulator replaces it in the kernels' globals.

Invariants
----------
* Every thread of a block reaches every barrier.
* Arrays are one- or two-dimensional and contiguous.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from refruntime.kernels import jit

Array = np.ndarray[Any, Any]
# Threads of a block, and side of a tile: constants, for they size shared memory.
THREADS = 32
TILE = 4

cuda: Any = None


@cache
def compiled(kernel: Callable[..., None]) -> Any:
    """Return a kernel ready to be launched: ``compiled(add)[grid, block](out, a, b)``."""
    global cuda
    cuda = jit.numba_cuda()
    return cuda.jit(kernel)


def add(out, a, b):  # type: ignore[no-untyped-def]
    """``out = a + b``, with any grid and block."""
    for i in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        out[i] = a[i] + b[i]


def sum_rows(out, x):  # type: ignore[no-untyped-def]
    """Sum each row of a matrix with one block of `THREADS` threads."""
    cells = cuda.shared.array(THREADS, np.float32)
    row = cuda.blockIdx.x
    thread = cuda.threadIdx.x
    total = np.float32(0)
    for j in range(thread, x.shape[1], THREADS):
        total += x[row, j]
    cells[thread] = total
    cuda.syncthreads()
    half = THREADS // 2
    while half > 0:
        if thread < half:
            cells[thread] += cells[thread + half]
        cuda.syncthreads()
        half //= 2
    if thread == 0:
        out[row] = cells[0]


def matmul(out, a, b):  # type: ignore[no-untyped-def]
    """``out = a @ b`` with blocks of ``(TILE, TILE)`` threads, one block a tile of the result."""
    a_tile = cuda.shared.array((TILE, TILE), np.float32)
    b_tile = cuda.shared.array((TILE, TILE), np.float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row = cuda.blockIdx.y * TILE + y
    column = cuda.blockIdx.x * TILE + x
    depth = a.shape[1]
    total = np.float32(0)
    for start in range(0, depth, TILE):
        # Outside the matrices a tile is zero, so that no thread has to leave the loop early.
        a_tile[y, x] = 0
        b_tile[y, x] = 0
        if row < a.shape[0] and start + x < depth:
            a_tile[y, x] = a[row, start + x]
        if column < b.shape[1] and start + y < depth:
            b_tile[y, x] = b[start + y, column]
        cuda.syncthreads()
        for k in range(TILE):
            total += a_tile[y, k] * b_tile[k, x]
        cuda.syncthreads()
    if row < out.shape[0] and column < out.shape[1]:
        out[row, column] = total


def add_twin(out: Array, a: Array, b: Array) -> None:
    """Add two vectors."""
    compiled(add)[2, THREADS](out, a, b)


def sum_rows_twin(out: Array, x: Array) -> None:
    """Sum the rows of a float32 matrix."""
    compiled(sum_rows)[x.shape[0], THREADS](out, x)


def matmul_twin(out: Array, a: Array, b: Array) -> None:
    """Multiply two float32 matrices."""
    grid = (-(-out.shape[1] // TILE), -(-out.shape[0] // TILE))
    compiled(matmul)[grid, (TILE, TILE)](out, a, b)
