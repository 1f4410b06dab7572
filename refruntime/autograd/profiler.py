"""What ran when, and on which thread: a log of backward, as a trace that Perfetto shows.

State
-----
`_traces` holds the traces that record now. `EngineTrace` is one of them: ranges in nanoseconds.

Invariants
----------
* Without a trace nothing is measured: the engine has no observer, and `record_function` does
  nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from refruntime.autograd import engine


@dataclass(frozen=True, slots=True)
class Range:
    """One thing that ran: its name, the thread, begin and end in nanoseconds, and details."""

    name: str
    category: str
    thread: int
    begin_ns: int
    end_ns: int
    args: dict[str, Any]


class EngineTrace:
    """The nodes that backward ran, and the ranges of `record_function`, as they ended."""

    def __init__(self) -> None:
        self.ranges: list[Range] = []
        self.threads: dict[int, str] = {}

    def add(self, name: str, category: str, begin_ns: int, **args: Any) -> None:
        """Enter what this thread has done since `begin_ns`."""
        thread = threading.current_thread()
        ident = thread.ident or 0
        self.threads[ident] = thread.name
        self.ranges.append(Range(name, category, ident, begin_ns, time.perf_counter_ns(), args))

    def observe(self, run: Callable[..., Any], node: Any, grads: Any) -> Sequence[Any]:
        """Run a node for the engine, and enter it."""
        begin = time.perf_counter_ns()
        try:
            return run(node, grads)  # type: ignore[no-any-return]
        finally:
            self.add(node.name(), "backward", begin, sequence_nr=node.sequence_nr)

    def chrome(self) -> dict[str, Any]:
        """Return the trace in the JSON form of Chrome and Perfetto (times in microseconds)."""
        process = os.getpid()
        events: list[dict[str, Any]] = [
            {"ph": "M", "name": "thread_name", "pid": process, "tid": ident, "args": {"name": name}}
            for ident, name in self.threads.items()
        ]
        for one in sorted(self.ranges, key=lambda one: one.begin_ns):
            events.append({
                "ph": "X", "name": one.name, "cat": one.category, "pid": process,
                "tid": one.thread, "ts": one.begin_ns / 1000,
                "dur": (one.end_ns - one.begin_ns) / 1000, "args": one.args,
            })  # fmt: skip
        return {"traceEvents": events, "displayTimeUnit": "ns"}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trace to a file, to be opened with ui.perfetto.dev."""
        Path(path).write_text(json.dumps(self.chrome()))


_traces: list[EngineTrace] = []


@contextlib.contextmanager
def trace() -> Iterator[EngineTrace]:
    """Log which thread runs which node when, in all backward calls that start inside the block.

    Examples
    --------
    >>> with trace() as log:
    ...     loss.backward()
    >>> log.save("backward.json")
    """
    log = EngineTrace()
    _traces.append(log)
    engine.observers.append(log.observe)
    try:
        yield log
    finally:
        engine.observers.remove(log.observe)
        _traces.remove(log)


class record_function(contextlib.ContextDecorator):  # noqa: N801 - torch's spelling
    """Name what runs inside the block (or the decorated function) in the traces that record.

    Parameters
    ----------
    name : str
        The name.
    args : str, optional
        Details shown with it.
    """

    def __init__(self, name: str, args: str | None = None) -> None:
        self.name = name
        self.args = args
        # One object may be entered again before it is left, by a decorated function that recurses.
        self._begins: list[int] = []

    def __enter__(self) -> record_function:
        self._begins.append(time.perf_counter_ns())
        return self

    def __exit__(self, *exc: object) -> None:
        begin = self._begins.pop()
        details = {} if self.args is None else {"args": self.args}
        for log in _traces:
            log.add(self.name, "user", begin, **details)
