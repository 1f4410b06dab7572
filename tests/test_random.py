"""Generators, seeding and states."""

from __future__ import annotations

import copy
import os
import pickle
import threading

import pytest

import refruntime as torch
from refruntime import random
from refruntime.errors import DeviceError
from refruntime.random import Generator


def test_a_generator_starts_at_a_fixed_seed_and_the_default_one_does_not():
    assert Generator().initial_seed() == Generator().initial_seed() == random.DEFAULT_SEED
    assert str(Generator().device) == "cpu"


def test_the_same_seed_gives_the_same_numbers():
    first = torch.rand(5, generator=Generator().manual_seed(3))
    again = torch.rand(5, generator=Generator().manual_seed(3))
    other = torch.rand(5, generator=Generator().manual_seed(4))
    assert first.tolist() == again.tolist()
    assert first.tolist() != other.tolist()


def test_consecutive_draws_use_different_blocks():
    generator = Generator().manual_seed(0)
    assert generator.reserve(3) == (0, 0)
    assert generator.reserve(2) == (0, 3)
    assert generator.get_offset() == 5


def test_negative_seeds_count_down_from_two_to_the_64():
    assert Generator().manual_seed(-1).initial_seed() == 2**64 - 1


@pytest.mark.parametrize("seed", [2**64, -(2**63) - 1])
def test_seeds_beyond_64_bits_are_refused(seed):
    with pytest.raises(ValueError, match="manual_seed"):
        Generator().manual_seed(seed)
    with pytest.raises(ValueError, match="manual_seed"):
        torch.manual_seed(seed)


def test_a_generator_takes_ints_only_and_the_module_function_truncates():
    with pytest.raises(TypeError, match="expected an int"):
        Generator().manual_seed(1.5)
    with random.fork_rng():
        torch.manual_seed(1.9)
        assert torch.initial_seed() == 1


def test_seed_draws_from_the_system_and_is_reported():
    generator = Generator()
    first, second = generator.seed(), generator.seed()
    assert first != second
    assert generator.initial_seed() == second


def test_a_state_continues_the_stream():
    generator = Generator().manual_seed(1)
    torch.rand(7, generator=generator)
    state = generator.get_state()
    expected = torch.rand(4, generator=generator)
    other = Generator()
    other.set_state(state)
    assert torch.rand(4, generator=other).tolist() == expected.tolist()
    assert state.dtype is torch.uint8


def test_a_foreign_state_is_refused_with_its_size():
    with pytest.raises(ValueError, match="16 bytes, got 3 bytes"):
        Generator().load_state_bytes(b"abc")


def pickled(generator):
    return pickle.loads(pickle.dumps(generator))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, copy.copy, pickled, Generator.clone_state])
def test_a_copy_draws_the_same_and_is_independent(duplicate):
    generator = Generator().manual_seed(5)
    generator.reserve(2)
    twin = duplicate(generator)
    assert twin.reserve(1) == generator.reserve(1)
    twin.reserve(9)
    assert generator.get_offset() == 3


def test_fork_rng_restores_the_default_generator():
    before = random.get_rng_state().tolist()
    with random.fork_rng():
        torch.manual_seed(0)
        torch.rand(100)
    assert random.get_rng_state().tolist() == before


def test_fork_rng_restores_after_an_exception_and_does_nothing_when_disabled():
    before = random.get_rng_state().tolist()

    def fail_inside():
        with random.fork_rng():
            torch.rand(3)
            raise KeyError

    with pytest.raises(KeyError):
        fail_inside()
    assert random.get_rng_state().tolist() == before
    with random.fork_rng(enabled=False):
        torch.rand(3)
    assert random.get_rng_state().tolist() != before


def test_a_generator_of_another_device_is_refused():
    with pytest.raises(DeviceError, match="belongs to another device"):
        random.choose("rand", Generator("cuda"), torch.device("cpu"))
    with pytest.raises(TypeError, match="must be a Generator"):
        torch.rand(2, generator=5)


def test_a_device_generator_that_comes_late_starts_at_the_last_manual_seed():
    with random.fork_rng():
        torch.manual_seed(99)
        late = random.generator_of(torch.device("cuda", 5))
        assert late.reserve(1) == (99, 0)


def test_threads_never_share_a_block():
    generator = Generator()
    taken: list[int] = []

    def draw() -> None:
        taken.extend(generator.reserve(1)[1] for _ in range(500))

    threads = [threading.Thread(target=draw) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == list(range(2000))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_can_draw_although_its_parent_forked_inside_a_draw():
    # The child's lock is its own: it must not wait for a thread that only its parent has.
    code = (
        "import os, threading, time, warnings\n"
        "warnings.simplefilter('ignore')\n"
        "from refruntime import random\n"
        "held = threading.Event()\n"
        "def hold():\n"
        "    with random._lock:\n"
        "        held.set(); time.sleep(30)\n"
        "threading.Thread(target=hold, daemon=True).start()\n"
        "held.wait()\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    random.default_generator.reserve(1); os._exit(7)\n"
        "os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    import subprocess
    import sys

    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 7
