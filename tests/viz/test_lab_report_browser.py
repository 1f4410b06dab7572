"""The lab report in a real browser: its data, its drawings, its keys, and no complaints."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from chromium import Browser, executable
from lab_inputs import input_of, input_of_snapshot, simulate

from refruntime.viz.lab import columns
from refruntime.viz.lab.inputs import StrategyRun
from refruntime.viz.lab_report import render, write

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(executable() is None, reason="needs Chromium: apt-get install chromium"),
]

SNAPSHOT = Path(__file__).parent / "data" / "gpt13_tight_end.pickle.gz"
RUN = simulate(5, 400)
SHIFT = 8


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as one:
        yield one


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("reports")
    curve = np.arange(3000) % 1000
    strategies = (StrategyRun("a", 999, 1500, 3, 0, 0, curve, curve + 500),)
    return {
        "random": write(RUN.input(strategies=strategies), folder / "random.html"),
        "snapshot": write(input_of_snapshot(SNAPSHOT), folder / "snapshot.html"),
        "empty": write(input_of([]), folder / "empty.html"),
    }


@pytest.fixture
def page(browser, files) -> Iterator[Browser]:
    """The report of the random program, at its middle; at the end nobody may have complained."""
    opened(browser, files["random"]).run(f"lab.page.view.goTo({len(RUN.rows) // 2})")
    browser.settle()
    yield browser
    assert browser.complaints() == []


@pytest.fixture
def failed(browser, files) -> Iterator[Browser]:
    """The report of a run that went out of memory."""
    yield opened(browser, files["snapshot"])
    assert browser.complaints() == []


def opened(browser: Browser, path: Path) -> Browser:
    browser.prefer(prefers_color_scheme="light")
    browser.open(path)
    browser.run("lab.ready")
    browser.settle()
    return browser


def text(page: Browser, id: str) -> str:
    page.settle()
    return page.run(f"document.getElementById('{id}').textContent")


def focus(page: Browser, id: str) -> None:
    page.run(f"document.getElementById('{id}').focus()")


def moment(page: Browser) -> int:
    page.settle()
    return page.run("lab.page.view.moment")


def box(page: Browser, id: str) -> dict[str, float]:
    page.run(f"document.getElementById('{id}').scrollIntoView({{ block: 'center' }})")
    page.settle()
    return page.run(f"document.getElementById('{id}').getBoundingClientRect().toJSON()")


def colours(page: Browser, id: str) -> int:
    """How many different colours the first canvas of an element shows."""
    return page.run(
        f"(() => {{ const c = document.querySelector('#{id} canvas');"
        "const p = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
        "return new Set(new Uint32Array(p.buffer)).size; })()"
    )


# ---------------------------------------------------------------------------------------- the data


def test_columns_come_back_as_they_were_packed(page):
    rng = np.random.default_rng(0)
    given = {
        "none": np.zeros(0, np.int32),
        "zero": np.zeros(5, np.int64),
        "ends": np.array([-(1 << 31), (1 << 31) - 1, 0], np.int32),
        "far": np.array([(1 << 51) - 1, 1 - (1 << 51), 0, 1 << 32, -(1 << 32)], np.int64),
        "small": rng.integers(-70, 70, 3000).astype(np.int32),
        "mixed": (rng.integers(0, 2, 3000) << rng.integers(0, 50, 3000)) - rng.integers(0, 9, 3000),
    }
    texts = {"words": ["µ", "</script>", ""], "number": 3}
    blob = columns.pack(given, texts)
    found = page.run(
        f"lab.columns.unpack('{blob}').then(({{ texts, columns }}) => JSON.stringify([texts, "
        "Object.entries(columns).map(([k, v]) => [k, v.constructor.name, Array.from(v)])]))"
    )
    got_texts, got = json.loads(found)
    assert got_texts == texts
    for name, kind, values in got:
        assert kind == ("Int32Array" if given[name].dtype == np.int32 else "Float64Array")
        assert values == given[name].tolist()
    assert [name for name, _, _ in got] == list(given)


@pytest.mark.parametrize("grouping", ["category", "line", "use"])
def test_the_stack_equals_the_truth_at_every_moment(page, grouping):
    found = page.run(
        f"(() => {{ const g = lab.page.view.groupings.find((g) => g.id === '{grouping}');"
        "return Array.from({ length: lab.page.recording.moments }, (_, m) => {"
        "const state = g.series.at(m, new Float64Array(g.groups.length));"
        "return Object.fromEntries(g.groups.map((group, i) => [group.name, state[i]])); }); })()"
    )
    assert len(found) == len(RUN.truths)
    for got, truth in zip(found, RUN.truths):
        wanted = getattr(truth, grouping)
        assert {k: v for k, v in got.items() if v} == {k: v for k, v in wanted.items() if v}


def test_free_spans_and_live_blocks_equal_the_truth_at_every_moment(page):
    found = page.run(
        "(() => { const r = lab.page.recording;"
        "return Array.from({ length: r.moments }, (_, m) => {"
        "const mapped = r.mapped(m);"
        "return [Array.from(mapped, (b) => r.blocks.address[b]),"
        "lab.holes(r, m, mapped).map((hole) => hole.bytes)]; }); })()"
    )
    for (live, holes), truth in zip(found, RUN.truths):
        assert sorted(live) == truth.live
        assert sorted(holes) == truth.holes


def test_the_peak_of_any_range_is_its_first_highest_moment(page):
    found = page.run(
        "(() => { const s = lab.page.view.groupings[0].series; const wrong = [];"
        "for (let a = 0; a < s.moments; a += 7) for (let b = a + 1; b <= s.moments; b += 5) {"
        "const range = Array.from(s.total.subarray(a, b));"
        "const best = a + range.indexOf(Math.max(...range));"
        "if (s.peak(a, b) !== best) wrong.push([a, b]); } return wrong; })()"
    )
    assert found == []


# ------------------------------------------------------------------------------------ the drawings


def test_everything_is_drawn_from_the_file_alone(page):
    assert [address.split(":")[0] for address in page.requests()] == ["file"]
    assert page.run("document.body.dataset.ready") == "yes"
    assert colours(page, "timeline") > 4
    assert colours(page, "map") > 3
    assert colours(page, "overview") > 1
    assert page.run("lab.page.replays.charts.length") == 1
    assert page.run("document.querySelectorAll('#holders tr').length") > 1


def test_the_page_opens_where_memory_ran_out(failed):
    assert "A request of 4.50 GiB failed: out of memory." in text(failed, "moment-event")
    assert "the largest free span is 1.66 GiB" in text(failed, "map-reading")
    assert not failed.run("document.getElementById('request-key').hidden")
    assert "gaps, large pool" in text(failed, "uses")


def test_buttons_lead_to_peaks_and_failures(failed):
    buttons = "[...document.querySelectorAll('#jumps button')]"
    jump = buttons + ".find((b) => b.textContent === '{}').click()"
    failed.run(jump.format("peak allocated"))
    assert moment(failed) == failed.run("lab.page.recording.texts.jumps[0].moment")
    assert "68.3 GiB" in failed.run("document.getElementById('timeline').ariaValueText")
    failed.run(jump.format("out of memory"))
    assert "out of memory" in text(failed, "moment-event")


def test_failures_are_visited_one_after_another(page):
    failures = [i for i, row in enumerate(RUN.rows, 1) if row[0] == "oom"]
    assert len(failures) > 2
    page.run("lab.page.view.goTo(0)")
    step = "document.querySelector('#jumps').{}.click()"
    for failure in failures[:2]:
        page.run(step.format("lastElementChild"))
        assert moment(page) == failure
    page.run(step.format("lastElementChild.previousElementSibling"))
    assert moment(page) == failures[0]
    assert page.run("lab.page.recording.texts.keyMoments[0]") == failures[-1]


def test_a_page_without_events_draws_and_says_so(browser, files):
    opened(browser, files["empty"])
    assert browser.complaints() == []
    assert text(browser, "moment-title") == "start of 0"


def test_data_that_cannot_be_read_are_reported_on_the_page(browser, tmp_path):
    broken = tmp_path / "broken.html"
    page = render(RUN.input())
    start = page.index('id="lab-data">') + 40
    broken.write_text(page[:start] + page[start + 9 :], encoding="utf-8")
    browser.open(broken)
    browser.run("lab.ready.catch(() => null)")
    assert "could not be drawn" in text(browser, "trouble")
    assert not browser.run("document.getElementById('trouble').hidden")


# --------------------------------------------------------------------------- pointer and keyboard


def test_every_control_can_be_reached_by_tab_and_shows_the_focus(page):
    page.run("document.activeElement.blur()")
    seen = []
    for _ in range(60):
        page.key("Tab")
        found = page.run(
            "(() => { const e = document.activeElement; if (e === document.body) return null;"
            "const mark = e.matches('input[type=radio]') ? e.nextElementSibling : e;"
            "const name = e.id || e.name || e.className || e.textContent;"
            "return [name, getComputedStyle(mark).outlineStyle]; })()"
        )
        if found is None:
            break
        seen.append(found)
    names = [name for name, _ in seen]
    for name in ("grouping", "axis", "zoom-in", "timeline", "previous", "scrub", "map", "holder"):
        assert name in names
    order = [names.index(name) for name in ("grouping", "timeline", "scrub", "map", "holder")]
    assert order == sorted(order)
    assert [name for name, style in seen if style == "none"] == []


def test_keys_move_the_moment_and_zoom(page):
    focus(page, "timeline")
    page.key("Home")
    assert moment(page) == 0
    page.key("ArrowRight")
    page.key("ArrowRight")
    page.key("ArrowLeft")
    assert moment(page) == 1
    page.key("ArrowRight", modifiers=SHIFT)
    assert moment(page) == 1 + round((len(RUN.rows)) / 50)
    page.key("End")
    assert moment(page) == len(RUN.rows)
    page.key("ArrowUp")
    zoomed = page.run("lab.page.view.span")
    assert zoomed < len(RUN.rows)
    page.key("PageUp")
    assert page.run("lab.page.view.high") < len(RUN.rows)
    page.key("0")
    assert page.run("lab.page.view.whole")
    said = page.run("document.getElementById('timeline').ariaValueText")
    assert said.startswith(f"event {len(RUN.rows)} of {len(RUN.rows)}")


def test_zooming_keeps_what_is_under_the_pointer(page):
    area = box(page, "timeline")
    focus(page, "timeline")
    at = area["x"] + 0.7 * area["width"], area["y"] + 100
    where = f"lab.page.timeline.value({at[0] - area['x']})"
    before = page.run(where)
    page.mouse("mouseWheel", *at, deltaX=0, deltaY=-400)
    assert page.run("lab.page.view.span") < len(RUN.rows)
    # The browser rounds the pointer to whole pixels.
    assert page.run(where) == pytest.approx(before, abs=0.5)


def test_dragging_pans_and_clicking_chooses(page):
    page.run("lab.page.view.zoom(0.25, 200)")
    area = box(page, "timeline")
    low = page.run("lab.page.view.low")
    x, y = area["x"] + 600, area["y"] + 250
    page.mouse("mousePressed", x, y, button="left", buttons=1, clickCount=1)
    page.mouse("mouseMoved", x - 200, y, button="left", buttons=1)
    page.mouse("mouseReleased", x - 200, y, button="left", clickCount=1)
    assert page.run("lab.page.view.low") > low
    page.click(x, y)
    expected = page.run(f"lab.page.timeline.peaks[lab.page.timeline.column({x - area['x']})]")
    assert moment(page) == expected


def test_pointing_at_the_stack_names_the_block_and_its_lines(page):
    page.run("lab.page.view.setGrouping('line')")
    page.settle()
    area = box(page, "timeline")
    spot = page.run(
        "(() => { const t = lab.page.timeline; for (let x = 80; x < 1100; x += 3)"
        "for (let y = 30; y < 300; y += 3) { const b = t.blockAt(x, y);"
        "if (b >= 0 && lab.page.recording.lineOf(b) >= 0) return [x, y, b]; } })()"
    )
    page.mouse("mouseMoved", area["x"] + spot[0], area["y"] + spot[1])
    tip = page.run("document.querySelector('#timeline .tip').textContent")
    size = page.run(f"lab.format.bytes(lab.page.recording.blocks.size[{spot[2]}])")
    frame = page.run(f"lab.page.recording.framesOf({spot[2]}).find((f) => f.own).name")
    assert size in tip and frame in tip
    page.click(area["x"] + spot[0], area["y"] + spot[1])
    assert frame in text(page, "chosen")
    page.mouse("mouseMoved", 2, 2)
    assert page.run("document.querySelector('#timeline .tip').hidden")


def test_each_block_has_its_share_of_a_columns_height(page):
    found = page.run(
        "(() => { const t = lab.page.timeline, x = 700, seen = {};"
        "for (let y = t.inner.top; y < t.inner.bottom; y += 0.25) {"
        "const b = t.blockAt(x, y); if (b >= 0) seen[b] = (seen[b] || 0) + 0.25; }"
        "const scale = (t.inner.bottom - t.inner.top) / t.top;"
        "return Array.from(lab.page.recording.live(t.momentAt(x)), (b) =>"
        "[seen[b] || 0, lab.page.recording.blocks.held[b] * scale]); })()"
    )
    assert len(found) > 10
    for height, expected in found:
        assert height == pytest.approx(expected, abs=0.5)


def test_the_map_is_walked_with_the_arrow_keys(page):
    focus(page, "map")
    page.key("Home")
    first = page.run("lab.page.view.block")
    page.key("ArrowRight")
    second = page.run("lab.page.view.block")
    order = page.run("Array.from(lab.page.recording.mapped(lab.page.view.moment))")
    assert [first, second] == order[:2]
    address = page.run(f"lab.format.address(lab.page.recording.blocks.address[{second}])")
    assert address in text(page, "map-reading") and address in text(page, "chosen")
    page.key("+")
    assert page.run("lab.page.map.high - lab.page.map.low < lab.page.recording.mapBytes")
    page.key("0")
    assert page.run("lab.page.map.high - lab.page.map.low === lab.page.recording.mapBytes")
    page.key("End")
    assert page.run("lab.page.view.block") == order[-1]
    page.key("Escape")
    assert page.run("lab.page.view.block") == -1


def test_scrubbing_moves_everything(page):
    page.run("(() => { const s = document.getElementById('scrub'); s.value = 17;"
             "s.dispatchEvent(new Event('input')); })()")  # fmt: skip
    assert moment(page) == 17
    assert text(page, "moment-title").startswith("event 17 of")
    live = len(RUN.truths[17].live)
    assert text(page, "map-reading").startswith(f"{live} blocks in")


def test_a_holder_opens_its_largest_block_and_keeps_the_focus(page):
    page.run("document.querySelector('.holder').focus()")
    name = page.run("document.activeElement.textContent")
    page.key("Enter", text="\r")
    page.settle()
    assert page.run("lab.page.view.block") >= 0
    assert "address" in text(page, "chosen")
    assert page.run("document.activeElement.textContent") == name
    assert page.run("document.activeElement.ariaPressed") == "true"


def test_the_axis_of_time_shows_the_same_moments(page):
    page.run("document.querySelector('input[name=axis][value=time]').click()")
    page.settle()
    assert page.run("lab.page.view.whole")
    assert page.run("Math.max(...lab.page.timeline.peaks)") <= len(RUN.rows)
    highest = page.run(
        "(() => { const t = lab.page.timeline, s = lab.page.view.grouping.series;"
        "return Math.max(...Array.from(t.peaks, (m) => s.total[m])) === Math.max(...s.total); })()"
    )
    assert highest


# ------------------------------------------------------------------------------ light, dark, small


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(page, scheme):
    page.prefer(prefers_color_scheme=scheme)
    found = page.run(
        "(() => { const rgb = (c) => c.match(/[\\d.]+/g).map(Number);"
        "const lum = (c) => rgb(c).slice(0, 3).map((v) => v / 255)"
        ".map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))"
        ".reduce((s, v, i) => s + v * [0.2126, 0.7152, 0.0722][i], 0);"
        "const ground = (e) => { for (; e; e = e.parentElement) {"
        "const c = getComputedStyle(e).backgroundColor; if (rgb(c)[3] !== 0) return c; } };"
        "return [...document.querySelectorAll('p, dt, dd, th, td, li, h1, h2, h3, button, span')]"
        ".filter((e) => e.innerText && e.checkVisibility()).map((e) => {"
        "const [a, b] = [lum(getComputedStyle(e).color), lum(ground(e))].sort((x, y) => y - x);"
        "return [(a + 0.05) / (b + 0.05), e.innerText.slice(0, 30)]; })"
        ".sort((x, y) => x[0] - y[0])[0]; })()"
    )
    assert found[0] >= 4.5, found


def test_a_change_of_scheme_redraws_the_charts(page):
    pictures = "Array.from(document.querySelectorAll('canvas'), (c) => c.toDataURL())"
    light = page.run(pictures)
    page.prefer(prefers_color_scheme="dark")
    page.settle()
    changed = [a != b for a, b in zip(light, page.run(pictures))]
    assert len(changed) == 5 and all(changed)


def test_a_narrow_window_needs_no_sideways_scrolling(page):
    page.page("Emulation.setDeviceMetricsOverride",
              width=420, height=900, deviceScaleFactor=1, mobile=False)  # fmt: skip
    page.settle()
    try:
        assert page.run("document.documentElement.scrollWidth") <= 420
        assert page.run("lab.page.timeline.surface.width") < 420
    finally:
        page.page("Emulation.setDeviceMetricsOverride",
                  width=1280, height=1000, deviceScaleFactor=1, mobile=False)  # fmt: skip
        page.settle()
