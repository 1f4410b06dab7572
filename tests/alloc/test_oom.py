from __future__ import annotations

import pytest

from refruntime.alloc import CachingAllocator, VirtualUpstream
from refruntime.alloc.oom import Shortage, format_size, rejection
from refruntime.errors import OutOfMemoryError

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


def test_limit_and_private_pools_are_told_only_if_there_are_any() -> None:
    plain = str(Shortage("CPU", 20 * MIB, 100 * MIB, 0, 60 * MIB, 100 * MIB).error())
    full = str(Shortage("CPU", 20 * MIB, 100 * MIB, 0, 60 * MIB, 100 * MIB, 90 * MIB, MIB).error())
    assert "private" not in plain and "may be reserved" not in plain
    figures = ("90.00 MiB may be", "61.00 MiB is", "1024.00 KiB of it", "39.00 MiB is reserved")
    places = [full.find(figure) for figure in figures]
    assert -1 not in places and places == sorted(places)


def test_rejection_names_the_request_and_both_settings() -> None:
    text = str(rejection("GPU 0", 30 * MIB))
    assert "GPU 0 out of memory" in text and "30.00 MiB" in text
    assert "per_process_memory_fraction" in text and "throw_on_cudamalloc_oom" in text


def test_observers_hear_of_failures_before_the_error_and_may_use_the_allocator() -> None:
    allocator = CachingAllocator(
        VirtualUpstream(100 * MIB), device="X", settings="throw_on_cudamalloc_oom:True"
    )
    heard: list[tuple[object, ...]] = []
    allocator.attach_oom_observer(lambda *args: heard.append(("oom", *args)))
    allocator.attach_rejection_observer(
        lambda *args: heard.append(("rejected", *args, allocator.snapshot()["segments"]))
    )
    with pytest.raises(OutOfMemoryError):
        allocator.malloc(101 * MIB)
    allocator.set_memory_fraction(0.5)
    with pytest.raises(OutOfMemoryError):
        allocator.malloc(60 * MIB)
    assert heard == [
        ("rejected", "X", 102 * MIB, 0, 100 * MIB, []),
        ("oom", "X", 60 * MIB, 50 * MIB, 100 * MIB),
    ]
    stats = allocator.stats()
    assert (stats["num_oom_rejections"], stats["num_ooms"]) == (1, 1)


@pytest.mark.parametrize("captures", [False, True])
def test_mended_rejection_tries_the_cache_first_but_not_inside_a_capture(captures: bool) -> None:
    allocator = CachingAllocator(
        VirtualUpstream(100 * MIB),
        settings="throw_on_cudamalloc_oom:True,mend_rejection_releases_cache:True",
    )
    allocator.free(allocator.malloc(80 * MIB, 1))
    if captures:
        allocator.pools.begin((1, 0), lambda stream: stream == 2, captures=True)
        with pytest.raises(OutOfMemoryError, match="refused"):
            allocator.malloc(30 * MIB)
        assert allocator.reserved_bytes == 80 * MIB
    else:
        allocator.malloc(30 * MIB)
        assert allocator.reserved_bytes == 30 * MIB
