"""The order of the small maps, by walks recorded from the hash table of PyTorch's allocator."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from refruntime.alloc import hash_order as maps

DATA = Path(__file__).parent / "data" / "hash_order.json.gz"
PROGRAMS = json.loads(gzip.decompress(DATA.read_bytes()))
M = 3  # a map may begin anywhere


def new_map(limit: int = 4096) -> memoryview:
    h = np.zeros(M + maps.words_of_map(limit), np.int64).data
    h[M + maps.LIMIT_BUCKETS] = limit
    return h


def keys_of(h: memoryview) -> list[int]:
    found, i = [], maps.next_entry(h, M, 0)
    while i >= 0:
        found.append(h[maps.entry_at(M, i) + maps.KEY])
        i = maps.next_entry(h, M, i + 1)
    return found


def walk_erasing(h: memoryview, mask: int) -> list[int]:
    found, i = [], maps.next_entry(h, M, 0)
    while i >= 0:
        found.append(h[maps.entry_at(M, i) + maps.KEY])
        if (found[-1] >> 5) & mask:
            i = maps.next_entry(h, M, i + 1)
        else:
            maps.erase(h, M, i)
            i = maps.next_entry(h, M, i)
    return found


def walks_of(steps: list[tuple[str, int]]) -> list[list[int]]:
    h, walks = new_map(), []
    for what, number in steps:
        entry = maps.lookup(h, M, number)
        if what == "i" and not entry:
            assert maps.put(h, M, number, number + 1, number + 2)
        elif what == "e" and entry:
            assert h[entry + maps.HEAD] == number + 1 and h[entry + maps.TAIL] == number + 2
            maps.erase(h, M, maps.entry_number(M, entry))
        elif what == "n":
            maps.reset(h, M)
        elif what in "wx":
            walks.append(keys_of(h) if what == "w" else walk_erasing(h, number))
    return walks


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_walks_are_those_of_the_recorded_table(number: int) -> None:
    assert walks_of(PROGRAMS[number]["steps"]) == PROGRAMS[number]["walks"]


def test_a_full_map_refuses_a_key_and_keeps_the_others() -> None:
    h = new_map(8)
    entered = [key for key in range(1, 40) if maps.put(h, M, key, key, 0)]
    assert entered == list(range(1, 8))
    assert sorted(keys_of(h)) == entered
    assert all(h[maps.lookup(h, M, key) + maps.HEAD] == key for key in entered)
    assert maps.lookup(h, M, 39) == 0


def test_equal_keys_are_told_apart_by_their_payload() -> None:
    h = new_map()
    for head in (10, 20, 30):
        maps.put(h, M, 5, head, head + 1)
    entry = maps.lookup_pair(h, M, 5, 20)
    assert h[entry + maps.TAIL] == 21
    maps.erase(h, M, maps.entry_number(M, entry))
    assert maps.lookup_pair(h, M, 5, 20) == 0
    assert maps.lookup_pair(h, M, 5, 30) != 0 and maps.lookup_pair(h, M, 6, 10) == 0
