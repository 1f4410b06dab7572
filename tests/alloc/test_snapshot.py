from __future__ import annotations

import pickle
import pickletools
from pathlib import Path
from typing import Any

from refruntime.alloc import categories, dump
from tests.alloc.conftest import MakeAllocator

MIB = 1 << 20


def _filled(make: MakeAllocator) -> tuple[dict[str, Any], list[int]]:
    allocator = make()
    early = allocator.malloc(600, 0, categories.PARAMETER)
    allocator.record(stacks=True)
    late = allocator.malloc(3 * MIB, 5, categories.ACTIVATION)
    allocator.tag(late, categories.SAVED)
    allocator.free(allocator.malloc(700))
    return allocator.snapshot(), [early, late]


def test_blocks_tile_segments_and_sums_agree(make: MakeAllocator) -> None:
    snapshot, _ = _filled(make)
    segments = snapshot["segments"]
    assert [s["address"] for s in segments] == sorted(s["address"] for s in segments)
    for segment in segments:
        end = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == end
            end += block["size"]
        assert end == segment["address"] + segment["total_size"]
        used = [b for b in segment["blocks"] if b["state"] == "active_allocated"]
        assert segment["allocated_size"] == segment["active_size"] == sum(b["size"] for b in used)
        assert segment["requested_size"] == sum(b["requested_size"] for b in used)


def test_segments_and_blocks_say_what_they_are(make: MakeAllocator) -> None:
    snapshot, (early, late) = _filled(make)
    small, large = snapshot["segments"]
    assert (small["segment_type"], small["stream"], small["total_size"]) == ("small", 0, 2 * MIB)
    assert (large["segment_type"], large["stream"], large["total_size"]) == ("large", 5, 20 * MIB)
    first, rest = large["blocks"]
    assert (first["address"], first["size"], first["requested_size"]) == (late, 3 * MIB, 3 * MIB)
    assert (first["state"], first["category"]) == ("active_allocated", "saved")
    assert first["frames"][0]["name"] == "_filled"
    assert set(first["frames"][0]) == {"filename", "line", "name"}
    assert (rest["state"], rest["size"]) == ("inactive", 17 * MIB)
    assert "category" not in rest
    assert small["blocks"][0]["address"] == early
    assert (small["blocks"][0]["category"], small["blocks"][0]["frames"]) == ("parameter", [])


def test_trace_shows_the_last_category_and_no_tags(make: MakeAllocator) -> None:
    snapshot, _ = _filled(make)
    (entries,) = snapshot["device_traces"]
    assert [(e["action"], e["size"], e["category"]) for e in entries] == [
        ("segment_alloc", 20 * MIB, "temporary"),
        ("alloc", 3 * MIB, "saved"),
        ("alloc", 700, "temporary"),
        ("free_requested", 700, "temporary"),
        ("free_completed", 700, "temporary"),
    ]
    assert all({"addr", "stream", "time_us", "frames"} <= set(entry) for entry in entries)


def test_failures_give_the_free_bytes_in_place_of_an_address(make: MakeAllocator) -> None:
    allocator = make(10)
    allocator.record()
    try:
        allocator.malloc(30 * MIB)
    except RuntimeError:
        entry = allocator.snapshot()["device_traces"][0][-1]
    assert (entry["action"], entry["device_free"], "addr" in entry) == ("oom", 10 * MIB, False)


def test_dump_is_a_protocol_4_pickle_of_plain_values(make: MakeAllocator, tmp_path: Path) -> None:
    snapshot, _ = _filled(make)
    path = tmp_path / "snapshot.pickle"
    dump(snapshot, path)
    data = path.read_bytes()
    opcodes = list(pickletools.genops(data))
    assert opcodes[0][1] == 4
    assert not {op.name for op, _, _ in opcodes} & {"GLOBAL", "STACK_GLOBAL", "REDUCE", "NEWOBJ"}
    assert pickle.loads(data) == snapshot
