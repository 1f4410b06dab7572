"""The rules of the policy, by golden vectors recorded from PyTorch's allocator."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from refruntime.alloc import CachingAllocator, UpstreamExhausted, VirtualUpstream, sizes
from refruntime.errors import OutOfMemoryError
from tests.alloc.conftest import MakeAllocator
from tests.alloc.recount import Live, check, size_of

MIB = 1 << 20
DATA = Path(__file__).parent / "data"


class Logged(VirtualUpstream):
    """Writes every call down, sizes in bytes; segments are numbered in order of success.

    `limit` refuses without a call, as a memory fraction does.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.log: list[tuple[str, int | None, int]] = []
        self.numbers: dict[int, int] = {}
        self.limit = capacity

    def reserve(self, nbytes: int, stream: int) -> int:
        if self.limit < self.capacity and self.used + nbytes > self.limit:
            raise UpstreamExhausted
        try:
            address = super().reserve(nbytes, stream)
        except UpstreamExhausted:
            self.log.append(("malloc", None, nbytes))
            raise
        self.numbers[address] = len(self.numbers)
        self.log.append(("malloc", self.numbers[address], nbytes))
        return address

    def release(self, address: int, nbytes: int) -> None:
        super().release(address, nbytes)
        self.log.append(("free", self.numbers[address], nbytes))

    def sizes(self) -> list[tuple[str, int]]:
        return [(call, nbytes) for call, _, nbytes in self.log]

    def place(self, address: int) -> tuple[int, int]:
        base = max(start for start in self.numbers if start <= address)
        return self.numbers[base], address - base


def mallocs(*mebibytes: float) -> list[tuple[str, int]]:
    return [("malloc", int(size * MIB)) for size in mebibytes]


def frees(*mebibytes: float) -> list[tuple[str, int]]:
    return [("free", int(size * MIB)) for size in mebibytes]


@pytest.mark.parametrize(
    ("nbytes", "size"),
    [(1, 512), (511, 512), (512, 512), (513, 1024), (1200, 1536), (MIB + 1, MIB + 512)],
)
def test_sizes_are_rounded_up_to_512_bytes(nbytes: int, size: int) -> None:
    assert sizes.round_size(CachingAllocator(VirtualUpstream(MIB)).tables.header, nbytes) == size


@pytest.mark.parametrize(
    ("size", "segment"),
    [
        (512, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 512, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 512, 12 * MIB),
        (100 * MIB + 512, 102 * MIB),
    ],
)
def test_segment_sizes_follow_the_size_classes(size: int, segment: int) -> None:
    assert sizes.segment_size(CachingAllocator(VirtualUpstream(MIB)).tables.header, size) == segment


def test_requests_at_the_class_borders_make_three_kinds_of_segments(make: MakeAllocator) -> None:
    upstream = Logged(1 << 40)
    allocator = make(upstream=upstream)
    sizes = [1, MIB, MIB + 1, 10 * MIB - 1, 10 * MIB]
    addresses = [allocator.malloc(size) for size in sizes]
    assert upstream.sizes() == mallocs(2, 20, 10)
    assert [size_of(allocator, a) for a in addresses] == [512, MIB, MIB + 512, 10 * MIB, 10 * MIB]
    free = [
        block["size"]
        for segment in allocator.snapshot()["segments"]
        for block in segment["blocks"]
        if block["state"] == "inactive"
    ]
    assert free == [1_048_064, 9_436_672]


def test_small_pool_fills_the_best_fitting_rest(make: MakeAllocator) -> None:
    upstream = Logged(1 << 40)
    allocator = make(upstream=upstream)
    for kib in (600, 600, 900, 900):
        allocator.malloc(kib << 10)
    assert upstream.sizes() == mallocs(2, 2)
    address = allocator.malloc(300 << 10)
    assert upstream.place(address)[0] == 0
    first = allocator.snapshot()["segments"][0]["blocks"]
    assert first[-1]["size"] == 561_152 and first[-1]["state"] == "inactive"


def test_small_pool_splits_off_any_rest(make: MakeAllocator) -> None:
    upstream = Logged(1 << 40)
    allocator = make(upstream=upstream)
    for size in (MIB, MIB - 512, 512):
        allocator.malloc(size)
    assert upstream.sizes() == mallocs(2)
    assert [b["state"] for b in allocator.snapshot()["segments"][0]["blocks"]] == [
        "active_allocated"
    ] * 3


