"""Free sets: the free blocks of each pool in order, as functions over the blocks table.

State
-----
All of it is in the rows of the blocks table `b` (see `tables`). Free blocks are ordered by stream,
size, age of their segment, and address. A free set is a treap: a binary search tree whose parents
have higher priorities than their children. Priorities are fixed random numbers, so that the depth
is logarithmic in the number of blocks, whatever their keys.

Invariants
----------
* The word at ``root_of(pool)`` names the root of a pool's set; 0 stands for an empty tree.
* A block's key (STREAM, SIZE, AGE, ADDRESS) does not change while it is in a set.
* The shape of a tree follows from its members alone, not from the order of their coming.
"""
# The bodies are compiled by Numba, which infers their types: every value is a 64-bit integer.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from refruntime._native import device_function
from refruntime.alloc.tables import (
    ADDRESS,
    AGE,
    LEFT,
    NEXT,
    POOL,
    PREVIOUS,
    PRIORITY,
    RIGHT,
    SIZE,
    STREAM,
    root_of,
)


@device_function
def precedes(b, k, other):
    """Return whether block `k` comes before `other` in a free set."""
    if b[k + STREAM] != b[other + STREAM]:
        return b[k + STREAM] < b[other + STREAM]
    if b[k + SIZE] != b[other + SIZE]:
        return b[k + SIZE] < b[other + SIZE]
    if b[k + AGE] != b[other + AGE]:
        return b[k + AGE] < b[other + AGE]
    return b[k + ADDRESS] < b[other + ADDRESS]


@device_function
def insert_free(b, k):
    """Put block `k` into its pool's free set.

    Go down to where its priority belongs, then split what is below by its key.
    """
    link = root_of(b[k + POOL])
    node = b[link]
    while node != 0 and b[node + PRIORITY] >= b[k + PRIORITY]:
        link = node + (LEFT if precedes(b, k, node) else RIGHT)
        node = b[link]
    b[link] = k
    before = k + LEFT
    after = k + RIGHT
    while node != 0:
        if precedes(b, node, k):
            b[before] = node
            before = node + RIGHT
            node = b[before]
        else:
            b[after] = node
            after = node + LEFT
            node = b[after]
    b[before] = 0
    b[after] = 0


@device_function
def unlink(b, link):
    """Take the block that the word at `link` names out of its free set, joining its subtrees."""
    k = b[link]
    before = b[k + LEFT]
    after = b[k + RIGHT]
    while before != 0 and after != 0:
        if b[before + PRIORITY] >= b[after + PRIORITY]:
            b[link] = before
            link = before + RIGHT
            before = b[link]
        else:
            b[link] = after
            link = after + LEFT
            after = b[link]
    b[link] = before if before != 0 else after


@device_function
def remove_free(b, k):
    """Take block `k` out of its pool's free set."""
    link = root_of(b[k + POOL])
    while b[link] != k:
        link = b[link] + (LEFT if precedes(b, k, b[link]) else RIGHT)
    unlink(b, link)


@device_function
def best_fit(b, pool, stream, size):
    """Return the place of the word that names the smallest free block that fits, or 0."""
    link = root_of(pool)
    found = 0
    node = b[link]
    while node != 0:
        short = b[node + SIZE] < size if b[node + STREAM] == stream else b[node + STREAM] < stream
        if short:
            link = node + RIGHT
        else:
            found = link
            link = node + LEFT
        node = b[link]
    if found != 0 and b[b[found] + STREAM] != stream:
        return 0
    return found


@device_function
def next_whole(b, pool, k):
    """Return the first block after `k` (0: from the start) that fills its segment, or 0."""
    k = successor(b, pool, k)
    while k != 0 and is_split(b, k):
        k = successor(b, pool, k)
    return k


@device_function
def successor(b, pool, k):
    """Return the block after `k` in a pool's free set (the first one if `k` is 0), or 0."""
    found = 0
    node = b[root_of(pool)]
    while node != 0:
        if k == 0 or precedes(b, k, node):
            found = node
            node = b[node + LEFT]
        else:
            node = b[node + RIGHT]
    return found


@device_function
def is_split(b, k):
    """Return whether block `k` shares its segment with others."""
    return b[k + PREVIOUS] != 0 or b[k + NEXT] != 0
