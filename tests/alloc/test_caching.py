from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable

import pytest

from refruntime.alloc import CachingAllocator, UpstreamExhausted, VirtualUpstream, categories
from refruntime.alloc import tables as t
from refruntime.config import config
from refruntime.errors import ArgumentValueError, OutOfMemoryError
from tests.alloc.conftest import NEVER, MakeAllocator
from tests.alloc.recount import Live, check, size_of

MIB = 1 << 20


def test_zero_bytes_have_no_address(make: MakeAllocator) -> None:
    allocator = make()
    assert allocator.malloc(0) == 0
    allocator.free(0)
    allocator.tag(0, categories.GRADIENT)
    assert allocator.reserved_bytes == 0


def test_freed_block_is_given_out_again(make: MakeAllocator) -> None:
    allocator = make()
    address = allocator.malloc(100)
    allocator.free(address)
    assert allocator.malloc(100) == address


@pytest.mark.parametrize(
    "args", [(-1,), (10, 0, categories.COUNT), (10, 0, -1), (10, -1), (10, 1 << 80)]
)
def test_senseless_requests_are_refused(make: MakeAllocator, args: tuple[int, ...]) -> None:
    allocator = make()
    with pytest.raises(ArgumentValueError):
        allocator.malloc(*args)
    check(allocator, {})


@pytest.mark.parametrize("nbytes", [1.5, "5M", None])
def test_sizes_that_are_no_whole_numbers_are_refused(make: MakeAllocator, nbytes: object) -> None:
    allocator = make()
    with pytest.raises(TypeError):
        allocator.malloc(nbytes)  # type: ignore[arg-type]
    check(allocator, {})


@pytest.mark.parametrize("nbytes", [1 << 60, 1 << 63, 1 << 80])
def test_absurd_sizes_are_out_of_memory_without_asking_upstream(
    make: MakeAllocator, nbytes: int
) -> None:
    upstream = VirtualUpstream(1 << 61)
    allocator = make(upstream=upstream)
    with pytest.raises(OutOfMemoryError, match="more than 1 EiB"):
        allocator.malloc(nbytes)
    assert upstream.calls == 0


def test_double_free_is_refused_and_changes_nothing(make: MakeAllocator) -> None:
    allocator = make()
    kept, freed = allocator.malloc(10), allocator.malloc(10)
    allocator.free(freed)
    before = allocator.stats()
    with pytest.raises(ArgumentValueError, match=f"free: expected .* got {freed:#x}"):
        allocator.free(freed)
    with pytest.raises(ArgumentValueError, match="tag: "):
        allocator.tag(freed, categories.GRADIENT)
    with pytest.raises(ArgumentValueError, match="category: "):
        allocator.tag(kept, categories.COUNT)
    assert allocator.stats() == before
    check(allocator, {kept: Live(10, 0, 0)})


def test_tag_moves_bytes_between_categories(make: MakeAllocator) -> None:
    allocator = make()
    address = allocator.malloc(1000, 0, categories.ACTIVATION)
    assert allocator.category_bytes()["activation"] == 1000
    allocator.tag(address, categories.SAVED)
    assert allocator.category_bytes()["activation"] == 0
    assert allocator.category_bytes()["saved"] == 1000
    allocator.free(address)
    assert set(allocator.category_bytes().values()) == {0}


def test_attribution_adds_up_to_the_reserved_bytes(make: MakeAllocator) -> None:
    allocator = make()
    allocator.malloc(1000, 0, categories.PARAMETER)
    allocator.free(allocator.malloc(30 * MIB))
    assert allocator.attribution() == {
        **dict.fromkeys(categories.NAMES, 0),
        "parameter": 1000,
        "rounding_waste": 24,
        "pending": 0,
        "split_waste": 2 * MIB - 1024,
        "cached": 30 * MIB,
    }


def test_out_of_memory_leaves_every_statistic_and_block_as_before(make: MakeAllocator) -> None:
    allocator = make(100)
    live = {allocator.malloc(70 * MIB): Live(70 * MIB, 0, 0)}
    before = allocator.stats()
    with pytest.raises(OutOfMemoryError):
        allocator.malloc(40 * MIB)
    after = allocator.stats()
    changed = {key for key in after if after[key] != before[key]}
    assert changed == {"num_alloc_retries", "num_ooms", "num_sync_all_streams"}
    check(allocator, live)


