"""Run the same work in refruntime and in PyTorch, alternating, and print ratios.

Two workers hold one framework each; the parent asks them in turn, so that both meet the same state
of the machine, stops the one that waits, and takes the median of the ratios of neighbouring rounds.
A ratio below 1 means that refruntime is faster. Run it on a quiet machine: where another program
takes one of the cores, the threads of a parallel region wait for the one that lost its core, and
the times of large work mean nothing (``--threads 1`` suffers least).

Run with ``--help`` for the options.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from work import PROCESSES, WORKLOADS

BENCH = Path(__file__).resolve().parent
ROOT = BENCH.parent
OURS, PEER = "refruntime", "torch"
SIDES = (OURS, PEER)
TOLERANCE = 2e-3


@dataclass
class Result:
    """The rounds of one workload on both sides, in nanoseconds a call."""

    name: str
    rounds: dict[str, list[float]] = field(default_factory=lambda: {OURS: [], PEER: []})
    error: str = ""

    def ratios(self) -> list[float]:
        """Return ours / peer of each round, sorted."""
        return sorted(a / b for a, b in zip(self.rounds[OURS], self.rounds[PEER], strict=True))

    def record(self) -> dict[str, Any]:
        """Return the entry for the JSON file."""
        if self.error:
            return {"error": self.error}
        ratios = self.ratios()
        return {
            "refruntime_ns": statistics.median(self.rounds[OURS]),
            "peer_ns": statistics.median(self.rounds[PEER]),
            "ratio": statistics.median(ratios),
            "ratio_low": ratios[0],
            "ratio_high": ratios[-1],
        }


class Side:
    """A worker process with one framework."""

    def __init__(self, python: str, framework: str, threads: int) -> None:
        self.framework = framework
        command = [python, str(BENCH / "worker.py"), framework, str(threads)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=environment(threads),
        )  # fmt: skip
        self.version = self._read()["version"]
        self.process.send_signal(signal.SIGSTOP)

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send one request and wait for its answer."""
        assert self.process.stdin is not None
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = self._read()
        # BLAS and OpenMP threads spin for a while after their work, and would slow the other side.
        self.process.send_signal(signal.SIGSTOP)
        return answer

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"compare: the {self.framework} worker ended ({self.process.wait()})")
        return json.loads(line)

    def close(self) -> None:
        """End the worker."""
        assert self.process.stdin is not None
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.close()
        self.process.wait(timeout=60)


def environment(threads: int, cache: str = "") -> dict[str, str]:
    """Return an environment in which every library uses `threads` threads."""
    knobs = ("OMP", "MKL", "OPENBLAS", "REFRUNTIME")
    counts = {f"{knob}_NUM_THREADS": str(threads) for knob in knobs}
    paths = os.pathsep.join([str(ROOT), str(BENCH)])
    cold = {"REFRUNTIME_CACHE_DIR": cache, "NUMBA_CACHE_DIR": cache} if cache else {}
    return {**os.environ, **counts, "PYTHONPATH": paths, **cold}


def in_turn(count: int) -> list[tuple[str, str]]:
    """Return who goes first in each round, so that neither side always follows the other."""
    return [SIDES if i % 2 == 0 else SIDES[::-1] for i in range(count)]


def compare_workload(sides: dict[str, Side], name: str, options: argparse.Namespace) -> Result:
    """Time one workload in both workers."""
    result = Result(name)
    ready = {}
    for side in SIDES:
        ready[side] = sides[side].ask(do="prepare", name=name, round_seconds=options.round_ms / 1e3)
        if "error" in ready[side]:
            result.error = f"{side}: {ready[side]['error']}"
            return result
    if not agree(ready[OURS]["checksum"], ready[PEER]["checksum"]):
        result.error = f"results differ: {ready[OURS]['checksum']} {ready[PEER]['checksum']}"
        return result
    for order in in_turn(options.rounds):
        for side in order:
            reply = sides[side].ask(do="round", name=name, loops=ready[side]["loops"])
            result.rounds[side].append(reply["ns"])
    for side in SIDES:
        sides[side].ask(do="forget", name=name)
    return result


def agree(ours: list[float], peer: list[float]) -> bool:
    """Say whether two checksums belong to the same result, up to rounding."""
    scale = max(abs(peer[1]), 1e-12)
    return ours[2] == peer[2] and all(
        abs(a - b) <= TOLERANCE * scale for a, b in zip(ours[:2], peer[:2], strict=True)
    )


