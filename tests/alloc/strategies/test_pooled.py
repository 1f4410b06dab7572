"""The face that all strategies have in common."""

from __future__ import annotations

import pytest

from refruntime.alloc.strategies import FACTORIES
from refruntime.alloc.strategy import STRATEGIES
from refruntime.alloc.upstream import HostUpstream
from refruntime.errors import ArgumentValueError, OutOfMemoryError
from tests.alloc.strategies.ledger import MIB, Ledger

everywhere = pytest.mark.parametrize("name", FACTORIES)
# What the binning strategy reserves at its start is the most that any needs for one byte.
ROOMY = 2 << 30


def test_all_are_registered_for_replay() -> None:
    assert FACTORIES.keys() <= STRATEGIES.keys()
    assert all(STRATEGIES[name] is factory for name, factory in FACTORIES.items())


@everywhere
def test_zero_bytes_have_no_address(name: str) -> None:
    pool = FACTORIES[name](Ledger(ROOMY))
    reserved = pool.reserved_bytes
    assert pool.malloc(0) == 0
    pool.free(0)
    assert (pool.allocated_bytes, pool.reserved_bytes) == (0, reserved)


@everywhere
def test_negative_sizes_are_refused(name: str) -> None:
    with pytest.raises(ArgumentValueError, match=r"malloc: expected a size of 0 or more.*got -1"):
        FACTORIES[name](Ledger(ROOMY)).malloc(-1)


@everywhere
def test_a_block_is_freed_once(name: str) -> None:
    pool = FACTORIES[name](Ledger(ROOMY))
    address = pool.malloc(1000)
    pool.free(address)
    with pytest.raises(ArgumentValueError, match="free: expected the address of a block in use"):
        pool.free(address)


@everywhere
def test_failure_tells_the_figures_and_changes_nothing(name: str) -> None:
    pool = FACTORIES[name](Ledger(ROOMY))
    address = pool.malloc(3 * MIB)
    allocated = pool.allocated_bytes
    with pytest.raises(OutOfMemoryError, match=r"out of memory. Tried to allocate .*2\.00 GiB"):
        pool.malloc(2 * ROOMY)
    assert (pool.allocated_bytes, pool.ooms) == (allocated, 1)
    pool.free(address)
    assert pool.malloc(3 * MIB) > 0


@everywhere
def test_the_same_requests_get_the_same_addresses(name: str) -> None:
    def run() -> list[int]:
        pool = FACTORIES[name](Ledger(ROOMY))
        addresses = [pool.malloc(step * 100_000 + 1, step % 2) for step in range(30)]
        for address in addresses[::3]:
            pool.free(address)
        return addresses + [pool.malloc(step * 70_000 + 1) for step in range(30)]

    assert run() == run()


@pytest.mark.parametrize("name", ["buddy", "tlsf", "two-ended"])
def test_heaps_need_virtual_memory(name: str) -> None:
    class Old(HostUpstream):
        supports_virtual_memory = False

    with pytest.raises(ArgumentValueError, match="expected an upstream with virtual memory"):
        FACTORIES[name](Old(64 * MIB))
