"""Small maps whose order of iteration is that of PyTorch's hash tables.

State
-----
A map is a run of words of the header `h` from `m` on: how many keys it has, how many buckets, how
far a key may lie from its own bucket; then four words an entry: distance from its bucket + 1 (0:
the entry is empty), key, and two words of payload.

Invariants
----------
* Robin Hood hashing with linear probing, Fibonacci hashing of the key, at most half full, growth by
  doubling from 4 buckets: what PyTorch's ``ska::flat_hash_map`` does, because the order in which
  PyTorch records and queries the events of several streams is the order of such a map.
* A map that has reached its size limit gets fuller instead of growing, and lets keys lie farther
  from their buckets: only the order then differs.
"""
# The bodies are compiled by Numba, which infers their types: every value is a 64-bit integer.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Final

from refruntime._native import device_function

COUNT: Final = 0
BUCKETS: Final = 1
MAX_DISTANCE: Final = 2
LIMIT_BUCKETS: Final = 3  # set once, by the owner of the map
FIRST_ENTRY: Final = 8
DISTANCE: Final = 0
KEY: Final = 1
HEAD: Final = 2
TAIL: Final = 3
ENTRY: Final = 4
EXTRA_ENTRIES: Final = 16  # behind the last bucket, for keys that lie far from their own


def words_of_map(limit: int) -> int:
    """Return how many words a map takes that may grow to `limit` buckets."""
    return FIRST_ENTRY + ENTRY * (2 * limit + EXTRA_ENTRIES)


# 2**64 divided by the golden ratio, as a signed word.
_FIBONACCI: Final = 11400714819323198485 - (1 << 64)
_FIRST_BUCKETS: Final = 4


@device_function
def entry_at(m, i):
    """Return the place of entry `i` of the map at `m`."""
    return m + FIRST_ENTRY + ENTRY * i


@device_function
def entry_number(m, entry):
    """Return the number of the entry at a place of the map at `m`."""
    return (entry - m - FIRST_ENTRY) // ENTRY


@device_function
def log2(n):
    """Return the logarithm of a power of two."""
    result = 0
    while n > 1:
        n >>= 1
        result += 1
    return result


@device_function
def own_bucket(buckets, key):
    """Return the bucket of a key: the top bits of its product with the Fibonacci number."""
    return ((key * _FIBONACCI) >> (64 - log2(buckets))) & (buckets - 1)


@device_function
def end_entry(h, m):
    """Return the number of entries that iteration looks at."""
    return h[m + BUCKETS] + EXTRA_ENTRIES - 1 if h[m + BUCKETS] > 0 else 0


@device_function
def next_entry(h, m, i):
    """Return the number of the first entry in use from `i` on, or -1."""
    end = end_entry(h, m)
    while i < end:
        if h[entry_at(m, i) + DISTANCE] != 0:
            return i
        i += 1
    return -1


@device_function
def lookup(h, m, key):
    """Return the place of a key's entry, or 0."""
    if h[m + COUNT] == 0:
        return 0
    i = own_bucket(h[m + BUCKETS], key)
    distance = 1
    while h[entry_at(m, i) + DISTANCE] >= distance:
        if h[entry_at(m, i) + KEY] == key:
            return entry_at(m, i)
        i += 1
        distance += 1
    return 0


@device_function
def lookup_pair(h, m, key, head):
    """Return the place of the entry with this key and this first word of payload, or 0.

    For maps in which things that hash alike are told apart by their payload.
    """
    i = own_bucket(h[m + BUCKETS], key) if h[m + COUNT] > 0 else 0
    distance = 1
    while h[m + COUNT] > 0 and h[entry_at(m, i) + DISTANCE] >= distance:
        if h[entry_at(m, i) + KEY] == key and h[entry_at(m, i) + HEAD] == head:
            return entry_at(m, i)
        i += 1
        distance += 1
    return 0


@device_function
def put(h, m, key, head, tail):
    """Enter a new key; return whether there was room for it."""
    if h[m + COUNT] + 1 >= h[m + LIMIT_BUCKETS]:
        return False
    if 2 * (h[m + COUNT] + 1) > h[m + BUCKETS] and h[m + BUCKETS] < h[m + LIMIT_BUCKETS]:
        grow_map(h, m)
    while h[m + BUCKETS] < h[m + LIMIT_BUCKETS]:
        if place(h, m, key, head, tail):
            return True
        grow_map(h, m)
    return reaches(h, m, key) and place(h, m, key, head, tail)


