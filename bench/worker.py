"""The side of `compare.py` that holds one framework: times what it is asked, one line a request.

State
-----
The workloads prepared so far, each a `timeit.Timer` over its names.

Invariants
----------
* One JSON object comes in a line, one goes out a line; standard output carries nothing else.
* A request that fails is answered with ``{"error": text}``; the worker lives on.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import timeit
from typing import Any

import numpy as np
from work import WORKLOADS


def checksum(value: Any) -> list[float]:
    """Reduce a result to a few numbers that two right answers share."""
    array = np.asarray(value.detach().numpy(), dtype=np.float64)
    return [float(array.sum()), float(np.abs(array).sum()), float(array.size)]


class Worker:
    """Times workloads in one framework."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.timers: dict[str, timeit.Timer] = {}

    def prepare(self, name: str, round_seconds: float) -> dict[str, Any]:
        """Build a workload, warm it up, and find how many calls fill a round."""
        item = WORKLOADS[name]
        names = item.setup(self.torch)
        timer = timeit.Timer(item.statement, globals=names)
        timer.timeit(3)
        loops, taken = 1, timer.timeit(1)
        while taken < round_seconds / 2:
            loops = max(2 * loops, int(loops * round_seconds / 2 / max(taken, 1e-9)))
            taken = timer.timeit(loops)
        self.timers[name] = timer
        found = checksum(eval(item.result, names))
        return {"loops": max(1, round(loops * round_seconds / taken)), "checksum": found}

    def round(self, name: str, loops: int) -> dict[str, Any]:
        """Time `loops` calls, after one that wakes the threads; give nanoseconds a call."""
        self.timers[name].timeit(1)
        return {"ns": self.timers[name].timeit(loops) / loops * 1e9}

    def forget(self, name: str) -> dict[str, Any]:
        """Free what a workload holds."""
        del self.timers[name]
        return {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do what a request asks; turn a failure into an answer."""
        try:
            return getattr(self, request.pop("do"))(**request)
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    framework, threads = sys.argv[1], int(sys.argv[2])
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a framework prints goes to standard error
    torch = importlib.import_module(framework)
    torch.set_num_threads(threads)
    worker = Worker(torch)
    print(json.dumps({"version": torch.__version__}), file=replies)
    for line in sys.stdin:
        print(json.dumps(worker.answer(json.loads(line))), file=replies)


if __name__ == "__main__":
    main()
