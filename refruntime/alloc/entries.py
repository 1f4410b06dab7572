"""The compiled entry points of the core: each takes the header's address and runs one rule.

State
-----
None. The kernels are compiled, or loaded from the disk cache, when an allocator has been called
often enough to gain from it.

Invariants
----------
* An entry keeps the interpreter lock, so it is atomic among Python threads.
* A ``fast_`` entry touches nothing while the gate is not zero; a ``held_`` entry is for callers
  that hold the allocator's lock.
"""
# The bodies are compiled by Numba, which infers their types.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from refruntime._native import native, ptr_i64
from refruntime.alloc.core import GATED, give, retag, take
from refruntime.alloc.tables import BLOCKS, GATE, INDEX


@native("int64(int64, int64, int64, int64)", gil=True)
def fast_take(header, nbytes, stream, category):
    """Serve a request from the cache, unless gated."""
    h = ptr_i64(header)
    if h[GATE] != 0:
        return GATED
    return take(h, ptr_i64(h[BLOCKS]), ptr_i64(h[INDEX]), nbytes, stream, category)


@native("int64(int64, int64)", gil=True)
def fast_give(header, address):
    """Free a block, unless gated."""
    h = ptr_i64(header)
    if h[GATE] != 0:
        return GATED
    return give(h, ptr_i64(h[BLOCKS]), ptr_i64(h[INDEX]), address)


@native("int64(int64, int64, int64)", gil=True)
def fast_retag(header, address, category):
    """Move a block to another category, unless gated."""
    h = ptr_i64(header)
    if h[GATE] != 0:
        return GATED
    return retag(h, ptr_i64(h[BLOCKS]), ptr_i64(h[INDEX]), address, category)


@native("int64(int64, int64, int64, int64)", gil=True)
def held_take(header, nbytes, stream, category):
    """Serve a request from the cache; the caller holds the lock."""
    h = ptr_i64(header)
    return take(h, ptr_i64(h[BLOCKS]), ptr_i64(h[INDEX]), nbytes, stream, category)


@native("int64(int64, int64)", gil=True)
def held_give(header, address):
    """Free a block; the caller holds the lock."""
    h = ptr_i64(header)
    return give(h, ptr_i64(h[BLOCKS]), ptr_i64(h[INDEX]), address)
