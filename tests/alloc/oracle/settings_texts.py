"""Makes settings texts that are nearly right, for comparing two parsers."""

from __future__ import annotations

import random

SIZES = ("large_segment_size_mb", "max_split_size_mb", "max_non_split_rounding_mb",
         "pinned_reserve_segment_size_mb", "pinned_max_round_threshold_mb",
         "pinned_max_cached_size_mb", "pinned_num_register_threads")  # fmt: skip
FLAGS = ("expandable_segments", "release_lock_on_cudamalloc", "release_lock_on_hipmalloc",
         "graph_capture_record_stream_reuse", "throw_on_cudamalloc_oom",
         "pinned_use_cuda_host_register", "pinned_use_hip_host_register",
         "pinned_use_background_threads", "pinned_free_catch_all")  # fmt: skip
SHARES = ("garbage_collection_threshold", "per_process_memory_fraction")
LISTS = ("roundup_power2_divisions",)
OTHERS = ("backend", "unknown", "expandable_segments_handle_type", "Backend", "max_split_size")
KEYS = SIZES + FLAGS + SHARES + LISTS + OTHERS

INTEGERS = ("0", "1", "2", "8", "10", "11", "19", "20", "21", "32", "64", "100", "128", "129",
            "256", "512", "1024", "65536", "131072", "-1", "-0", "-18446744073709551615", "+30",
            "007", "1.5", "25.5", "30foo", "0x40", "1e3", "18446744073709551615",
            "18446744073709551616", "99999999999999999999999", "-", "+", "--3", "x", "-64",
            "000000000000000000000000000000064", "4611686018427387904", "\u0663", "64\u00a0",
            "2_0")  # fmt: skip
REALS = ("0", "1", "0.5", "0.8", ".5", "5e-1", "1.0", "0.999999", "1e-400", "1e400", "-0.0", "-0.5",
         "nan", "inf", "-INF", "NaN", "infinity", "0x.8p0", "0x", "0x1p-2", "0X1P-1", "0.5abc",
         "1e", "1e+", "1e-", ".", "", "+.25", "0x.p1", "0x1.8p-3", "1e-320", "5e-324", "0e999999",
         "00.50", "0.5.5", "\u0660.5", "nanx", "0x1p-99999999999", "0x1p99999999999")  # fmt: skip
WORDS = ("True", "False", "true", "false", "TRUE", "1", "0", "yes", "Truee", "", "[True]", "Fal se")
PARTS = (",", ":", "[", "]", " ", "\t", "\n", "\v", "\x00", ";", "\u00e9", "\u2003", ">", "=")


def _value(rng: random.Random, key: str) -> str:
    if rng.random() < 0.04:
        key = rng.choice(KEYS)
    if key in FLAGS:
        return rng.choice(WORDS[:2]) if rng.random() < 0.8 else rng.choice(WORDS)
    if key in SHARES:
        return f"{rng.random():.3g}" if rng.random() < 0.6 else rng.choice(REALS)
    if key in LISTS and rng.random() < 0.75:
        return _list(rng)
    if key == "backend":
        return rng.choice(("native", "native", "native", "cudaMallocAsync", "hipMallocAsync", "x"))
    good = str(1 << rng.randrange(5, 12)) if rng.random() < 0.7 else str(rng.randrange(10, 4000))
    return good if rng.random() < 0.8 else rng.choice(INTEGERS)


def _list(rng: random.Random) -> str:
    entries = []
    for _ in range(rng.randrange(0, 5)):
        start = str(1 << rng.randrange(0, 19)) if rng.random() < 0.9 else rng.choice(INTEGERS)
        divisions = (
            str(rng.choice((0, 1, 2, 4, 8, 16))) if rng.random() < 0.93 else rng.choice(INTEGERS)
        )
        entries.append(f"{'>' if rng.random() < 0.2 else start}:{divisions}")
    end = "," if rng.random() < 0.1 else ""
    return f"[{','.join(entries)}{end}]"


def _mutated(rng: random.Random, text: str) -> str:
    """One character dropped, doubled, inserted or swapped."""
    at = rng.randrange(len(text) + 1)
    choice = rng.random()
    if choice < 0.4:
        return text[:at] + text[at + 1 :]
    if choice < 0.8:
        return text[:at] + rng.choice(PARTS) + text[at:]
    if choice < 0.9:
        return text[:at] + text[at : at + 1] + text[at:]
    return text[:at]


def text(rng: random.Random) -> str:
    """One text; about half of them are accepted."""
    entries = []
    for _ in range(min(rng.randrange(1, 7), rng.randrange(1, 7))):
        key = rng.choice(KEYS[:-5]) if rng.random() < 0.95 else rng.choice(OTHERS)
        entries.append(f"{key}:{_value(rng, key)}")
    made = (", " if rng.random() < 0.1 else ",").join(entries)
    while rng.random() < 0.25:
        made = _mutated(rng, made)
    return made