def test_out_of_memory_text_gives_the_figures_in_order(make: MakeAllocator) -> None:
    allocator = make(100)
    allocator.malloc(70 * MIB)
    allocator.malloc(100)
    with pytest.raises(OutOfMemoryError) as caught:
        allocator.malloc(40 * MIB)
    figures = (
        "40.00 MiB",
        "100.00 MiB",
        "28.00 MiB is free",
        "70.00 MiB is alloc",
        "2.00 MiB is res",
    )
    places = [str(caught.value).find(figure) for figure in figures]
    assert -1 not in places and places == sorted(places)


def test_tables_grow_under_many_blocks(make: MakeAllocator) -> None:
    allocator = make()
    sizes = [512 * (1 + i % 7) for i in range(3000)]
    live = {allocator.malloc(size, i % 2): Live(size, i % 2, 0) for i, size in enumerate(sizes)}
    assert len(live) == 3000
    check(allocator, live)
    for address in list(live)[::2]:
        allocator.free(address)
        del live[address]
    check(allocator, live)
    for address in list(live):
        allocator.free(address)
    check(allocator, {})
    allocator.empty_cache()
    assert allocator.reserved_bytes == 0


def test_nothing_is_lost_when_the_tables_cannot_grow(
    make: MakeAllocator, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocator = make()
    live: dict[int, Live] = {}

    def no_memory() -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(allocator.tables, "grow", no_memory)
        with contextlib.suppress(MemoryError):
            for _ in range(1000):
                live[allocator.malloc(512)] = Live(512, 0, 0)
    assert 0 < len(live) < 1000
    check(allocator, live)
    live[allocator.malloc(3 * MIB)] = Live(3 * MIB, 0, 0)
    check(allocator, live)


def test_peaks_and_totals_can_be_reset(make: MakeAllocator) -> None:
    allocator = make()
    kept = allocator.malloc(1000)
    allocator.free(allocator.malloc(5 * MIB))
    assert allocator.stats()["allocated_bytes.all.peak"] == 5 * MIB + 1024
    allocator.reset_peak_stats()
    allocator.reset_accumulated_stats()
    stats = allocator.stats()
    assert stats["allocated_bytes.all.peak"] == stats["allocated_bytes.all.current"] == 1024
    assert stats["allocated_bytes.all.allocated"] == stats["allocated_bytes.all.freed"] == 0
    allocator.free(kept)
    stats = allocator.stats()
    assert (stats["allocation.all.allocated"], stats["allocation.all.freed"]) == (0, 1)


def test_the_core_is_compiled_after_the_configured_number_of_calls() -> None:
    allocator = CachingAllocator(VirtualUpstream(1 << 40), compile_after=3)
    addresses = [allocator.malloc(100) for _ in range(3)]
    assert not allocator.compiled
    addresses.append(allocator.malloc(100))
    assert allocator.compiled
    for address in addresses:
        allocator.free(address)
    check(allocator, {})


def test_pure_mode_never_compiles() -> None:
    with config.patch(pure=True):
        allocator = CachingAllocator(VirtualUpstream(1 << 40), compile_after=0)
        allocator.free(allocator.malloc(100))
        allocator.compile()
    assert not allocator.compiled


# --- failures of the upstream -----------------------------------------------------------------


class Faulty(VirtualUpstream):
    """Fails at one call, counted from zero, with a given exception."""

    def __init__(self, capacity: int, fail_at: int, error: type[BaseException]) -> None:
        super().__init__(capacity)
        self.fail_at = fail_at
        self.error = error

    def _maybe_fail(self) -> None:
        self.fail_at -= 1
        if self.fail_at == -1:
            raise self.error

    def reserve(self, nbytes: int, stream: int) -> int:
        self._maybe_fail()
        return super().reserve(nbytes, stream)

    def release(self, address: int, nbytes: int) -> None:
        self._maybe_fail()
        super().release(address, nbytes)


def _scenario(allocator: CachingAllocator, live: dict[int, Live]) -> None:
    """Use every path to the upstream: reserve, retry after releasing, empty the cache."""

    def malloc(mebibytes: float) -> int:
        nbytes = int(mebibytes * MIB)
        address = allocator.malloc(nbytes)
        live[address] = Live(nbytes, 0, 0)
        return address

    def free(address: int) -> None:
        del live[address]
        allocator.free(address)

    malloc(0.5)
    for block in (malloc(30), malloc(40), malloc(20)):
        free(block)
    free(malloc(85))
    free(malloc(3))
    allocator.empty_cache()
    wide, narrow = malloc(50), malloc(40)
    free(wide)
    part = malloc(9)
    free(narrow)
    free(part)
    allocator.empty_cache()


def _calls_of_scenario() -> int:
    upstream = VirtualUpstream(100 * MIB)
    _scenario(CachingAllocator(upstream, compile_after=NEVER), {})
    return upstream.calls


@pytest.mark.parametrize("error", [UpstreamExhausted, ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("fail_at", range(_calls_of_scenario()))
def test_invariants_hold_after_a_failure_at_any_upstream_call(
    make: MakeAllocator, fail_at: int, error: type[BaseException]
) -> None:
    allocator = make(upstream=Faulty(100 * MIB, fail_at, error))
    live: dict[int, Live] = {}
    try:
        _scenario(allocator, live)
    except (OutOfMemoryError, error):
        check(allocator, live)
    fitting = allocator.malloc(10 * MIB)
    check(allocator, {**live, fitting: Live(10 * MIB, 0, 0)})


def test_the_fault_scenario_really_uses_every_path() -> None:
    upstream = VirtualUpstream(100 * MIB)
    allocator = CachingAllocator(upstream, compile_after=NEVER)
    _scenario(allocator, {})
    assert (allocator.retries, upstream.calls) == (1, 14)
    assert allocator.reserved_bytes == 2 * MIB


# --- re-entry, threads, fork ------------------------------------------------------------------


class Interrupted(VirtualUpstream):
    """Runs a callback in the middle of the next reservation, as a finalizer might."""

    callback: Callable[[], None] | None = None

    def reserve(self, nbytes: int, stream: int) -> int:
        callback, self.callback = self.callback, None
        if callback is not None:
            callback()
        return super().reserve(nbytes, stream)


def test_free_in_the_middle_of_a_malloc_is_queued_and_drained(make: MakeAllocator) -> None:
    upstream = Interrupted(1 << 40)
    allocator = make(upstream=upstream)
    victim = allocator.malloc(100)
    seen = []

    def free_inside() -> None:
        allocator.free(victim)
        seen.append(allocator.allocated_bytes)

    upstream.callback = free_inside
    address = allocator.malloc(30 * MIB)
    assert seen == [512]
    check(allocator, {address: Live(30 * MIB, 0, 0)})


def test_malloc_free_and_tag_in_the_middle_of_a_malloc_are_served(make: MakeAllocator) -> None:
    upstream = Interrupted(1 << 40)
    allocator = make(upstream=upstream)
    inner: list[int] = []

    def use_inside() -> None:
        inner.append(allocator.malloc(200))
        inner.append(allocator.malloc(3 * MIB, 1, categories.SAVED))
        allocator.tag(inner[1], categories.GRADIENT)
        allocator.free(inner[0])
        allocator.empty_cache()

    upstream.callback = use_inside
    outer = allocator.malloc(30 * MIB)
    check(
        allocator,
        {outer: Live(30 * MIB, 0, 0), inner[1]: Live(3 * MIB, 1, categories.GRADIENT)},
    )


def test_malloc_in_the_middle_of_a_malloc_can_run_out_of_memory(make: MakeAllocator) -> None:
    upstream = Interrupted(40 * MIB)
    allocator = make(upstream=upstream)

    def ask_too_much() -> None:
        with pytest.raises(OutOfMemoryError):
            allocator.malloc(50 * MIB)

    upstream.callback = ask_too_much
    address = allocator.malloc(30 * MIB)
    check(allocator, {address: Live(30 * MIB, 0, 0)})


def test_stray_free_in_the_middle_of_a_malloc_is_reported(make: MakeAllocator) -> None:
    upstream = Interrupted(1 << 40)
    allocator = make(upstream=upstream)
    upstream.callback = lambda: allocator.free(12345)
    with pytest.warns(RuntimeWarning, match="free: expected the address of a block in use"):
        allocator.malloc(30 * MIB)


def test_a_call_that_needs_the_tables_still_is_refused_in_the_middle_of_a_call(
    make: MakeAllocator,
) -> None:
    upstream = Interrupted(1 << 40)
    allocator = make(upstream=upstream)
    upstream.callback = allocator.reset_peak_stats
    with pytest.raises(RuntimeError, match="middle of a call"):
        allocator.malloc(30 * MIB)
    check(allocator, {})


class Owner:
    """Frees its block when the garbage collector finds its cycle."""

    def __init__(self, allocator: CachingAllocator, nbytes: int) -> None:
        self.allocator = allocator
        self.address = allocator.malloc(nbytes)
        self.cycle = self

    def __del__(self) -> None:
        # A finalizer may also allocate.
        self.allocator.free(self.allocator.malloc(64))
        self.allocator.free(self.address)


def test_finalizers_of_garbage_cycles_may_free_and_allocate_anywhere(make: MakeAllocator) -> None:
    allocator = make()
    before = gc.get_threshold()
    gc.set_threshold(3, 2, 2)
    try:
        for i in range(300):
            Owner(allocator, 512 * (1 + i % 5) if i % 50 else 3 * MIB)
    finally:
        gc.set_threshold(*before)
    gc.collect()
    check(allocator, {})
    assert allocator.stats()["allocation.all.allocated"] >= 600


def test_many_threads_leave_the_tables_whole() -> None:
    """Starts interpreted and switches to compiled code under load."""
    allocator = CachingAllocator(VirtualUpstream(300 * MIB), compile_after=400)
    kept: list[dict[int, Live]] = [{} for _ in range(6)]
    errors: list[BaseException] = []
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)

    def work(number: int) -> None:
        mine = kept[number]
        try:
            for i in range(600):
                nbytes = (i * 7919 * (number + 1)) % (900_000 if i % 9 else 9 * MIB) + 1
                try:
                    address = allocator.malloc(nbytes, number % 3)
                except OutOfMemoryError:
                    allocator.empty_cache()
                    continue
                assert address not in mine
                mine[address] = Live(nbytes, number % 3, 0)
                allocator.tag(address, categories.TEMPORARY)
                if len(mine) > 12:
                    victim = next(iter(mine))
                    del mine[victim]
                    allocator.free(victim)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(kept))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(interval)
    assert errors == []
    assert allocator.compiled
    together = {address: block for mine in kept for address, block in mine.items()}
    assert len(together) == sum(map(len, kept))
    check(allocator, together)


def _python(code: str, **environ: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, **environ}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_a_forked_child_has_its_own_allocator_and_bytes() -> None:
    printed = _python("""
        import ctypes, logging, os, threading, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        from refruntime.alloc import host
        allocator = host()
        address = allocator.malloc(4 << 20)
        ctypes.memset(address, 7, 4 << 20)
        stop = []
        def churn():
            while not stop:
                allocator.free(allocator.malloc(30 << 20))
                allocator.empty_cache()
        threads = [threading.Thread(target=churn) for _ in range(3)]
        for thread in threads: thread.start()
        good = 0
        for _ in range(20):
            child = os.fork()
            if child == 0:
                kept = ctypes.string_at(address, 3)
                ctypes.memset(address, 9, 4 << 20)
                more = allocator.malloc(50 << 20)
                ctypes.memset(more, 1, 4096)
                allocator.free(more)
                allocator.free(address)
                allocator.empty_cache()
                held = allocator.allocated_bytes
                # The other threads' blocks, at most one each, stay where they were.
                os._exit(0 if kept == b"\\x07\\x07\\x07" and held <= 3 * (30 << 20) else 1)
            good += os.waitpid(child, 0)[1] == 0
        stop.append(True)
        for thread in threads: thread.join()
        print(good, ctypes.string_at(address, 2), allocator.allocated_bytes)
    """)
    assert printed == f"20 b'\\x07\\x07' {4 * MIB}\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_a_fork_waits_for_a_thread_that_is_inside_two_allocators() -> None:
    printed = _python("""
        import os, threading, time, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        from refruntime.alloc import CachingAllocator, VirtualUpstream
        first, inside = CachingAllocator(VirtualUpstream(1 << 40)), threading.Event()
        class Asking(VirtualUpstream):
            def reserve(self, nbytes, stream):
                inside.set()
                time.sleep(0.2)
                first.free(first.malloc(30 << 20))
                first.empty_cache()
                return super().reserve(nbytes, stream)
        second = CachingAllocator(Asking(1 << 40))
        thread = threading.Thread(target=lambda: second.malloc(1 << 20))
        thread.start()
        inside.wait()
        child = os.fork()
        if child == 0:
            first.malloc(1), second.malloc(1 << 20)
            os._exit(0)
        thread.join()
        print(os.waitpid(child, 0)[1], second.allocated_bytes >> 20)
    """)
    assert printed == "0 1\n"


class _InterruptedUpstream(VirtualUpstream):
    """Ctrl-C is pressed while it is asked for memory."""

    def reserve(self, nbytes: int, stream: int = 0) -> int:
        signal.raise_signal(signal.SIGINT)
        return super().reserve(nbytes, stream)


def test_an_interrupt_waits_until_the_tables_are_whole(make: MakeAllocator) -> None:
    allocator = make(upstream=_InterruptedUpstream(1 << 40))
    with pytest.raises(KeyboardInterrupt):
        allocator.malloc(5 * MIB)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    # The request was served, and the block, which nobody has, went back to the cache.
    assert allocator.reserved_bytes > 0 == allocator.allocated_bytes
    check(allocator, {})
    address = allocator.malloc(5 * MIB)
    check(allocator, {address: Live(5 * MIB, 0, categories.DEFAULT)})


def test_compiled_entries_load_from_the_cache_in_a_second_process(tmp_path: object) -> None:
    code = """
        from refruntime import _native
        from refruntime.alloc import CachingAllocator, VirtualUpstream
        allocator = CachingAllocator(VirtualUpstream(1 << 40), compile_after=0)
        kept = [allocator.malloc(1 + 700 * i) for i in range(2000)]
        for address in kept[::3]:
            allocator.free(address)
        allocator.record()
        allocator.free(allocator.malloc(99))
        assert allocator.compiled
        stats = allocator.stats()
        print(stats["allocated_bytes.all.current"], stats["inactive_split.all.current"])
        print({event.cached for event in _native.compile_log if "_take" in event.name or
               "_give" in event.name or "_retag" in event.name})
    """
    cold, warm = (_python(code, REFRUNTIME_CACHE_DIR=str(tmp_path)) for _ in range(2))
    assert cold.splitlines()[0] == warm.splitlines()[0]
    assert cold.splitlines()[1] == "{False}"
    assert warm.splitlines()[1] == "{True}"


def test_blocks_may_be_freed_while_the_interpreter_goes_down() -> None:
    printed = _python("""
        from refruntime.alloc import host
        class Owner:
            def __init__(self): self.allocator, self.address = host(), host().malloc(100)
            def __del__(self): self.allocator.free(self.address)
        host().compile()
        owners = [Owner() for _ in range(4)]
        owners.append(owners)
        print("done")
    """)
    assert printed == "done\n"


def test_first_malloc_needs_no_compiler() -> None:
    printed = _python("""
        import sys
        from refruntime.alloc import CachingAllocator, HostUpstream
        allocator = CachingAllocator(HostUpstream(1 << 30))
        allocator.free(allocator.malloc(12))
        print(allocator.compiled, "numba" in sys.modules)
    """)
    assert printed == "False False\n"


def test_address_zero_is_ignored_while_gated(make: MakeAllocator) -> None:
    allocator = make()
    allocator.record()
    allocator.free(0)
    allocator.tag(0, categories.SAVED)
    assert list(allocator.trace.events) == []
    assert allocator.tables.header[t.GATE] == t.RECORDING


def test_block_sizes_are_at_least_what_was_asked(make: MakeAllocator) -> None:
    allocator = make()
    assert [size_of(allocator, allocator.malloc(n)) for n in (1, 512, 513)] == [512, 512, 1024]
