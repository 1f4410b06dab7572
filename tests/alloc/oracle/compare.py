#!/usr/bin/env python3
"""Compares two outputs of a replay: which keys differ, and where first.

compare.py A.json.gz B.json.gz
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

KEYS = ("results", "driver_log", "trace", "snapshot", "snapshots", "stats")


def first_difference(a: Any, b: Any) -> str:
    """Describe where two values of one key part."""
    if type(a) is not type(b):
        return "in one of them only"
    if isinstance(a, dict):
        names = [name for name in {**a, **b} if a.get(name) != b.get(name)]
        return ", ".join(f"{name}: {a.get(name)} / {b.get(name)}" for name in names[:4])
    at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    return f"at {at} of {len(a)} / {len(b)}: {a[at : at + 1]} / {b[at : at + 1]}"


def differences(a: dict[str, Any], b: dict[str, Any]) -> dict[str, str]:
    """The keys that differ, each with its first difference."""
    pairs = {key: (a.get(key), b.get(key)) for key in KEYS}
    return {key: first_difference(x, y) for key, (x, y) in pairs.items() if x != y}


def main() -> None:
    """Compare; exit with 1 if anything differs."""
    a, b = (json.loads(gzip.decompress(Path(name).read_bytes())) for name in sys.argv[1:3])
    found = differences(a, b)
    for key, text in found.items():
        print(f"{key}: {text}"[:2000])
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
