"""Serve recorded training runs with every strategy, and keep the leaderboard.

    python bench/alloc/leaderboard.py                    the runs in bench/traces
    python bench/alloc/leaderboard.py DIRECTORY...       those of other directories, too
    python bench/alloc/leaderboard.py --check            fail if a figure or the page is stale

Figures that are the same on every machine go to ``bench/alloc/results.json``, and from there to
``docs/leaderboard.md``. Runs that are not at hand keep their old figures.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from page import BASE, page
from runs import figures_of, peak_live, requests_of, seconds_of, traces_of

# The import registers those of other runtimes.
from refruntime.alloc import strategies  # noqa: F401
from refruntime.alloc.strategy import STRATEGIES

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RESULTS = HERE / "results.json"
PAGE = ROOT / "docs" / "leaderboard.md"


def serve(file: Path, names: list[str]) -> dict[str, Any]:
    """Return the record of a run."""
    requests = requests_of(file)
    return {
        "peak_live": peak_live(requests),
        "mallocs": sum(request.action == "alloc" for request in requests),
        "strategies": {
            name: figures_of(requests, STRATEGIES[name]).record() for name in sorted(names)
        },
    }


def time_all(files: list[Path], names: list[str]) -> dict[str, float]:
    """Return the processor time of each strategy over all runs, as a ratio to the base."""
    totals = dict.fromkeys([BASE, *names], 0.0)
    for file in files:
        requests = requests_of(file)
        for name in totals:
            totals[name] += seconds_of(requests, STRATEGIES[name])
    return {name: round(total / totals[BASE], 2) for name, total in totals.items()}


def merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Return old records with the new ones of the same runs and strategies in their place."""
    runs = dict(old.get("runs", {}))
    for name, record in new.items():
        before = runs.get(name, {}).get("strategies", {})
        runs[name] = {**record, "strategies": {**before, **record["strategies"]}}
    return {**old, "runs": dict(sorted(runs.items()))}


def stale(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Return what differs from the kept figures, one line each."""
    lines = []
    for run, record in new.items():
        kept = old["runs"].get(run, {"strategies": {}})
        for name, figures in record["strategies"].items():
            if kept["strategies"].get(name) != figures:
                lines.append(f"{run}, {name}: {kept['strategies'].get(name)} is now {figures}")
    return lines


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directories", nargs="*", type=Path, help="more runs (*.jsonl.gz)")
    parser.add_argument("--runs", help="only these, by name, with commas between")
    parser.add_argument("--strategies", help="only these, by name, with commas between")
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 on differences")
    parser.add_argument("--cpu", action="store_true", help="time the strategies as well")
    return parser.parse_args()


def main() -> int:
    """Serve, compare or write, and print the page."""
    options = arguments()
    traces = traces_of(ROOT / "bench" / "traces")
    for directory in options.directories:
        traces |= traces_of(directory)
    wanted = options.runs.split(",") if options.runs else list(traces)
    names = options.strategies.split(",") if options.strategies else list(STRATEGIES)
    records = {}
    for run in sorted(wanted):
        print(f"serving {run}", file=sys.stderr)
        records[run] = serve(traces[run], names)
    old = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if options.check:
        lines = stale(old, records)
        if PAGE.read_text() != page(old):
            lines.append(f"{PAGE.name} is not what the figures say")
        print("\n".join(lines))
        return 1 if lines else 0
    results = merged(old, records)
    if options.cpu:
        ratios = time_all([traces[run] for run in wanted], names)
        results["cpu_ratio"] = results.get("cpu_ratio", {}) | ratios
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    PAGE.write_text(page(results))
    print(page(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
