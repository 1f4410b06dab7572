#!/usr/bin/env python3
"""Fresh lists, played by PyTorch's allocator and by ours, and compared.

    fuzz_extended.py SHAPE FIRST_SEED SEEDS EVENTS [CONF..]      (run by refruntime's Python)

Needs ORACLE_PYTHON, and what `run_extended.py` needs. A list that differs is kept in the current
folder. SHAPE may also be one of the oracle's own shapes.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), os.environ["ORACLE_SOURCE"]]

import compare  # noqa: E402
import gen_events  # noqa: E402
import gen_extended  # noqa: E402


def listed(shape: str, seed: str, count: int) -> str:
    """Return a list as lines."""
    events = (
        gen_extended.make(shape, seed, count)
        if shape in gen_extended.SHAPES
        else gen_events.make(shape, seed, count, 8 << 30)
    )
    return "".join(json.dumps(event) + "\n" for event in events)


def played(command: list[str], events: Path, conf: str) -> dict[str, Any]:
    """Play a list with `command`; return the output."""
    out = events.with_suffix(".out.gz")
    full = [*command, str(events), str(out), "--conf", conf]
    done = subprocess.run(full, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"results": [done.stderr[-300:]]}
    output: dict[str, Any] = json.loads(gzip.decompress(out.read_bytes()))
    return output


def main() -> None:
    """Compare lists of a shape; exit with 1 if one differs."""
    shape, first, seeds, count = sys.argv[1], *map(int, sys.argv[2:5])
    differ = total = 0
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(first, first + seeds):
            events = Path(folder) / f"{shape}-{seed}.jsonl"
            events.write_text(listed(shape, f"fuzz{seed}", count), encoding="utf-8")
            for conf in sys.argv[5:] or [""]:
                oracle = [os.environ["ORACLE_PYTHON"], str(HERE / "run_extended.py")]
                ours = [sys.executable, "-m", "refruntime.alloc.replay"]
                real, made = played(oracle, events, conf), played(ours, events, conf)
                found = compare.differences(real, made)
                total += len(real["results"])
                if found:
                    differ += 1
                    Path(events.name).write_text(events.read_text(encoding="utf-8"))
                    print(events.name, repr(conf), found, flush=True)
    print(f"{shape}: {total} events, {differ} lists differ")
    sys.exit(bool(differ))


if __name__ == "__main__":
    main()
