"""Stacks found in machine code are those that Python's own frames tell of."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator

import pytest

from refruntime.alloc import CachingAllocator, VirtualUpstream, native_stack
from refruntime.alloc.trace import Frames
from refruntime.errors import ArgumentValueError, OutOfMemoryError

Allocate = Callable[[], object]


def _recorder() -> CachingAllocator:
    allocator = CachingAllocator(VirtualUpstream(1 << 40))
    allocator.compile()
    allocator.malloc(512)
    allocator.record(stacks=True)
    return allocator


def _asked(allocator: CachingAllocator) -> list[Frames]:
    return [event.frames for event in allocator.trace.events if event.action == "alloc"]


def _program(allocator: CachingAllocator) -> None:
    """Ask from loops, recursion, a generator, a lambda, a comprehension and a thread."""

    def deep(levels: int) -> object:
        return allocator.malloc(64) if levels == 0 else deep(levels - 1)

    def each(count: int) -> Iterator[object]:
        for _ in range(count):
            yield allocator.malloc(128)

    for levels in (0, 3, 3, 40):
        deep(levels)
    list(each(2))
    [allocator.malloc(size) for size in (1, 2, 3)]
    (lambda: allocator.malloc(7))()
    allocator.malloc(8), allocator.malloc(9)
    thread = threading.Thread(target=deep, args=(2,))
    thread.start()
    thread.join()
    namespace: dict[str, object] = {"allocator": allocator}
    exec("def made():\n\n    return allocator.malloc(5)\nmade()", namespace)


def test_this_interpreter_is_trusted() -> None:
    assert native_stack.is_trusted()


def test_stacks_equal_those_walked_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for trusted in (True, False):
        monkeypatch.setattr(native_stack, "_trusted", trusted)
        allocator = _recorder()
        # The hot calls are replaced exactly where compiled code finds the stack.
        assert ("malloc" in vars(allocator)) is trusted
        _program(allocator)
        found.append(_asked(allocator))
    assert found[0] == found[1]
    assert len(found[0]) == 14 and len(set(found[0])) == 9


def test_frees_know_who_freed() -> None:
    allocator = _recorder()

    def owner() -> int:
        return allocator.malloc(100)

    def releaser(address: int) -> None:
        allocator.free(address)

    releaser(owner())
    names = {event.action: event.frames[0][2].split(".")[-1] for event in allocator.trace.events}
    assert (names["alloc"], names["free_completed"]) == ("owner", "releaser")


def test_functions_that_come_and_go_at_one_address_are_told_apart() -> None:
    allocator = _recorder()
    for number in range(300):
        namespace: dict[str, Allocate] = {"allocator": allocator}  # type: ignore[dict-item]
        exec(f"def made_{number}(): return allocator.malloc(64)", namespace)
        namespace[f"made_{number}"]()
        del namespace
        gc.collect(0)
    assert [frames[0][2] for frames in _asked(allocator)] == [f"made_{n}" for n in range(300)]


def test_the_table_grows_with_the_stacks() -> None:
    allocator = _recorder()

    def deep(levels: int) -> object:
        return allocator.malloc(64) if levels == 0 else deep(levels - 1)

    for levels in range(700):
        deep(levels)
    for levels in range(700):
        deep(levels)
    depths = [sum(name.endswith("deep") for _, _, name in frames) for frames in _asked(allocator)]
    assert depths == [levels + 1 for levels in range(700)] * 2


def test_absurd_and_empty_requests_are_answered_while_recording() -> None:
    allocator = _recorder()
    assert allocator.malloc(0) == 0
    allocator.free(0)
    with pytest.raises(OutOfMemoryError):
        allocator.malloc(1 << 80)
    with pytest.raises(ArgumentValueError):
        allocator.malloc(-1)
    with pytest.raises(ArgumentValueError):
        allocator.free(12345)
    allocator.record(False)
    assert "malloc" not in vars(allocator)
