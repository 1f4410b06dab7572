"""Element access of generated kernels: loads that no store of the same kernel may disturb.

State
-----
None.

Invariants
----------
* `fetch` and `put` tell LLVM that what a kernel reads does not overlap what it writes. That holds
  for pointwise kernels, also in place: dispatch excludes partial overlap, and where an operand is
  the output itself, each element is read before it is written, and never again.
* So loops vectorise without run-time overlap checks, in-place calls included.
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
