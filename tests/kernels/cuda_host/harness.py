"""Builds the CUDA kernels as host C++ and runs them on NumPy arrays.

State: built libraries lie in a cache folder under a name that is the hash of everything they are
made from. Invariants: `run` gives a kernel private copies of its arrays with guard bytes around
them, runs it under several orders of threads and blocks with different bytes in the guards, in
output arrays and in shared memory, and requires equal results: a write out of bounds, a result that
depends on memory nobody wrote, and a missing barrier all fail there.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from refruntime.kernels import cuda_instances

HERE = Path(__file__).parent
COMPILER = "g++"
FLAGS = ("-std=c++17", "-O1", "-fPIC", "-shared", "-w", "-U_FORTIFY_SOURCE")
GUARD = 256


class Order(IntEnum):
    """In which order the threads of a block, and the blocks, get their turn."""

    ASCENDING = 0
    DESCENDING = 1
    SHUFFLED = 2


FAILURES = {
    1: "threads of one block diverged at __syncthreads()",
    2: "grid, block or shared memory too large",
}

EPILOGUE = """
static const cuda_host::Entry entries[] = {
%s
};
extern "C" int entry_count() { return sizeof(entries) / sizeof(entries[0]); }
extern "C" const cuda_host::Entry* entry_table() { return entries; }
extern "C" int entry_run(int index, const unsigned int* shape, size_t shared, int order, int fill,
                         void** arguments) {
    const cuda_host::Entry& e = entries[index];
    return cuda_host::run_grid({e.call, e.kernel, arguments}, {shape[0], shape[1], shape[2]},
                               {shape[3], shape[4], shape[5]}, shared, order, fill);
}
"""


class Entry(ctypes.Structure):
    """One row of the library's table of kernels."""

    _fields_ = [
        ("expression", ctypes.c_char_p),
        ("call", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p),
        ("count", ctypes.c_int),
        ("kinds", ctypes.c_char_p),
        ("sizes", ctypes.POINTER(ctypes.c_int)),
    ]


@dataclass(frozen=True)
class Parameter:
    """Kind (``p`` pointer, ``i`` integer, ``f`` floating, ``s`` struct) and size of a parameter."""

    kind: str
    size: int


class HostModule:
    """A .cu file built for the host: launches its instances by name expression."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        self._library.entry_table.restype = ctypes.POINTER(Entry)
        table = self._library.entry_table()
        self._index: dict[str, int] = {}
        self._parameters: dict[str, tuple[Parameter, ...]] = {}
        for i in range(self._library.entry_count()):
            row = table[i]
            name = row.expression.decode()
            self._index[name] = i
            self._parameters[name] = tuple(
                Parameter(kind, row.sizes[k]) for k, kind in enumerate(row.kinds.decode())
            )

    def parameters(self, expression: str) -> tuple[Parameter, ...]:
        return self._parameters[expression]

    def launch(
        self,
        expression: str,
        grid: Sequence[int],
        block: Sequence[int],
        args: Sequence[Any],
        shared: int = 0,
        order: Order = Order.ASCENDING,
        fill: int = 0xFF,
    ) -> None:
        """Run one launch; arguments are what `launch.raw` takes: ints, floats, arrays of int64."""
        cells = [
            _cell(expression, i, parameter, arg)
            for i, (parameter, arg) in enumerate(self._matched(expression, args))
        ]
        pointers = (ctypes.c_void_p * len(cells))(*(ctypes.addressof(cell) for cell in cells))
        shape = (ctypes.c_uint * 6)(*_three(grid), *_three(block))
        status = self._library.entry_run(
            self._index[expression], shape, ctypes.c_size_t(shared), int(order), fill, pointers
        )
        if status:
            raise AssertionError(f"{expression}: {FAILURES[status]}")

    def _matched(self, expression: str, args: Sequence[Any]) -> list[tuple[Parameter, Any]]:
        parameters = self._parameters[expression]
        if len(parameters) != len(args):
            raise TypeError(f"{expression} takes {len(parameters)} arguments, got {len(args)}")
        return list(zip(parameters, args, strict=True))


def _three(shape: Sequence[int]) -> tuple[int, ...]:
    return (*shape, 1, 1, 1)[:3]


def _cell(expression: str, index: int, parameter: Parameter, arg: Any) -> Any:
    """The argument as a C object of the parameter's kind and size."""
    if parameter.kind in "pi" and parameter.size == 8 and type(arg) is int:
        return ctypes.c_longlong(arg)
    if parameter.kind == "f" and parameter.size == 8 and type(arg) is float:
        return ctypes.c_double(arg)
    if parameter.kind == "s" and isinstance(arg, np.ndarray) and arg.nbytes == parameter.size:
        return (ctypes.c_char * arg.nbytes).from_buffer_copy(arg.tobytes())
    given = type(arg).__name__ + (f" of {arg.nbytes} bytes" if isinstance(arg, np.ndarray) else "")
    wanted = f"{parameter.kind}{parameter.size}"
    raise TypeError(f"{expression}: parameter {index} is {wanted}, got {given}")


# ----------------------------------------------------------------------------------------- building


