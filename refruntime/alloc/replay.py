"""Replay event lists on the allocator's policy: ``python -m refruntime.alloc.replay EVENTS OUT``.

The events and the output are in the format of the recordings made of PyTorch's own allocator, so
that the two can be compared: ``results`` (where each allocation went, and the state after each
event), ``driver_log`` (what was asked of the device), ``trace`` (the allocator's history),
``snapshot`` (segments and blocks at the end) and ``stats``. With ``--bench`` it times the loop.

State
-----
None.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from refruntime.alloc import replay_loop as loop
from refruntime.alloc import replay_output as output
from refruntime.alloc import statistics
from refruntime.alloc.configuration import Configuration
from refruntime.alloc.event_list import EncodedList, Event, encode, parse_bytes, read_events
from refruntime.alloc.replayer import Replayer
from refruntime.alloc.settings import AllocatorSettings
from refruntime.alloc.tables import SEGMENT_COUNT
from refruntime.errors import RefruntimeError

Record = dict[str, Any]

DEFAULT_CAPACITY: Final = "80G"


@dataclass(frozen=True, slots=True)
class Options:
    """How a list is replayed.

    Attributes
    ----------
    conf : str
        The settings to begin with.
    capacity : int
        Bytes of the device.
    manual_events : bool
        Whether work on streams is done only when the list says so.
    va : str
        The address policy of the recording; ours gives the same places under each.
    """

    conf: str
    capacity: int
    manual_events: bool = False
    va: str = "bump"

    def configuration(self) -> Configuration:
        """Return what the policy starts from."""
        environ = {"PYTORCH_ALLOC_CONF": self.conf} if self.conf else {}
        settings = AllocatorSettings.from_environment(environ)
        return Configuration(settings, self.capacity).with_fraction(
            settings.per_process_memory_fraction
        )


def options_of(config: Event, **given: Any) -> Options:
    """Return the options of a list: those given, else those of its config line, else defaults."""

    def option(name: str, default: Any) -> Any:
        value = given.get(name)
        return config.get(name, default) if value is None else value

    return Options(
        conf=option("conf", ""),
        capacity=parse_bytes(option("capacity", DEFAULT_CAPACITY)),
        manual_events=bool(option("manual_events", False)),
        va=option("va", "bump"),
    )


def replay_events(
    events: list[Event], options: Options, *, history: bool = True, messages: bool = False
) -> Record:
    """Replay events and return everything that can be compared.

    Parameters
    ----------
    events : list of dict
        The events; see `event_list`.
    options : Options
        How.
    history : bool
        Record the allocator's history too.
    messages : bool
        Keep the texts of out-of-memory errors.
    """
    replayer = Replayer(
        encode(events, options.configuration()), trace=history, manual_events=options.manual_events
    )
    snapshots, started = [], time.perf_counter()
    for number in replayer.stops():
        places = output.Places(replayer.device.log())
        snapshots.append([number, output.snapshot_of(replayer.tables, places)])
    seconds = time.perf_counter() - started
    places = output.Places(replayer.device.log())
    results = output.results_of(replayer, events, places)
    found: Record = {
        "meta": _meta(replayer, events, options, seconds),
        "results": results,
        "driver_log": output.driver_log_of(replayer.device.log(), places),
        "trace": output.trace_of(replayer.trace(), places) if _has_trace(history, options) else [],
        "snapshot": output.snapshot_of(replayer.tables, places),
        "stats": statistics.memory_stats(
            replayer.tables, statistics.Baseline(), options.configuration().settings
        ),
    }
    texts = output.messages_of(replayer) if messages else []
    more = {"snapshots": snapshots, "messages": texts}
    return found | {name: value for name, value in more.items() if value}


def _has_trace(history: bool, options: Options) -> bool:
    """Whether a recording has a history: not where addresses are used again."""
    return history and options.va == "bump"


def _meta(replayer: Replayer, events: list[Event], options: Options, seconds: float) -> Record:
    settings = replayer.events.settings[-1].settings.as_snapshot()
    return {
        "n_events": len(events),
        "n_oom": int(replayer.state[loop.FAILURES]),
        "n_segments": int(replayer.tables.header[SEGMENT_COUNT]),
        "seconds": seconds,
        "settings": {key: str(value) for key, value in settings.items()},
        "conf": options.conf,
        "capacity": options.capacity,
        "va": options.va,
        "manual_events": options.manual_events,
    }


def bench(events: EncodedList, runs: int) -> tuple[float, int]:
    """Time the compiled loop alone; return nanoseconds an event (the least run), and OOMs."""
    best, failures = float("inf"), 0
    for _ in range(runs):
        replayer = Replayer(events, results=False, log=False, trace=False)
        started = time.perf_counter()
        replayer.run()
        best = min(best, time.perf_counter() - started)
        failures = int(replayer.state[loop.FAILURES])
    return best * 1e9 / max(len(events.rows), 1), failures


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit status."""
    args = _parser().parse_args(argv)
    try:
        return _bench(args) if args.bench else _replay(args)
    except (RefruntimeError, OSError, EOFError) as error:
        print(f"replay: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m refruntime.alloc.replay",
        description="Replay a list of allocation events on the caching allocator's policy.",
    )
    parser.add_argument("events", help="event list: JSON lines, may be gzipped")
    parser.add_argument("out", nargs="?", help="where the outcome goes: gzipped JSON")
    parser.add_argument("--conf", help="allocator settings, as PYTORCH_ALLOC_CONF gives them")
    parser.add_argument("--capacity", help="memory of the device, such as 80G")
    parser.add_argument("--manual-events", action="store_true", default=None)
    parser.add_argument("--va", choices=["bump", "firstfit"])
    parser.add_argument("--no-history", action="store_true")
    parser.add_argument("--digest", type=int, default=0, metavar="N")
    parser.add_argument("--messages", action="store_true", help="keep the texts of OOM errors")
    parser.add_argument("--bench", action="store_true", help="time the loop; OUT is not needed")
    parser.add_argument("--runs", type=int, default=5, help="how often --bench runs")
    return parser