@device_function
def place(h, m, key, head, tail):
    """Enter a key without growing; return false if it, or one that it displaces, gets too far away.

    In that case the map must grow at once. The displaced key then stands where the new one would
    have stood: PyTorch's table leaves it there too, and the order in which growth enters the keys
    anew follows from it.
    """
    i = own_bucket(h[m + BUCKETS], key)
    distance = 1
    while h[entry_at(m, i) + DISTANCE] >= distance:
        i += 1
        distance += 1
    if distance > h[m + MAX_DISTANCE]:
        return False
    first = entry_at(m, i)
    e = first
    while h[e + DISTANCE] != 0:
        if h[e + DISTANCE] < distance:
            distance, h[e + DISTANCE] = h[e + DISTANCE], distance
            key, h[e + KEY] = h[e + KEY], key
            head, h[e + HEAD] = h[e + HEAD], head
            tail, h[e + TAIL] = h[e + TAIL], tail
        elif distance == h[m + MAX_DISTANCE]:
            fill(h, first, h[first + DISTANCE], key, head, tail)
            return False
        distance += 1
        e += ENTRY
    fill(h, e, distance, key, head, tail)
    h[m + COUNT] += 1
    return True


@device_function
def fill(h, e, distance, key, head, tail):
    """Write the entry at a place."""
    h[e + DISTANCE] = distance
    h[e + KEY] = key
    h[e + HEAD] = head
    h[e + TAIL] = tail


@device_function
def reaches(h, m, key):
    """Return whether no key would lie too far from its bucket if `key` were entered."""
    i = own_bucket(h[m + BUCKETS], key)
    distance = 1
    while h[entry_at(m, i) + DISTANCE] != 0:
        distance = min(distance, h[entry_at(m, i) + DISTANCE]) + 1
        i += 1
        if distance > h[m + MAX_DISTANCE]:
            return False
    return True


@device_function
def grow_map(h, m):
    """Double the buckets and enter the keys anew, in the order in which they lay.

    If one of them gets too far away, what has been entered so far lies in a new order, and all is
    done once more with twice the buckets.
    """
    # The entries are moved out of the way, to the second half of the map's words.
    spare = entry_at(m, h[m + LIMIT_BUCKETS] + EXTRA_ENTRIES)
    count = copy_out(h, m, spare)
    double(h, m)
    i = 0
    while i < count:
        s = spare + ENTRY * i
        i += 1
        whole = place(h, m, h[s + KEY], h[s + HEAD], h[s + TAIL])
        if not whole and h[m + BUCKETS] < h[m + LIMIT_BUCKETS]:
            copy_out(h, m, spare)
            double(h, m)
            i = 0


@device_function
def copy_out(h, m, spare):
    """Copy the entries in use to a place, in order; return how many there are."""
    count = 0
    for i in range(end_entry(h, m)):
        e = entry_at(m, i)
        if h[e + DISTANCE] != 0:
            fill(h, spare + ENTRY * count, 0, h[e + KEY], h[e + HEAD], h[e + TAIL])
            count += 1
    return count


@device_function
def double(h, m):
    """Empty the map, and give it twice the buckets, or the first ones."""
    for i in range(end_entry(h, m)):
        h[entry_at(m, i) + DISTANCE] = 0
    buckets = max(2 * h[m + BUCKETS], _FIRST_BUCKETS)
    h[m + COUNT] = 0
    h[m + BUCKETS] = buckets
    h[m + MAX_DISTANCE] = max(4, log2(buckets))
    if buckets >= h[m + LIMIT_BUCKETS]:
        h[m + MAX_DISTANCE] = EXTRA_ENTRIES - 1


@device_function
def erase(h, m, i):
    """Take entry `i` out, moving back what lay behind it away from its own bucket."""
    end = end_entry(h, m)
    h[m + COUNT] -= 1
    h[entry_at(m, i) + DISTANCE] = 0
    j = i + 1
    while j < end and h[entry_at(m, j) + DISTANCE] > 1:
        e, f = entry_at(m, j - 1), entry_at(m, j)
        h[e + DISTANCE] = h[f + DISTANCE] - 1
        h[e + KEY] = h[f + KEY]
        h[e + HEAD] = h[f + HEAD]
        h[e + TAIL] = h[f + TAIL]
        h[f + DISTANCE] = 0
        j += 1


@device_function
def reset(h, m):
    """Make the map as new: no keys, no buckets."""
    for i in range(end_entry(h, m)):
        h[entry_at(m, i) + DISTANCE] = 0
    h[m + COUNT] = 0
    h[m + BUCKETS] = 0