@cache
def compiler_version() -> str:
    return subprocess.run(
        [COMPILER, "--version"], capture_output=True, text=True, check=True
    ).stdout.splitlines()[0]


def build(file: str, folder: Path) -> Path:
    """The shared library of a .cu file, built unless the folder has it already."""
    return build_text(file, cuda_instances.source(file), cuda_instances.expressions(file), folder)


def build_text(stem: str, kernels: str, expressions: Sequence[str], folder: Path) -> Path:
    """The same for any source text."""
    rows = "\n".join(f'    cuda_host::entry("{e}", {e}),' for e in expressions)
    text = f'#include "cuda_host.h"\n{kernels}\n{EPILOGUE % rows}'
    headers = "".join(path.read_text() for path in sorted(HERE.glob("*.h")))
    made_from = "\0".join((text, headers, compiler_version(), *FLAGS))
    stem = f"{stem}-{hashlib.sha256(made_from.encode()).hexdigest()[:16]}"
    library = folder / f"{stem}.so"
    if not library.exists():
        _compile(text, folder / stem, library)
    return library


def _compile(text: str, base: Path, library: Path) -> None:
    # Under names of this process alone, then moved: several test processes may build at once.
    code, unfinished = (base.with_suffix(f".{os.getpid()}{end}") for end in (".cpp", ".so"))
    code.write_text(text)
    command = [COMPILER, *FLAGS, f"-I{HERE}", str(code), "-o", str(unfinished)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{COMPILER} failed on {code.name}:\n{done.stderr[:4000]}")
    code.unlink()
    unfinished.replace(library)


# ------------------------------------------------------------------------------ running with guards


@dataclass
class Out:
    """An array that the kernel must fill entirely: it gets it full of a byte that varies by run."""

    shape: tuple[int, ...]
    dtype: Any


class _Guarded:
    """A copy of an array between two guards."""

    def __init__(self, array: np.ndarray | Out, fill: int) -> None:
        dtype = np.dtype(array.dtype)
        nbytes = int(np.prod(array.shape, dtype=np.int64)) * dtype.itemsize
        self._bytes = np.full(nbytes + 2 * GUARD + 64, fill, np.uint8)
        self._start = GUARD + (-(self._bytes.ctypes.data + GUARD)) % 64
        self._fill = fill
        inside = self._bytes[self._start : self._start + nbytes]
        self.array = inside.view(dtype).reshape(array.shape)
        if isinstance(array, np.ndarray):
            self.array[...] = array

    @property
    def address(self) -> int:
        return int(self._bytes.ctypes.data) + self._start

    def intact(self) -> bool:
        before = self._bytes[: self._start]
        after = self._bytes[self._start + self.array.nbytes :]
        return bool((before == self._fill).all() and (after == self._fill).all())


def run(
    module: HostModule,
    expression: str,
    grid: Sequence[int],
    block: Sequence[int],
    args: Sequence[Any],
    shared: int = 0,
    exact: bool = True,
) -> list[np.ndarray]:
    """Run a launch under every order; returns the arrays among ``args`` as the kernel left them.

    Arrays and `Out` among the arguments become pointers; structs are given as `Struct`. With
    ``exact=False`` (sums by atomics) results may differ between orders and are those of the first.
    """
    first: list[np.ndarray] = []
    for order, fill in zip(Order, (0xFF, 0xA5, 0x5A), strict=True):
        results = _run_once(module, expression, grid, block, args, shared, order, fill)
        if not first:
            first = results
        elif exact:
            for i, (a, b) in enumerate(zip(first, results, strict=True)):
                same = a.tobytes() == b.tobytes()
                assert same, (
                    f"{expression}: array {i} depends on the order of threads or on stray memory"
                )
    return first


def _run_once(
    module: HostModule,
    expression: str,
    grid: Sequence[int],
    block: Sequence[int],
    args: Sequence[Any],
    shared: int,
    order: Order,
    fill: int,
) -> list[np.ndarray]:
    guarded: list[_Guarded] = []
    plain: list[Any] = []
    for arg in args:
        if isinstance(arg, Struct):
            plain.append(arg.array)
        elif isinstance(arg, np.ndarray | Out):
            guarded.append(_Guarded(arg, fill))
            plain.append(guarded[-1].address)
        else:
            plain.append(arg)
    module.launch(expression, grid, block, plain, shared, order, fill)
    for i, g in enumerate(guarded):
        assert g.intact(), f"{expression}: wrote outside array {i}"
    return [g.array for g in guarded]


@dataclass
class Struct:
    """A struct argument (an int64 array passed by value), told apart from an array by pointer."""

    array: np.ndarray


MAX_DIMS = 16


def table(shape: Sequence[int], *strides: Sequence[int]) -> Struct:
    """`Table<K>` of common.cuh: an iteration space and the strides of K operands in it."""
    cells = np.zeros((1 + len(strides), MAX_DIMS), np.int64)
    cells[0, : len(shape)] = shape
    for k, row in enumerate(strides):
        cells[k + 1, : len(shape)] = row
    return Struct(np.concatenate([np.array([len(shape)]), cells.ravel()]))


def strides_of(array: np.ndarray) -> tuple[int, ...]:
    """Strides in elements."""
    return tuple(s // array.itemsize for s in array.strides)
