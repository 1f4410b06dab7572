"""The lab report's page: complete in itself, saying in words what its charts show."""

from __future__ import annotations

import base64
import json
import re
import zlib
from html.parser import HTMLParser

import numpy as np
import pytest
from lab_inputs import MIB, alloc, event, free, input_of, simulate

from refruntime import alloc as allocators
from refruntime.errors import ArgumentValueError
from refruntime.lab import recording as rec
from refruntime.viz.lab import columns, payload, sources
from refruntime.viz.lab.analysis import analyse
from refruntime.viz.lab.inputs import ACTIONS, Mark, ReportInput, StrategyRun, Waste
from refruntime.viz.lab_report import render, write

GIB = 1 << 30


def strategy(name: str = "caching", reserved: int = 5 * MIB, ooms: int = 0) -> StrategyRun:
    return StrategyRun(
        name, 3 * MIB, reserved, 12, ooms, 1, np.array([1, 3, 2]) * MIB, np.array([2, 5, 5]) * MIB
    )


def failing(**more) -> ReportInput:
    """Two holes of 1 GiB, and a request of 1.5 GiB that neither can serve."""
    rows = [
        event("segment_alloc", 0, 3 * GIB), alloc(GIB, GIB, category=0, stack=1),
        event("oom", GIB // 4, 3 * GIB // 2), free(GIB, GIB),
    ]  # fmt: skip
    return input_of(rows, **more)


@pytest.fixture(scope="module")
def full() -> ReportInput:
    return simulate(3, 120).input(
        title="A run",
        notes=("one", "two"),
        marks=(Mark(5, "step 1"),),
        strategies=(strategy(), strategy("plain", 4 * MIB)),
        waste=(Waste("rounding", 3 * MIB, "multiples of 512"), Waste("cache", MIB)),
    )


class Page(HTMLParser):
    """Collects tags and words, and checks that each tag that opens is closed in order."""

    VOID = frozenset({"meta", "link", "input", "br"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        assert self.open == []

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not {"script", "style"} & set(self.open):
            self.words.append(data)


def packed(page: str) -> tuple[dict, bytes]:
    """The header of the data that a page carries, and its columns' bytes."""
    text = re.search(r'id="lab-data">(.*?)</script>', page, re.DOTALL).group(1)
    body = zlib.decompress(base64.b64decode(text))
    head = int.from_bytes(body[:4], "little")
    return json.loads(body[4 : 4 + head]), body[4 + head :]


# ---------------------------------------------------------------------------------------- the page


def test_the_page_is_well_formed_and_names_its_sections(full):
    text = Page(render(full)).text
    for heading in (
        "A run", "one · two", "Memory over time", "Segments", "What reserved memory is used for",
        "The same requests under other strategies", "Waste by cause", "At the peak",
    ):  # fmt: skip
        assert heading in text


def test_the_page_loads_nothing(full):
    page = Page(render(full))
    policy = next(a for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy["content"].startswith("default-src 'none'")
    for tag, attributes in page.tags:
        for name in ("src", "href", "action"):
            assert attributes.get(name, "data:").startswith("data:"), (tag, attributes)
    assert not re.search(r"https?://", render(full))


def test_controls_have_names_and_charts_take_the_focus(full):
    tags = Page(render(full)).tags
    charts = [a for _, a in tags if a.get("class") == "chart"]
    assert len(charts) == 2
    assert all(a["tabindex"] == "0" and a["aria-label"] and a["aria-describedby"] for a in charts)
    groups = [a for _, a in tags if a.get("role") in ("group", "radiogroup")]
    assert groups and all(a.get("aria-label") or a.get("aria-labelledby") for a in groups)


def test_both_colour_schemes_name_the_same_colours(full):
    style = re.search(r"<style>(.*?)</style>", render(full), re.DOTALL).group(1)
    blocks = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    light, dark = (
        {name for block in blocks[i::2] for name in re.findall(r"(--[\w-]+):", block)}
        for i in (0, 1)
    )
    assert light == dark


@pytest.mark.parametrize(
    ("part", "heading"), [("strategies", "other strategies"), ("waste", "Waste by cause")]
)
def test_an_empty_part_leaves_its_section_out(full, part, heading):
    fields = {name: getattr(full, name) for name in ReportInput.__slots__}
    assert heading in render(full)
    assert heading not in render(ReportInput(**{**fields, part: ()}))


def test_text_from_outside_cannot_end_its_element():
    bad = "</script><b onclick=x>"
    stack = ((f"/home/{bad}.py", 1, bad),)
    source = input_of(
        [alloc(0, stack=0, category=0)], title=bad, notes=(bad,), stacks=(stack,),
        categories=(bad,), marks=(Mark(0, bad),), strategies=(strategy(bad),),
        waste=(Waste(bad, 1, bad),),
    )  # fmt: skip
    page = Page(render(source))
    assert not any(tag == "b" for tag, _ in page.tags)
    assert bad in page.text


def test_rendering_is_pure_and_writing_is_rendering(full, tmp_path):
    path = write(full, tmp_path / "report.html")
    assert path.read_text(encoding="utf-8") == render(full) == render(full)


def test_a_recording_without_events_still_makes_a_page():
    text = Page(render(input_of([]))).text
    assert "peak allocated 0 B" in text


# --------------------------------------------------------------------------------------- the words


def test_a_failure_is_explained_first():
    text = Page(render(failing())).text
    assert "Out of memory at event 3: a request of 1.50 GiB failed" in text
    assert "1.00 GiB were allocated and 3.00 GiB reserved" in text
    assert "The device had 256 MiB left." in text
    assert "2.00 GiB lay free inside segments, in 2 spans, the largest 1.00 GiB" in text
    assert "enough memory, in pieces too small" in text
    assert text.index("Out of memory") < text.index("peak allocated")


def test_many_failures_are_counted_and_not_all_told():
    rows = [event("oom", -1, GIB)] * 7
    text = Page(render(input_of(rows))).text
    assert text.count("Out of memory at event") == 3
    assert text.index("at event 7:") < text.index("at event 6:")
    assert "4 more requests failed before" in text
    assert "failed requests 7" in text


def test_figures_are_those_of_the_recording():
    text = Page(render(failing())).text
    assert "peak allocated 1.00 GiB peak reserved 3.00 GiB of it not in use 2.00 GiB, 67%" in text
    assert "events 4 blocks 1 segments 1" in text


def test_holders_at_the_peak_stand_in_tables():
    rows = [alloc(0, 2 * MIB, category=0, stack=1), alloc(4 * MIB, MIB, category=1),
            event("tag", 4 * MIB, category=0)]  # fmt: skip
    text = Page(render(input_of(rows))).text
    # The peak comes before the tag.
    assert "category bytes blocks parameter 2.00 MiB 1 activation 1.00 MiB 1" in text
    assert "me/model.py:25 attend 2.00 MiB 1 no stack recorded 1.00 MiB 1" in text


def test_the_finding_about_strategies_leaves_out_those_that_failed():
    runs = (strategy("a", MIB, ooms=1), strategy("b", 3 * MIB), strategy("c", 2 * MIB))
    text = Page(render(input_of([alloc(0)], strategies=runs))).text
    assert "c reserves least (2.00 MiB)" in text
    none = Page(render(input_of([alloc(0)], strategies=runs[:1]))).text
    assert "None of them served all requests." in none


# ---------------------------------------------------------------------------------------- the data


def test_the_container_says_what_it_holds(full):
    header, body = packed(render(full))
    assert sum(column["bytes"] for column in header["columns"]) == len(body)
    names = {column["name"] for column in header["columns"]}
    assert names >= {"time", "block.begin", "piece.end", "oom.moment"}
    assert header["texts"]["marks"] == ["step 1"]


@pytest.mark.parametrize(
    ("values", "encoded"),
    [
        ([], b""),
        ([0, 0, 0], b"\0\0\0"),
        ([1, 0, -1], b"\2\1\1"),
        ([64], b"\x80\1"),
        ([-64, -64], b"\x7f\0"),
        ([1 << 20], b"\x80\x80\x80\1"),
    ],
)
def test_columns_are_varints_of_zigzag_differences(values, encoded):
    column = np.array(values, np.int64)
    assert columns.varints(columns.zigzag_deltas(column)) == encoded


def test_long_timelines_keep_their_peaks():
    values = np.zeros(100_000, np.int64)
    values[77_777] = 9
    short = payload.peaks(values)
    assert len(short) == payload.POINTS
    assert short.max() == 9
    assert payload.peaks(np.arange(7)).tolist() == list(range(7))


def test_a_clock_that_steps_back_stands_still():
    rows = [("alloc", 512 * i, 512, 0, time, -1, -1) for i, time in enumerate((100, 90, 130))]
    assert payload._times(input_of(rows)).tolist() == [0, 0, 0, 30]


# ------------------------------------------------------------------------------------- the sources


def test_a_live_allocators_trace_becomes_an_input():
    upstream = allocators.VirtualUpstream(1 << 30)
    allocator = allocators.CachingAllocator(upstream)
    kept = allocator.malloc(MIB)
    allocator.record(True)
    other = allocator.malloc(3 * MIB)
    allocator.free(other)
    source = sources.of_trace(allocator.trace, "live")
    text = Page(render(source)).text
    assert "peak allocated 4.00 MiB" in text
    assert source.start == 2
    assert kept in source.events.address[:2]


def recording() -> rec.Recording:
    """One block from before the trace, one that waits since then, one that the trace makes."""
    rows = [
        # action, address, size, stream, time, pool, stack, category
        (rec.FREE_COMPLETED, 1024, 512, 0, 10, 0, 0, 0),
        (rec.ALLOC, 4096, 700, 0, 20, 0, 1, 1),
        (rec.FREE_REQUESTED, 0, 600, 0, 30, 0, 0, 0),
        (rec.FREE_COMPLETED, 0, 600, 0, 40, 0, 0, 0),
        (rec.OOM, 77, MIB, 0, 50, 0, 0, 0),
    ]
    segments = rec.Segments.of_rows([(0, 2 * MIB, 0, 0, 1, 0)])
    blocks = rec.Blocks.of_rows([(0, 4096, 2048, 700, rec.ALLOCATED, 1, 1)])
    return rec.Recording(
        source="file.pickle", format="test", capacity=GIB, categories=("unknown", "gradient"),
        devices=(rec.Device(3, rec.Events.of_rows(rows), segments, blocks),),
        frames=(("/me/train.py", 5, "step"),), stacks=(np.zeros(0, int), np.zeros(1, int)),
    )  # fmt: skip


def test_a_recording_becomes_an_input_with_the_state_before_in_front():
    source = sources.of_recording(recording())
    assert (source.title, source.capacity, source.categories) == ("file.pickle", GIB, ("gradient",))
    actions = [ACTIONS[code] for code in source.events.action]
    assert actions[: source.start] == ["segment_alloc", "alloc", "alloc", "free_requested"]
    analysis = analyse(source)
    assert analysis.totals.allocated.tolist() == [1024, 1024, 3072, 2048, 2048, 2048]
    assert analysis.totals.reserved.tolist() == [2 * MIB] * 6
    made = analysis.blocks.address.tolist().index(4096)
    assert analysis.blocks.held[made] == 2048
    assert source.stacks[analysis.blocks.stack[made]] == (("/me/train.py", 5, "step"),)
    assert [failure.device_free for failure in analysis.failures] == [77]


def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(ArgumentValueError, match="one of 3"):
        sources.of_recording(recording(), device=0)
