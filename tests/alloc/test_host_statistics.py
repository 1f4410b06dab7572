from __future__ import annotations

from refruntime.alloc.host_statistics import Counter, Durations, HostStatistics


def test_counter_keeps_sums_and_peak_apart() -> None:
    counter = Counter()
    counter.increase(5)
    counter.decrease(2)
    assert counter.as_dict() == {"allocated": 5, "current": 3, "freed": 2, "peak": 5}
    counter.reset_peak()
    counter.reset_totals()
    assert counter.as_dict() == {"allocated": 0, "current": 3, "freed": 0, "peak": 3}


def test_durations_have_a_mean_in_whole_microseconds() -> None:
    times = Durations()
    assert times.as_dict() == {"avg": 0, "count": 0, "max": 0, "min": 0, "total": 0}
    for time in (7, 2, 4):
        times.add(time)
    assert times.as_dict() == {"avg": 4, "count": 3, "max": 7, "min": 2, "total": 13}


def test_durations_reset_extremes_and_sums_apart() -> None:
    times = Durations()
    times.add(7)
    times.reset_peak()
    assert times.as_dict() == {"avg": 7, "count": 1, "max": 0, "min": 0, "total": 7}
    times.reset_totals()
    times.add(9)
    assert times.as_dict() == {"avg": 9, "count": 1, "max": 9, "min": 9, "total": 9}


def test_peak_in_use_is_the_sum_of_the_peaks_of_the_buckets() -> None:
    statistics = HostStatistics()
    statistics.block_made(3, 8)
    statistics.block_cached(3, 8)
    statistics.block_made(4, 16)
    flat = statistics.flat()
    assert (flat["active_bytes.current"], flat["active_bytes.peak"]) == (16, 24)
    assert (flat["allocated_bytes.current"], flat["allocated_bytes.peak"]) == (24, 24)


def test_flat_keys_are_sorted_and_spell_the_nested_ones() -> None:
    statistics = HostStatistics()
    statistics.block_made(3, 8)
    statistics.block_gone(8)
    flat, nested = statistics.flat(), statistics.nested()
    assert list(flat) == sorted(flat)
    for key, value in flat.items():
        name, _, figure = key.partition(".")
        entry = nested[name]
        assert value == (entry if isinstance(entry, int) else entry[figure])
    assert (flat["num_host_alloc"], flat["num_host_free"]) == (1, 1)
