"""Compaction: which blocks to move so that memory goes back, or so that a request fits.

A plan is made from a heap (`heap`) and acts on nothing; `_compaction` carries it out. There are two
goals. To *release*, as many segments, and pages of expandable ones, as possible are emptied. For a
*request*, whichever costs the least is chosen: nothing if it fits as it is, emptying the cache,
clearing one stretch of a segment, or emptying segments until the upstream can serve it.

Finding the best is bin packing. Parts are taken in order of the bytes to copy for each byte gained,
all of them at first and halved where they do not fit elsewhere, so that a plan takes a bounded
number of packings whatever the heap.

State
-----
None: a plan is a value.

Invariants
----------
* The figures are those of the heap after the moves, not estimates: `reserved_after` is exact if
  nothing else is allocated or freed meanwhile.
* Moving everything that is planned is worth more than moving nothing, or the plan has no moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from refruntime.alloc.heap import Block, Heap, Segment
from refruntime.alloc.moves import Group, Move, Part, Span, groups_of

# Bounds of the search. A packing sorts the blocks and gaps of a group: `_EFFORT` counts the blocks
# of all packings of a plan, but for the few that it takes to halve the parts down to one.
_EFFORT: Final = 400_000
_PACKINGS: Final = 200
_LEAST_PACKINGS: Final = 16
_WINDOWS: Final = 50


@dataclass(frozen=True, slots=True)
class Request:
    """A request for which room is made.

    Attributes
    ----------
    size : int
        Its bytes, rounded.
    pool, stream : int
        Whose blocks can serve it.
    is_served : bool
        Whether the upstream serves it as things are.
    fresh, available : int
        The bytes that the upstream must have to serve it in any case, and those that it has.
    expandable : bool
        Whether free pages of expandable segments serve it.
    max_split, slack : int
        Free blocks of `max_split` bytes and more serve only requests that are as large, and leave
        less than `slack` bytes over.
    """

    size: int
    pool: int
    stream: int
    is_served: bool
    fresh: int
    available: int
    expandable: bool
    max_split: int
    slack: int

    def is_served_by(self, gaps: Iterable[tuple[Span, Segment]]) -> bool:
        """Whether one of these gaps of its pool and stream serves it: the smallest that fits."""
        sizes = [
            end - start
            for (start, end), segment in gaps
            if end - start >= self.size and (self.expandable or not segment.page)
        ]
        if self.size < self.max_split:
            suits = [size < self.max_split for size in sizes]
        else:
            suits = [size < self.size + self.slack for size in sizes]
        # Of the gaps of expandable segments, any may be chosen: see `policy.least_growable`.
        return bool(suits) and (all(suits) if self.expandable else suits[sizes.index(min(sizes))])


@dataclass(frozen=True, slots=True)
class Compaction:
    """What a compaction moves, and what that gains. Sizes are in bytes.

    Attributes
    ----------
    moves : tuple of Move
        The blocks to move.
    releases : bool
        Whether the cache is emptied after the moves.
    reserved_before, reserved_after : int
        What is held of the upstream.
    cached : int
        What emptying the cache would give back without any move.
    largest_free_before, largest_free_after : int
        The longest piece of free memory in the segments.
    stays : tuple of Block
        The blocks that cannot be moved, in the segments and pages that stay; each says why.
    request : int or None
        The bytes for which room was to be made.
    fits : bool or None
        Whether a request for them succeeds afterwards; False: no way was found.
    done : bool
        Whether it was carried out.
    """

    moves: tuple[Move, ...]
    releases: bool
    reserved_before: int
    reserved_after: int
    cached: int
    largest_free_before: int
    largest_free_after: int
    stays: tuple[Block, ...] = ()
    request: int | None = None
    fits: bool | None = None
    done: bool = False

    @property
    def bytes_to_copy(self) -> int:
        """The bytes of all blocks to move, as rounded."""
        return sum(move.size for move in self.moves)

    @property
    def gain(self) -> int:
        """The bytes that go back to the upstream."""
        return self.reserved_before - self.reserved_after

    def as_done(self) -> Compaction:
        """Return it, carried out."""
        return replace(self, done=True)

    def __str__(self) -> str:
        verb = "moved" if self.done else "to move"
        lines = [
            f"Compaction: {len(self.moves)} blocks {verb}, {_mib(self.bytes_to_copy)} copied",
            f"  reserved:     {_mib(self.reserved_before)} -> {_mib(self.reserved_after)} "
            f"(without moves: {_mib(self.reserved_before - self.cached * self.releases)})",
            f"  largest free: {_mib(self.largest_free_before)} -> {_mib(self.largest_free_after)}",
        ]
        if self.request is not None:
            verdict = "fits" if self.fits else "does not fit"
            lines.append(f"  request:      {_mib(self.request)} {verdict}")
        return "\n".join(lines + _reasons(self.stays))


def _reasons(blocks: Iterable[Block]) -> list[str]:
    """Return a line a reason: how much stays for it, and the largest of these blocks."""
    by_reason: dict[str, list[Block]] = {}
    for block in blocks:
        by_reason.setdefault(block.stays, []).append(block)
    lines = []
    for reason, found in sorted(by_reason.items(), key=lambda item: -_total(item[1])):
        largest = max(found, key=lambda block: block.size)
        lines.append(
            f"  stays:        {len(found)} blocks, {_mib(_total(found))}: {reason} "
            f"(largest at {largest.address:#x})"
        )
    return lines


def _total(blocks: Iterable[Block]) -> int:
    return sum(block.size for block in blocks)


def _mib(nbytes: int) -> str:
    return f"{nbytes / (1 << 20):.1f} MiB"


# --- the goal to release ------------------------------------------------------------------------


def plan_release(heap: Heap) -> Compaction:
    """Plan to give back as much as possible, at the least bytes to copy."""
    groups = groups_of(heap)
    return _outcome(groups, [_most_emptied(group) for group in groups], releases=True)


def _most_emptied(group: Group) -> list[Move]:
    """Return the best moves of some tries: other orders, and an empty part opened or none."""
    empty = [part for part in group.parts if not part.used]
    movable = [part for part in group.parts if part.is_movable]
    best: list[Move] = []
    tries = [(opened, order) for opened in (None, *_samples(empty)) for order in _ORDERS]
    for opened, order in tries[: max(1, _packings(group) // _LEAST_PACKINGS)]:
        closed = [part for part in empty if part is not opened]
        moves = _emptied(group, sorted(movable, key=order), closed)
        best = max(best, moves, key=lambda moves: (group.returned(moves), -_copied(moves)))
    return best


def _packings(group: Group) -> int:
    """Return how many packings of a group are worth their time."""
    return _EFFORT // (len(group.used) + 1)


def _price(part: Part) -> tuple[float, int]:
    """Order by the bytes to copy for each byte gained."""
    return part.cost / part.size, part.start


def _bulk(part: Part) -> tuple[int, int]:
    """Order by the bytes to copy."""
    return part.cost, part.start


def _reward(part: Part) -> tuple[int, int]:
    """Order by the bytes gained, the most first."""
    return -part.size, part.cost


_ORDERS: Final = (_price, _reward, _bulk)


def _samples(empty: Sequence[Part]) -> list[Part]:
    """Return a smallest, a middling and a largest part."""
    by_size = sorted(empty, key=lambda part: part.size)
    return [by_size[i] for i in sorted({0, len(by_size) // 2, len(by_size) - 1})] if empty else []


def _copied(moves: Iterable[Move]) -> int:
    return sum(move.size for move in moves)


def _emptied(group: Group, parts: Sequence[Part], closed: Sequence[Part]) -> list[Move]:
    """Empty as many of the parts as fit elsewhere, preferring the first."""
    chosen: list[Part] = []
    best: list[Move] = []
    waiting = [list(parts)] if parts else []
    limit = max(_LEAST_PACKINGS, min(_PACKINGS, _packings(group) // 12))
    for _ in range(limit):
        if not waiting:
            break
        some = waiting.pop()
        moves = group.emptying([*chosen, *some], closed)
        if moves is not None:
            chosen, best = [*chosen, *some], moves
        elif len(some) > 1:
            half = len(some) // 2
            waiting += [some[half:], some[:half]]
    return best


# --- the goal to serve a request ----------------------------------------------------------------


def plan_request(heap: Heap, request: Request) -> Compaction:
    """Plan that a request succeeds, at the least bytes to copy; no moves if that is impossible."""
    groups = groups_of(heap)
    nothing: list[list[Move]] = [[] for _ in groups]
    cached = sum(group.returned(()) for group in groups)
    if request.is_served or _serves(groups, nothing, request):
        return _outcome(groups, nothing, releases=False, request=request, fits=True)
    if request.available + cached >= request.fresh:
        return _outcome(groups, nothing, releases=True, request=request, fits=True)
    ways = [
        (_cleared(groups, request), False),
        (_made_available(groups, request.fresh - request.available), True),
    ]
    found = [(moves, releases) for moves, releases in ways if moves is not None]
    if not found:
        return _outcome(groups, nothing, releases=False, request=request, fits=False)
    moves, releases = min(found, key=lambda way: sum(map(_copied, way[0])))
    return _outcome(groups, moves, releases=releases, request=request, fits=True)


def _serves(groups: Sequence[Group], moves: Sequence[Sequence[Move]], request: Request) -> bool:
    """Whether free memory serves a request after moves."""
    gaps = [
        gap
        for group, some in zip(groups, moves, strict=True)
        if _is_of(group, request)
        for gap in group.gaps_after(some, release=False)
    ]
    return request.is_served_by(gaps)


def _is_of(group: Group, request: Request) -> bool:
    segment = group.segments[0]
    return (segment.pool, segment.stream) == (request.pool, request.stream)


def _cleared(groups: Sequence[Group], request: Request) -> list[list[Move]] | None:
    """Return the cheapest moves that clear a stretch long enough in one segment, or None."""
    for number, group in enumerate(groups):
        if not _is_of(group, request):
            continue
        windows = sorted(w for s in group.segments for w in _windows(s, request.size))
        for _, start, end in windows[:_WINDOWS]:
            inside = [block for block in group.used if start <= block.address < end]
            moves = group.pack(inside, [(start, end)])
            if moves is None:
                continue
            plan = [moves if i == number else [] for i in range(len(groups))]
            if _serves(groups, plan, request):
                return plan
    return None


def _windows(segment: Segment, size: int) -> list[tuple[int, int, int]]:
    """Return the shortest runs of blocks that hold `size` bytes and could be cleared.

    Each is the bytes to copy, the start and the end.
    """
    found = []
    blocks, first, cost = segment.blocks, 0, 0
    for number, block in enumerate(blocks):
        if block.stays:
            first, cost = number + 1, 0
            continue
        cost += block.needs
        while block.end - blocks[first].end >= size:
            cost -= blocks[first].needs
            first += 1
        if block.end - blocks[first].address >= size:
            found.append((cost, blocks[first].address, block.end))
    return found


def _made_available(groups: Sequence[Group], wanted: int) -> list[list[Move]] | None:
    """Return moves after which emptying the cache gives back `wanted` bytes, or None."""
    parts = [
        (number, part)
        for number, group in enumerate(groups)
        for part in group.parts
        if part.is_movable
    ]
    parts.sort(key=lambda item: _price(item[1]))
    low, high = 0, len(parts)
    if _returned(groups, _moves_for(groups, parts)) < wanted:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        enough = _returned(groups, _moves_for(groups, parts[:middle])) >= wanted
        low, high = (low, middle) if enough else (middle, high)
    return _pruned(groups, parts[:high], wanted)


def _moves_for(groups: Sequence[Group], parts: Sequence[tuple[int, Part]]) -> list[list[Move]]:
    """Return the moves that empty as many of the parts as possible, for each group."""
    plans = []
    for number, group in enumerate(groups):
        own = [part for owner, part in parts if owner == number]
        plans.append(_emptied(group, own, [part for part in group.parts if not part.used]))
    return plans


def _returned(groups: Sequence[Group], plans: Sequence[Sequence[Move]]) -> int:
    return sum(group.returned(moves) for group, moves in zip(groups, plans, strict=True))


def _pruned(
    groups: Sequence[Group], parts: Sequence[tuple[int, Part]], wanted: int
) -> list[list[Move]]:
    """Leave out parts that are not needed, those that cost the most first."""
    kept = list(parts)
    best = _moves_for(groups, kept)
    tries = min(_WINDOWS, min(map(_packings, groups)) // _LEAST_PACKINGS)
    for item in sorted(parts, key=lambda item: -item[1].cost)[:tries]:
        fewer = [other for other in kept if other is not item]
        moves = _moves_for(groups, fewer)
        if _returned(groups, moves) >= wanted:
            kept, best = fewer, moves
    return best


# --- the figures --------------------------------------------------------------------------------


def _outcome(
    groups: Sequence[Group],
    plans: Sequence[Sequence[Move]],
    *,
    releases: bool,
    request: Request | None = None,
    fits: bool | None = None,
) -> Compaction:
    """Return a plan with its figures, all of them counted on the heap after it."""
    reserved = sum(segment.size for group in groups for segment in group.segments)
    pairs = list(zip(groups, plans, strict=True))
    after = [gap for group, moves in pairs for gap in group.gaps_after(moves, releases)]
    return Compaction(
        moves=tuple(move for moves in plans for move in moves),
        releases=releases,
        reserved_before=reserved,
        reserved_after=reserved - (_returned(groups, plans) if releases else 0),
        cached=sum(group.returned(()) for group in groups),
        largest_free_before=_largest(g for group in groups for g in group.gaps_after((), False)),
        largest_free_after=_largest(after),
        stays=tuple(block for group in groups for block in group.used if block.stays),
        request=None if request is None else request.size,
        fits=fits,
    )


def _largest(gaps: Iterable[tuple[Span, Segment]]) -> int:
    return max((end - start for (start, end), _ in gaps), default=0)
