"""The example of `docs/strategies.md` runs, prints what the page says, and is short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from refruntime.alloc.strategies import FACTORIES
from refruntime.alloc.strategy import STRATEGIES

PAGE = (Path(__file__).parents[3] / "docs" / "strategies.md").read_text()
EXAMPLE = "".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))


def test_example_prints_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        exec(compile(EXAMPLE, "docs/strategies.md", "exec"), {})
    finally:
        STRATEGIES.pop("size-lists", None)
    said = re.search(r"It prints `(.*?)`", PAGE)
    assert said is not None
    assert capsys.readouterr().out.strip() == said[1]


def test_strategy_of_the_example_takes_at_most_50_lines() -> None:
    strategy = EXAMPLE[: EXAMPLE.index("requests = ")].splitlines()
    assert len([line for line in strategy if line.strip()]) <= 50
    assert EXAMPLE.count("register_strategy(") == 1


def test_every_strategy_stands_in_the_table() -> None:
    listed = set(re.findall(r"^\| `([\w-]+)` \|", PAGE, re.MULTILINE))
    assert listed == {"caching", "caching-expandable", "cuda-malloc-async", "plain", *FACTORIES}
    assert listed <= STRATEGIES.keys()
