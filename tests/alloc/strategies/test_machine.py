"""Random programs against every strategy: what must hold for all of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from refruntime.alloc import CachingAllocator, PlainAllocator
from refruntime.alloc.strategies import (
    BestFitCoalescing,
    Buddy,
    CupyPool,
    Planned,
    Pooled,
    RmmArena,
    RmmBinning,
    RmmPool,
    Span,
    Stitching,
    Tlsf,
    TwoEnded,
    plan_of,
)
from refruntime.alloc.strategy import Request, Strategy
from refruntime.errors import ArgumentValueError, OutOfMemoryError
from tests.alloc.strategies.ledger import KIB, MIB, Build, Ledger, memory_of

CAPACITY = 96 * MIB + 512 * KIB

SIZES = st.one_of(
    st.integers(1, 4096),
    st.integers(1, 4 * MIB),
    st.integers(1, 60 * MIB),
    st.builds(
        lambda base, delta: base + delta,
        st.sampled_from([512, MIB, 2 * MIB, 10 * MIB, 16 * MIB, CAPACITY]),
        st.sampled_from([-513, -512, -1, 0, 1, 512]),
    ).filter(lambda size: size > 0),
)

# A plan that random programs now and then meet: three of its sizes are likely ones.
_PLAN = plan_of(
    [Request("alloc", n, size) for n, size in enumerate([1, 512, MIB, 2 * MIB, 512, MIB])]
)


# Whether a strategy may fail to serve a request of so many bytes.
Judge = Callable[[Ledger, Strategy, int], bool]


def _upstream_short(growth: Callable[[int], int]) -> Judge:
    """A failure is right if the upstream lacks what the strategy would have had to ask for."""

    def judge(upstream: Ledger, pool: Strategy, size: int) -> bool:
        return upstream.capacity - upstream.used < growth(size)

    return judge


def _up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def _pytorch_growth(size: int) -> int:
    if size <= MIB:
        return 2 * MIB
    return 20 * MIB if size < 10 * MIB else _up(size, 2 * MIB)


def _no_superblock(upstream: Ledger, pool: Strategy, size: int) -> bool:
    """An arena cannot grow: a failure is right if no gap of a superblock holds the request."""
    assert isinstance(pool, RmmArena)
    return all(block.free.largest < _up(size, 256) for block in pool._global.superblocks)


def _binning_growth(size: int) -> int:
    bins = [1 << n for n in range(14, 18) if size <= 1 << n]
    return bins[0] * 128 if bins else _up(size, 256)


CASES: dict[str, tuple[Build, Judge]] = {
    "bfc": (BestFitCoalescing, _upstream_short(lambda size: _up(size, 256))),
    # The only free block of the right size may lie a whole block beyond what is mapped.
    "buddy": (Buddy, _upstream_short(lambda size: _up(2 << (size - 1).bit_length(), 2 * MIB))),
    "caching": (CachingAllocator, _upstream_short(_pytorch_growth)),
    "caching-expandable": (
        lambda upstream: CachingAllocator(upstream, settings="expandable_segments:True"),
        _upstream_short(lambda size: _up(size, 2 * MIB if size <= MIB else 20 * MIB)),
    ),
    "cupy": (CupyPool, _upstream_short(lambda size: _up(size, 512))),
    "gmlake": (
        lambda upstream: Stitching(upstream, fragment_limit=4 * MIB, addresses_limit=200 * MIB),
        _upstream_short(_pytorch_growth),
    ),
    # However little is missing, the segment that tops up has 20 MiB at least.
    "gmlake-top-up": (
        lambda upstream: Stitching(upstream, fragment_limit=2 * MIB, top_up=True),
        _upstream_short(
            lambda size: 2 * MIB if size <= MIB else max(20 * MIB, _pytorch_growth(size))
        ),
    ),
    "plain": (PlainAllocator, _upstream_short(lambda size: _up(size, 512))),
    "rmm-arena": (RmmArena, _no_superblock),
    "rmm-binning": (
        lambda upstream: RmmBinning(upstream, smallest=14, largest=17),
        _upstream_short(_binning_growth),
    ),
    "rmm-pool": (RmmPool, _upstream_short(lambda size: _up(size, 256))),
    "rmm-pool-limited": (
        lambda upstream: RmmPool(upstream, initial_bytes=8 * MIB, maximum_bytes=64 * MIB),
        lambda upstream, pool, size: 64 * MIB - pool.reserved_bytes < _up(size, 256),
    ),
    # PyTorch's rules, behind the plan: segments of 20 MiB, or a little more than was asked for.
    "stalloc": (
        lambda upstream: Planned(upstream, plan=_PLAN._replace(repeat_from=2)),
        _upstream_short(_pytorch_growth),
    ),
    "tlsf": (Tlsf, _upstream_short(lambda size: _up(size, 2 * MIB) + 2 * MIB)),
    "two-ended": (
        lambda upstream: TwoEnded(upstream, horizon=4),
        _upstream_short(lambda size: _up(size, 2 * MIB) + 2 * MIB),
    ),
}

# Where every free gap serves every stream, a failure also proves that no gap was large enough.
GAP_SEEKERS = {"rmm-pool", "rmm-pool-limited"}


class StrategyMachine(RuleBasedStateMachine):
    name: str

    def __init__(self) -> None:
        super().__init__()
        build, self.must_fail = CASES[self.name]
        self.upstream = Ledger(CAPACITY)
        self.pool = build(self.upstream)
        self.sizes: dict[int, int] = {}

    @rule(nbytes=SIZES, stream=st.integers(0, 2))
    def malloc(self, nbytes: int, stream: int) -> None:
        before = self.pool.allocated_bytes, self.pool.ooms
        try:
            address = self.pool.malloc(nbytes, stream)
        except OutOfMemoryError:
            assert (self.pool.allocated_bytes, self.pool.ooms - 1) == before
            assert self.must_fail(self.upstream, self.pool, nbytes)
            if self.name in GAP_SEEKERS:
                assert self.largest_gap() < _up(nbytes, 256)
            return
        assert address % getattr(self.pool, "ALIGNMENT", 512) == 0
        assert address not in self.sizes
        self.sizes[address] = nbytes

    @precondition(lambda self: self.sizes)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        address = data.draw(st.sampled_from(list(self.sizes)))
        del self.sizes[address]
        self.pool.free(address)

    @precondition(lambda self: self.sizes)
    @rule(count=st.integers(1, 8))
    def free_the_oldest(self, count: int) -> None:
        for address in list(self.sizes)[:count]:
            del self.sizes[address]
            self.pool.free(address)

    @rule(address=st.integers(1, 1 << 40))
    def free_of_a_stranger_is_refused(self, address: int) -> None:
        if address not in self.sizes:
            with pytest.raises(ArgumentValueError, match="a block in use"):
                self.pool.free(address)

    @invariant()
    def blocks_do_not_overlap_and_are_backed(self) -> None:
        spans = sorted(span for parts in self.memory().values() for span in parts)
        for left, right in itertools.pairwise(spans):
            assert left.address + left.size <= right.address
        assert all(self.upstream.backs(span) for span in spans)

    @invariant()
    def books_are_right(self) -> None:
        pool = self.pool
        assert pool.reserved_bytes == self.upstream.used <= CAPACITY
        held = {a: sum(part.size for part in parts) for a, parts in self.memory().items()}
        assert all(held[address] >= nbytes for address, nbytes in self.sizes.items())
        assert sum(held.values()) <= pool.allocated_bytes <= pool.reserved_bytes
        if isinstance(pool, Pooled):
            assert sum(held.values()) == pool.allocated_bytes

    def memory(self) -> dict[int, list[Span]]:
        """Return where the bytes of every block in use are."""
        return {a: memory_of(self.pool, a, nbytes) for a, nbytes in self.sizes.items()}

    def largest_gap(self) -> int:
        """Return the longest run of bytes of one reserved span that no block uses."""
        assert isinstance(self.pool, Pooled)
        gaps = [0]
        for start, size in self.upstream.spans.items():
            at, end = start, start + size
            for block in sorted(self.pool.blocks.values()):
                if start <= block.address < end:
                    gaps.append(block.address - at)
                    at = block.address + block.size
            gaps.append(end - at)
        return max(gaps)

    def teardown(self) -> None:
        for address in list(self.sizes):
            self.pool.free(address)
        assert self.pool.allocated_bytes == 0


@pytest.mark.parametrize("name", CASES)
def test_random_programs_keep_the_rules(name: str) -> None:
    machine = type(f"Machine_{name}", (StrategyMachine,), {"name": name})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=50,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )
