#!/usr/bin/env python3
"""Makes extended event lists (see README.md here), seeded, one shape each.

gen_extended.py SHAPE SEED N > EVENTS.jsonl
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Callable
from typing import Any

K, M, G = 1 << 10, 1 << 20, 1 << 30
EQUAL = (300 * K, M, 2 * M, 5 * M, 10 * M, 20 * M, 20 * M, 40 * M, 60 * M)


class Maker:
    """Events so far, and what has to be known to make the next one.

    `uses` of a tensor are the streams that were recorded on it. `deferred` says that a free waits
    for the end of a capture; there is at most one such free at a time, because PyTorch handles
    several in the order of their addresses on the heap.
    """

    def __init__(self, shape: str, seed: str, count: int) -> None:
        self.rng = random.Random(f"{shape}/{seed}")
        self.events: list[dict[str, Any]] = []
        self.count = count
        self.next_id = 1
        self.live: dict[int, tuple[int, int]] = {}  # size, stream
        self.uses: dict[int, set[int]] = {}
        self.bytes = 0
        self.current = 0
        self.captures: dict[str, set[int]] = {}  # graph -> its capturing streams
        self.ended: list[str] = []
        self.root: dict[str, str] = {}  # graph -> the graph whose pool it shares
        self.deferred = False
        self.config: dict[str, Any] = {"capacity": 8 * G}

    def full(self) -> bool:
        return len(self.events) >= self.count

    def op(self, op: str, /, **fields: Any) -> None:
        self.events.append({"op": op, **fields})

    def size(self, low: int, high: int) -> int:
        if self.rng.random() < 0.3:
            return min(max(self.rng.choice(EQUAL), low), high)
        return int(math.exp(self.rng.uniform(math.log(low), math.log(high))))

    def capturing(self) -> set[int]:
        return set().union(*self.captures.values())

    def in_capture(self) -> bool:
        return self.current in self.capturing()

    def alloc(self, size: int, stream: int = 0, **more: Any) -> int:
        number = self.next_id
        self.next_id += 1
        if "thread" not in more:
            self.current = stream
        self.op("alloc", id=number, size=size, **({"stream": stream} if stream else {}), **more)
        self.live[number] = size, stream
        self.uses[number] = set()
        self.bytes += size
        if not self.in_capture():
            self.deferred = False
        return number

    def record(self, number: int, stream: int) -> None:
        self.op("record_stream", id=number, stream=stream)
        if stream != self.live[number][1]:
            self.uses[number].add(stream)

    def free(self, number: int, **more: Any) -> bool:
        """Free, unless that would defer a second block."""
        defers = bool(self.uses[number]) and self.in_capture()
        if defers and self.deferred:
            return False
        self.deferred |= defers
        self.op("free", id=number, **more)
        self.bytes -= self.live.pop(number)[0]
        del self.uses[number]
        return True

    def free_one(self) -> None:
        if self.live:
            self.free(self.rng.choice(list(self.live)))

    def record_one(self, streams: int) -> None:
        if self.live:
            self.record(self.rng.choice(list(self.live)), self.rng.randrange(streams))

    def trim(self, limit: int) -> None:
        """Free until less than `limit` bytes are asked for."""
        for number in self.rng.sample(list(self.live), len(self.live)):
            if self.bytes < limit:
                return
            self.free(number)


# --- captures ---------------------------------------------------------------------------------
def _begin_capture(g: Maker, stream: int) -> None:
    name = f"g{len(g.ended) + len(g.captures)}"
    busy = {g.root[graph] for graph in g.captures}
    free = [graph for graph in g.ended if graph and g.root[graph] not in busy]
    more = {"like": g.rng.choice(free)} if free and g.rng.random() < 0.4 else {}
    g.op("capture_begin", graph=name, stream=stream, **more)
    g.current = stream
    g.captures[name] = {stream}
    g.root[name] = g.root.get(more.get("like", ""), name)


def _end_capture(g: Maker) -> None:
    name = g.rng.choice(list(g.captures))
    g.op("capture_end", graph=name)
    g.current = min(g.captures.pop(name))  # the stream on which it began is the lowest: see below
    g.ended.append(name)


def _capture_step(g: Maker, streams: int, most: int) -> None:
    """One step of a window: work, forks and joins, or its end."""
    x = g.rng.random()
    if x < 0.3 and len(g.captures) < most:
        busy = g.capturing()
        if 1 + len(g.captures) not in busy:
            _begin_capture(g, 1 + len(g.captures))
    elif x < 0.5 and g.captures:
        _end_capture(g)
    elif g.captures:
        name = g.rng.choice(list(g.captures))
        members = sorted(g.captures[name])
        on = g.rng.choice(members)
        if x < 0.62:
            g.op("graph_node", stream=on)
        elif x < 0.85 and len(members) > 1:
            _use_and_join(g, *g.rng.sample(members, 2))
        else:
            others = [s for s in range(3, streams) if s not in g.capturing() or s in members]
            joiner = g.rng.choice([s for s in (*members, *others) if s != on] or [on])
            g.op("graph_wait", stream=joiner, on=on)
            g.captures[name].add(joiner)


def _use_and_join(g: Maker, home: int, other: int) -> None:
    """A block of `home`, used on `other`, freed; whether `home` waits for that use is left open."""
    size = g.size(512, 30 * M)
    number = g.alloc(size, home)
    g.record(number, other)
    rest = [("graph_node", {"stream": other}), ("graph_wait", {"stream": home, "on": other}),
            ("graph_node", {"stream": home}),
            ("graph_wait", {"stream": other, "on": home})]  # fmt: skip
    early = g.rng.randrange(3)
    for op, fields in rest[:early]:
        g.op(op, **fields)
    g.free(number)
    for op, fields in rest[early : g.rng.randrange(early, 5)]:
        g.op(op, **fields)
    g.alloc(size, home)


def capture(g: Maker, *, streams: int = 6, most: int = 1, cap: int = 8 * G) -> None:
    """capture windows: forks, joins, record_stream, deferred frees, shared pools, resets"""
    g.config |= {"manual_events": True, "capacity": cap}
    largest = min(64 * M, cap // 6)
    while not g.full():
        x = g.rng.random()
        if x < 0.30 or not g.live:
            g.alloc(g.size(512, largest), g.rng.randrange(streams))
        elif x < 0.53 or g.bytes > cap * 1.1:
            g.free_one()
        elif x < 0.65:
            _record_within(g, streams)
        elif x < 0.85:
            _capture_step(g, streams, most)
        elif x < 0.88:
            g.op("complete", stream=g.rng.randrange(streams), n=g.rng.randint(1, 3))
        elif x < 0.90:
            g.op("complete")
        elif x < 0.93:
            g.current = g.rng.randrange(streams)
            g.op("set_stream", stream=g.current)
        elif x < 0.95:
            g.op("empty_cache")
            g.deferred &= g.in_capture()
        elif x < 0.96:
            g.op("snapshot")
        else:
            _reset_one(g)


def _record_within(g: Maker, streams: int) -> None:
    """Record a stream, but never one of another capture than the block's own stream."""
    number = g.rng.choice(list(g.live))
    home = [members for members in g.captures.values() if g.live[number][1] in members]
    mixed = [members for members in g.captures.values() if g.uses[number] & members]
    allowed = [
        s
        for s in range(streams)
        if all(s not in m or m in home + mixed for m in g.captures.values())
    ]
    if len(g.captures) < 2:
        allowed = list(range(streams))
    if allowed:
        g.record(number, g.rng.choice(allowed))


