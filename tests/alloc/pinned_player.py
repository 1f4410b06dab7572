"""Plays recorded scenarios of PyTorch's pinned allocator on ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from refruntime.alloc.pinned import PinnedAllocator
from refruntime.alloc.pinned_upstream import VirtualPinnedUpstream
from refruntime.alloc.settings import AllocatorSettings
from refruntime.alloc.virtual_streams import Timeline


def settings_of(text: str) -> AllocatorSettings:
    """Reads the keys that the recordings use."""
    kinds: dict[str, Callable[[str], Any]] = {"True": bool}
    values: dict[str, Any] = {}
    for pair in filter(None, text.split(",")):
        key, value = pair.split(":")
        if key.endswith("_mb"):
            values[key.removesuffix("_mb")] = int(value) << 20
        else:
            values[key] = kinds.get(value, int)(value)
    return replace(AllocatorSettings(), **values)


def manual(capacity: int = 1 << 40) -> VirtualPinnedUpstream:
    return VirtualPinnedUpstream(capacity, Timeline(manual=True))


class Player:
    """Plays a recorded scenario, and tells what happened in the words of the recording.

    PyTorch records the events of one free in the order of a hash table. Which blocks come back, and
    where looking stops, does not depend on it: this is compared, free by free.
    """

    def __init__(self, conf: str) -> None:
        self.upstream = manual()
        self.trace: list[list[Any]] = []
        self.allocator = PinnedAllocator(self.upstream, settings_of(conf), observer=self.observe)
        self.live: dict[int, int] = {}
        self.spans: dict[int, tuple[int, int]] = {}
        self.span_count = 0
        self.marks: dict[Any, int] = {}
        self.frees = 0
        self.graphs: dict[str, tuple[int, int]] = {}

    def observe(self, action: str, address: int, size: int, pool: tuple[int, int]) -> None:
        self.trace.append([action, size])

    def step(self, event: dict[str, Any]) -> dict[str, Any]:
        self.frees += event["op"] == "free"
        getattr(self, "do_" + event["op"])(event)
        result: dict[str, Any] = {"log": self.log()}
        if event["op"] == "alloc":
            result["at"] = self.place(self.live[event["id"]])
        stats = self.allocator.stats()
        names = ("active_requests", "active_bytes", "allocations", "allocated_bytes")
        return {**result, "st": [stats[f"{name}.current"] for name in names]}

    def log(self) -> list[list[Any]]:
        found: list[list[Any]] = []
        for call, *details in self.upstream.log:
            if call in ("reserve_host", "reserve_pages"):
                if call == "reserve_host":
                    found.append(["host_alloc", details[0]])
                self.spans[self.newest()] = (self.span_count, details[0])
                self.span_count += 1
            elif call == "release_host":
                found.append(["host_free", self.spans.pop(details[0])[0]])
            elif call == "record_event":
                found.append(["event_record", self.frees, details[0]])
            elif call == "query_event":
                found.append(["event_query", self.mark_owner(details[0]), details[1]])
        self.upstream.log.clear()
        return found

    def newest(self) -> int:
        spans = self.upstream._spans._spans
        return next(address for address in spans if address not in self.spans)

    def mark_owner(self, mark: Any) -> int:
        return self.marks[mark]

    def place(self, address: int) -> list[int] | None:
        for start, (number, size) in self.spans.items():
            if start <= address < start + size:
                return [number, address - start]
        return None

    def do_alloc(self, event: dict[str, Any]) -> None:
        self.live[event["id"]] = self.allocator.malloc(event["size"])

    def do_free(self, event: dict[str, Any]) -> None:
        self.allocator.free(self.live.pop(event["id"]))
        for marked, _ in self.allocator._default.events:
            self.marks.setdefault(marked.mark, self.frees)

    def do_use(self, event: dict[str, Any]) -> None:
        self.upstream.timeline.submit(event["stream"])
        assert self.allocator.record_event(self.live[event["id"]], event["stream"])

    def do_complete(self, event: dict[str, Any]) -> None:
        self.upstream.timeline.complete(event.get("stream"), event.get("n"))

    def do_empty_cache(self, event: dict[str, Any]) -> None:
        self.allocator.empty_cache()

    def do_reset_peak(self, event: dict[str, Any]) -> None:
        self.allocator.reset_peaks()

    def do_reset_accumulated(self, event: dict[str, Any]) -> None:
        self.allocator.reset_totals()

    def do_capture_begin(self, event: dict[str, Any]) -> None:
        # torch.cuda.graph waits for the device and empties the cache before it captures.
        self.upstream.timeline.complete()
        self.allocator.empty_cache()
        self.upstream.stream = event["stream"]
        self.upstream.capturing.add(event["stream"])
        pool = self.graphs[event["graph"]] = (len(self.graphs) + 1, 0)
        self.allocator.begin_allocate_to_pool(pool, lambda stream: stream == event["stream"])

    def do_capture_end(self, event: dict[str, Any]) -> None:
        self.upstream.capturing.clear()
        self.upstream.stream = 0
        self.allocator.end_allocate_to_pool(list(self.graphs.values())[-1])

    def do_graph_delete(self, event: dict[str, Any]) -> None:
        self.allocator.release_pool(self.graphs.pop(event["graph"]))


def free_by_free(log: list[list[Any]], owners: dict[int, int]) -> list[list[Any]]:
    """Renames events to the free that recorded them, and forgets the order inside a free."""
    found: list[list[Any]] = []
    for call, *details in log:
        if call == "event_query":
            owner, ready = owners.get(details[0], details[0]), details[1]
            if found and found[-1][:2] == [call, owner]:
                found[-1][2] = ready
            else:
                found.append([call, owner, ready])
        elif call == "event_record":
            found.append([call, details[1]])
        else:
            found.append([call, *details])
    records = sorted(entry for entry in found if entry[0] == "event_record")
    return records + [entry for entry in found if entry[0] != "event_record"]
