"""Seeding of the GPUs' default generators; without a GPU there is nothing to seed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from refruntime import random as _random
from refruntime._device import Device
from refruntime.cuda.devices import device_count, index_of, require

__all__ = [
    "get_rng_state", "get_rng_state_all", "initial_seed", "manual_seed", "manual_seed_all", "seed",
    "seed_all", "set_rng_state", "set_rng_state_all",
]  # fmt: skip


def _generator(op: str, device: Any) -> _random.Generator:
    return _random.generator_of(Device("cuda", require(op, device)))


def manual_seed(seed: int) -> None:
    """Seed the generator of the current GPU."""
    if index_of("manual_seed", None) < device_count():
        _generator("manual_seed", None).manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seed the generators of all GPUs."""
    for index in range(device_count()):
        _generator("manual_seed_all", index).manual_seed(int(seed))


def seed() -> None:
    """Seed the generator of the current GPU from the operating system."""
    if index_of("seed", None) < device_count():
        _generator("seed", None).seed()


def seed_all() -> None:
    """Seed the generators of all GPUs with one seed from the operating system."""
    if device_count():
        manual_seed_all(_generator("seed_all", 0).seed())


def initial_seed() -> int:
    """Return the seed of the current GPU's generator."""
    return _generator("initial_seed", None).initial_seed()


def get_rng_state(device: Any = "cuda") -> Any:
    """Return the state of a GPU's generator as a uint8 tensor."""
    return _generator("get_rng_state", device).get_state()


def get_rng_state_all() -> list[Any]:
    """Return the states of all GPUs' generators."""
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state(new_state: Any, device: Any = "cuda") -> None:
    """Continue a GPU's stream from a state."""
    _generator("set_rng_state", device).set_state(new_state)


def set_rng_state_all(new_states: Iterable[Any]) -> None:
    """Continue the streams of all GPUs from their states."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)
