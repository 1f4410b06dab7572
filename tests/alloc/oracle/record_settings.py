#!/usr/bin/env python3
"""Puts settings texts, one after the other, to PyTorch's own parser and records the outcome.

    record_settings.py SEED N OUT.jsonl[.gz]      (run by the oracle's Python)

Each line is ``[text, error, changes]``: the class of the error or null, and the values that differ
from those after the line before, by name. They are read through `settings_probe.cpp`, a small
library over the getters of PyTorch's configuration classes, because a snapshot shows only some.
"""

from __future__ import annotations

import ctypes
import gzip
import json
import os
import random
import sys
from pathlib import Path

sys.path[:0] = [os.environ["ORACLE_SOURCE"], str(Path(__file__).parent)]

import oracle_env  # noqa: E402
import settings_texts  # noqa: E402

SIZES = ("large_segment_size", "max_split_size", "max_non_split_rounding", "expandable_segments",
         "release_lock_on_cudamalloc", "graph_capture_record_stream_reuse",
         "throw_on_cudamalloc_oom", "pinned_use_cuda_host_register", "pinned_num_register_threads",
         "pinned_use_background_threads", "pinned_reserve_segment_size", "pinned_free_catch_all",
         "pinned_max_round_threshold", "pinned_max_cached_size")  # fmt: skip
SHARES = ("garbage_collection_threshold", "per_process_memory_fraction")
UNLIMITED, LARGEST, MIB = (1 << 63) - 1, (1 << 63) - (1 << 20), 1 << 20


class Probe:
    """Reads PyTorch's settings in the units of ours."""

    def __init__(self, library: str) -> None:
        self.library = ctypes.CDLL(library)
        self.words = (ctypes.c_uint64 * 30)()
        self.reals = (ctypes.c_double * 2)()

    def read(self) -> dict[str, object]:
        self.library.probe_sizes(self.words)
        self.library.probe_doubles(self.reals)
        values: dict[str, object] = dict(zip(SIZES, map(_bounded, self.words)))
        values["pinned_reserve_segment_size"] = min(self.words[10] * MIB, LARGEST)
        values["roundup_power2_divisions"] = [min(word, 1 << 62) for word in self.words[14:30]]
        return values | dict(zip(SHARES, self.reals))


def _bounded(word: int) -> int:
    return UNLIMITED if word == (1 << 64) - 1 else min(word, LARGEST)


def main() -> None:
    """Record the texts of a seed."""
    seed, count, out = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    oracle_env.ensure_preloaded(capacity=80 << 30, conf="", va="bump", manual_events=False)
    import torch

    torch.cuda.init()
    probe = Probe(os.environ["SETTINGS_PROBE"])
    rng = random.Random(seed)
    before = probe.read()
    opened = gzip.open if out.endswith(".gz") else open
    with opened(out, "wt") as lines:
        for _ in range(count):
            text = settings_texts.text(rng)
            error = None
            try:
                torch._C._accelerator_setAllocatorSettings(text)
            except Exception as raised:
                error = type(raised).__name__
            after = probe.read()
            assert torch._C._accelerator_getAllocatorSettings() == text
            changes = {name: value for name, value in after.items() if value != before[name]}
            lines.write(json.dumps([text, error, changes]) + "\n")
            before = after


if __name__ == "__main__":
    main()
