"""Plays event lists, extended ones too, on the runtime's allocator over a virtual device.

The formats of the lists and of the outputs are those of `oracle/README.md`.
"""

from __future__ import annotations

import bisect
import gzip
import json
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from refruntime.alloc import CachingAllocator, VirtualUpstream, replay_output
from refruntime.alloc import tables as t
from refruntime.alloc.checkpoints import PoolState
from refruntime.alloc.event_list import parse_bytes
from refruntime.alloc.graphs import VirtualGraphs
from refruntime.alloc.private_pools import PoolId
from refruntime.alloc.settings import AllocatorSettings, AllocatorSettingsError
from refruntime.alloc.statistics import current_of
from refruntime.alloc.uncached import UncachedAllocator
from refruntime.alloc.upstream.models import CallLog
from refruntime.errors import OutOfMemoryError
from tests.alloc.conftest import NEVER

Event = dict[str, Any]
Outcome = dict[str, Any]
STATE = (t.ALLOCATED_BYTES, t.RESERVED_BYTES, t.ACTIVE_BYTES, t.INACTIVE_SPLIT_BYTES,
         t.REQUESTED_BYTES)  # fmt: skip


def read(path: Path) -> Any:
    """Read a gzipped output, or the events of a gzipped list."""
    text = gzip.decompress(path.read_bytes()).decode()
    if path.name.endswith(".jsonl.gz"):
        return [json.loads(line) for line in text.splitlines()]
    return json.loads(text)


class Places(CallLog):
    """A log of the driver's calls that knows where each segment starts."""

    def __init__(self) -> None:
        super().__init__()
        self.starts: list[int] = []

    def new_segment(self, address: int) -> int:
        self.starts.append(address)  # addresses only rise
        return super().new_segment(address)

    def find(self, address: int) -> tuple[int, int]:
        number = bisect.bisect_right(self.starts, address) - 1
        return number, address - self.starts[number]


