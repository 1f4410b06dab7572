"""The caching allocator's own work, in nanoseconds: patterns and traces, in compiled replay.

    python bench/allocator.py [--trace EVENTS ...] [--rounds 3] [--json FILE]
    python bench/allocator.py --peer PYTHON --peer-bench bench_speed.py [--trace EVENTS ...]

The patterns are those that are timed of PyTorch's allocator on a stand-in for the CUDA driver (see
`docs/allocator.md`): a pair of malloc and free among live blocks or free holes, random churn, and
last-in-first-out. With a peer, both run alternately on this machine and the table gives ratios; a
figure is the least of all rounds.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from refruntime.alloc import CachingAllocator, VirtualUpstream
from refruntime.alloc import replay_loop as loop
from refruntime.alloc.configuration import Configuration
from refruntime.alloc.event_list import EncodedList, encode, read_events
from refruntime.alloc.replayer import Replayer
from refruntime.alloc.settings import AllocatorSettings

KIB, MIB = 1 << 10, 1 << 20
CAPACITY = 80 << 30
SMALL = [512 * k for k in (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 4, 16, 7, 1, 2, 30)]
LARGE = [MIB * k + 512 * k for k in (2, 3, 5, 8, 13, 21, 34, 4, 16, 7, 3, 2)]
Row = tuple[int, int, int, int]


def malloc(name: int, nbytes: int) -> Row:
    return loop.ALLOC, name, nbytes, 0


def free(name: int) -> Row:
    return loop.FREE, name, 0, 0


def pair(nbytes: int, live: int, sizes: list[int], holes: bool) -> tuple[list[Row], list[Row]]:
    """A malloc and a free of one size, with so many blocks live and, if asked, as many holes."""
    held = 2 * live if holes else live
    setup = [malloc(i, sizes[i % len(sizes)]) for i in range(held)]
    setup += [free(i) for i in range(0, held, 2)] if holes else []
    return setup, [malloc(held, nbytes), free(held)] * 100_000


def churn(live: int, sizes: list[int]) -> tuple[list[Row], list[Row]]:
    """Free a random block and allocate one of a random size in its place, over and over."""
    rng = np.random.default_rng(1)
    warm = max(20_000, 4 * live)
    setup = [malloc(i, int(rng.choice(sizes))) for i in range(live)]
    steps = [
        row
        for name, nbytes in zip(
            rng.integers(0, live, warm + 100_000), rng.choice(sizes, warm + 100_000), strict=True
        )
        for row in (free(int(name)), malloc(int(name), int(nbytes)))
    ]
    return setup + steps[: 2 * warm], steps[2 * warm :]


def lifo(depth: int, sizes: list[int]) -> tuple[list[Row], list[Row]]:
    """So many mallocs, then as many frees in reverse."""
    rounds = [malloc(i, sizes[i % len(sizes)]) for i in range(depth)]
    rounds += [free(i) for i in reversed(range(depth))]
    return rounds, rounds * max(2, 100_000 // depth)


def patterns() -> Iterator[tuple[str, tuple[list[Row], list[Row]]]]:
    """Yield each pattern under the name that the peer's benchmark gives it."""
    for live in (10, 1000, 100_000):
        yield f"raw pair 4 KiB, {live} live 4 KiB", pair(4 * KIB, live, [4 * KIB], False)
    for live in (10, 1000, 100_000):
        name = f"raw pair 4 KiB, {live} live + {live} free holes, mixed small"
        yield name, pair(4 * KIB, live, SMALL, True)
    for live in (10, 1000, 100_000):
        yield f"random churn small (0.5-44 KiB), {live} live", churn(live, SMALL)
    for depth in (10, 1000, 100_000):
        yield f"LIFO small, depth {depth}", lifo(depth, SMALL)


