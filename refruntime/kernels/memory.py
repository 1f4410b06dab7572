"""Element access and index arithmetic of generated kernels, in as few instructions as they need.

State
-----
None.

Invariants
----------
* `fetch` and `put` tell LLVM that what a kernel reads does not overlap what it writes. That holds
  for pointwise kernels, also in place: dispatch excludes partial overlap, and where an operand is
  the output itself, each element is read before it is written, and never again.
* So loops vectorise without run-time overlap checks, in-place calls included.
* `lesser` and `entry` have no branches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from refruntime._native import Intrinsic
from refruntime.kernels import machine
from refruntime.kernels.machine import operand_scope


class _Access(Intrinsic):
    """A load or store with alias scopes; its code depends on this file."""

    def __init__(self, build: Callable[[], Any], twin: Callable[..., Any]) -> None:
        super().__init__(build, twin)

    def sources(self) -> set[str]:
        """Return the files whose change invalidates code that uses this."""
        return super().sources() | {__file__, str(machine.__file__)}


def _build_fetch() -> Any:
    from numba import types as nb
    from numba.extending import intrinsic

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value = builder.load(builder.gep(args[0], [args[1]]))
        value.set_metadata("alias.scope", operand_scope(builder.module))
        return value

    @intrinsic
    def fetch(typingctx: Any, pointer: Any, index: Any) -> Any:
        return pointer.dtype(pointer, nb.int64), codegen

    return fetch


def _build_put() -> Any:
    from numba import types as nb
    from numba.extending import intrinsic

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        store = builder.store(args[2], builder.gep(args[0], [args[1]]))
        store.set_metadata("noalias", operand_scope(builder.module))
        return context.get_dummy_value()

    @intrinsic
    def put(typingctx: Any, pointer: Any, index: Any, value: Any) -> Any:
        return nb.void(pointer, nb.int64, pointer.dtype), codegen

    return put


def _fetch_twin(pointer: Any, index: int) -> Any:
    return pointer[index]


def _put_twin(pointer: Any, index: int, value: Any) -> None:
    pointer[index] = value


fetch = _Access(_build_fetch, _fetch_twin)
put = _Access(_build_put, _put_twin)


def _whole(emit: Callable[..., Any], arity: int) -> Callable[[], Any]:
    """Return the builder of an intrinsic of `arity` int64 arguments."""

    def build() -> Any:
        from numba import types as nb
        from numba.extending import intrinsic

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return emit(builder, *args)

        if arity == 2:

            @intrinsic
            def two(typingctx: Any, a: Any, b: Any) -> Any:
                return nb.int64(nb.int64, nb.int64), codegen

            return two

        @intrinsic
        def four(typingctx: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
            return nb.int64(nb.CPointer(nb.int64), nb.int64, nb.int64, nb.int64), codegen

        return four

    return build


def _emit_lesser(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.icmp_signed("<", a, b), a, b)


def _emit_entry(builder: Any, table: Any, dims: Any, index: Any, otherwise: Any) -> Any:
    present = builder.icmp_signed(">", dims, dims.type(0))
    place = builder.select(present, index, index.type(0))
    return builder.select(present, builder.load(builder.gep(table, [place])), otherwise)


def _entry_twin(table: Any, dims: int, index: int, otherwise: int) -> int:
    return int(table[index]) if dims > 0 else otherwise


lesser = _Access(_whole(_emit_lesser, 2), min)
# entry(table, dims, index, otherwise): a number of an int64 table, if `dims` is above zero.
entry = _Access(_whole(_emit_entry, 4), _entry_twin)
