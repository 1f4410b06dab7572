"""A guard against memory that outlives its use.

Invariants
----------
* The garbage collector runs before both counts, so reference cycles are no leaks.
* What the block itself hands out may live on: say so with `allowed_blocks`.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

from refruntime import alloc


class MemoryLeakError(AssertionError):
    """Blocks of the allocator are in use that were not before."""


@contextlib.contextmanager
def assert_no_leak(allowed_blocks: int = 0) -> Iterator[None]:
    """Raise `MemoryLeakError` if the block leaves more CPU memory in use than it found.

    Parameters
    ----------
    allowed_blocks : int
        How many blocks more may be in use at the end.

    Raises
    ------
    MemoryLeakError
        With the number of blocks and bytes that stayed.
    """
    before = _in_use()
    yield
    after = _in_use()
    blocks, nbytes = after[0] - before[0], after[1] - before[1]
    if blocks > allowed_blocks:
        raise MemoryLeakError(
            f"{blocks} blocks ({nbytes} bytes) are still in use that were not before; "
            f"{allowed_blocks} allowed. Look for tensors kept in globals, closures or hooks."
        )


def _in_use() -> tuple[int, int]:
    gc.collect()
    stats = alloc.host().stats()
    return stats["active.all.current"], stats["allocated_bytes.all.current"]