class Player:
    """One method an operation; keeps what the events name."""

    def __init__(self, config: Event, conf: str, *, compiled: bool = False) -> None:
        self.log = Places()
        self.upstream = VirtualUpstream(
            parse_bytes(config.get("capacity", "80G")),
            granularity=2 << 20,
            manual_events=bool(config.get("manual_events")),
            log=self.log,
        )
        environ = {"PYTORCH_ALLOC_CONF": conf, **config.get("environment", {})}
        settings = AllocatorSettings.from_environment(environ)
        self._streams = threading.local()
        self.graphs = VirtualGraphs(self.current_stream)
        kind = UncachedAllocator if settings.uncached else CachingAllocator
        self.allocator = kind(
            self.upstream, device="GPU 0", settings=settings, graphs=self.graphs,
            compile_after=NEVER,
        )  # fmt: skip
        if compiled:
            self.allocator.compile()
        self.allocator.record()
        self.blocks: dict[int, int] = {}
        self.pools: dict[Any, PoolId] = {}
        self.captures: dict[Any, tuple[PoolId, int]] = {}
        self.pools_made = self.graph_pools_made = 0
        self.checkpoints: dict[Any, tuple[PoolState, dict[int, int]]] = {}
        self.callbacks: dict[int, Event] = {}
        self.workers: dict[int, ThreadPoolExecutor] = {}
        self.notes: dict[str, list[Any]] = {"called": [], "observed": []}
        self.refused: list[list[Any]] = []
        self.messages: list[str] = []

    def current_stream(self) -> int:
        return getattr(self._streams, "now", 0)

    def state(self) -> list[int]:
        header = self.allocator.tables.header
        sizes = [current_of(header, place) for place in STATE]
        return [*sizes, header[t.NUM_ALLOC_RETRIES], header[t.NUM_OOMS]]

    def play(self, event: Event) -> Outcome:
        """Carry out one event, on its thread."""
        act: Callable[[Event], Outcome | None] = getattr(self, f"do_{event['op']}")
        number = event.get("thread", 0)
        if not number:
            return act(event) or {}
        worker = self.workers.setdefault(number, ThreadPoolExecutor(1))
        return worker.submit(act, event).result() or {}

    # --- memory -------------------------------------------------------------------------------

    def do_alloc(self, event: Event) -> Outcome:
        stream = event.get("stream", 0)
        self._streams.now = stream
        header = self.allocator.tables.header
        before = header[t.NUM_OOM_REJECTIONS]
        try:
            self.blocks[event["id"]] = self.allocator.malloc(event["size"], stream)
        except OutOfMemoryError as error:
            self.messages.append(str(error))
            rejected = header[t.NUM_OOM_REJECTIONS] > before
            return {"oom": True, **({"rejected": True} if rejected else {})}
        return {"address": self.blocks[event["id"]]}

    def do_free(self, event: Event) -> Outcome:
        if event["id"] not in self.blocks:
            return {"skip": True}
        self.allocator.free(self.blocks.pop(event["id"]))
        return {}

    def do_record_stream(self, event: Event) -> Outcome:
        if event["id"] not in self.blocks:
            return {"skip": True}
        self.allocator.record_stream(self.blocks[event["id"]], event["stream"])
        return {}

    def do_empty_cache(self, event: Event) -> None:
        self.allocator.empty_cache()

    def do_set_fraction(self, event: Event) -> None:
        self.allocator.set_memory_fraction(event["fraction"])

    def do_settings(self, event: Event) -> Outcome:
        try:
            self.allocator.set_settings(event["conf"])
        except AllocatorSettingsError as error:
            return {"rejected": error.torch_class.__name__}
        return {}

    def do_reset_peak(self, event: Event) -> None:
        self.allocator.reset_peak_stats()

    def do_snapshot(self, event: Event) -> None:
        """Nothing here: `play` takes it."""

    # --- streams and the device -----------------------------------------------------------------

    def do_set_stream(self, event: Event) -> None:
        self._streams.now = event["stream"]

    def do_sync(self, event: Event) -> None:
        self.upstream.synchronize()

    def do_sync_stream(self, event: Event) -> None:
        self.upstream.synchronize(event["stream"])

    def do_complete(self, event: Event) -> None:
        self.upstream.complete(event.get("stream"), event.get("n"))

    def do_events(self, event: Event) -> None:
        self.upstream.manual_events = event["mode"] == "manual"

    def do_set_capacity(self, event: Event) -> None:
        self.upstream.capacity = event["bytes"]

    def do_set_foreign(self, event: Event) -> None:
        self.upstream.foreign = event["bytes"]

    def do_fail_next(self, event: Event) -> None:
        self.upstream.fail_next(event["n"])

    # --- pools and graphs -----------------------------------------------------------------------

    def do_pool_new(self, event: Event) -> None:
        self.pools_made += 1
        pool = self.pools[event["pool"]] = 0, self.pools_made
        flags = {name: event.get(name, False) for name in ("use_on_oom", "no_split")}
        self.allocator.pools.create(pool, **flags)

    def do_pool_begin(self, event: Event) -> None:
        if event["pool"] not in self.pools:
            self.do_pool_new({"pool": event["pool"]})
        self.allocator.pools.begin(self.pools[event["pool"]])

    def do_pool_end(self, event: Event) -> None:
        self.allocator.pools.end(self.pools[event["pool"]])
        self.allocator.pools.release(self.pools[event["pool"]])

    def do_pool_delete(self, event: Event) -> None:
        pool = self.pools.pop(event["pool"], None)
        if pool is not None:
            self.allocator.pools.release(pool)
            self.allocator.empty_cache(pool)

    def do_capture_begin(self, event: Event) -> None:
        stream = self._streams.now = event["stream"]
        pool = self._pool_of_capture(event)
        number = self.graphs.begin(stream)
        self.log.write("capture_begin", stream)
        self.allocator.pools.begin(
            pool, lambda each: self.graphs.capture_of(each) == number, captures=True
        )
        self.captures[event["graph"]] = pool, stream

    def _pool_of_capture(self, event: Event) -> PoolId:
        if "pool" in event:
            return self.pools[event["pool"]]
        if "like" in event:
            return self.captures[event["like"]][0]
        self.graph_pools_made += 1
        return self.graph_pools_made, 0

    def do_capture_end(self, event: Event) -> None:
        pool, stream = self.captures[event["graph"]]
        self._streams.now = stream
        self.graphs.end(stream)
        self.log.write("capture_end", stream)
        self.allocator.pools.end(pool)

    def do_graph_reset(self, event: Event) -> None:
        self.allocator.pools.release(self.captures.pop(event["graph"])[0])

    def do_graph_node(self, event: Event) -> None:
        self.graphs.add_node(event["stream"])

    def do_graph_wait(self, event: Event) -> None:
        self.graphs.wait(event["stream"], event["on"])

    def do_checkpoint(self, event: Event) -> None:
        pool = self.captures[event["graph"]][0] if "graph" in event else self.pools[event["pool"]]
        live = {number: self.blocks[number] for number in event["ids"]}
        self.checkpoints[event["name"]] = self.allocator.pools.checkpoint(pool), live

    def do_restore(self, event: Event) -> None:
        state, live = self.checkpoints[event["name"]]
        stale = [self.blocks.pop(number) for number in event["stale"]]
        again = self.allocator.pools.restore(state, stale)
        assert set(live.values()) <= set(again)
        self.blocks |= live

    # --- callbacks and observers ----------------------------------------------------------------

    def do_callback(self, event: Event) -> None:
        slot = event["slot"]
        if slot not in self.callbacks:
            self.allocator.add_free_memory_callback(lambda: self._call_back(slot))
        self.callbacks[slot] = event

    def _call_back(self, slot: int) -> bool:
        self.notes["called"].append(slot)
        for number in self.callbacks[slot].get("frees", ()):
            if number in self.blocks:
                self.allocator.free(self.blocks.pop(number))
        return bool(self.callbacks[slot]["answer"])

    def do_observe(self, event: Event) -> None:
        self.allocator.attach_oom_observer(
            lambda device, *values: self.notes["observed"].append([0, *values])
        )

    def do_observe_rejections(self, event: Event) -> None:
        self.allocator.attach_rejection_observer(
            lambda device, *values: self.refused.append([0, *values])
        )


