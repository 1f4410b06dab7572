"""Small cases whose outcome was seen on PyTorch 2.14.1's allocator, in compiled replay."""

from __future__ import annotations

from typing import Any

import pytest

from refruntime.alloc.replay import options_of, replay_events

KIB, MIB = 1 << 10, 1 << 20


class Case:
    """A replay of steps on a fresh device of so many MiB."""

    def __init__(self, capacity: int = 80 << 10, conf: str = "", manual: bool = False) -> None:
        self.options = options_of(
            {}, capacity=capacity * MIB, conf=conf, manual_events=manual or None
        )
        self.events: list[dict[str, Any]] = []
        self.names = 0

    def ask(self, size: float, stream: int = 0) -> int:
        """Ask for so many MiB; return the name."""
        return self.ask_bytes(int(size * MIB), stream)

    def ask_bytes(self, size: int, stream: int = 0) -> int:
        self.names += 1
        self.do("alloc", id=self.names, size=size, stream=stream)
        return self.names

    def free(self, *names: int) -> None:
        for name in names:
            self.do("free", id=name)

    def do(self, op: str, **fields: Any) -> None:
        self.events.append({"op": op, **fields})

    def run(self) -> Case:
        self.found = replay_events(self.events, self.options)
        self.stats = self.found["stats"]
        return self

    def calls(self, *kinds: str) -> list[Any]:
        """Return what was asked of the driver, in MiB; what failed with a trailing "oom"."""
        log = [entry[1:] for entry in self.found["driver_log"]]
        kinds = kinds or ("malloc", "free")
        return [
            (name, args[-2] / MIB, "oom") if args[-1] == "oom" and name == "malloc"
            else (name, args[0] / MIB, "oom") if args[-1] == "oom"
            else (name, args[-1] / MIB)
            for name, *args in log if name in kinds
        ]  # fmt: skip

    def blocks(self) -> list[int | None]:
        """Return the block size of each request, None for out of memory."""
        return [
            None if result.get("oom") else result["block"]
            for event, result in zip(self.events, self.found["results"], strict=True)
            if event["op"] == "alloc"
        ]

    def places(self) -> list[tuple[int, float]]:
        """Return segment and offset in MiB of each request."""
        return [
            (result["seg"], result["off"] / MIB)
            for event, result in zip(self.events, self.found["results"], strict=True)
            if event["op"] == "alloc"
        ]

    def free_blocks(self) -> list[int]:
        return [
            size
            for segment in self.found["snapshot"]
            for _, size, _, state in segment["blocks"]
            if state == "inactive"
        ]


def malloc(*sizes: float) -> list[tuple[str, float]]:
    return [("malloc", size) for size in sizes]


def released(*sizes: float) -> list[tuple[str, float]]:
    return [("free", size) for size in sizes]


def test_requests_at_the_borders_of_the_classes() -> None:
    case = Case()
    for size in (1, MIB, MIB + 1, 10 * MIB - 1, 10 * MIB):
        case.ask_bytes(size)
    case.run()
    assert case.calls() == malloc(2, 20, 10)
    assert case.blocks() == [512, MIB, 1_049_088, 10 * MIB, 10 * MIB]
    assert case.free_blocks() == [1_048_064, 9_436_672]


def test_small_requests_fill_the_best_fitting_rest() -> None:
    case = Case()
    for kib in (600, 600, 900, 900, 300):
        case.ask_bytes(kib * KIB)
    case.run()
    assert case.calls() == malloc(2, 2)
    assert case.free_blocks() == [561_152, 253_952]


def test_lowest_address_wins_and_rests_of_one_mebibyte_stay() -> None:
    case = Case()
    case.free(case.ask(100))
    parts = [case.ask(20) for _ in range(5)]
    case.free(parts[1], parts[3])
    again = case.ask(20)
    case.free(again, parts[2])
    whole = case.ask(59)
    case.free(whole)
    case.ask_bytes(59 * MIB - 512)
    case.run()
    assert case.places()[6] == (0, 20.0)
    assert case.blocks()[7] == 60 * MIB
    assert case.blocks()[8] == 59 * MIB - 512 and case.free_blocks() == [1_049_088]


def test_the_cache_is_released_smallest_first_and_the_request_repeated() -> None:
    case = Case(100)
    case.free(case.ask(60), case.ask(20))
    case.ask(90)
    case.ask(30)
    case.run()
    assert case.calls() == [
        *malloc(60, 20), ("malloc", 90, "oom"), *released(20, 60), *malloc(90),
        ("malloc", 30, "oom"), ("malloc", 30, "oom"),
    ]  # fmt: skip
    assert (case.stats["num_alloc_retries"], case.stats["num_ooms"]) == (2, 1)