@pytest.mark.parametrize(
    ("nbytes", "block"),
    [(19 * MIB, 20 * MIB), (19 * MIB - 512, 19 * MIB - 512), (20 * MIB - 512, 20 * MIB)],
)
def test_large_pool_splits_only_off_more_than_one_mebibyte(
    make: MakeAllocator, nbytes: int, block: int
) -> None:
    allocator = make()
    allocator.free(allocator.malloc(20 * MIB))
    assert size_of(allocator, allocator.malloc(nbytes)) == block


def five_twenties(allocator: CachingAllocator) -> list[int]:
    """Cut one 100 MiB segment into five blocks of 20 MiB."""
    allocator.free(allocator.malloc(100 * MIB))
    return [allocator.malloc(20 * MIB) for _ in range(5)]


def test_equal_blocks_of_a_segment_are_taken_from_the_lower_address(make: MakeAllocator) -> None:
    allocator = make()
    parts = five_twenties(allocator)
    allocator.free(parts[3])
    allocator.free(parts[1])
    assert allocator.malloc(20 * MIB) == parts[1]


def test_merged_neighbours_serve_a_larger_request(make: MakeAllocator) -> None:
    allocator = make()
    parts = five_twenties(allocator)
    for part in (parts[1], parts[3], parts[2]):
        allocator.free(part)
    assert allocator.malloc(59 * MIB) == parts[1]
    assert size_of(allocator, parts[1]) == 60 * MIB
    allocator.free(parts[1])
    assert size_of(allocator, allocator.malloc(59 * MIB - 512)) == 59 * MIB - 512
    free = [b["size"] for b in allocator.snapshot()["segments"][0]["blocks"] if b["size"] < 2 * MIB]
    assert free == [1_049_088]


def test_equal_blocks_of_two_segments_are_taken_from_the_older_segment(
    make: MakeAllocator,
) -> None:
    class Falling(VirtualUpstream):
        """Gives falling addresses, so that age and address disagree."""

        def reserve(self, nbytes: int, stream: int) -> int:
            return (1 << 50) - super().reserve(nbytes, stream)

        def release(self, address: int, nbytes: int) -> None:
            super().release((1 << 50) - address, nbytes)

    allocator = make(upstream=Falling(1 << 40))
    old, young = allocator.malloc(20 * MIB), allocator.malloc(20 * MIB)
    assert young < old
    allocator.free(young)
    allocator.free(old)
    assert allocator.malloc(20 * MIB) == old


def test_smallest_fitting_block_wins(make: MakeAllocator) -> None:
    allocator = make()
    blocks = {size: allocator.malloc(size * MIB) for size in (40, 20, 30)}
    for size in (20, 40, 30):
        allocator.free(blocks[size])
    assert allocator.malloc(21 * MIB) == blocks[30]


def test_merge_restores_segment_after_both_neighbours_freed(make: MakeAllocator) -> None:
    upstream = Logged(1 << 40)
    allocator = make(upstream=upstream)
    parts = [allocator.malloc(size * MIB) for size in (4, 5, 6)]
    for part in (parts[0], parts[2], parts[1]):
        allocator.free(part)
    check(allocator, {})
    assert len(allocator.snapshot()["segments"][0]["blocks"]) == 1
    assert allocator.malloc(15 * MIB) == parts[0]
    assert upstream.sizes() == mallocs(20)


def test_inactive_split_statistics_follow_splits_and_merges(make: MakeAllocator) -> None:
    allocator = make()
    seen = []

    def note() -> None:
        stats = allocator.stats()
        seen.append(
            (
                stats["inactive_split.all.current"],
                stats["inactive_split_bytes.all.current"] // MIB,
            )
        )

    allocator.free(allocator.malloc(30 * MIB))
    note()
    first = allocator.malloc(10 * MIB)
    note()
    second = allocator.malloc(10 * MIB)
    note()
    allocator.free(first)
    note()
    allocator.free(second)
    note()
    assert seen == [(0, 0), (1, 20), (1, 10), (2, 20), (0, 0)]


