"""Register tiles: the innermost loops of matrix-like kernels, written as vector code.

State
-----
None. A tile is an LLVM loop over `k` (or over positions) whose accumulators are vectors that stay
in registers; LLVM does not make that shape out of scalar loops by itself. Convolution and attention
are loops around two of them: `OuterTile` and `DotTile`.

Invariants
----------
* `tile_shape` answers for the processor that the code is compiled for; packing and tile agree
  because both ask it.
* A row of the right operand is ``base + offsets[k]``, bytes: so a convolution reads its taps in
  place, and a padded, phase-split image needs no column matrix.
* A tile reads whole vectors: the caller leaves slack behind the last row.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from refruntime._native import Intrinsic

__all__ = [
    "DotTile", "OuterTile", "PadRow", "ShiftRow", "TileShape", "maximum", "minimum", "stack_array",
    "tile_shape",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class TileShape:
    """How many rows, and how many vectors of how many lanes, a tile holds in registers."""

    rows: int
    vectors: int
    lanes: int

    @property
    def columns(self) -> int:
        """Columns of an outer-product tile."""
        return self.vectors * self.lanes


@cache
def _vector_bytes() -> int:
    from llvmlite import binding

    features = binding.get_host_cpu_features()
    if features.get("avx512f"):
        return 64
    return 32 if features.get("avx2") else 16


@cache
def tile_shape(itemsize: int, rows: int | None = None) -> TileShape:
    """Return the shape of the tile for elements of `itemsize` bytes.

    Parameters
    ----------
    itemsize : int
        4 for float32, 8 for float64.
    rows : int, optional
        Ask for this many rows; more vectors then fill the registers.
    """
    size = _vector_bytes()
    lanes = size // itemsize
    if rows == 1:
        return TileShape(1, 8, lanes)
    # AVX2 has 16 vector registers, the others 32: 4 x 3 and 8 x 3 accumulators leave room for the
    # operands.
    return TileShape(4 if size == 32 else 8, 3, lanes)


class _Tile(Intrinsic):
    """An intrinsic with more than one basic block, called with one tuple of int64 and floats.

    Its code depends on this file too.
    """

    def __init__(self, element: str, emit: Callable[..., None], twin: Callable[..., None]) -> None:
        super().__init__(lambda: _intrinsic(element, emit), lambda packed: twin(*packed))
        self.itemsize = 4 if element == "float32" else 8
        self.__name__ = f"{type(self).__name__}_{element}"

    def sources(self) -> set[str]:
        return super().sources() | {__file__}


def _intrinsic(element: str, emit: Callable[..., None]) -> Any:
    from llvmlite import ir
    from numba import types as nb
    from numba.core import cgutils
    from numba.extending import intrinsic

    scalar = ir.FloatType() if element == "float32" else ir.DoubleType()

    def codegen(context: Any, builder: Any, _: Any, args: Any) -> Any:
        emit(_Emitter(builder, scalar), *cgutils.unpack_tuple(builder, args[0]))
        return context.get_dummy_value()

    @intrinsic
    def tile(typingctx: Any, packed: Any) -> Any:
        return nb.void(packed), codegen

    return tile


class _Emitter:
    """A few words of vector IR over one element type; addresses are int64 bytes."""

    def __init__(self, builder: Any, scalar: Any) -> None:
        from llvmlite import ir

        self.ir = ir
        self.builder = builder
        self.scalar = scalar
        self.word = ir.IntType(64)
        self.itemsize = 4 if isinstance(scalar, ir.FloatType) else 8

    def vector(self, lanes: int) -> Any:
        return self.ir.VectorType(self.scalar, lanes)

    def number(self, value: int) -> Any:
        return self.ir.Constant(self.word, value)

    def at(self, address: Any, kind: Any, byte_offset: int = 0) -> Any:
        shifted = self.builder.add(address, self.number(byte_offset))
        return self.builder.inttoptr(shifted, kind.as_pointer())

    def load(self, address: Any, kind: Any, byte_offset: int = 0) -> Any:
        value = self.builder.load(self.at(address, kind, byte_offset))
        value.align = 8 if kind is self.word else self.itemsize
        return value

    def store(self, value: Any, address: Any, byte_offset: int = 0) -> None:
        instruction = self.builder.store(value, self.at(address, value.type, byte_offset))
        instruction.align = self.itemsize

    def word_at(self, table: Any, index: Any) -> Any:
        step = self.builder.mul(index, self.number(8))
        return self.load(self.builder.add(table, step), self.word)

    def splat(self, value: Any, lanes: int) -> Any:
        ir, vector = self.ir, self.ir.VectorType(value.type, lanes)
        undefined = ir.Constant(vector, ir.Undefined)
        single = self.builder.insert_element(undefined, value, ir.Constant(ir.IntType(32), 0))
        mask = ir.Constant(ir.VectorType(ir.IntType(32), lanes), None)
        return self.builder.shuffle_vector(single, undefined, mask)

    def _function(self, name: str, result: Any, args: list[Any]) -> Any:
        from numba.core import cgutils

        kind = self.ir.FunctionType(result, args)
        return cgutils.get_or_insert_function(self.builder.module, kind, name)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        kind = a.type
        name = f"llvm.fma.{self._suffix(kind)}"
        return self.builder.call(self._function(name, kind, [kind] * 3), [a, b, c])

    def total(self, vector: Any) -> Any:
        name = f"llvm.vector.reduce.fadd.{self._suffix(vector.type)}"
        function = self._function(name, self.scalar, [self.scalar, vector.type])
        zero = self.ir.Constant(self.scalar, 0.0)
        return self.builder.call(function, [zero, vector], fastmath=("reassoc",))

    def mask(self, low: Any, high: Any, lanes: int) -> Any:
        """Return the mask of the lanes `i` with ``low <= i < high`` (int64 values)."""
        ir, word = self.ir, self.ir.VectorType(self.word, lanes)
        numbers = ir.Constant(word, [ir.Constant(self.word, i) for i in range(lanes)])
        above = self.builder.icmp_signed(">=", numbers, self.splat(low, lanes))
        below = self.builder.icmp_signed("<", numbers, self.splat(high, lanes))
        return self.builder.and_(above, below)

    def load_masked(self, address: Any, mask: Any) -> Any:
        """Load the lanes of the mask, and zero in the others."""
        ir, vector = self.ir, self.vector(mask.type.count)
        align = ir.IntType(32)
        kinds = [vector.as_pointer(), align, mask.type, vector]
        function = self._function(f"llvm.masked.load.{self._suffix(vector)}.p0", vector, kinds)
        zero = ir.Constant(vector, None)
        args = [self.at(address, vector), ir.Constant(align, self.itemsize), mask, zero]
        return self.builder.call(function, args)

    def store_masked(self, value: Any, address: Any, mask: Any) -> None:
        ir, vector = self.ir, value.type
        align = ir.IntType(32)
        kinds = [vector, vector.as_pointer(), align, mask.type]
        name = f"llvm.masked.store.{self._suffix(vector)}.p0"
        function = self._function(name, ir.VoidType(), kinds)
        args = [value, self.at(address, vector), ir.Constant(align, self.itemsize), mask]
        self.builder.call(function, args)

    def _suffix(self, vector: Any) -> str:
        return f"v{vector.count}f{8 * self.itemsize}"

    def loop(
        self, count: Any, step: int, initial: list[Any], body: Callable[..., list[Any]]
    ) -> list[Any]:
        """Emit ``for i in range(0, count, step)`` (count > 0) carrying values; return the last."""
        builder = self.builder
        before, function = builder.block, builder.function
        block = function.append_basic_block("tile.loop")
        after = function.append_basic_block("tile.done")
        builder.branch(block)
        builder.position_at_end(block)
        index = builder.phi(self.word)
        index.add_incoming(self.number(0), before)
        carried = [builder.phi(value.type) for value in initial]
        for phi, value in zip(carried, initial, strict=True):
            phi.add_incoming(value, before)
        results = body(index, carried)
        following = builder.add(index, self.number(step))
        index.add_incoming(following, builder.block)
        for phi, value in zip(carried, results, strict=True):
            phi.add_incoming(value, builder.block)
        builder.cbranch(builder.icmp_signed("<", following, count), block, after)
        builder.position_at_end(after)
        return results


@cache
def outer_tile(element: str, rows: int | None = None) -> OuterTile:
    """Return the outer-product tile of an element type, always the same object."""
    return OuterTile(element, rows)


class OuterTile(_Tile):
    """``c[m, j] = sum_k a[k, m] * b[k, j]`` for a tile of rows `m` and columns `j`.

    Called as ``tile((a, b, offsets, k, c, c_stride))``, all int64: `a` is packed ``[k][rows]``,
    row `k` of `b` starts at byte ``b + offsets[k]``, and rows of `c` are `c_stride` bytes apart.
    `k` is positive.
    """

    def __init__(self, element: str, rows: int | None = None) -> None:
        super().__init__(element, self._emit, self._twin_loop)
        self._rows = rows
        self.__name__ += f"_{rows}"

    def _emit(self, e: _Emitter, a: Any, b: Any, offsets: Any, k: Any, c: Any, stride: Any) -> None:
        shape = tile_shape(self.itemsize, self._rows)
        vector = e.vector(shape.lanes)
        width = shape.lanes * self.itemsize
        zero = e.ir.Constant(vector, None)

        def step(index: Any, sums: list[Any]) -> list[Any]:
            row = e.builder.add(b, e.word_at(offsets, index))
            right = [e.load(row, vector, v * width) for v in range(shape.vectors)]
            left = e.builder.add(a, e.builder.mul(index, e.number(shape.rows * self.itemsize)))
            results = []
            for m in range(shape.rows):
                factor = e.splat(e.load(left, e.scalar, m * self.itemsize), shape.lanes)
                for v in range(shape.vectors):
                    results.append(e.fma(factor, right[v], sums[m * shape.vectors + v]))
            return results

        sums = e.loop(k, 1, [zero] * (shape.rows * shape.vectors), step)
        for m in range(shape.rows):
            row = e.builder.add(c, e.builder.mul(stride, e.number(m)))
            for v in range(shape.vectors):
                e.store(sums[m * shape.vectors + v], row, v * width)

    def _twin_loop(self, a: int, b: int, offsets: int, k: int, c: int, stride: int) -> None:
        shape, size = tile_shape(self.itemsize, self._rows), self.itemsize
        pointer = ctypes.POINTER(ctypes.c_float if size == 4 else ctypes.c_double)
        left = ctypes.cast(a, pointer)
        table = ctypes.cast(offsets, ctypes.POINTER(ctypes.c_int64))
        for m in range(shape.rows):
            row = ctypes.cast(c + m * stride, pointer)
            for j in range(shape.columns):
                right = (ctypes.cast(b + table[i], pointer)[j] for i in range(k))
                row[j] = sum(left[i * shape.rows + m] * x for i, x in enumerate(right))


class DotTile(_Tile):
    """``c[m, j] += sum_p a[m][p] * b[j][p]`` for a tile of rows `m` of `a` and rows `j` of `b`.

    Called as ``tile((a, a_offsets, b, b_offsets, n, c, c_stride))``: row `m` of `a` starts at byte
    ``a + a_offsets[m]``, and `n` positions are summed, rounded up to whole vectors (what stands
    there must be zero in one of the operands). `n` is positive.
    """

    def __init__(self, element: str, rows: int | None = None) -> None:
        super().__init__(element, self._emit, self._twin_loop)
        self._rows = rows
        self.__name__ += f"_{rows}"

    def _emit(
        self, e: _Emitter, a: Any, a_offsets: Any, b: Any, b_offsets: Any, n: Any, c: Any,
        stride: Any,
    ) -> None:  # fmt: skip
        shape = tile_shape(self.itemsize, self._rows)
        vector = e.vector(shape.lanes)
        zero = e.ir.Constant(vector, None)
        add = e.builder.add
        lefts = [add(a, e.word_at(a_offsets, e.number(m))) for m in range(shape.rows)]
        rights = [add(b, e.word_at(b_offsets, e.number(j))) for j in range(shape.vectors)]

        def step(index: Any, sums: list[Any]) -> list[Any]:
            shift = e.builder.mul(index, e.number(self.itemsize))
            left = [e.load(add(row, shift), vector) for row in lefts]
            right = [e.load(add(row, shift), vector) for row in rights]
            pairs = [(x, y) for x in left for y in right]
            return [e.fma(x, y, s) for (x, y), s in zip(pairs, sums, strict=True)]

        sums = e.loop(n, shape.lanes, [zero] * (shape.rows * shape.vectors), step)
        for m in range(shape.rows):
            row = add(c, e.builder.mul(stride, e.number(m)))
            for j in range(shape.vectors):
                old = e.load(row, e.scalar, j * self.itemsize)
                total = e.total(sums[m * shape.vectors + j])
                e.store(e.builder.fadd(old, total), row, j * self.itemsize)

    def _twin_loop(
        self, a: int, a_offsets: int, b: int, b_offsets: int, n: int, c: int, stride: int
    ) -> None:
        shape, size = tile_shape(self.itemsize, self._rows), self.itemsize
        pointer = ctypes.POINTER(ctypes.c_float if size == 4 else ctypes.c_double)
        words = ctypes.POINTER(ctypes.c_int64)
        starts_a, starts_b = ctypes.cast(a_offsets, words), ctypes.cast(b_offsets, words)
        whole = -(-n // shape.lanes) * shape.lanes
        for m in range(shape.rows):
            left = ctypes.cast(a + starts_a[m], pointer)
            row = ctypes.cast(c + m * stride, pointer)
            for j in range(shape.vectors):
                right = ctypes.cast(b + starts_b[j], pointer)
                row[j] += sum(left[p] * right[p] for p in range(whole))


class PadRow(_Tile):
    """``target[i] = source[first + i]``, and zero where that is outside ``[0, width)``.

    Called as ``tile((target, source, first, width, n))``, int64: `n` (positive) elements are
    written, rounded up to whole vectors.
    """

    def __init__(self, element: str) -> None:
        super().__init__(element, self._emit, self._twin_loop)

    def _emit(
        self, e: _Emitter, target: Any, source: Any, first: Any, width: Any, n: Any
    ) -> None:
        lanes, b = tile_shape(self.itemsize).lanes, e.builder
        size = e.number(self.itemsize)

        def step(index: Any, _: list[Any]) -> list[Any]:
            start = b.add(first, index)
            mask = e.mask(b.neg(start), b.sub(width, start), lanes)
            value = e.load_masked(b.add(source, b.mul(start, size)), mask)
            e.store(value, b.add(target, b.mul(index, size)))
            return []

        e.loop(n, lanes, [], step)

    def _twin_loop(self, target: int, source: int, first: int, width: int, n: int) -> None:
        pointer = ctypes.POINTER(ctypes.c_float if self.itemsize == 4 else ctypes.c_double)
        to, of = ctypes.cast(target, pointer), ctypes.cast(source, pointer)
        lanes = tile_shape(self.itemsize).lanes
        for i in range(-(-n // lanes) * lanes):
            to[i] = of[first + i] if 0 <= first + i < width else 0.0


class ShiftRow(_Tile):
    """``target[i] = source[i] + shift`` for `n` (positive) elements, no more.

    Called as ``tile((target, source, n, shift))``; `shift` is of the element type.
    """

    def __init__(self, element: str) -> None:
        super().__init__(element, self._emit, self._twin_loop)

    def _emit(self, e: _Emitter, target: Any, source: Any, n: Any, shift: Any) -> None:
        lanes, b = tile_shape(self.itemsize).lanes, e.builder
        size = e.number(self.itemsize)
        shifts = e.splat(shift, lanes)

        def step(index: Any, _: list[Any]) -> list[Any]:
            at = b.mul(index, size)
            mask = e.mask(e.number(0), b.sub(n, index), lanes)
            value = b.fadd(e.load_masked(b.add(source, at), mask), shifts)
            e.store_masked(value, b.add(target, at), mask)
            return []

        e.loop(n, lanes, [], step)

    def _twin_loop(self, target: int, source: int, n: int, shift: float) -> None:
        pointer = ctypes.POINTER(ctypes.c_float if self.itemsize == 4 else ctypes.c_double)
        to, of = ctypes.cast(target, pointer), ctypes.cast(source, pointer)
        for i in range(n):
            to[i] = of[i] + shift


@cache
def stack_array(element: str, size: int) -> Intrinsic:
    """Return an intrinsic that gives a pointer to `size` elements in the caller's frame.

    Called with no arguments, once, at the top of a kernel body; the memory is not set.
    """

    def build() -> Any:
        from numba import types as nb
        from numba.core import cgutils
        from numba.extending import intrinsic

        kind = nb.CPointer(getattr(nb, element))

        @intrinsic
        def stack(typingctx: Any) -> Any:
            def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
                value = context.get_data_type(getattr(nb, element))
                return cgutils.alloca_once(builder, value, size=size)

            return kind(), codegen

        return stack

    c_type: dict[str, Any] = {
        "float32": ctypes.c_float, "float64": ctypes.c_double, "int64": ctypes.c_int64,
    }  # fmt: skip
    return _Framed(f"stack_{element}_{size}", build, lambda: (c_type[element] * size)())


class _Framed(Intrinsic):
    """An intrinsic of this file, with the name that variants of templates are told apart by."""

    def __init__(self, name: str, build: Callable[[], Any], twin: Callable[..., Any]) -> None:
        super().__init__(build, twin)
        self.__name__ = name

    def sources(self) -> set[str]:
        return super().sources() | {__file__}


def _extreme(name: str, twin: Callable[[Any, Any], Any]) -> Intrinsic:
    """Make the NaN-propagating maximum or minimum of two floats, which vectorises in reductions."""

    def build() -> Any:
        from llvmlite import ir
        from numba.core import cgutils
        from numba.extending import intrinsic

        @intrinsic
        def extreme(typingctx: Any, a: Any, b: Any) -> Any:
            def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
                kind = args[0].type
                suffix = "f32" if isinstance(kind, ir.FloatType) else "f64"
                signature = ir.FunctionType(kind, [kind, kind])
                function = cgutils.get_or_insert_function(
                    builder.module, signature, f"llvm.{name}.{suffix}"
                )
                return builder.call(function, args, fastmath=("nsz",))

            return a(a, a), codegen

        return extreme

    return _Framed(name, build, twin)


def _twin_maximum(a: float, b: float) -> float:
    return a if a != a or a > b else b


def _twin_minimum(a: float, b: float) -> float:
    return a if a != a or a < b else b


maximum = _extreme("maximum", _twin_maximum)
minimum = _extreme("minimum", _twin_minimum)
