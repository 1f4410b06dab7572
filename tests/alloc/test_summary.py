from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path

import pytest

from refruntime.alloc import CachingAllocator, VirtualUpstream
from refruntime.alloc.summary import format_bytes, format_count, summary_table
from refruntime.errors import OutOfMemoryError

MIB = 1 << 20
DATA = Path(__file__).parent / "data"


def test_table_has_pytorchs_rows_and_one_width() -> None:
    allocator = CachingAllocator(VirtualUpstream(40 * MIB))
    allocator.malloc(1000)
    allocator.free(allocator.malloc(30 * MIB))
    with pytest.raises(OutOfMemoryError):
        allocator.malloc(100 * MIB)
    lines = allocator.summary().splitlines()
    assert {len(line) for line in lines} == {77}
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    table = {row[0]: row[1:] for row in cells if len(row) == 5}
    assert table["Allocated memory"] == ["1024 B", "30721 KiB", "30721 KiB", "30720 KiB"]
    assert table["GPU reserved memory"] == ["2048 KiB", "32768 KiB", "32768 KiB", "30720 KiB"]
    assert table["GPU reserved segments"] == ["1", "2", "2", "1"]
    for row in ("Active", "Requested", "Non-releasable"):
        assert f"{row} memory" in table
    assert {"Allocations", "Active allocs", "Non-releasable allocs"} <= set(table)
    assert {"Oversize allocations", "from large pool", "from small pool"} <= set(table)
    assert any("OOMs: 1" in line and "retries: 1" in line for line in lines)


def test_table_equals_pytorchs_character_by_character() -> None:
    """The digest is that of PyTorch 2.14.1's text for the statistics of a recorded run."""
    log = json.loads(gzip.decompress((DATA / "edges.json.gz").read_bytes()))
    digests = {
        abbreviated: hashlib.sha256(
            summary_table(log["stats"], 0, abbreviated=abbreviated).encode()
        ).hexdigest()
        for abbreviated in (False, True)
    }
    assert digests == {
        False: "12c147f81c3b050301996b46c321ac7aa3cec89a39a1d9b05ef965394c68c406",
        True: "277fff46ae213844c08dfbf273e30f66dbfb98b5be08b3d5a2f123439af48c52",
    }


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (786_431, "786431 B"), (786_432, "768 KiB"), (5 << 30, "5120 MiB")],
)
def test_bytes_switch_units_at_768_of_the_next(nbytes: int, text: str) -> None:
    assert format_bytes(nbytes).strip() == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (749_999, "749999"), (750_000, "750 K"), (2_000_000_000, "2000 M")],
)
def test_counts_switch_units_at_750_000(count: int, text: str) -> None:
    assert format_count(count).strip() == text
