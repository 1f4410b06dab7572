"""Recordings for tests of the lab report: made event by event by a small allocator of sorts, which
notes after each event what is true, in the plainest way.
"""

from __future__ import annotations

import gzip
import pickle
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from refruntime.viz.lab.inputs import Events, ReportInput, action_code

MIB = 1 << 20
CATEGORIES = ("parameter", "activation", "saved")
STACKS = (
    (("/home/me/site-packages/torch/nn/linear.py", 7, "forward"), ("/home/me/model.py", 11, "mlp")),
    (("/home/me/model.py", 25, "attend"), ("/home/me/train.py", 3, "main")),
    (("/home/me/train.py", 9, "step"),),
)

# action, address, size, stream, time, category, stack
Row = tuple[str, int, int, int, int, int, int]


def events_of(rows: Iterable[Row]) -> Events:
    """Columns from rows whose first cell names the action."""
    table = np.array([(action_code(row[0]), *row[1:]) for row in rows], np.int64).reshape(-1, 7)
    return Events(*table.T.copy())


def alloc(address: int, size: int = 512, category: int = -1, stack: int = -1) -> Row:
    return ("alloc", address, size, 0, 0, category, stack)


def free(address: int, size: int = 512) -> Row:
    return ("free_completed", address, size, 0, 0, -1, -1)


def event(action: str, address: int, size: int = 0, category: int = -1) -> Row:
    return (action, address, size, 0, 0, category, -1)


def input_of(rows: Iterable[Row], **more: Any) -> ReportInput:
    fields = {"title": "test", "categories": CATEGORIES, "stacks": STACKS, **more}
    return ReportInput(events=events_of(rows), **fields)


