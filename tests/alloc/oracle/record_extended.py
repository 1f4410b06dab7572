#!/usr/bin/env python3
"""Makes ``../data/extended``: event lists of every shape, and what the real allocator does.

    record_extended.py [SHAPE..]      (the oracle's Python, see README.md)

Each list is played twice, the second time with another heap; the outputs have to be equal. A seed
whose list makes PyTorch use memory that it has freed is passed over.
"""

from __future__ import annotations

import gzip
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
DATA = HERE.parent / "data" / "extended"

EXPANDABLE = "expandable_segments:True"
REUSE = "graph_capture_record_stream_reuse:True"
THROW = "throw_on_cudamalloc_oom:True"
LOCK = "release_lock_on_cudamalloc:True"
SPLIT = "max_split_size_mb:32"
TAGS = {"": "default", EXPANDABLE: "expandable", REUSE: "reuse", THROW: "throw", LOCK: "lock",
        SPLIT: "maxsplit32", f"{REUSE},{EXPANDABLE}": "reuse-expandable",
        f"{THROW},{EXPANDABLE}": "throw-expandable",
        f"{THROW},per_process_memory_fraction:0.5": "throw-half"}  # fmt: skip

# shape -> how many seeds, how many events, settings
PLAN: dict[str, tuple[int, int, tuple[str, ...]]] = {
    "capture": (3, 800, ("", EXPANDABLE, REUSE, f"{REUSE},{EXPANDABLE}")),
    "capture_two": (2, 600, ("", EXPANDABLE)),
    "capture_oom": (2, 600, ("", EXPANDABLE, REUSE, SPLIT)),
    "mempools": (2, 800, ("", EXPANDABLE)),
    "mempools_oom": (4, 600, ("", EXPANDABLE, SPLIT, LOCK)),
    "throw": (3, 500, (THROW, f"{THROW},{EXPANDABLE}", f"{THROW},per_process_memory_fraction:0.5")),
    "callbacks": (2, 600, ("", EXPANDABLE)),
    "checkpoints": (2, 400, ("", EXPANDABLE)),
    "ties": (3, 1000, ("", EXPANDABLE)),
    "settings": (4, 1200, ("", EXPANDABLE)),
    "uncached": (1, 200, ("",)),
}


def play(events: Path, conf: str, out: Path, junk: int) -> dict[str, object]:
    """Play a list in a process of its own; return the output."""
    command = [sys.executable, str(HERE / "run_extended.py"), str(events), str(out)]
    done = subprocess.run(
        [*command, "--conf", conf, "--junk", str(junk)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{events.name} {conf}:\n{done.stderr[-3000:]}")
    output: dict[str, object] = json.loads(gzip.decompress(out.read_bytes()))
    return output


def sound(events: Path, conf: str) -> bool:
    """Whether a list keeps clear of what is undefined in PyTorch (see `run_extended.check`)."""
    command = [sys.executable, str(HERE / "run_extended.py"), str(events), "none", "--check"]
    done = subprocess.run([*command, "--conf", conf], capture_output=True, check=False)
    return done.returncode == 0


def lists(shape: str) -> Iterator[Path]:
    """Write as many sound lists as the plan asks for, one a seed."""
    seeds, count, confs = PLAN[shape]
    for seed in itertools.count():
        generator = [sys.executable, str(HERE / "gen_extended.py"), shape, str(seed), str(count)]
        text = subprocess.run(generator, capture_output=True, text=True, check=True).stdout
        events = DATA / f"{shape}-s{seed}.jsonl.gz"
        events.write_bytes(gzip.compress(text.encode(), mtime=0))
        if all(sound(events, conf) for conf in confs if EXPANDABLE in conf):
            seeds -= 1
            yield events
        else:
            events.unlink()
        if not seeds:
            return


def record(shape: str) -> None:
    """Record all lists of a shape."""
    for events in lists(shape):
        for conf in PLAN[shape][2]:
            out = DATA / events.name.replace(".jsonl.gz", f"--{TAGS[conf]}.json.gz")
            again = out.with_suffix(".again")
            first, second = play(events, conf, out, 0), play(events, conf, again, 200_000)
            again.unlink()
            differ = [key for key in first if first[key] != second[key]]
            print(out.name, first["meta"], f"DIFFERS: {differ}" if differ else "", flush=True)


def main() -> None:
    """Record the shapes named, or all."""
    DATA.mkdir(exist_ok=True)
    for shape in sys.argv[1:] or PLAN:
        record(shape)


if __name__ == "__main__":
    main()