def play(events: list[Event], conf: str, *, compiled: bool = False) -> dict[str, Any]:
    """Play a list on a fresh allocator; return the output.

    Parameters
    ----------
    events : list of dict
        The list, with its ``config`` line.
    conf : str
        The settings to begin with.
    compiled : bool
        Whether the hot entries of the allocator run compiled.
    """
    player = Player(events[0], conf, compiled=compiled)
    results, snapshots = [], []
    last = player.state()[0]
    for number, event in enumerate(events[1:]):
        player.log.step = number
        outcome = player.play(event)
        state = player.state()
        if "address" in outcome:
            outcome["seg"], outcome["off"] = player.log.find(outcome.pop("address"))
            outcome["block"] = state[0] - last
        for name, notes in player.notes.items():
            if notes:
                outcome[name] = notes[:]
                notes.clear()
        if event["op"] == "snapshot":
            snapshots.append([number, _snapshot(player)])
        last = state[0]
        results.append({**outcome, "st": state})
    for worker in player.workers.values():
        worker.shutdown()
    entries = player.allocator.tables.trace_entries()
    return {
        "results": results,
        "driver_log": player.log.entries,
        "trace": replay_output.trace_of(entries, player.log),
        "snapshot": _snapshot(player),
        "snapshots": snapshots,
        "stats": player.allocator.stats(),
        "messages": player.messages,
        "refused": sorted(player.refused),
    }


def _snapshot(player: Player) -> list[Any]:
    # The device of the recordings has its ranges of addresses above all its spans.
    found = replay_output.snapshot_of(player.allocator.tables, player.log)
    return sorted(found, key=lambda segment: segment["expandable"])


def expected(output: dict[str, Any]) -> dict[str, Any]:
    """Return what a recorded output demands: all but the moments at which snapshots were taken."""
    taken = {"snapshots": [], "refused": [], **output}
    del taken["meta"]
    taken["trace"] = [entry for entry in taken["trace"] if entry[0] != "snapshot"]
    return taken


def figures(message: str) -> list[str]:
    """Return the sizes in a text."""
    return re.findall(r"[\d.]+ (?:bytes|KiB|MiB|GiB)", message)
