from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import pytest

from refruntime.alloc.turnstile import Turnstile


def test_an_action_runs_at_once_when_nobody_is_inside() -> None:
    seen: list[int] = []
    Turnstile().soon(seen.append, 1)
    assert seen == [1]


def test_actions_wait_for_the_call_in_progress_and_keep_their_order() -> None:
    turnstile, seen = Turnstile(), list[int]()
    with turnstile:
        for number in range(3):
            turnstile.soon(seen.append, number)
        assert seen == []
    assert seen == [0, 1, 2]


def test_a_thread_inside_does_not_enter_again() -> None:
    turnstile = Turnstile()
    with turnstile:
        assert turnstile.mine()
        with pytest.raises(RuntimeError, match="in the middle of a call"), turnstile:
            pass
    assert not turnstile.mine()


def test_an_action_may_hand_in_another() -> None:
    turnstile, seen = Turnstile(), list[str]()

    def outer() -> None:
        turnstile.soon(seen.append, "inner")
        seen.append("outer")

    turnstile.soon(outer)
    assert seen == ["outer", "inner"]


def test_an_error_reaches_whoever_handed_the_action_in() -> None:
    turnstile = Turnstile()
    with pytest.raises(ZeroDivisionError):
        turnstile.soon(lambda: 1 // 0)
    turnstile.soon(list)


def test_an_error_of_a_queued_action_goes_to_the_hook_and_the_rest_still_runs() -> None:
    turnstile, seen, errors = Turnstile(), list[int](), list[Any]()
    before, threading.excepthook = threading.excepthook, errors.append
    try:
        with turnstile:
            turnstile.soon(lambda: 1 // 0)
            turnstile.soon(seen.append, 1)
    finally:
        threading.excepthook = before
    assert (seen, [type(error.exc_value) for error in errors]) == ([1], [ZeroDivisionError])


def test_what_other_threads_hand_in_is_run_by_whoever_leaves() -> None:
    turnstile, runners = Turnstile(), list[int]()
    with turnstile:
        other = threading.Thread(
            target=turnstile.soon, args=(lambda: runners.append(threading.get_ident()),)
        )
        other.start()
        other.join()
        assert not runners
    assert runners == [threading.get_ident()]


def test_no_action_is_lost_between_threads() -> None:
    turnstile, counts = Turnstile(), [0]

    def increase() -> None:
        counts[0] += 1

    def work() -> None:
        for number in range(500):
            if number % 3:
                turnstile.soon(increase)
            else:
                with turnstile:
                    increase()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [2000]


def test_a_turnstile_is_collected_with_its_owner() -> None:
    turnstile = weakref.ref(Turnstile())
    gc.collect()
    assert turnstile() is None
