from __future__ import annotations

import pytest

from refruntime.alloc import CachingAllocator, VirtualUpstream
from refruntime.alloc.summary import format_bytes, format_count
from refruntime.errors import OutOfMemoryError

MIB = 1 << 20


def test_table_has_pytorchs_rows_and_one_width() -> None:
    allocator = CachingAllocator(VirtualUpstream(40 * MIB))
    allocator.malloc(1000)
    allocator.free(allocator.malloc(30 * MIB))
    with pytest.raises(OutOfMemoryError):
        allocator.malloc(100 * MIB)
    lines = allocator.summary().splitlines()
    assert len({len(line) for line in lines}) == 1
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    table = {row[0]: row[1:] for row in cells if len(row) == 5}
    assert table["Allocated memory"] == ["1.0 KiB", "30.0 MiB", "30.0 MiB", "30.0 MiB"]
    assert table["Reserved memory"] == ["2.0 MiB", "32.0 MiB", "32.0 MiB", "30.0 MiB"]
    assert table["Reserved segments"] == ["1", "2", "2", "1"]
    for row in ("Active", "Requested", "Non-releasable"):
        assert f"{row} memory" in table
    assert {"Allocations", "Active allocations", "Non-releasable blocks"} <= set(table)
    assert {"Oversize allocations", "Oversize segments", "large pool", "small pool"} <= set(table)
    assert any("out of memory: 1" in line and "request: 1" in line for line in lines)


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (767, "767 B"), (768, "0.8 KiB"), (5 * MIB, "5.0 MiB"), (3 << 50, "3.0 PiB")],
)
def test_bytes_switch_units_at_three_quarters(nbytes: int, text: str) -> None:
    assert format_bytes(nbytes).strip() == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (749_999, "749999"), (750_000, "750 K"), (2_000_000_000, "2000 M")],
)
def test_counts_switch_units_at_750_000(count: int, text: str) -> None:
    assert format_count(count) == text