def test_out_of_memory_releases_the_cache_smallest_first_and_retries(make: MakeAllocator) -> None:
    upstream = Logged(100 * MIB)
    allocator = make(upstream=upstream)
    first, second = allocator.malloc(60 * MIB), allocator.malloc(20 * MIB)
    allocator.free(first)
    allocator.free(second)
    allocator.malloc(90 * MIB)
    assert upstream.sizes()[2:] == [*mallocs(90), *frees(20, 60), *mallocs(90)]
    stats = allocator.stats()
    assert (stats["num_alloc_retries"], stats["num_ooms"], stats["num_sync_all_streams"]) == (
        1,
        0,
        1,
    )
    with pytest.raises(OutOfMemoryError, match=r"Tried to allocate 30\.00 MiB.*10\.00 MiB is free"):
        allocator.malloc(30 * MIB)
    stats = allocator.stats()
    assert (stats["num_alloc_retries"], stats["num_ooms"]) == (2, 1)


def test_cached_blocks_serve_only_their_stream(make: MakeAllocator) -> None:
    upstream = Logged(1000 * MIB)
    allocator = make(upstream=upstream)
    blocks = [allocator.malloc(30 * MIB, stream) for stream in (1, 2)]
    for block in blocks:
        allocator.free(block)
    assert allocator.malloc(30 * MIB, 2) == blocks[1]
    allocator.free(blocks[1])
    allocator.malloc(950 * MIB, 1)
    assert upstream.sizes()[2:] == [*mallocs(950), *frees(30, 30), *mallocs(950)]
    assert allocator.retries == 1


def test_empty_cache_frees_the_large_pool_first_by_stream_then_size(make: MakeAllocator) -> None:
    upstream = Logged(1000 * MIB)
    allocator = make(upstream=upstream)
    requests = [(12, 0), (30, 0x20), (10, 0x20), (20, 0x20), (1, 0x20)]
    for block in [allocator.malloc(size * MIB, stream) for size, stream in requests]:
        allocator.free(block)
    allocator.empty_cache()
    assert upstream.sizes()[5:] == frees(12, 10, 20, 30, 2)
    check(allocator, {})


def test_empty_cache_keeps_segments_in_use(make: MakeAllocator) -> None:
    allocator = make()
    kept = allocator.malloc(5 * MIB)
    allocator.free(allocator.malloc(30 * MIB))
    allocator.empty_cache()
    assert allocator.reserved_bytes == 20 * MIB
    check(allocator, {kept: Live(5 * MIB, 0, 0)})


@pytest.mark.parametrize("shape", ["edges", "frag", "oom", "uniform_mixed"])
def test_decisions_and_statistics_equal_a_recorded_log(make: MakeAllocator, shape: str) -> None:
    """`data/SHAPE.json.gz` holds what PyTorch's allocator did, run on a stand-in for the driver.

    events: [alloc, id, size, stream], [free, id], [empty_cache], [limit, bytes]; results: for each
    event [segment, offset, block size], 0 for out of memory, or None; driver: [event, call, segment
    or None, size, ...]; stats: the final statistics.
    """
    log = json.loads(gzip.decompress((DATA / f"{shape}.json.gz").read_bytes()))
    upstream = Logged(log["capacity"])
    allocator = make(upstream=upstream)
    addresses: dict[int, int] = {}
    results = [_perform(allocator, upstream, event, addresses) for event in log["events"]]
    assert results == log["results"]
    assert upstream.log == [(call, number, size) for _, call, number, size, *_ in log["driver"]]
    assert allocator.stats() == log["stats"]


def _perform(
    allocator: CachingAllocator, upstream: Logged, event: list, addresses: dict[int, int]
) -> list[int] | int | None:
    match event:
        case ["alloc", name, size, stream]:
            try:
                address = addresses[name] = allocator.malloc(size, stream)
            except OutOfMemoryError:
                return 0
            return [*upstream.place(address), size_of(allocator, address)] if address else None
        case ["free", name]:
            if name in addresses:
                allocator.free(addresses.pop(name))
        case ["limit", nbytes]:
            upstream.limit = nbytes
        case ["empty_cache"]:
            allocator.empty_cache()
    return None