def hole_growth() -> Iterator[tuple[str, tuple[list[Row], list[Row]]]]:
    """Yield a 4 KiB pair among holes of 4 to 64 KiB, for more and more holes."""
    sizes = [4 * KIB * k for k in range(1, 17)]
    for holes in (64, 4096, 65_536):
        yield f"pair among {holes} holes of 4-64 KiB", pair(4 * KIB, holes, sizes, True)


def time_pattern(setup: list[Row], body: list[Row]) -> float:
    """Return nanoseconds a pair of the body, after the setup."""
    rows = np.array([*setup, (loop.SNAPSHOT, 0, 0, 0), *body], np.int64)
    names = int(rows[:, 1].max()) + 1
    start = Configuration(AllocatorSettings(), CAPACITY)
    replayer = Replayer(
        EncodedList(rows, names, 0, [start]), results=False, log=False, trace=False
    )  # fmt: skip
    started = 0.0
    for _ in replayer.stops():
        started = time.perf_counter()
    return (time.perf_counter() - started) * 1e9 / (len(body) // 2)


def time_trace(path: str) -> float:
    """Return nanoseconds an event of a recorded list, with everything warm."""
    _, events = read_events(path)
    kept = [event for event in events if event["op"] in ("alloc", "free")]
    encoded = encode(kept, Configuration(AllocatorSettings(), CAPACITY))
    best = float("inf")
    for _ in range(3):
        replayer = Replayer(encoded, results=False, log=False, trace=False)
        started = time.perf_counter()
        replayer.run()
        best = min(best, time.perf_counter() - started)
    return best * 1e9 / len(kept)


def time_python_pair() -> float:
    """Return nanoseconds of malloc and free from Python."""
    allocator = CachingAllocator(VirtualUpstream(CAPACITY))
    allocator.compile()
    take, give = allocator.malloc, allocator.free
    give(take(4096))
    count = range(200_000)
    started = time.perf_counter()
    for _ in count:
        give(take(4096))
    taken = time.perf_counter() - started
    started = time.perf_counter()
    for _ in count:
        pass
    return (taken - (time.perf_counter() - started)) * 1e9 / len(count)


def measure(traces: list[str]) -> dict[str, float]:
    """Time everything once."""
    found = {name: time_pattern(*rows) for name, rows in [*patterns(), *hole_growth()]}
    found["Python raw_alloc+raw_delete 4 KiB (loop taken off)"] = time_python_pair()
    for path in traces:
        found[f"replay {Path(path).name}"] = time_trace(path)
    return found


def measure_peer(python: str, script: str, traces: list[str]) -> dict[str, float]:
    """Run the peer's benchmark once and read its table."""
    command = [python, script, "--runs", "3", "--replay", *traces]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = {
        match[1].strip(): float(match[2])
        for match in re.finditer(r"^(\S.*?)\s+([\d.]+) ns/pair$", text, re.MULTILINE)
    }
    for match in re.finditer(r"^replay (\S+): .*\((\d+) ns/event\)", text, re.MULTILINE):
        found[f"replay {match[1]}"] = float(match[2])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--trace", nargs="*", default=[])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", help="a Python with a CUDA build of torch on the stand-in driver")
    parser.add_argument("--peer-bench", help="the script that times its allocator")
    parser.add_argument("--json", help="write the figures here too")
    args = parser.parse_args()
    ours: dict[str, float] = {}
    peer: dict[str, float] = {}
    for _ in range(args.rounds):
        for known, new in (
            (ours, measure(args.trace)),
            (peer, measure_peer(args.peer, args.peer_bench, args.trace) if args.peer else {}),
        ):
            known.update({k: min(v, known.get(k, v)) for k, v in new.items()})
    for name, value in ours.items():
        other = peer.get(name)
        ratio = f"{other:10.1f} {value / other:6.2f}" if other else ""
        print(f"{name:60} {value:10.1f} {ratio}")
    if args.json:
        Path(args.json).write_text(json.dumps({"ours": ours, "peer": peer}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