@dataclass
class Block:
    address: int
    size: int
    stream: int
    category: int
    stack: int
    waits: bool = False

    @property
    def held(self) -> int:
        return -(-self.size // 512) * 512


@dataclass
class Truth:
    """What holds after an event; a block that waits for streams counts only as waiting."""

    allocated: int
    reserved: int
    category: dict[str, int]
    line: dict[str, int]
    use: dict[str, int]
    holes: list[int]
    live: list[int]


@dataclass
class Simulation:
    """A random program on an allocator with segments of three pools and an expandable one."""

    rng: random.Random
    rows: list[Row] = field(default_factory=list)
    truths: list[Truth] = field(default_factory=list)
    # Mapped ranges and segments by address: size, and what free memory in them counts as.
    spans: dict[int, tuple[int, str]] = field(default_factory=dict)
    blocks: dict[int, Block] = field(default_factory=dict)
    mapped: int = 0
    clock: int = 0

    SMALL, LARGE, EXPANDABLE, PRIVATE = 1 << 40, 1 << 41, 1 << 42, 1 << 43

    def run(self, events: int) -> Simulation:
        self.truths.append(self.truth())
        actions = (self.reserve, self.grow, self.alloc, self.alloc, self.alloc, self.request,
                   self.complete, self.tag, self.release, self.shrink, self.fail)  # fmt: skip
        # One completion at least: without any, requests would count as completions.
        opening = (self.reserve, self.alloc, self.request, self.complete)
        while all(row[0] != "free_completed" for row in self.rows):
            for action in opening:
                action()
        while len(self.rows) < events:
            self.rng.choice(actions)()
        return self

    def input(self, start: int = 0, **more: Any) -> ReportInput:
        source = input_of(self.rows, start=start, **more)
        pool = (source.events.address >= self.PRIVATE).astype(np.int64)
        return replace(source, events=replace(source.events, pool=pool))

    def say(
        self, action: str, address: int, size: int, stream: int, category: int, stack: int
    ) -> None:
        self.clock += self.rng.randrange(3)
        self.rows.append((action, address, size, stream, self.clock, category, stack))
        self.truths.append(self.truth())

    # ------------------------------------------------------------------------------ segments

    def reserve(self) -> None:
        base, size, free = self.rng.choice((
            (self.SMALL, 2 * MIB, "gaps, small pool"), (self.LARGE, 4 * MIB, "gaps, large pool"),
            (self.LARGE, 20 * MIB, "gaps, large pool"), (self.PRIVATE, 6 * MIB, "private pools"),
        ))  # fmt: skip
        address = base + self.rng.randrange(6) * 32 * MIB
        if address not in self.spans:
            self.spans[address] = size, free
            self.say("segment_alloc", address, size, 0, -1, -1)

    def release(self) -> None:
        for address, (size, _) in list(self.spans.items()):
            if not self.expandable(address) and not self.inside(address, size):
                del self.spans[address]
                self.say("segment_free", address, size, 0, -1, -1)
                return

    def grow(self) -> None:
        address, size = self.EXPANDABLE + self.mapped, 4 * MIB
        self.spans[address] = size, "gaps, large pool"
        self.mapped += size
        self.say("segment_map", address, size, 0, -1, -1)

    def shrink(self) -> None:
        address = self.EXPANDABLE + self.mapped - 4 * MIB
        if self.mapped and not self.inside(address, 4 * MIB):
            del self.spans[address]
            self.mapped -= 4 * MIB
            self.say("segment_unmap", address, 4 * MIB, 0, -1, -1)

    def units(self) -> list[tuple[int, int, str]]:
        """Where blocks are cut from: each segment, and the mapped ranges as one."""
        units = [(a, *span) for a, span in self.spans.items() if not self.expandable(a)]
        expandable = (self.EXPANDABLE, self.mapped, "gaps, large pool")
        return [*units, *([expandable] if self.mapped else [])]

    def expandable(self, address: int) -> bool:
        return self.EXPANDABLE <= address < self.PRIVATE

    def inside(self, address: int, size: int) -> list[Block]:
        found = (b for b in self.blocks.values()
                 if b.address < address + size and address < b.address + b.held)  # fmt: skip
        return sorted(found, key=lambda block: block.address)

    def gaps(self, address: int, size: int) -> list[tuple[int, int]]:
        """The free spans of a unit: where, and how many bytes."""
        gaps, at = [], address
        for block in self.inside(address, size):
            gaps.append((at, block.address - at))
            at = block.address + block.held
        gaps.append((at, address + size - at))
        return [(start, length) for start, length in gaps if length]

    # -------------------------------------------------------------------------------- blocks

    def alloc(self) -> None:
        size = self.rng.choice((1, 512, 700_000, MIB, 3 * MIB, 5 * MIB))
        size += self.rng.randrange(512)
        gaps = [gap for address, length, _ in self.units() for gap in self.gaps(address, length)]
        fitting = [start for start, length in gaps if length >= -(-size // 512) * 512]
        if not fitting:
            return self.fail(size)
        address = self.rng.choice(fitting)
        category = self.rng.randrange(-1, len(CATEGORIES))
        stack = self.rng.randrange(-1, len(STACKS))
        block = Block(address, size, self.rng.choice((0, 7)), category, stack)
        self.blocks[address] = block
        return self.say("alloc", address, size, block.stream, category, stack)

    def pick(self, waits: bool) -> Block | None:
        found = [block for block in self.blocks.values() if block.waits is waits]
        return self.rng.choice(found) if found else None

    def request(self) -> None:
        block = self.pick(waits=False)
        if block:
            block.waits = True
            self.say("free_requested", block.address, block.size, block.stream, -1, -1)

    def complete(self) -> None:
        block = self.pick(waits=True)
        if block:
            del self.blocks[block.address]
            self.say("free_completed", block.address, block.size, block.stream, -1, -1)

    def tag(self) -> None:
        block = self.pick(waits=False)
        if block:
            block.category = self.rng.randrange(len(CATEGORIES))
            self.say("tag", block.address, block.size, block.stream, block.category, -1)

    def fail(self, size: int = 64 * MIB) -> None:
        self.say("oom", self.rng.randrange(-1, MIB), size, 0, -1, -1)

    # --------------------------------------------------------------------------------- truth

    def truth(self) -> Truth:
        used = [block for block in self.blocks.values() if not block.waits]
        waiting = sum(block.held for block in self.blocks.values() if block.waits)
        gaps = [g for a, length, _ in self.units() for _, g in self.gaps(a, length)]
        by_category, by_line = Counter(), Counter()
        for block in used:
            by_category[(*CATEGORIES, "no category")[block.category]] += block.held
            by_line[line_of(block.stack)] += block.held
        return Truth(
            allocated=sum(block.held for block in used),
            reserved=sum(size for size, _ in self.spans.values()),
            category=dict(by_category) | {"waiting for streams": waiting},
            line=dict(by_line) | {"waiting for streams": waiting},
            use=self.uses(used) | {"waiting for streams": waiting},
            holes=sorted(gaps),
            live=sorted(self.blocks),
        )

    def uses(self, used: list[Block]) -> dict[str, int]:
        uses = Counter({"asked for": sum(block.size for block in used)})
        uses["rounding"] = sum(block.held - block.size for block in used)
        for address, length, gap in self.units():
            kept = gap == "private pools" or self.inside(address, length)
            name = gap if kept else "empty segments"
            uses[name] += sum(size for _, size in self.gaps(address, length))
        return dict(uses)


def line_of(stack: int) -> str:
    names = ("me/model.py:11 mlp", "me/model.py:25 attend", "me/train.py:9 step")
    return "no stack recorded" if stack < 0 else names[stack]


def simulate(seed: int, events: int = 200) -> Simulation:
    return Simulation(random.Random(seed)).run(events)


class PlainUnpickler(pickle.Unpickler):
    """Opens pickles of plain values only."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name}: no classes here")


def input_of_snapshot(path: Path) -> ReportInput:
    """A snapshot in PyTorch's form: its trace, and before it what the trace leaves unexplained."""
    with gzip.open(path) as file:
        snapshot = PlainUnpickler(file).load()
    entries = snapshot["device_traces"][0]
    rows = [event(e["action"], e.get("addr", e.get("device_free")), e["size"]) for e in entries]
    last = {(row[0].startswith("segment"), row[1]): row[0] for row in rows}
    before = []
    for segment in snapshot["segments"]:
        if last.get((True, segment["address"])) != "segment_alloc":
            before.append(event("segment_alloc", segment["address"], segment["total_size"]))
        for block in segment["blocks"]:
            made = last.get((False, block["address"])) == "alloc"
            if block["state"] != "inactive" and not made:
                before.append(alloc(block["address"], block["requested_size"]))
    return input_of([*before, *rows], start=len(before), title=path.name, capacity=80 << 30)