@pytest.mark.parametrize(
    ("sizes", "calls"),
    [
        ([60], malloc(60)),
        ([181], []),
        ([180], malloc(180)),
        ([64], malloc(64)),
        ([63, 63], malloc(64, 64)),
    ],
)
def test_blocks_above_the_split_limit_serve_only_large_requests(
    sizes: list[int], calls: list[Any]
) -> None:
    case = Case(1024, "max_split_size_mb:64")
    case.free(case.ask(200))
    for size in sizes:
        case.ask(size)
    assert case.run().calls() == malloc(200) + calls


def test_above_the_split_limit_only_as_much_is_released_as_is_needed() -> None:
    case = Case(500, "max_split_size_mb:64")
    names = [case.ask(size) for size in (100, 150, 200)]
    case.free(*names)
    case.ask(120)
    case.ask(70)
    case.ask(250)
    case.run()
    assert case.calls()[3:] == [
        ("malloc", 120, "oom"), *released(150), *malloc(120), *malloc(70),
        ("malloc", 250, "oom"), *released(200, 100), *malloc(250),
    ]  # fmt: skip
    assert (case.stats["num_ooms"], case.stats["num_alloc_retries"]) == (0, 0)


def test_streams_do_not_share_but_all_give_back() -> None:
    case = Case(1000)
    case.free(case.ask(30, 1), case.ask(30, 2))
    case.ask(950)
    case.run()
    assert case.calls() == [
        *malloc(30, 30), ("malloc", 950, "oom"), *released(30, 30), *malloc(950),
    ]  # fmt: skip
    assert case.stats["num_alloc_retries"] == 1


def test_emptying_goes_by_pool_stream_and_size() -> None:
    case = Case()
    requests = [(12, 0), (30, 1), (10, 1), (20, 1), (1, 1)]
    case.free(*[case.ask(size, stream) for size, stream in requests])
    case.do("empty_cache")
    assert case.run().calls()[5:] == released(12, 10, 20, 30, 2)


def test_a_fraction_refuses_without_asking_the_driver() -> None:
    case = Case(1000)
    case.do("set_fraction", fraction=0.2)
    case.free(case.ask(150))
    case.ask(199)
    assert case.run().calls() == [*malloc(150), *released(150), *malloc(200)]


def test_a_recorded_block_waits_for_its_event() -> None:
    case = Case(manual=True)
    held = case.ask(30)
    case.do("record_stream", id=held, stream=1)
    case.free(held)
    case.ask(30)
    case.do("complete")
    case.ask(30)
    case.run()
    assert case.calls() == malloc(30, 30)
    assert case.places() == [(0, 0), (1, 0), (0, 0)]
    after_free = case.found["results"][2]["st"]
    assert (after_free[0], after_free[2]) == (0, 30 * MIB)


def test_a_blocks_own_stream_needs_no_event() -> None:
    case = Case(manual=True)
    held = case.ask(30)
    for stream in (1, 2, 0):
        case.do("record_stream", id=held, stream=stream)
    case.free(held)
    records = [e for e in case.run().found["driver_log"] if e[1] == "event_record"]
    assert len(records) == 2


