"""Free sets: the free blocks of each pool in order, as functions over the blocks table.

State
-----
All of it is in the rows of the blocks table `b` (see `tables`). A set is a treap: a binary search
tree whose parents have higher priorities than their children. Priorities are fixed random numbers,
so that the depth is logarithmic in the number of blocks, whatever their keys. A pool has two: its
free blocks, ordered by stream, size, age of their segment and address; and its unmapped blocks
(addresses without memory, in expandable segments), ordered by stream and address.

Invariants
----------
* The word at ``pool + FREE_ROOT`` (or ``+ UNMAPPED_ROOT``) names a set's root; 0: an empty tree.
* A block's key (STREAM, SIZE, AGE, ADDRESS, STATE) does not change while it is in a set.
* LINK of a block in a set is the place of the word that names it, so that taking it out needs no
  search.
* The shape of a tree follows from its members alone, not from the order of their coming.
"""
# The bodies are compiled by Numba, which infers their types: every value is a 64-bit integer.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from refruntime._native import device_function
from refruntime.alloc.tables import (
    ADDRESS,
    AGE,
    FREE_ROOT,
    INSERTED,
    LEFT,
    LINK,
    NEXT,
    POOL,
    PREVIOUS,
    PRIORITY,
    RIGHT,
    SEARCHES,
    SIZE,
    STATE,
    STREAM,
    UNMAPPED,
    UNMAPPED_ROOT,
)


@device_function
def precedes(b, k, other):
    """Return whether block `k` comes before `other` in their set."""
    if b[k + STREAM] != b[other + STREAM]:
        return b[k + STREAM] < b[other + STREAM]
    if b[k + STATE] == UNMAPPED:
        return b[k + ADDRESS] < b[other + ADDRESS]
    if b[k + SIZE] != b[other + SIZE]:
        return b[k + SIZE] < b[other + SIZE]
    if b[k + AGE] != b[other + AGE]:
        return b[k + AGE] < b[other + AGE]
    return b[k + ADDRESS] < b[other + ADDRESS]


@device_function
def insert_free(b, k):
    """Put block `k` into its pool's free set."""
    pool = b[k + POOL]
    b[k + INSERTED] = b[pool + SEARCHES]
    insert(b, pool + FREE_ROOT, k)


@device_function
def insert_unmapped(b, k):
    """Put block `k` into its pool's set of unmapped blocks."""
    insert(b, b[k + POOL] + UNMAPPED_ROOT, k)


@device_function
def insert(b, link, k):
    """Put block `k` into the set whose root the word at `link` names.

    Go down to where its priority belongs, then split what is below by its key.
    """
    node = b[link]
    while node != 0 and b[node + PRIORITY] >= b[k + PRIORITY]:
        link = node + (LEFT if precedes(b, k, node) else RIGHT)
        node = b[link]
    hang(b, link, k)
    before = k + LEFT
    after = k + RIGHT
    while node != 0:
        if precedes(b, node, k):
            hang(b, before, node)
            before = node + RIGHT
            node = b[before]
        else:
            hang(b, after, node)
            after = node + LEFT
            node = b[after]
    b[before] = 0
    b[after] = 0


@device_function
def unlink(b, link):
    """Take the block that the word at `link` names out of its set, joining its subtrees."""
    k = b[link]
    before = b[k + LEFT]
    after = b[k + RIGHT]
    while before != 0 and after != 0:
        if b[before + PRIORITY] >= b[after + PRIORITY]:
            hang(b, link, before)
            link = before + RIGHT
            before = b[link]
        else:
            hang(b, link, after)
            link = after + LEFT
            after = b[link]
    rest = before if before != 0 else after
    if rest != 0:
        hang(b, link, rest)
    else:
        b[link] = 0


@device_function
def hang(b, link, k):
    """Make the word at `link` name block `k`."""
    b[link] = k
    b[k + LINK] = link


@device_function
def remove_free(b, k):
    """Take block `k` out of its pool's free set."""
    unlink(b, b[k + LINK])


@device_function
def remove_unmapped(b, k):
    """Take block `k` out of its pool's set of unmapped blocks."""
    unlink(b, b[k + LINK])


@device_function
def best_fit(b, pool, stream, size):
    """Return the place of the word that names the smallest free block that fits, or 0."""
    link = pool + FREE_ROOT
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
def last_below(b, pool, stream, size):
    """Return the last free block of a stream that is smaller than `size`, or 0."""
    node = b[pool + FREE_ROOT]
    found = 0
    while node != 0:
        short = b[node + SIZE] < size if b[node + STREAM] == stream else b[node + STREAM] < stream
        if short:
            found = node
            node = b[node + RIGHT]
        else:
            node = b[node + LEFT]
    return found if found != 0 and b[found + STREAM] == stream else 0


@device_function
def successor(b, root, k):
    """Return the block after `k` in a set (the first one if `k` is 0), or 0.

    `k` itself need no longer be in the set, if its key still stands in its row.
    """
    found = 0
    node = b[root]
    while node != 0:
        if k == 0 or precedes(b, k, node):
            found = node
            node = b[node + LEFT]
        else:
            node = b[node + RIGHT]
    return found


@device_function
def predecessor(b, root, k):
    """Return the block before `k` in a set, or 0."""
    found = 0
    node = b[root]
    while node != 0:
        if precedes(b, node, k):
            found = node
            node = b[node + RIGHT]
        else:
            node = b[node + LEFT]
    return found


@device_function
def first_unmapped(b, pool, stream):
    """Return the unmapped block of a stream with the lowest address, or 0."""
    found = 0
    node = b[pool + UNMAPPED_ROOT]
    while node != 0:
        if b[node + STREAM] < stream:
            node = b[node + RIGHT]
        else:
            found = node
            node = b[node + LEFT]
    return found if found != 0 and b[found + STREAM] == stream else 0


@device_function
def is_split(b, k):
    """Return whether block `k` shares its segment with others."""
    return b[k + PREVIOUS] != 0 or b[k + NEXT] != 0
