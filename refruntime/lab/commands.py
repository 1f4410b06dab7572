"""``refruntime lab``: recordings of device memory on the command line.

State
-----
None. Each subcommand is a function from its parsed arguments to an exit status.

Invariants
----------
* Results go to the output stream, progress and errors to the error stream; with ``--json`` the
  output is one JSON value, an object for one file and a list for several.
* What is wrong with a file or an argument is one line and exit status 2; a gate that does not hold
  is exit status 1.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from refruntime.errors import ArgumentValueError, RefruntimeError
from refruntime.lab import printing
from refruntime.lab.events import EventList, bytes_of
from refruntime.lab.gate import Limit, held
from refruntime.lab.progress import bar
from refruntime.lab.readers import read
from refruntime.lab.recording import Device, Recording
from refruntime.lab.script import script_of
from refruntime.lab.sweep import sweep

Record = dict[str, Any]
# What is made of one device of a recording; a function of this module, so that other processes
# find it.
Work = Callable[[Recording, Device, argparse.Namespace], Record]

SUFFIXES: Final = (".pickle", ".pkl", ".json", ".jsonl", ".csv")


def main(arguments: Sequence[str]) -> int:
    """Run ``refruntime lab`` and return the exit status."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except BrokenPipeError:
        # Who reads has had enough; nothing must be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except RefruntimeError as error:
        print(f"refruntime lab: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"refruntime lab: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2


# --- arguments ----------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="refruntime lab",
        description="Recorded device memory: read, replay, explain, advise.",
        epilog="`refruntime lab report FILE [OUT.html]` writes a recording as one HTML page.",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add(commands, "inspect", _inspect, "what a recording holds, and where its bytes went")
    replay = _add(commands, "replay", _replay, "replay it under its own or other settings")
    _add_settings(replay)
    replay.add_argument("--strategy", default="caching", help="an allocator (see --strategies)")
    replay.add_argument("--strategies", action="store_true", help="replay under every strategy")
    advise = _add(commands, "advise", _advise, "search for better settings")
    advise.add_argument("--capacity", default="", metavar="BYTES", help="bytes of the device")
    autopsy = _add(commands, "autopsy", _autopsy, "why a request failed")
    autopsy.add_argument("--request", default="", metavar="BYTES", help="suppose such a request")
    autopsy.add_argument("--event", type=int, default=None, help="at this event (else at the end)")
    diff = _add(commands, "diff", _diff, "what changed between two recordings", files=2)
    diff.set_defaults(files=None)
    convert = _add(commands, "convert", _convert, "write it in another format", files=1)
    convert.add_argument("out", help="the file to write")
    convert.add_argument("--to", default="", help="pickle, json, events, rmm or minimalloc")
    gate = _add(commands, "gate", _gate, "fail if memory grew", files=0)
    gate.add_argument("files", nargs="+", metavar="FILE", help="a recording; before it, a baseline")
    for name in ("reserved", "allocated"):
        gate.add_argument(
            f"--peak-{name}", default="", metavar="LIMIT",
            help="such as +1%% of the baseline, or 40G",
        )  # fmt: skip
    return parser


def _add(
    commands: Any, name: str, run: Callable[[argparse.Namespace], int], help: str, files: int = -1
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=help, description=help)
    parser.set_defaults(run=run)
    if files == 2:
        parser.add_argument("before")
        parser.add_argument("after")
    elif files == 1:
        parser.add_argument("file")
    elif files < 0:
        parser.add_argument("files", nargs="+", metavar="FILE", help="recordings, or directories")
        _add_spreading(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--device", type=int, default=None, help="which device; the busiest if not")
    return parser


def _add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--conf", default=None, help="allocator settings, in PyTorch's form")
    parser.add_argument("--capacity", default="", metavar="BYTES", help="bytes of the device")


def _add_spreading(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--jobs", type=int, default=0, help="at once; one for each core if not")
    parser.add_argument("--scheduler", default="", metavar="ADDRESS", help="a Dask scheduler")


# --- files --------------------------------------------------------------------------------------


def _paths(names: Sequence[str]) -> list[Path]:
    """Return the files, those of directories by name."""
    found: list[Path] = []
    for name in names:
        path = Path(name)
        if path.is_dir():
            inside = sorted(each for each in path.rglob("*") if _is_recording(each))
            if not inside:
                raise ArgumentValueError("lab", what=f"{path}: no recordings in this directory")
            found += inside
        else:
            found.append(path)
    return found


def _is_recording(path: Path) -> bool:
    suffixes = [suffix for suffix in path.suffixes if suffix != ".gz"]
    return path.is_file() and bool(suffixes) and suffixes[-1] in SUFFIXES


def read_shown(path: str | Path) -> Recording:
    """Read a recording, with a bar for people who wait."""
    with bar(f"reading {Path(path).name}") as progress:
        return read(path, progress)


def chosen_device(recording: Recording, number: int | None) -> Device:
    """Return the device that was asked for, or the one with the most events."""
    known = {device.index: device for device in recording.devices}
    if not known:
        raise ArgumentValueError(
            "lab", what=f"{recording.source} holds no events and no segments",
            expected="a recording of a device's memory", got="nothing recorded",
            remedy="was history on? for CPU tensors: refruntime.alloc.host().record(stacks=True)",
        )  # fmt: skip
    if number is not None and number not in known:
        raise ArgumentValueError(
            "lab", what=f"{recording.source} has no such device",
            expected="one of " + ", ".join(map(str, known)), got=number,
        )  # fmt: skip
    if number is not None:
        return known[number]
    return max(known.values(), key=lambda each: (len(each.events), len(each.segments)))


def _each(options: argparse.Namespace, work: Work, show: Callable[[Record], None]) -> int:
    """Work on each file; print the results. A file that fails does not keep others from it."""
    paths = _paths(options.files)
    if len(paths) == 1:
        recording = read_shown(paths[0])
        result = {"file": str(paths[0]), **_worked(options, work, recording)}
        _print(options, [result], show, alone=True)
        return 0
    inner = argparse.Namespace(**{**vars(options), "jobs": 1, "scheduler": ""})
    with bar("files") as progress:
        pairs: list[tuple[Record, str]] = sweep(
            (inner, work), [str(path) for path in paths], work=work_on, jobs=options.jobs,
            scheduler=options.scheduler, progress=progress,
        )  # fmt: skip
    for _, trouble in pairs:
        if trouble:
            print(f"refruntime lab: {trouble}", file=sys.stderr)
    _print(options, [result for result, trouble in pairs if not trouble], show, alone=False)
    return 2 if any(trouble for _, trouble in pairs) else 0


def work_on(shared: tuple[argparse.Namespace, Work], path: str) -> tuple[Record, str]:
    """Work on one of several files; return the result, or what is wrong with the file."""
    options, work = shared
    try:
        return {"file": path, **_worked(options, work, read(path))}, ""
    except RefruntimeError as error:
        return {}, str(error)


def _worked(options: argparse.Namespace, work: Work, recording: Recording) -> Record:
    return work(recording, chosen_device(recording, options.device), options)


def _print(
    options: argparse.Namespace, results: list[Record], show: Callable[[Record], None], alone: bool
) -> None:
    if options.json:
        print(json.dumps(results[0] if alone else results, indent=2, default=int))
        return
    for result in results:
        show(result)


# --- subcommands --------------------------------------------------------------------------------


def _inspect(options: argparse.Namespace) -> int:
    return _each(options, inspected, printing.inspection)


def inspected(recording: Recording, device: Device, options: argparse.Namespace) -> Record:
    """Return what a recording holds."""
    from refruntime.lab.bounds import bounds_of
    from refruntime.lab.facts import facts_of
    from refruntime.lab.patterns import find_patterns
    from refruntime.lab.waste import waste_at_peak

    script = script_of(recording, device)
    bounds = bounds_of(script.history)
    return {
        "format": recording.format,
        "settings": recording.settings_text,
        "notes": list(recording.notes) + list(script.notes),
        **facts_of(recording, device).as_dict(),
        "bounds": {name: getattr(bounds, name) for name in bounds.__slots__},
        "waste_at_peak": waste_at_peak(script.list).as_dict(),
        "patterns": [finding.as_dict() for finding in find_patterns(script.list)],
    }


def _replay(options: argparse.Namespace) -> int:
    return _each(options, _replay_one, printing.replay)


def _replay_one(recording: Recording, device: Device, options: argparse.Namespace) -> Record:
    if options.strategies:
        return {"strategies": _by_strategy(options, recording, device)}
    return replayed(recording, device, options.conf, _capacity(options), options.strategy)


def replayed(
    recording: Recording, device: Device, conf: str | None = None, capacity: int | None = None,
    strategy: str = "caching",
) -> Record:  # fmt: skip
    """Return the figures of a replay: beside the recording where nothing else was asked for."""
    from refruntime.lab.fidelity import check
    from refruntime.lab.replay import CACHING, replay_events

    recorded: Record = {"segment_event_mismatches": None, "recorded_peak_reserved_bytes": None}
    own = conf is None or conf == recording.settings_text
    if own and capacity is None and strategy == CACHING:
        found = check(recording, device)
        if not (len(device.segments) or found.recorded_segment_events):
            return {**found.as_dict(), **recorded}
        return found.as_dict()
    script = script_of(recording, device, exact=False).list
    return {**replay_events(script, conf, capacity, strategy).as_dict(), **recorded}


def _by_strategy(options: argparse.Namespace, recording: Recording, device: Device) -> list[Record]:
    from refruntime.lab.replay import strategies
    from refruntime.lab.sweep import Task, run

    script = script_of(recording, device, exact=False).list
    conf = script.conf if options.conf is None else options.conf
    names, found = strategies(), []
    with bar("replaying") as progress:
        for done, name in enumerate(names, 1):
            found.append(run(script, Task(conf, _capacity(options) or 0, name)).as_dict())
            progress(done / len(names))
    return found


def _capacity(options: argparse.Namespace) -> int | None:
    return bytes_of(options.capacity) if options.capacity else None


def _advise(options: argparse.Namespace) -> int:
    return _each(options, _advise_one, printing.advice)


def _advise_one(recording: Recording, device: Device, options: argparse.Namespace) -> Record:
    from refruntime.lab.advice import advise

    events: EventList = script_of(recording, device, exact=False).list
    events = events.under(None, _capacity(options))
    with bar("replaying") as progress:
        advice = advise(events, jobs=options.jobs, scheduler=options.scheduler, progress=progress)
    return advice.as_dict()


def _autopsy(options: argparse.Namespace) -> int:
    return _each(options, _autopsy_one, printing.autopsies)


def _autopsy_one(recording: Recording, device: Device, options: argparse.Namespace) -> Record:
    from refruntime.lab.autopsy import autopsy, failures

    script = script_of(recording, device)
    size = bytes_of(options.request) if options.request else 0
    steps = failures(script)
    if size or options.event is not None:
        steps = [script.step_of(options.event)]
    return {"requests": [autopsy(recording, script, step, size).as_dict() for step in steps]}


def _diff(options: argparse.Namespace) -> int:
    from refruntime.lab.facts import differences, facts_of

    pair = []
    for path in (options.before, options.after):
        recording = read_shown(path)
        device = chosen_device(recording, options.device)
        pair.append((facts_of(recording, device), replayed(recording, device)))
    (before, first), (after, second) = pair
    result = {
        "before": options.before,
        "after": options.after,
        "peaks": {
            name: [first[name], second[name]]
            for name in (
                "peak_allocated_bytes", "peak_reserved_bytes", "upstream_calls", "retries", "ooms"
            )
        },
        "lines": {line: list(change) for line, change in differences(before, after).items()},
    }  # fmt: skip
    if options.json:
        print(json.dumps(result, indent=2, default=int))
    else:
        printing.difference(result)
    return 0


def _convert(options: argparse.Namespace) -> int:
    from refruntime.lab.writers import write

    chosen = write(read_shown(options.file), options.out, options.to)
    if options.json:
        print(json.dumps({"file": options.out, "format": chosen}))
    return 0


def _gate(options: argparse.Namespace) -> int:
    limits = {
        f"peak_{name}_bytes": Limit.parse(text)
        for name in ("reserved", "allocated")
        if (text := getattr(options, f"peak_{name}"))
    }
    if not limits:
        raise ArgumentValueError("lab gate", expected="--peak-reserved or --peak-allocated")
    *baseline, subject = options.files
    if len(baseline) > 1:
        raise ArgumentValueError("lab gate", expected="BASELINE FILE, or FILE", got=options.files)
    now = _figures(subject, options.device)
    then = _figures(baseline[0], options.device) if baseline else {}
    rows = held(limits, then, now)
    if options.json:
        print(json.dumps([row.as_dict() for row in rows], indent=2))
    else:
        printing.gate(rows)
    return 0 if all(row.holds for row in rows) else 1


def _figures(name: str, device: int | None) -> dict[str, Record]:
    """Return the figures of a file, of each file of a directory, or of a saved JSON result."""
    path = Path(name)
    saved = _saved(path)
    if saved is not None:
        return {"": saved}
    found = {}
    for each in _paths([name]):
        recording = read_shown(each)
        key = str(each.relative_to(path)) if path.is_dir() else ""
        found[key] = replayed(recording, chosen_device(recording, device))
    return found


def _saved(path: Path) -> Record | None:
    """Return a result of ``lab replay --json``, if that is what a file holds."""
    if path.suffix != ".json" or not path.is_file() or path.stat().st_size > 1 << 20:
        return None
    try:
        record = json.loads(path.read_text())
    except ValueError:
        return None
    known = isinstance(record, dict) and "peak_reserved_bytes" in record
    return record if known else None