def test_split_blocks_are_counted_as_they_come_and_go() -> None:
    case = Case()
    case.free(case.ask(30))
    first, second = case.ask(10), case.ask(10)
    case.free(first, second)
    seen = [result["st"][3] // MIB for result in case.run().found["results"]]
    assert seen == [0, 0, 20, 10, 20, 0]


def test_expandable_segments_grow_by_pages_and_fill_holes() -> None:
    case = Case(200, "expandable_segments:True")
    case.ask_bytes(1)
    case.ask_bytes(MIB + 1)
    hole = case.ask(30)
    case.ask(5)
    case.free(hole)
    case.ask(31)
    case.ask(29)
    case.ask(150)
    case.run()
    assert [size for _, size, *_ in case.calls("create")][:6] == [2, 20, 20, 20, 20, 20]
    assert case.calls("reserve") == [("reserve", 226), ("reserve", 240)]
    assert case.blocks()[-1] is None
    failed = [entry for entry in case.calls("create") if entry[-1] == "oom"]
    assert len(failed) == 2 and case.stats["num_ooms"] == 1
    assert MIB in case.free_blocks()


def test_free_pages_inside_an_expandable_segment_go_and_come_back() -> None:
    case = Case(400, "expandable_segments:True")
    case.free(*[case.ask(16) for _ in range(8)])
    later = [case.ask(32) for _ in range(4)]
    case.free(later[0])
    case.do("empty_cache")
    emptied = len(case.events) - 1
    case.ask(45)
    case.ask(20)
    case.run()
    log = case.found["driver_log"]
    # The first 32 MiB hold one whole page of 20.
    assert [entry[2:] for entry in log if entry[1] == "unmap"] == [[0, 0, 20 * MIB]]
    creates = [entry[0] for entry in log if entry[1] == "create"]
    assert [sum(event < emptied for event in creates), len(creates)] == [7, 10]
    # 45 MiB grow at the end, which takes two pages; 20 MiB refill the hole with one.
    assert case.places()[-2:] == [(0, 128), (0, 0)]


def test_expandable_pages_of_holes_make_room_at_the_end() -> None:
    case = Case(200, "expandable_segments:True")
    names = [case.ask(20) for _ in range(8)]
    case.free(*names[::2])
    case.ask(60)
    case.run()
    assert case.blocks()[-1] == 60 * MIB
    assert len(case.calls("unmap")) == 4
    assert case.stats["num_alloc_retries"] == 1


def test_a_split_limit_does_not_hold_for_expandable_blocks() -> None:
    case = Case(conf="expandable_segments:True,max_split_size_mb:64")
    case.free(case.ask(200))
    case.ask(30)
    case.run()
    assert case.places()[-1] == (0, 0) and case.blocks()[-1] == 30 * MIB


@pytest.mark.parametrize(
    ("conf", "pairs"),
    [
        ("", [(1, 512), (513, 1024), (1200, 1536)]),
        (
            "roundup_power2_divisions:4",
            [(1200, 1536), (2049, 2560), (MIB + 1, 1_310_720), (3 * MIB + 5, 3_670_016),
             (700 * MIB + 1, 805_306_368), (5000, 5120), (104_857_600, 117_440_512)],
        ),
        (
            "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
            [(104_857_600, 104_857_600), (629_145_600, 805_306_368),
             (1_153_433_600, 1_342_177_280)],
        ),
    ],
)  # fmt: skip
def test_sizes_are_rounded_by_the_divisions_of_their_interval(
    conf: str, pairs: list[tuple[int, int]]
) -> None:
    for asked, block in pairs:
        case = Case(conf=conf)
        case.ask_bytes(asked)
        assert case.run().blocks() == [block]


def test_a_request_that_cannot_fit_is_refused_early_if_asked() -> None:
    case = Case(1000, "throw_on_cudamalloc_oom:True")
    case.free(case.ask(150))
    case.ask(900)
    case.run()
    assert case.calls() == malloc(150)
    assert (case.stats["num_oom_rejections"], case.stats["num_alloc_retries"]) == (1, 0)


# --- what is mended if asked: the faithful outcome first -----------------------------------------


@pytest.mark.parametrize("mend", [False, True])
def test_mended_the_pool_is_searched_again_after_the_events(mend: bool) -> None:
    case = Case(80, f"mend_search_after_sync:{mend}", manual=True)
    case.free(case.ask(80))
    kept = case.ask(50)
    waiting = case.ask(30)
    case.do("record_stream", id=waiting, stream=1)
    case.free(waiting)
    case.ask(30)
    case.ask(1 / 2048)
    assert case.run().blocks()[3] == (30 * MIB if mend else None)
    assert kept and case.stats["num_ooms"] == 2 - mend


@pytest.mark.parametrize("mend", [False, True])
def test_mended_a_refused_request_releases_the_cache_first(mend: bool) -> None:
    case = Case(1000, f"throw_on_cudamalloc_oom:True,mend_rejection_releases_cache:{mend}")
    case.free(case.ask(150))
    case.ask(900)
    case.ask(2000)
    case.run()
    assert case.blocks()[1:] == [900 * MIB if mend else None, None]
    assert case.stats["num_oom_rejections"] == 2 - mend


@pytest.mark.parametrize("mend", [False, True])
def test_mended_garbage_is_collected_without_a_fraction(mend: bool) -> None:
    case = Case(1000, f"garbage_collection_threshold:0.5,mend_gc_without_fraction:{mend}")
    case.free(*[case.ask(size) for size in (200, 210, 220)])
    case.ask(300)
    frees = [name for name, _ in case.run().calls() if name == "free"]
    assert len(frees) == (3 if mend else 0)


@pytest.mark.parametrize("mend", [False, True])
def test_mended_expandable_blocks_above_the_limit_stay_whole(mend: bool) -> None:
    conf = f"expandable_segments:True,max_split_size_mb:64,mend_expandable_max_split:{mend}"
    case = Case(conf=conf)
    case.free(case.ask(200))
    case.ask(30)
    assert case.run().places()[-1] == ((1, 0) if mend else (0, 0))
