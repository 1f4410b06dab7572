"""``refruntime demo``: train a network on digits, and report on its memory.

State
-----
None. The allocator's trace is recorded from the start of the run to its end.

Invariants
----------
* The program itself stands in `digits`; here is only what watches it.
* The output folder gets ``report.html`` and ``demo.json``, and nothing else.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

DEFAULT_OUT = "refruntime-demo"
DEFAULT_EPOCHS = 20


def main(argv: Sequence[str]) -> int:
    """Run ``refruntime demo`` with its arguments and return the exit status."""
    options = _parser().parse_args(argv)
    # What follows loads the whole runtime; --help must not.
    from refruntime.demo.run import run

    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    outcome, page = run(options.epochs)
    (out / "report.html").write_text(page, encoding="utf-8")
    (out / "demo.json").write_text(json.dumps(outcome, indent=2) + "\n", encoding="utf-8")
    print(f"\nreport: {(out / 'report.html').resolve()}")
    print(f"numbers: {(out / 'demo.json').resolve()}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="refruntime demo",
        description="Train a small convnet on handwritten digits, and report on its memory.",
    )
    parser.add_argument("--out", default=DEFAULT_OUT, metavar="DIR", help="where the report goes")
    parser.add_argument("--epochs", type=_positive, default=DEFAULT_EPOCHS, metavar="N")
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text}")
    return value
