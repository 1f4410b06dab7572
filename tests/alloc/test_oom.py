from __future__ import annotations

import pytest

from refruntime.alloc.oom import Shortage, format_size

MIB = 1 << 20


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 bytes"),
        (1024, "1024 bytes"),
        (1025, "1.00 KiB"),
        (MIB, "1024.00 KiB"),
        (30 * MIB, "30.00 MiB"),
        (1 << 30, "1024.00 MiB"),
        (3 << 40, "3072.00 GiB"),
    ],
)
def test_sizes_switch_units_just_above_a_power(nbytes: int, text: str) -> None:
    assert format_size(nbytes) == text


def test_remedy_depends_on_whether_the_reserved_bytes_would_do() -> None:
    fragmented = Shortage("CPU", 20 * MIB, 100 * MIB, 0, 60 * MIB, 100 * MIB).error()
    full = Shortage("CPU", 20 * MIB, 100 * MIB, 0, 90 * MIB, 100 * MIB).error()
    assert "between live tensors" in fragmented.remedy
    assert "smaller batch" in full.remedy
    assert "40.00 MiB is reserved" in str(fragmented)
