"""Walking the rows of a strided iteration space, as intrinsics of generated kernels.

A stride table is int64 ``[ndim, sizes..., byte strides of each operand]``, outermost dimension
first. A row is what the innermost dimension spans. A kernel keeps *cells*: the address of the row
of each operand, then the position in each outer dimension::

    cells = cells_of((out_0_address, in_0_address))
    column = begin(table, cells, 2, start)      # 2 operands; element `start` is in this column
    ... the row at cells[0], cells[1] ...
    advance(table, cells, 2)                    # to the next row

State
-----
None outside the cells, which live on the stack of the kernel.

Invariants
----------
* `begin` divides, `advance` never does: on average it touches one dimension.
* They are LLVM code with loops of their own: as Python statements the same arithmetic would take
  Numba longer to compile than the rest of a kernel.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from refruntime._native import Intrinsic

# Dimensions that the cells have room for; PyTorch allows 64.
MAX_DIMS = 64


class _Step(Intrinsic):
    """An intrinsic whose code depends on this file."""

    def sources(self) -> set[str]:
        """Return the files whose change invalidates code that uses this."""
        return super().sources() | {__file__}


class _Words:
    """Loads, stores and arithmetic on int64 words, over an llvmlite builder."""

    def __init__(self, builder: Any) -> None:
        from llvmlite import ir

        self.builder = builder
        self.word = ir.IntType(64)
        self.ir = ir

    def number(self, value: int) -> Any:
        return self.ir.Constant(self.word, value)

    def load(self, pointer: Any, index: Any) -> Any:
        return self.builder.load(self.builder.gep(pointer, [index]))

    def store(self, pointer: Any, index: Any, value: Any) -> None:
        self.builder.store(value, self.builder.gep(pointer, [index]))

    def shift(self, cells: Any, table: Any, dim: Any, count: int, by: Callable[[Any], Any]) -> None:
        """Move the address of each operand by ``by(its stride along dim)``."""
        b = self.builder
        ndim = self.load(table, self.number(0))
        place = b.add(dim, self.number(1))
        for k in range(count):
            place = b.add(place, ndim)
            cell = self.number(k)
            stride = self.load(table, place)
            self.store(cells, cell, b.add(self.load(cells, cell), by(stride)))

    def downwards(self, first: Any, body: Callable[[Any], Any]) -> None:
        """Emit ``for d in first, first - 1, ..., 0``; `body` gives a condition to stop, or None."""
        b, zero = self.builder, self.number(0)
        before = b.block
        head, inside, done = (b.append_basic_block(f"dims.{n}") for n in ("head", "in", "end"))
        b.branch(head)
        b.position_at_end(head)
        dim = b.phi(self.word)
        dim.add_incoming(first, before)
        b.cbranch(b.icmp_signed(">=", dim, zero), inside, done)
        b.position_at_end(inside)
        stop = body(dim)
        dim.add_incoming(b.sub(dim, self.number(1)), b.block)
        if stop is None:
            b.branch(head)
        else:
            b.cbranch(stop, done, head)
        b.position_at_end(done)

    def columns(self, table: Any) -> Any:
        """Return the length of a row: 1 without dimensions."""
        ndim = self.load(table, self.number(0))
        none = self.builder.icmp_signed("==", ndim, self.number(0))
        return self.builder.select(none, self.number(1), self.load(table, ndim))

    def outer(self, table: Any) -> Any:
        """Return the number of the second innermost dimension; below zero if there is none."""
        return self.builder.sub(self.load(table, self.number(0)), self.number(2))


def _build_cells() -> Any:
    from numba import types as nb
    from numba.core import cgutils
    from numba.extending import intrinsic

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        words = _Words(builder)
        addresses = cgutils.unpack_tuple(builder, args[0])
        cells = cgutils.alloca_once(builder, words.word, size=len(addresses) + MAX_DIMS)
        for k, address in enumerate(addresses):
            words.store(cells, words.number(k), address)
        return cells

    @intrinsic
    def cells_of(typingctx: Any, addresses: Any) -> Any:
        return nb.CPointer(nb.int64)(addresses), codegen

    return cells_of


def _emit_begin(words: _Words, table: Any, cells: Any, count: int, index: Any) -> Any:
    from numba.core import cgutils

    b = words.builder
    columns = words.columns(table)
    row = b.udiv(index, columns)
    line = cgutils.alloca_once_value(b, row)

    def locate(dim: Any) -> None:
        size = words.load(table, b.add(dim, words.number(1)))
        above = b.udiv(b.load(line), size)
        position = b.sub(b.load(line), b.mul(above, size))
        b.store(above, line)
        words.store(cells, b.add(dim, words.number(count)), position)
        words.shift(cells, table, dim, count, lambda stride: b.mul(position, stride))

    words.downwards(words.outer(table), locate)
    return b.sub(index, b.mul(row, columns))


def _emit_advance(words: _Words, table: Any, cells: Any, count: int) -> Any:
    b, one = words.builder, words.number(1)

    def turn(dim: Any) -> Any:
        size = words.load(table, b.add(dim, one))
        cell = b.add(dim, words.number(count))
        following = b.add(words.load(cells, cell), one)
        wraps = b.icmp_signed("==", following, size)
        words.store(cells, cell, b.select(wraps, words.number(0), following))
        # One step on, or back from the last position to the first.
        steps = b.select(wraps, b.sub(one, size), one)
        words.shift(cells, table, dim, count, lambda stride: b.mul(steps, stride))
        return b.not_(wraps)

    words.downwards(words.outer(table), turn)
    return one


def _stepper(emit: Callable[..., Any], extra: int) -> Callable[[], Any]:
    """Return the builder of ``f(table, cells, count, ...)`` with `extra` more int64 arguments."""

    def build() -> Any:
        from numba import types as nb
        from numba.extending import intrinsic

        pointer = nb.CPointer(nb.int64)

        @intrinsic(prefer_literal=True)
        def begin(typingctx: Any, table: Any, cells: Any, count: Any, index: Any) -> Any:
            def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
                return emit(_Words(builder), args[0], args[1], count.literal_value, args[3])

            return nb.int64(pointer, pointer, count, nb.int64), codegen

        @intrinsic(prefer_literal=True)
        def advance(typingctx: Any, table: Any, cells: Any, count: Any) -> Any:
            def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
                return emit(_Words(builder), args[0], args[1], count.literal_value)

            return nb.int64(pointer, pointer, count), codegen

        return begin if extra else advance

    return build


# ---------------------------------------------------------------------------------------------
# The same in Python


def _cells_twin(addresses: tuple[int, ...]) -> Any:
    return (ctypes.c_int64 * (len(addresses) + MAX_DIMS))(*addresses)


def _shift(table: Any, cells: Any, count: int, dim: int, steps: int) -> None:
    for k in range(count):
        cells[k] += steps * table[1 + table[0] * (k + 1) + dim]


def _begin_twin(table: Any, cells: Any, count: int, index: int) -> int:
    ndim = table[0]
    line, column = divmod(index, table[ndim] if ndim else 1)
    for dim in range(ndim - 2, -1, -1):
        line, position = divmod(line, table[1 + dim])
        cells[count + dim] = position
        _shift(table, cells, count, dim, position)
    return column


def _advance_twin(table: Any, cells: Any, count: int) -> int:
    for dim in range(table[0] - 2, -1, -1):
        following = cells[count + dim] + 1
        wraps = following == table[1 + dim]
        cells[count + dim] = 0 if wraps else following
        _shift(table, cells, count, dim, 1 - following if wraps else 1)
        if not wraps:
            break
    return 1


cells_of = _Step(_build_cells, _cells_twin)
begin = _Step(_stepper(_emit_begin, 1), _begin_twin)
advance = _Step(_stepper(_emit_advance, 0), _advance_twin)
