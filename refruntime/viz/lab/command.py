"""``refruntime lab report``: a recording as one page that needs no network.

State
-----
None.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from refruntime.errors import RefruntimeError
from refruntime.lab.commands import chosen_device, read_shown
from refruntime.lab.events import EventList
from refruntime.lab.progress import bar
from refruntime.lab.recording import Device, Recording
from refruntime.lab.replay import CACHING, Outcome, replay_events, strategies
from refruntime.lab.script import script_of
from refruntime.lab.waste import CAUSES, waste_at_peak
from refruntime.viz import lab_report
from refruntime.viz.lab.inputs import ReportInput, StrategyRun, Waste
from refruntime.viz.lab.sources import of_recording


def main(arguments: Sequence[str]) -> int:
    """Run the command and return the exit status."""
    options = _parser().parse_args(arguments)
    try:
        return _report(options)
    except RefruntimeError as error:
        print(f"refruntime lab: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"refruntime lab: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="refruntime lab report", description="A recording of device memory as an HTML page."
    )
    parser.add_argument("file", help="a recording")
    parser.add_argument("out", nargs="?", help="the page; by default in the current folder")
    parser.add_argument("--device", type=int, help="the number of the device")
    parser.add_argument(
        "--conf", action="append", default=[],
        help="settings to set beside the recording's own; may be given several times",
    )  # fmt: skip
    parser.add_argument("--strategies", action="store_true", help="set all strategies beside it")
    return parser


def _report(options: argparse.Namespace) -> int:
    recording = read_shown(options.file)
    device = chosen_device(recording, options.device)
    out = Path(options.out or f"{Path(options.file).name}.html")
    print(lab_report.write(_input(recording, device, options), out))
    return 0


def _input(recording: Recording, device: Device, options: argparse.Namespace) -> ReportInput:
    """Return what the page shows: the recording, replays beside it, and the waste at the peak."""
    events = script_of(recording, device, exact=False).list
    own = replay_events(events, details=True)
    runs = [_run("as recorded: " + (events.conf or "default settings"), own)]
    runs += [_run(conf, replay_events(events, conf, details=True)) for conf in options.conf]
    runs += _by_strategy(events) if options.strategies else []
    waste = waste_at_peak(events, own).causes
    return of_recording(
        recording,
        device.index,
        strategies=tuple(runs),
        waste=tuple(Waste(cause, nbytes, CAUSES[cause]) for cause, nbytes in waste.items()),
    )


def _by_strategy(events: EventList) -> list[StrategyRun]:
    names = [name for name in strategies() if name != CACHING]
    found = []
    with bar("replaying") as progress:
        for done, name in enumerate(names, 1):
            found.append(_run(name, replay_events(events, strategy=name, details=True)))
            progress(done / len(names))
    return found


def _run(name: str, outcome: Outcome) -> StrategyRun:
    return StrategyRun(
        name=name,
        peak_allocated=outcome.peak_allocated_bytes,
        peak_reserved=outcome.peak_reserved_bytes,
        upstream_calls=outcome.upstream_calls,
        ooms=outcome.ooms,
        retries=outcome.retries,
        allocated=outcome.allocated,
        reserved=outcome.reserved,
    )