def _reset_one(g: Maker) -> None:
    rest = [k for k, name in enumerate(g.ended) if name]
    if rest:
        k = g.rng.choice(rest)
        g.op("graph_reset", graph=g.ended[k])
        g.ended[k] = ""


def capture_two(g: Maker) -> None:
    """two captures at a time; nothing recorded across them"""
    capture(g, most=2)


def capture_oom(g: Maker) -> None:
    """captures on a small device: no release of the cache inside, the usual one outside"""
    capture(g, cap=240 * M)


# --- memory pools -----------------------------------------------------------------------------
def mempools(g: Maker, *, cap: int = 6 * G) -> None:
    """MemPools, nested in any order; either on two threads, or use_on_oom ones among them

    Not both: PyTorch raises RuntimeError when a request looks into a use_on_oom pool that another
    thread has open.
    """
    g.config |= {"capacity": cap, "manual_events": True}
    threads = g.rng.choice((True, False))
    pools = _Pools(g, ("no_split",) if threads else ("use_on_oom", "no_split"))
    while not g.full():
        x = g.rng.random()
        thread = g.rng.choice((0, 0, 0, 1)) if threads else 0
        if x < 0.13:
            pools.step(x / 0.13, thread)
        elif x < 0.15:
            g.op("empty_cache")
        elif x < 0.17:
            g.record_one(3)
        elif x < 0.19:
            g.op("complete")
        elif x < 0.20:
            g.op("snapshot")
        elif g.live and (g.bytes > cap * 0.85 or x < 0.57):
            g.free_one()
        else:
            g.alloc(g.size(512, cap // 8), g.rng.choice((0, 0, 1)), **_on(thread))


def _on(thread: int) -> dict[str, int]:
    return {"thread": thread} if thread else {}


class _Pools:
    """The pools of a list: which are there, and which are open on each thread."""

    def __init__(self, g: Maker, flags: tuple[str, ...]) -> None:
        self.g = g
        self.flags = flags
        self.made = 0
        self.there: list[int] = []
        self.opened: dict[int, list[int]] = {0: [], 1: []}

    def step(self, x: float, thread: int) -> None:
        """Make, begin, end or delete a pool."""
        rng, opened = self.g.rng, self.opened[thread]
        shut = [p for p in self.there if all(p not in each for each in self.opened.values())]
        if x < 0.25 or not self.made:
            self.made += 1
            self.there.append(self.made)
            flags = {flag: True for flag in self.flags if rng.random() < 0.4}
            self.g.op("pool_new", pool=self.made, **flags)
        elif x < 0.55 and shut and len(opened) < 3:
            opened.append(rng.choice(shut))
            self.g.op("pool_begin", pool=opened[-1], **_on(thread))
        elif x < 0.93 and opened:
            self.g.op("pool_end", pool=opened.pop(rng.randrange(len(opened))), **_on(thread))
        elif shut:
            self.there.remove(pool := rng.choice(shut))
            self.g.op("pool_delete", pool=pool)


def mempools_oom(g: Maker) -> None:
    """the same on a small device, so that use_on_oom pools and the release of pools matter"""
    mempools(g, cap=300 * M)


# --- refusals, callbacks, checkpoints, ties, settings ------------------------------------------
def throw(g: Maker) -> None:
    """requests near the capacity and the memory fraction"""
    cap = g.rng.choice((1000 * M, 2 * G))
    g.config["capacity"] = cap
    g.op("observe")
    g.op("observe_rejections")
    while not g.full():
        x = g.rng.random()
        if x < 0.5 or not g.live:
            g.alloc(g.size(200 * K, cap // 3), g.rng.choice((0, 0, 1)))
        elif x < 0.96:
            g.free_one()
        elif x < 0.97:
            g.op("empty_cache")
        elif x < 0.985:
            g.op("set_fraction", fraction=g.rng.choice((0.2, 0.5, 0.8, 1.0)))
        else:
            g.op("set_foreign", bytes=int(cap * g.rng.choice((0, 0, 0.2, 0.5))))
        if g.bytes > cap * 1.3:
            g.trim(cap // 2)


def callbacks(g: Maker) -> None:
    """a free-memory callback that drops tensors when asked; observers of out of memory"""
    cap = 800 * M
    g.config |= {"capacity": cap, "manual_events": True}
    g.op("observe")
    held: list[int] = []
    while not g.full():
        x = g.rng.random()
        if x < 0.06 and len(g.live) > 3:
            held = g.rng.sample(list(g.live), g.rng.randint(0, 3))
            g.op("callback", slot=0, frees=held, answer=g.rng.random() < 0.7)
        elif x < 0.12:
            g.record_one(3)
        elif x < 0.15:
            g.op("complete")
        elif x < 0.16 and g.rng.random() < 0.5:
            g.op("observe")
        elif x < 0.58 or not g.live:
            g.alloc(g.size(512, cap // 5), g.rng.choice((0, 0, 1)))
        else:
            g.free_one()
        if g.bytes > cap * 1.2:
            g.trim(cap // 2)


def checkpoints(g: Maker) -> None:
    """a private pool, filled in a capture, brought back to what it was at checkpoints"""
    g.config["capacity"] = 8 * G
    graphs, points = 0, 0
    while not g.full():
        inside = _fill_graph(g, graphs)
        name, graphs = f"g{graphs}", graphs + 1
        for number in g.rng.sample(inside, len(inside) // 3):
            g.free(number)
            inside.remove(number)
        g.op("checkpoint", name=points, graph=name, ids=list(inside))
        saved = {number: g.live[number] for number in inside}
        for _ in range(g.rng.randint(1, 3)):
            _change_pool(g, name, graphs, inside)
            graphs += 1
            g.op("restore", name=points, stale=[n for n in inside if n in g.live])
            for number in inside:
                g.live.pop(number, None)
                g.uses.pop(number, None)
            inside = list(saved)
            g.live |= saved
            g.uses |= {number: set() for number in saved}
            g.op("snapshot")
        points += 1
        for number in list(g.live):
            g.free(number)
        if g.rng.random() < 0.5:
            g.op("graph_reset", graph=name)
            g.op("empty_cache")


def _fill_graph(g: Maker, number: int) -> list[int]:
    g.op("capture_begin", graph=f"g{number}", stream=1)
    g.current = 1
    inside = [g.alloc(g.rng.choice((3 * M, 5 * M, 4 * M, 7 * M)), 1) for _ in range(3)]
    g.op("capture_end", graph=f"g{number}")
    return inside


def _change_pool(g: Maker, name: str, number: int, inside: list[int]) -> None:
    """Another capture into the pool; some tensors of it die before, some are made."""
    for victim in g.rng.sample(inside, len(inside) // 2):
        if victim in g.live:
            g.free(victim)
    g.op("capture_begin", graph=f"g{number}", stream=1, like=name)
    g.current = 1
    inside += [g.alloc(g.rng.choice((2 * M, 3 * M)), 1) for _ in range(g.rng.randint(0, 2))]
    g.op("capture_end", graph=f"g{number}")


def ties(g: Maker) -> None:
    """equal sizes in segments of both kinds; expandable segments switched on and off"""
    g.config |= {"capacity": g.rng.choice((3 * G, 700 * M)), "manual_events": True}
    while not g.full():
        x = g.rng.random()
        if x < 0.04:
            g.op("settings", conf=f"expandable_segments:{g.rng.choice((True, False))}")
        elif x < 0.06:
            g.op("empty_cache")
        elif x < 0.08:
            g.record_one(3)
        elif x < 0.10:
            g.op("complete")
        elif g.live and (x < 0.5 or g.bytes > g.config["capacity"] * 0.7):
            g.free_one()
        else:
            g.alloc(g.rng.choice(EQUAL), g.rng.choice((0, 0, 1)))


CHANGES: dict[str, Callable[[random.Random], str]] = {
    "expandable_segments": lambda r: str(r.random() < 0.5),
    "max_non_split_rounding_mb": lambda r: str(r.choice((20, 40, 100))),
    "garbage_collection_threshold": lambda r: r.choice(("0.3", "0.6", "0.9")),
    "roundup_power2_divisions": lambda r: r.choice(("2", "8", "[4:2,16:8,>:4]", "[256:1,>:16]")),
    "large_segment_size_mb": lambda r: str(r.choice((20, 20, 32, 64))),
    "throw_on_cudamalloc_oom": lambda r: str(r.random() < 0.3),
    "release_lock_on_cudamalloc": lambda r: str(r.random() < 0.5),
    "unknown": lambda r: "1",
}


def settings(g: Maker) -> None:
    """settings changed at run time, also by texts that are rejected

    A list has one max_split_size for good, or switches expandable segments: blocks that were split
    under another rule make PyTorch pass the inside of a segment to cudaFree.
    """
    cap = g.rng.choice((900 * M, 3 * G))
    split = g.rng.choice(("", "max_split_size_mb:64", "max_split_size_mb:128"))
    changes = [key for key in CHANGES if not (split and key == "expandable_segments")]
    g.config |= {"capacity": cap, "manual_events": True}
    g.op("settings", conf=split)
    g.op("set_fraction", fraction=0.9)
    while not g.full():
        x = g.rng.random()
        if x < 0.03:
            keys = g.rng.sample(changes, g.rng.randint(0, 3))
            texts = [split] if split else []
            texts += [f"{key}:{CHANGES[key](g.rng)}" for key in keys]
            g.op("settings", conf=",".join(texts))
        elif x < 0.04:
            g.op("empty_cache")
        elif x < 0.06:
            g.record_one(3)
        elif x < 0.08:
            g.op("complete")
        elif g.live and (x < 0.5 or g.bytes > cap * 0.8):
            g.free_one()
        else:
            g.alloc(g.size(512, cap // 6), g.rng.choice((0, 0, 1)))


def uncached(g: Maker) -> None:
    """every request goes to the driver"""
    g.config |= {"capacity": 500 * M, "environment": {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}}
    while not g.full():
        x = g.rng.random()
        if x < 0.03:
            g.op("empty_cache")
        elif x < 0.06:
            g.record_one(3)
        elif g.live and (x < 0.5 or g.bytes > 400 * M):
            g.free_one()
        else:
            g.alloc(g.size(1, 60 * M), g.rng.choice((0, 1)))


SHAPES: dict[str, Callable[[Maker], None]] = {
    each.__name__: each
    for each in (capture, capture_two, capture_oom, mempools, mempools_oom, throw, callbacks,
                 checkpoints, ties, settings, uncached)
}  # fmt: skip


def make(shape: str, seed: str, count: int) -> list[dict[str, Any]]:
    """Return a list: its configuration, then the events."""
    g = Maker(shape, seed, count)
    SHAPES[shape](g)
    return [{"op": "config", "shape": shape, "seed": seed, **g.config}, *g.events]


def main() -> None:
    """Print one list."""
    for event in make(sys.argv[1], sys.argv[2], int(sys.argv[3])):
        print(json.dumps(event, separators=(",", ":")))


if __name__ == "__main__":
    main()