def _options(args: argparse.Namespace, config: Event) -> Options:
    return options_of(
        config,
        conf=args.conf,
        capacity=args.capacity,
        manual_events=args.manual_events,
        va=args.va,
    )


def _bench(args: argparse.Namespace) -> int:
    config, events = read_events(args.events)
    encoded = encode(events, _options(args, config).configuration())
    nanoseconds, failures = bench(encoded, args.runs)
    print(f"{args.events}: {len(events)} events, {nanoseconds:.0f} ns/event, {failures} OOM")
    return 0


def _replay(args: argparse.Namespace) -> int:
    if args.out is None:
        _parser().error("OUT is missing")
    config, events = read_events(args.events)
    options = _options(args, config)
    found = replay_events(
        events, options, history=not args.no_history, messages=args.messages
    )  # fmt: skip
    if args.digest:
        found["digest_every"] = args.digest
        found["digests"] = output.digests_of(found.pop("results"), args.digest)
        del found["trace"]
    meta = found["meta"]
    meta["events"] = Path(args.events).name
    meta |= {key: config[key] for key in ("shape", "seed") if key in config}
    _write(args.out, found)
    print(
        f"{meta['events']}: {meta['n_events']} events, {meta['n_oom']} OOM, "
        f"{meta['n_segments']} segments, {len(found['driver_log'])} driver calls, "
        f"{meta['seconds']:.2f} s -> {args.out}"
    )
    return 0


def _write(path: str, record: Record) -> None:
    with gzip.GzipFile(path, "wb", mtime=0) as file:
        file.write(json.dumps(record, separators=(",", ":"), default=_plain).encode())


def _plain(value: Any) -> Any:
    """Turn NumPy's integers into Python's."""
    if isinstance(value, np.integer):
        return int(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


if __name__ == "__main__":
    sys.exit(main())
