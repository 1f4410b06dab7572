#!/usr/bin/env python3
"""Makes ``../data/hash_order.json.gz``: programs of a hash table, and the walks of PyTorch's.

    record_hash_order.py TABLE SEED..

TABLE is the program that `hash_table.cpp` makes.
"""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys
from pathlib import Path

OUT = Path(__file__).parent.parent / "data" / "hash_order.json.gz"
STREAMS = [1 << 56 | (0 if k == 0 else 3 + 32 * (k - 1)) for k in range(33)]
URGENT = [1 << 56 | (5 + 32 * k) for k in range(8)]
FIBONACCI = 11400714819323198485
# Keys that want one of the first buckets, however many there are.
CROWDED = [key for key in range(1, 2000) if key * FIBONACCI % (1 << 64) < 1 << 60]


def program(seed: int) -> list[tuple[str, int]]:
    """Return a random program over few keys: those of streams, small numbers, or crowded ones."""
    rng = random.Random(seed)
    count = rng.choice((2, 3, 4, 5, 6, 8, 12, 16, 24, 33, 41))
    keys = rng.sample(STREAMS + URGENT, count)
    if rng.random() < 0.2:
        keys = list(range(1, count * 3))
    elif rng.random() < 0.3:
        keys = rng.sample(CROWDED, count)
    return [_step(rng, keys) for _ in range(rng.randrange(5, 120))]


def _step(rng: random.Random, keys: list[int]) -> tuple[str, int]:
    what = rng.choices("ienwx", (50, 22, 2, 15, 11))[0]
    if what in "ie":
        return what, rng.choice(keys)
    return what, rng.choice((1, 2, 3, 4, 7)) if what == "x" else 0


def main() -> None:
    """Record the programs of some seeds."""
    found = []
    for seed in sys.argv[2:]:
        steps = program(int(seed))
        text = "\n".join(f"{what} {number}" for what, number in steps)
        done = subprocess.run([sys.argv[1]], input=text, capture_output=True, text=True, check=True)
        walks = [[int(key) for key in line.split()] for line in done.stdout.splitlines()]
        found.append({"steps": steps, "walks": walks})
    OUT.write_bytes(gzip.compress(json.dumps(found, separators=(",", ":")).encode(), mtime=0))


if __name__ == "__main__":
    main()
