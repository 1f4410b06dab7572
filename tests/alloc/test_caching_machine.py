"""Random programs against an interpreted allocator and its compiled twin."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from refruntime.alloc import CachingAllocator, UpstreamExhausted, VirtualUpstream, categories
from refruntime.alloc import tables as t
from refruntime.errors import ArgumentValueError, OutOfMemoryError
from tests.alloc.conftest import NEVER
from tests.alloc.recount import Live, check, size_of

MIB = 1 << 20
CAPACITY = 160 * MIB

SIZES = st.one_of(
    st.integers(1, 4096),
    st.integers(1, 4 * MIB),
    st.integers(1, 60 * MIB),
    st.builds(
        lambda base, delta: base + delta,
        st.sampled_from([512, MIB, 10 * MIB, 19 * MIB, 20 * MIB, CAPACITY]),
        st.sampled_from([-513, -512, -1, 0, 1, 512]),
    ).filter(lambda size: size > 0),
)


class Moody(VirtualUpstream):
    """Refuses the next `refusals` reservations."""

    refusals = 0

    def reserve(self, nbytes: int, stream: int) -> int:
        if self.refusals:
            self.refusals -= 1
            raise UpstreamExhausted
        return super().reserve(nbytes, stream)


class AllocatorMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.twins = [CachingAllocator(Moody(CAPACITY), compile_after=NEVER) for _ in range(2)]
        self.twins[1].compile()
        self.live: dict[int, Live] = {}

    def both(self, call: str, *args: int) -> int | None:
        """Make a call on both twins: they return or raise the same."""
        outcomes = []
        for twin in self.twins:
            try:
                outcomes.append(getattr(twin, call)(*args))
            except OutOfMemoryError as error:
                outcomes.append(str(error))
        assert outcomes[0] == outcomes[1]
        return outcomes[0] if isinstance(outcomes[0], int) else None

    @rule(nbytes=SIZES, stream=st.integers(0, 2), category=st.integers(0, categories.COUNT - 1))
    def malloc(self, nbytes: int, stream: int, category: int) -> None:
        before = _frozen(self.twins[0])
        address = self.both("malloc", nbytes, stream, category)
        if address is None:
            assert _frozen(self.twins[0]) == before
            return
        size = size_of(self.twins[0], address)
        assert size >= nbytes
        for other in self.live:
            assert address + size <= other or other + size_of(self.twins[0], other) <= address
        self.live[address] = Live(nbytes, stream, category)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        address = data.draw(st.sampled_from(list(self.live)))
        del self.live[address]
        self.both("free", address)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), category=st.integers(0, categories.COUNT - 1))
    def tag(self, data: st.DataObject, category: int) -> None:
        address = data.draw(st.sampled_from(list(self.live)))
        self.live[address] = self.live[address]._replace(category=category)
        self.both("tag", address, category)

    @rule(address=st.integers(1, 1 << 40))
    def free_of_a_stranger_is_refused(self, address: int) -> None:
        for twin in self.twins:
            if address not in self.live:
                try:
                    twin.free(address)
                except ArgumentValueError:
                    continue
                raise AssertionError("a block that nobody has was freed")

    @rule()
    def empty_cache(self) -> None:
        self.both("empty_cache")

    @rule(count=st.integers(1, 2))
    def upstream_refuses(self, count: int) -> None:
        for twin in self.twins:
            twin.upstream.refusals = count  # type: ignore[attr-defined]

    @rule()
    def reset_peaks(self) -> None:
        self.both("reset_peak_stats")

    @invariant()
    def tables_agree_with_a_recount(self) -> None:
        check(self.twins[0], self.live)

    @invariant()
    def twins_are_equal_word_by_word(self) -> None:
        ours, theirs = (twin.tables for twin in self.twins)
        assert np.array_equal(ours.rows(), theirs.rows())
        assert list(ours.index) == list(theirs.index)
        places = [i for i in range(t.HEADER_WORDS) if i not in (t.BLOCKS, t.INDEX, t.CONTEXTS)]
        assert [ours.header[i] for i in places] == [theirs.header[i] for i in places]


def _frozen(allocator: CachingAllocator) -> dict[str, int]:
    """Return the statistics that a failed malloc must leave alone: all about blocks in use."""
    kept = ("allocation", "active", "allocated_bytes", "active_bytes", "requested_bytes")
    return {
        key: value
        for key, value in {**allocator.stats(), **allocator.category_bytes()}.items()
        if key.split(".")[0] in (*kept, *categories.NAMES)
    }


TestAllocatorMachine = AllocatorMachine.TestCase
TestAllocatorMachine.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
