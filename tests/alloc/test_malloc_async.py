from __future__ import annotations

import gzip
import json
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest

from refruntime.alloc.async_driver import FIRST_OWN_STREAM, PoolUsage, VirtualAsyncDriver
from refruntime.alloc.malloc_async import REFUSED, MallocAsyncAllocator, over
from refruntime.alloc.strategy import STRATEGIES, Request, run_strategy
from refruntime.alloc.stream_ordered import CHUNK
from refruntime.alloc.upstream import UpstreamExhausted, VirtualUpstream
from refruntime.alloc.virtual_streams import Timeline
from refruntime.errors import ArgumentValueError, DeviceError, OutOfMemoryError

MIB = 1 << 20
DATA = Path(__file__).parent / "data" / "async" / "scenarios.json.gz"
SCENARIOS: dict[str, Any] = json.loads(gzip.decompress(DATA.read_bytes()))
UNIT = 2 * MIB


class StandIn:
    """The oracle's stand-in for the driver: requests take whole units, and there is no pool."""

    def __init__(self, capacity: int = 1 << 30) -> None:
        self.capacity, self.used, self.foreign, self.failures = capacity, 0, 0, 0
        self.log: list[list[Any]] = []
        self.spans: dict[int, int] = {}
        self.broken: set[str] = set()

    def _enter(self, call: str) -> None:
        if call in self.broken:
            raise RuntimeError(f"{call} is broken")

    def malloc_async(self, nbytes: int, stream: int) -> int:
        size = -(-nbytes // UNIT) * UNIT
        self.failures, fails = max(self.failures - 1, 0), self.failures > 0
        if fails or self.used + self.foreign + size > self.capacity:
            self.log.append(["malloc_async", None, nbytes, stream])
            raise UpstreamExhausted
        address = (len(self.spans) + 1) << 40
        self.log.append(["malloc_async", len(self.spans), nbytes, stream])
        self.spans[address] = size
        self.used += size
        return address

    def free_async(self, address: int, stream: int) -> None:
        self._enter("free_async")
        self.used -= self.spans[address]
        self.log.append(["free_async", (address >> 40) - 1, name_of(stream)])

    def keep_memory(self) -> None:
        pass

    def create_stream(self) -> int:
        return FIRST_OWN_STREAM

    def record_event(self, stream: int) -> object:
        self._enter("record_event")
        self.log.append(["record", name_of(stream)])
        return object()

    def wait_event(self, stream: int, event: object) -> None:
        self.log.append(["wait", name_of(stream)])

    def destroy_event(self, event: object) -> None:
        pass

    def synchronize(self, stream: int | None = None) -> None:
        self.log.append(["device_sync"] if stream is None else ["stream_sync", stream])

    def memory_info(self) -> tuple[int, int]:
        free = max(self.capacity - self.used - self.foreign, 0)
        self.log.append(["mem_get_info", free, self.capacity])
        return free, self.capacity

    def usage(self) -> PoolUsage:
        return PoolUsage(self.used, self.used, self.used, self.used)

    def reset_peaks(self) -> None:
        pass

    def trim_pool(self, keep: int) -> None:
        pass


def name_of(stream: int) -> int | str:
    return "J" if stream == FIRST_OWN_STREAM else stream


class Player:
    """Plays a recorded scenario, and tells what happened in the words of the recording."""

    def __init__(self) -> None:
        self.driver = StandIn()
        self.allocator = MallocAsyncAllocator(self.driver)
        self.live: dict[int, int] = {}
        self.capture_stream = 0

    def step(self, event: dict[str, Any]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        try:
            getattr(self, "do_" + event["op"])(event)
        except OutOfMemoryError as error:
            result["error"] = str(error).removeprefix("malloc: ")
        result["log"], self.driver.log = self.driver.log, []
        if event["op"] == "alloc" and event["id"] in self.live:
            address = self.live[event["id"]]
            result["seg"] = (address >> 40) - 1 if address else None
        stats = self.allocator.stats()
        names = ("allocated_bytes", "reserved_bytes")
        figures = [stats[f"{n}.all.{figure}"] for figure in ("current", "peak") for n in names]
        return {**result, "st": figures}

    def do_alloc(self, event: dict[str, Any]) -> None:
        self.live[event["id"]] = self.allocator.malloc(event["size"], event["stream"])

    def do_free(self, event: dict[str, Any]) -> None:
        if event["id"] in self.live:
            self.allocator.free(self.live.pop(event["id"]))

    def do_record_stream(self, event: dict[str, Any]) -> None:
        if event["id"] in self.live:
            self.allocator.record_stream(self.live[event["id"]], event["stream"])

    def do_fraction(self, event: dict[str, Any]) -> None:
        self.allocator.set_memory_fraction(event["value"])

    def do_foreign(self, event: dict[str, Any]) -> None:
        self.driver.foreign = event["size"]

    def do_fail(self, event: dict[str, Any]) -> None:
        self.driver.failures = event["n"]

    def do_empty_cache(self, event: dict[str, Any]) -> None:
        self.allocator.empty_cache()

    def do_reset_peak(self, event: dict[str, Any]) -> None:
        self.allocator.reset_peaks()

    def do_capture_begin(self, event: dict[str, Any]) -> None:
        self.capture_stream = event["stream"]
        self.allocator.begin_capture()

    def do_capture_end(self, event: dict[str, Any]) -> None:
        self.allocator.end_capture(self.capture_stream)


def in_any_order(log: list[list[Any]]) -> list[Any]:
    """Sorts the waits that follow each other: PyTorch joins streams in the order of a hash table.

    The stream of the allocation comes first in a join, and is left there.
    """
    found: list[Any] = []
    pairs: list[Any] = []
    for call in [*log, ["end"]]:
        if call[0] in ("record", "wait"):
            pairs.append(call)
            continue
        waits = list(zip(pairs[::2], pairs[1::2], strict=True))
        keep = 1 if call[0] == "free_async" else 0
        found += [waits[:keep], sorted(map(repr, waits[keep:])), call]
        pairs = []
    return found


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_call_of_the_recordings(name: str) -> None:
    player = Player()
    recorded = SCENARIOS[name]
    pairs = zip(recorded["events"], recorded["results"], strict=True)
    for number, (event, expected) in enumerate(pairs):
        got = player.step(event)
        assert in_any_order(got.pop("log")) == in_any_order(expected["log"]), (number, event)
        assert got == {key: expected[key] for key in expected if key != "log"}, (number, event)


def test_keys_are_those_of_torch() -> None:
    allocator = MallocAsyncAllocator(StandIn())
    assert list(allocator.stats()) == SCENARIOS["plain"]["keys"]
    assert not any(allocator.stats().values())


def test_figures_are_those_of_the_pool() -> None:
    allocator = over(VirtualUpstream(1 << 30))
    allocator.free(allocator.malloc(5 * MIB))
    address = allocator.malloc(1000)
    stats = {key: value for key, value in allocator.stats().items() if value}
    assert stats == {
        "active_bytes.all.current": 1000, "active_bytes.all.peak": 5 * MIB,
        "allocated_bytes.all.current": 1000, "allocated_bytes.all.peak": 5 * MIB,
        "reserved_bytes.all.current": CHUNK, "reserved_bytes.all.peak": CHUNK,
    }  # fmt: skip
    allocator.free(address)
    allocator.empty_cache()
    allocator.reset_peaks()
    assert not any(allocator.stats().values())


# --- single behaviours


def test_absurd_and_negative_sizes_are_refused() -> None:
    allocator = MallocAsyncAllocator(StandIn())
    with pytest.raises(OutOfMemoryError, match="more than 1 EiB"):
        allocator.malloc(1 << 60)
    with pytest.raises(ArgumentValueError, match="at least 0 bytes, got -1"):
        allocator.malloc(-1)


@pytest.mark.parametrize("call", ["free", "base_allocation"])
def test_an_address_that_is_not_in_use_is_refused(call: str) -> None:
    allocator = MallocAsyncAllocator(StandIn())
    address = allocator.malloc(8)
    with pytest.raises(ArgumentValueError, match="address of a block in use"):
        getattr(allocator, call)(address + 1)
    allocator.free(address)
    with pytest.raises(ArgumentValueError, match="address of a block in use"):
        getattr(allocator, call)(address)
    allocator.free(0)
    allocator.record_stream(0, 1)
    with pytest.raises(ArgumentValueError, match="record_stream"):
        allocator.record_stream(address, 1)


def test_base_allocation_gives_what_was_asked_for() -> None:
    allocator = MallocAsyncAllocator(StandIn())
    address = allocator.malloc(1000)
    assert allocator.base_allocation(address) == (address, 1000)


def test_recording_the_own_stream_warns() -> None:
    allocator = MallocAsyncAllocator(StandIn())
    address = allocator.malloc(8, 3)
    with pytest.warns(UserWarning, match="has no effect"):
        allocator.record_stream(address, 3)


def test_captures_warn_of_frees_that_may_be_mistakes() -> None:
    allocator = MallocAsyncAllocator(StandIn())
    before = [allocator.malloc(8) for _ in range(2)]
    allocator.begin_capture()
    inside = allocator.malloc(8)
    with pytest.warns(UserWarning, match="from before a capture"):
        allocator.free(before[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        allocator.free(before[1])
    allocator.end_capture(0)
    with pytest.warns(UserWarning, match="memory of a graph"):
        allocator.free(inside)


def test_captures_do_not_nest() -> None:
    allocator = MallocAsyncAllocator(StandIn())
    with pytest.raises(ArgumentValueError, match="end_capture"):
        allocator.end_capture(0)
    allocator.begin_capture()
    with pytest.raises(ArgumentValueError, match="begin_capture"):
        allocator.begin_capture()


def test_a_capture_joins_only_the_streams_of_its_own_frees() -> None:
    driver = StandIn()
    allocator = MallocAsyncAllocator(driver)
    allocator.begin_capture()
    allocator.free(allocator.malloc(8, 1))
    allocator.end_capture(3)
    driver.log.clear()
    allocator.begin_capture()
    allocator.free(allocator.malloc(8, 2))
    allocator.end_capture(3)
    assert driver.log[-2:] == [["record", 2], ["wait", 3]]
    assert ["record", 1] not in driver.log


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan")])
def test_fractions_lie_between_0_and_1(fraction: float) -> None:
    with pytest.raises(ArgumentValueError, match="a share between 0 and 1"):
        MallocAsyncAllocator(StandIn()).set_memory_fraction(fraction)


@pytest.mark.parametrize("feature", REFUSED)
def test_refusals_say_what_to_do(feature: str) -> None:
    error = MallocAsyncAllocator(StandIn()).refuse(feature)
    assert isinstance(error, DeviceError)
    assert feature in str(error) and "native backend" in str(error)


@pytest.mark.parametrize("call", ["free_async", "record_event"])
@pytest.mark.parametrize("put_off", [False, True])
def test_a_free_that_fails_can_be_repeated(call: str, put_off: bool) -> None:
    driver = StandIn()
    allocator = MallocAsyncAllocator(driver)
    address = allocator.malloc(8)
    allocator.record_stream(address, 1)
    driver.broken.add(call)
    if put_off:
        allocator.begin_capture()
        with pytest.warns(UserWarning, match="from before a capture"):
            allocator.free(address)
        allocator.end_capture(0)
        with pytest.raises(RuntimeError, match="is broken"):
            allocator.malloc(8)
    else:
        with pytest.raises(RuntimeError, match="is broken"):
            allocator.free(address)
    assert driver.used == UNIT
    driver.broken.clear()
    if put_off:
        allocator.free(allocator.malloc(8))
    else:
        allocator.free(address)
    assert driver.used == 0


def test_largest_request_halves_what_is_free() -> None:
    driver = StandIn(100 * MIB)
    allocator = MallocAsyncAllocator(driver)
    assert allocator.largest_request() == 100 * MIB
    allocator.malloc(60 * MIB)
    driver.failures = 1
    assert allocator.largest_request() == 20 * MIB
    allocator.set_memory_fraction(0.7)
    assert allocator.largest_request() == 10 * MIB
    driver.failures = 100
    assert allocator.largest_request() == 0


def test_block_of_several_streams_is_free_when_all_have_used_it() -> None:
    driver = VirtualAsyncDriver(VirtualUpstream(CHUNK), Timeline(manual=True))
    allocator = MallocAsyncAllocator(driver)
    driver.pool.policy.allow_internal_dependencies = False
    address = allocator.malloc(CHUNK, 1)
    driver.pool.policy.allow_internal_dependencies = False
    driver.timeline.submit(2)
    allocator.record_stream(address, 2)
    allocator.free(address)
    assert driver.pool.used.current == 0
    driver.timeline.complete(1)
    with pytest.raises(UpstreamExhausted):
        driver.pool.malloc(CHUNK, 1)
    driver.timeline.complete(2)
    with pytest.raises(UpstreamExhausted):
        driver.pool.malloc(CHUNK, 1)
    driver.timeline.complete(FIRST_OWN_STREAM)
    assert driver.pool.malloc(CHUNK, 1) == address


def test_a_request_that_fails_waits_for_its_stream_and_asks_again() -> None:
    driver = VirtualAsyncDriver(VirtualUpstream(CHUNK), Timeline(manual=True))
    allocator = MallocAsyncAllocator(driver)
    address = allocator.malloc(CHUNK, 1)
    driver.pool.policy.allow_internal_dependencies = False
    allocator.free(address)
    with pytest.raises(OutOfMemoryError, match=r"Requested +: 8 bytes"):
        allocator.malloc(8, 2)
    driver.timeline.wait(2, driver.timeline.record(1))
    driver.pool.policy.follow_event_dependencies = False
    assert allocator.malloc(8, 2) == address
    assert (allocator.retries, allocator.ooms) == (2, 1)


def test_the_strategy_is_known_by_its_name() -> None:
    assert "cuda-malloc-async" in STRATEGIES
    requests = [
        Request("alloc", 0, 40 * MIB), Request("alloc", 1, 10), Request("free", 0),
        Request("alloc", 2, 30 * MIB), Request("free", 1), Request("free", 2),
    ]  # fmt: skip
    result = run_strategy(requests, "cuda-malloc-async", 1 << 30)
    assert (result.peak_allocated_bytes, result.peak_reserved_bytes) == (40 * MIB + 10, 2 * CHUNK)
    assert (result.ooms, result.retries) == (0, 0)


def test_threads_share_an_allocator() -> None:
    allocator = over(VirtualUpstream(1 << 34))
    owners: dict[int, int] = {}
    errors: list[str] = []

    def work(me: int) -> None:
        mine: list[int] = []
        for step in range(200):
            address = allocator.malloc(1 + (step * 7919 * (me + 1)) % (3 * MIB), me)
            if owners.setdefault(address, me) != me:
                errors.append(f"{address:#x} is in use twice")
            mine.append(address)
            if step % 3:
                gone = mine.pop(step * 7 % len(mine))
                allocator.record_stream(gone, me + 10)
                del owners[gone]
                allocator.free(gone)
        for address in mine:
            del owners[address]
            allocator.free(address)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert allocator.allocated_bytes == 0
    allocator.empty_cache()
    assert allocator.reserved_bytes == 0
