"""Renews the line numbers of links into the code: ``[`text`](../file.py#L12)``.

The line is the first one of the file that has the text of the link. ``--check`` changes nothing and
exits with 1 if a link is stale.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

DOCS = Path(__file__).parent
LINK = re.compile(r"\[`([^`]+)`\]\((\.\./[^)#]+)#L(\d+)\)")


def line_of(text: str, file: Path) -> int:
    """Return the number of the first line of `file` with `text`."""
    for number, line in enumerate(file.read_text().splitlines(), 1):
        if text in line:
            return number
    raise SystemExit(f"{file}: no line has {text!r}")


def renewed(page: Path) -> str:
    """Return the page with its links renewed."""

    def renew(match: re.Match[str]) -> str:
        text, path = match[1], match[2]
        return f"[`{text}`]({path}#L{line_of(text, (page.parent / path).resolve())})"

    return LINK.sub(renew, page.read_text())


def main() -> int:
    """Renew or check every page."""
    stale = 0
    for page in sorted(DOCS.rglob("*.md")):
        fresh = renewed(page)
        if fresh != page.read_text():
            stale += 1
            print(f"{page.name}: links were stale")
            if "--check" not in sys.argv:
                page.write_text(fresh)
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
