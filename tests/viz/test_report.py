"""The report: complete in itself, and saying in words what its charts show."""

from __future__ import annotations

import copy
import json
import re
from html.parser import HTMLParser

import pytest

from refruntime.viz.report import LABELS, bytes_text, peak_of, render

MIB = 1 << 20


def curve(totals: list[int]) -> dict:
    return {
        "event": list(range(len(totals))),
        "time": [0.1 * i for i in range(len(totals))],
        "categories": [
            {"name": "parameter", "label": LABELS["parameter"], "bytes": [MIB] * len(totals)},
            {"name": "saved", "label": LABELS["saved"], "bytes": totals},
        ],
        "reserved": [8 * MIB] * len(totals),
        "labels": [f"step {i}, forward" for i in range(len(totals))],
    }


@pytest.fixture
def data() -> dict:
    block = {"offset": 0, "size": MIB, "requested": MIB - 24, "category": "saved"}
    hole = {"offset": MIB, "size": MIB, "requested": 0, "category": "free"}
    strategy = {"name": "x", "label": "caching", "seconds": 0.05, "peak_allocated_bytes": MIB}
    return {
        "title": "A run",
        "lead": "What was run.",
        "environment": ["refruntime 0", "cpu"],
        "figures": [("test accuracy", "98.1%")],
        "training": {
            "loss": [2.0, 1.0],
            "epochs": [{"epoch": 1, "loss": 1.5, "accuracy": 0.981, "seconds": 0.5}],
        },
        "memory": {"run": curve([0, 3 * MIB, MIB]), "step": curve([0, MIB])},
        "segments": [
            {
                "address": 0x7F00_0000_0000,
                "size": 2 * MIB,
                "pool": "small",
                "blocks": [{**block, "label": "saved for backward"}, {**hole, "label": "free"}],
            }
        ],
        "strategies": [
            {**strategy, "peak_reserved_bytes": 2 * MIB, "upstream_calls": 3},
            {**strategy, "label": "plain", "peak_reserved_bytes": MIB, "upstream_calls": 300},
        ],
    }  # fmt: skip


class Page(HTMLParser):
    """Collects tags, and checks that each one that opens is closed in order."""

    VOID = frozenset({"meta", "link", "input", "br"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not {"script", "style"} & set(self.open):
            self.words.append(data)


def test_the_page_is_well_formed_and_names_its_sections(data):
    page = Page(render(data))
    text = " ".join(page.words)
    for heading in (
        "A run", "Learning", "Memory over time", "Segments at the peak",
        "The same run under other strategies",
    ):  # fmt: skip
        assert heading in text
    assert [a["id"] for _, a in page.tags if "chart" in a.get("id", "")] == [
        "loss-chart", "accuracy-chart", "memory-chart", "segments-chart",
    ]  # fmt: skip


def test_the_page_loads_nothing(data):
    page = Page(render(data))
    policy = next(a for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy["content"].startswith("default-src 'none'")
    for tag, attributes in page.tags:
        for name in ("src", "href", "action"):
            assert attributes.get(name, "data:").startswith("data:"), (tag, attributes)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", render(data))


def test_charts_can_be_reached_by_keyboard_and_are_described(data):
    page = Page(render(data))
    charts = [a for _, a in page.tags if a.get("class") == "chart"]
    assert len(charts) == 3
    assert all(a["tabindex"] == "0" and a["aria-label"] for a in charts)


def test_light_and_dark_are_both_styled(data):
    assert "@media (prefers-color-scheme: dark)" in render(data)


def test_findings_state_the_peak_and_the_ratio(data):
    text = " ".join(Page(render(data)).words)
    assert "4.00 MiB" in text
    assert "step 1, forward" in text
    assert "saved for backward 75%" in text
    assert "100 times less often" in text


def test_the_data_of_the_charts_is_embedded(data):
    body = re.search(r'id="report-data">(.*?)</script>', render(data), re.DOTALL).group(1)
    embedded = json.loads(body)
    assert embedded["memory"]["run"]["categories"][1]["bytes"] == [0, 3 * MIB, MIB]
    assert embedded["segments"][0]["blocks"][0]["requested"] == MIB - 24
    assert embedded["training"]["loss"] == [2.0, 1.0]


def test_text_from_outside_is_escaped(data):
    data["title"] = "<script>alert(1)</script>"
    data["memory"]["run"]["labels"][1] = "</script><b>"
    data["strategies"][0]["label"] = "a & <b>"
    page = Page(render(data))
    assert sum(tag == "script" for tag, _ in page.tags) == 2
    assert not any(tag == "b" for tag, _ in page.tags)


@pytest.mark.parametrize("part", ["training", "memory", "segments", "strategies"])
def test_an_empty_part_leaves_its_section_out(data, part):
    less = copy.deepcopy(data)
    less[part] = type(data[part])()
    assert render(less).count("<section>") == render(data).count("<section>") - 1


def test_rendering_is_pure(data):
    before = copy.deepcopy(data)
    assert render(data) == render(data)
    assert data == before


def test_the_peak_is_the_sample_with_most_bytes():
    assert peak_of(curve([5, 9, 2])) == (1, 9 + MIB)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (1536, "1.50 KiB"), (20 * MIB, "20.0 MiB"), (3 << 38, "768 GiB")],
)
def test_bytes_are_written_with_three_digits(value, text):
    assert bytes_text(value) == text
