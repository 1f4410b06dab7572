"""Which settings would have served a run best, with the replay that proves it.

State
-----
None.

Invariants
----------
* Every figure is of a replay, under settings that can be pasted as they stand.
* Settings that fail more requests than others are no advice, whatever they save.
* Advice replays requests from an empty allocator (and the live blocks before the trace): a cache
  that the recorded run had built up before is no merit of its settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

from refruntime.lab.events import EventList
from refruntime.lab.replay import Outcome, replay_events
from refruntime.lab.script import UNLIMITED
from refruntime.lab.sweep import Progress, Task, sweep

# Values worth trying; the first of each is the default and adds nothing.
OPTIONS: Final[dict[str, tuple[str, ...]]] = {
    "expandable_segments": ("", "True"),
    "max_split_size_mb": ("", "64", "128", "256", "512", "1024"),
    "roundup_power2_divisions": ("", "4", "8", "[256:1,512:2,1024:4,>:8]"),
    "large_segment_size_mb": ("", "32", "64", "128"),
    "garbage_collection_threshold": ("", "0.6", "0.8"),
}
# Garbage is collected only where a share of the device is set: nearly all of it, so as to allow it.
_WITH_COLLECTION: Final = "per_process_memory_fraction:0.99"
_DEVICE_STEP: Final = 32 << 20


@dataclass(frozen=True, slots=True)
class Choice:
    """Settings with their replay and the smallest device on which they serve every request."""

    outcome: Outcome
    smallest_device_bytes: int

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        figures = self.outcome.as_dict()
        del figures["strategy"], figures["seconds"]
        return {**figures, "smallest_device_bytes": self.smallest_device_bytes}


@dataclass(frozen=True, slots=True)
class Advice:
    """What a search came to.

    Attributes
    ----------
    baseline : Choice
        The recorded settings.
    choices : tuple of Choice
        The Pareto set of peak reserved bytes against upstream calls, the least bytes first.
    avoiding : tuple of str
        If requests failed under the recorded settings: the settings under which none does.
    tried : int
        How many settings were replayed.
    """

    baseline: Choice
    choices: tuple[Choice, ...]
    avoiding: tuple[str, ...]
    tried: int

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "baseline": self.baseline.as_dict(),
            "choices": [choice.as_dict() for choice in self.choices],
            "avoiding": list(self.avoiding),
            "tried": self.tried,
        }


def candidates(device_known: bool = True) -> Iterator[str]:
    """Yield every combination of the options that makes sense.

    Parameters
    ----------
    device_known : bool
        Whether the device's size is known, of which collecting garbage depends.
    """
    for values in product(*OPTIONS.values()):
        chosen = {key: value for key, value in zip(OPTIONS, values) if value}
        if "garbage_collection_threshold" in chosen and not device_known:
            continue
        split, large = chosen.get("max_split_size_mb"), chosen.get("large_segment_size_mb", "20")
        if split and int(split) < int(large):
            continue  # refused by the allocator
        if "expandable_segments" in chosen and split:
            continue  # expandable segments split regardless
        parts = [f"{key}:{value}" for key, value in chosen.items()]
        if "garbage_collection_threshold" in chosen:
            parts.append(_WITH_COLLECTION)
        yield ",".join(parts)


def advise(
    events: EventList, *, confs: Sequence[str] | None = None, jobs: int = 0, scheduler: str = "",
    progress: Progress | None = None,
) -> Advice:  # fmt: skip
    """Search the option space.

    Parameters
    ----------
    events : EventList
        Requests, with the recorded settings and device.
    confs : sequence of str, optional
        Settings to try, instead of all `candidates`.
    jobs, scheduler, progress
        As for `sweep`.
    """
    options = candidates(events.capacity < UNLIMITED) if confs is None else confs
    tried = list(dict.fromkeys([events.conf, *options]))
    told = progress or (lambda share: None)
    spread: dict[str, Any] = {"jobs": jobs, "scheduler": scheduler}
    outcomes: list[Outcome] = sweep(
        events, [Task(conf) for conf in tried], progress=lambda share: told(share / 2), **spread
    )
    fewest = min(outcome.ooms for outcome in outcomes)
    served = [outcome for outcome in outcomes if outcome.ooms == fewest]
    baseline = outcomes[0]
    avoiding = []
    if baseline.ooms:
        best_first = sorted(served, key=lambda each: each.peak_reserved_bytes)
        avoiding = [each.conf for each in best_first if each.ooms == 0]
    choices: list[Choice] = sweep(
        events, [baseline, *pareto(served)], work=choose,
        progress=lambda share: told((1 + share) / 2), **spread,
    )  # fmt: skip
    return Advice(choices[0], tuple(choices[1:]), tuple(avoiding), len(tried))


def pareto(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return the outcomes that no other beats in both bytes and calls, the least bytes first."""
    found: list[Outcome] = []
    order = sorted(
        outcomes, key=lambda each: (each.peak_reserved_bytes, each.upstream_calls, len(each.conf))
    )
    for outcome in order:
        if not found or outcome.upstream_calls < found[-1].upstream_calls:
            found.append(outcome)
    return found


def choose(events: EventList, outcome: Outcome) -> Choice:
    """Return settings with the smallest device on which they serve every request."""
    return Choice(outcome, smallest_device(events, outcome))


def smallest_device(events: EventList, outcome: Outcome) -> int:
    """Return the bytes of the smallest device (to 32 MiB) on which no request fails.

    The search takes for granted that a larger device serves what a smaller one does.
    """
    fits = max(outcome.peak_reserved_bytes, 1)
    if outcome.ooms or replay_events(events, outcome.conf, fits).ooms:
        fits = _grown(events, outcome.conf, fits)
    low, high = outcome.peak_allocated_bytes // _DEVICE_STEP, -(-fits // _DEVICE_STEP)
    while low < high:
        middle = (low + high) // 2
        if replay_events(events, outcome.conf, middle * _DEVICE_STEP).ooms:
            low = middle + 1
        else:
            high = middle
    return high * _DEVICE_STEP


def _grown(events: EventList, conf: str, nbytes: int) -> int:
    """Return a size, doubled until it serves every request (a request may be absurd: then 0)."""
    for _ in range(12):
        nbytes *= 2
        if not replay_events(events, conf, nbytes).ooms:
            return nbytes
    return 0