def compare_process(
    pythons: dict[str, str], name: str, options: argparse.Namespace, cold: bool
) -> Result:
    """Time whole processes; with `cold`, each refruntime process starts with an empty cache."""
    result = Result(name + ("_cold" if cold else ""))
    rounds = min(options.rounds, 3 if cold else 7)
    try:
        for side in SIDES:  # fill the caches of files and of compiled code
            time_process(pythons[side], side, name, options.threads, cold=False)
        for order in in_turn(rounds):
            for side in order:
                seconds = time_process(pythons[side], side, name, options.threads, cold)
                result.rounds[side].append(seconds * 1e9)
    except subprocess.CalledProcessError as error:
        result.error = (error.stderr.strip().splitlines() or ["no message"])[-1]
    return result


def time_process(python: str, framework: str, name: str, threads: int, cold: bool) -> float:
    """Run one process from start to end and return its wall time in seconds."""
    code = f"import {framework} as torch; {PROCESSES[name]}"
    with contextlib.ExitStack() as stack:
        cache = stack.enter_context(tempfile.TemporaryDirectory()) if cold else ""
        start = time.perf_counter()
        subprocess.run(
            [python, "-c", code], env=environment(threads, cache), check=True, capture_output=True,
            text=True,
        )  # fmt: skip
        return time.perf_counter() - start


def human(ns: float) -> str:
    """Write a time with the unit that suits it."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if ns >= size:
            return f"{ns / size:.3g} {unit}"
    return f"{ns:.3g} ns"


def show(result: Result) -> None:
    """Print one row."""
    if result.error:
        print(f"{result.name:28} {result.error}", flush=True)
        return
    row = result.record()
    span = f"{row['ratio_low']:.2f} .. {row['ratio_high']:.2f}"
    print(f"{result.name:28} {human(row['refruntime_ns']):>12} {human(row['peer_ns']):>12} "
          f"{row['ratio']:8.2f}   {span}", flush=True)  # fmt: skip


def peer_python(given: str | None) -> str:
    """Find the Python that has PyTorch, or say how to get one."""
    found = given or os.environ.get("REFRUNTIME_PEER") or str(ROOT / ".venv-peer/bin/python")
    if not Path(found).exists():
        sys.exit(f"compare: no Python with PyTorch at {found}; run `make peer`, or pass --peer")
    return found


def chosen(only: str | None) -> list[str]:
    """Return the names to run: all, or those that contain one of the given words."""
    cold = [f"{name}_cold" for name in PROCESSES if name != "import"]
    names = [*WORKLOADS, *PROCESSES, *cold]
    words = only.split(",") if only else [""]
    found = [name for name in names if any(word in name for word in words)]
    return found or sys.exit(f"compare: nothing matches {only!r}; there are: {', '.join(names)}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", metavar="PYTHON", help="a Python that has PyTorch "
                        "(default: $REFRUNTIME_PEER, or .venv-peer)")  # fmt: skip
    parser.add_argument("--only", metavar="WORDS", help="names that contain one of these, by comma")
    parser.add_argument("--rounds", type=int, default=11, help="timed rounds (default 11)")
    parser.add_argument("--round-ms", type=float, default=50, help="length of a round")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here")
    return parser.parse_args()


def main() -> int:
    options = parse()
    names = chosen(options.only)
    pythons = {OURS: sys.executable, PEER: peer_python(options.peer)}
    results = []
    sides = {}
    if any(name in WORKLOADS for name in names):
        sides = {side: Side(pythons[side], side, options.threads) for side in SIDES}
        versions = ", ".join(f"{side} {sides[side].version}" for side in SIDES)
        print(f"{versions}; {options.threads} threads, {options.rounds} rounds")
    print(f"{'':28} {'refruntime':>12} {'PyTorch':>12} {'ratio':>8}   lowest .. highest")
    for name in names:
        if name in WORKLOADS:
            result = compare_workload(sides, name, options)
        else:
            plain = name.removesuffix("_cold")
            result = compare_process(pythons, plain, options, cold=plain != name)
        show(result)
        results.append(result)
    for side in sides.values():
        side.close()
    if options.json:
        table = {result.name: result.record() for result in results}
        options.json.write_text(json.dumps(table, indent=1) + "\n")
    return int(any(result.error for result in results))


if __name__ == "__main__":
    sys.exit(main())
