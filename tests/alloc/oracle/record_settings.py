#!/usr/bin/env python3
"""Puts settings texts, one after the other, to PyTorch's own parser and records the outcome.

    record_settings.py SEED N OUT.jsonl[.gz]      (run by the oracle's Python)
    record_settings.py snapshots OUT.json

The second form records what a memory snapshot shows of the settings after each of a few texts. A
line of the first is ``[text, error, changes]``: the class of the error or null, and the values that
differ from those after the line before, by name. They are read through `settings_probe.cpp`, a
small library over the getters of PyTorch's configuration classes: a snapshot shows only some.
"""

from __future__ import annotations

import contextlib
import ctypes
import gzip
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

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


SHOWN = (
    "",
    "max_split_size_mb:64,garbage_collection_threshold:0.5,"
    "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
    "expandable_segments:True,release_lock_on_cudamalloc:True",
    "max_split_size_mb:-1",
    "pinned_max_cached_size_mb:-1,pinned_max_round_threshold_mb:12,pinned_num_register_threads:8,"
    "pinned_use_cuda_host_register:True,graph_capture_record_stream_reuse:True",
    "max_split_size_mb:30,unknown:1",
    "pinned_max_cached_size_mb:0,large_segment_size_mb:5",
    "roundup_power2_divisions:4",
)


def main() -> None:
    """Record the texts of a seed, or the snapshots."""
    oracle_env.ensure_preloaded(capacity=80 << 30, conf="", va="bump", manual_events=False)
    import torch

    torch.cuda.init()
    if sys.argv[1] == "snapshots":
        record_snapshots(torch, Path(sys.argv[2]))
    else:
        record_texts(torch, sys.argv[1], int(sys.argv[2]), sys.argv[3])


def record_snapshots(torch: Any, out: Path) -> None:
    """Write each text of `SHOWN` and the snapshot's settings after it."""
    torch.empty(0, device="cuda")
    lines = []
    for text in SHOWN:
        with contextlib.suppress(ValueError):
            torch._C._accelerator_setAllocatorSettings(text)
        shown = torch.cuda.memory._snapshot()["allocator_settings"]
        lines.append(json.dumps([text, shown]))
    out.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


def record_texts(torch: Any, seed: str, count: int, out: str) -> None:
    """Write what becomes of `count` texts."""
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
