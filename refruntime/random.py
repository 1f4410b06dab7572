"""Random streams: generators, the default one of each device, and seeding.

State
-----
A `Generator` is two 64-bit numbers: the seed, which is the key of a Philox4x32-10 stream, and the
offset, which counts the 128-bit blocks drawn so far. `default_generator` serves the CPU; each other
device gets a default generator of its own when it first draws.

Invariants
----------
* A draw reserves its blocks before any kernel runs: element `i` is made of word ``i % 4`` of block
  ``offset + i // 4`` (of a pair of words of block ``offset + i // 2`` for 64-bit values). The same
  seed and offset therefore give the same numbers on every device, whatever the number of threads.
* Two draws never share a block: `reserve` is atomic, and a forked child continues the stream of its
  parent with locks of its own.
* A state is 16 bytes, seed then offset, little-endian. Tensors are made of it by the layer that has
  tensors, through `install_state_codec`.

Source of the generator: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3",
SC11, 2011. Its streams differ from PyTorch's; distributions and defaults are the same.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from refruntime._device import Device
from refruntime.errors import ArgumentTypeError, ArgumentValueError, DeviceError

__all__ = [
    "Generator", "default_generator", "fork_rng", "get_rng_state", "initial_seed", "manual_seed",
    "seed", "set_rng_state",
]  # fmt: skip

_MASK = (1 << 64) - 1
_STATE = struct.Struct("<QQ")
# What `Generator()` starts from, so that an unseeded generator object is still reproducible.
DEFAULT_SEED = 67280421310721

_lock = threading.Lock()


def _renew_lock() -> None:
    """Give a forked child a lock that no thread of its parent holds."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def _encode(state: bytes) -> Any:
    return state


def _decode(state: Any) -> bytes:
    return bytes(state)


_to_tensor: Callable[[bytes], Any] = _encode
_from_tensor: Callable[[Any], bytes] = _decode


def install_state_codec(
    to_tensor: Callable[[bytes], Any], from_tensor: Callable[[Any], bytes]
) -> None:
    """Name the two functions that turn state bytes into a uint8 tensor and back.

    Until the tensor layer has called this, a state is a ``bytes`` object.
    """
    global _to_tensor, _from_tensor
    _to_tensor, _from_tensor = to_tensor, from_tensor


def _check_seed(op: str, value: Any) -> int:
    """Return a seed as an unsigned 64-bit number; negative ones count down from 2**64."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ArgumentTypeError(op, expected="an int", got=type(value).__name__)
    number = int(value.__index__())
    if not -(1 << 63) <= number <= _MASK:
        raise ArgumentValueError(op, expected="a seed in [-2**63, 2**64)", got=str(number))
    return number & _MASK


def _fresh_seed() -> int:
    """Return 64 bits from the operating system."""
    return int.from_bytes(os.urandom(8), "little")


class Generator:
    """A Philox4x32-10 stream: one seed, and how much of its stream has been drawn.

    Parameters
    ----------
    device : Device, str or int
        The device whose draws this generator serves; default ``cpu``.
    """

    __slots__ = ("__weakref__", "_offset", "_seed", "device")

    def __init__(self, device: Any = "cpu") -> None:
        self.device = Device(device)
        self._seed = DEFAULT_SEED
        self._offset = 0

    def manual_seed(self, seed: int) -> Generator:
        """Start the stream of `seed` from its beginning, and return the generator."""
        self._seed = _check_seed("manual_seed", seed)
        self._offset = 0
        return self

    def seed(self) -> int:
        """Seed from the operating system and return the new seed."""
        self.manual_seed(_fresh_seed())
        return self._seed

    def initial_seed(self) -> int:
        """Return the current seed as an unsigned 64-bit number."""
        return self._seed

    def get_offset(self) -> int:
        """Return how many 128-bit blocks of the stream have been drawn."""
        return self._offset

    def set_offset(self, offset: int) -> None:
        """Continue the stream from block `offset`."""
        self._offset = _check_seed("set_offset", offset)

    def reserve(self, blocks: int) -> tuple[int, int]:
        """Take the next `blocks` 128-bit blocks; return the seed and the first block's number."""
        with _lock:
            first = self._offset
            self._offset = (first + blocks) & _MASK
            return self._seed, first

    def state_bytes(self) -> bytes:
        """Return the state as 16 bytes."""
        return _STATE.pack(self._seed, self._offset)

    def load_state_bytes(self, state: bytes) -> None:
        """Continue from a state that `state_bytes` returned."""
        if len(state) != _STATE.size:
            raise ArgumentValueError(
                "set_state",
                what="this is not a state of a refruntime generator",
                expected=f"{_STATE.size} bytes",
                got=f"{len(state)} bytes",
                remedy="take it from get_state(); states of other libraries do not carry over",
            )
        self._seed, self._offset = _STATE.unpack(state)

    def get_state(self) -> Any:
        """Return the state as a uint8 tensor."""
        return _to_tensor(self.state_bytes())

    def set_state(self, new_state: Any) -> None:
        """Continue from a state that `get_state` returned."""
        self.load_state_bytes(_from_tensor(new_state))

    def clone_state(self) -> Generator:
        """Return another generator at the same place of the same stream."""
        return _rebuild(str(self.device), self.state_bytes())

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (str(self.device), self.state_bytes())


def _rebuild(device: str, state: bytes) -> Generator:
    generator = Generator(device)
    generator.load_state_bytes(state)
    return generator


default_generator = Generator()
default_generator.seed()
_of_device: dict[Device, Generator] = {default_generator.device: default_generator}
# The seed that a device's generator begins with when it is first asked for.
_pending_seed: int | None = None


def generator_of(device: Device) -> Generator:
    """Return the default generator of a device, at the seed of the last `manual_seed`."""
    found = _of_device.get(device)
    return found if found is not None else _make_default(device)


def _make_default(device: Device) -> Generator:
    generator = Generator(device)
    generator.manual_seed(_fresh_seed() if _pending_seed is None else _pending_seed)
    return _of_device.setdefault(device, generator)


def choose(op: str, generator: Generator | None, device: Device) -> Generator:
    """Return the generator that a draw on `device` uses.

    Raises
    ------
    TypeError
        If `generator` is not a generator.
    DeviceError
        If it belongs to another kind of device.
    """
    if generator is None:
        return generator_of(device)
    if not isinstance(generator, Generator):
        raise ArgumentTypeError(
            op,
            what="argument 'generator' must be a Generator",
            expected="Generator or None",
            got=type(generator).__name__,
        )
    if generator.device.type != device.type:
        raise DeviceError(
            op,
            what="the generator belongs to another device",
            expected=f"a generator of {device.type}",
            got=f"one of {generator.device}",
            remedy=f"make it with Generator(device={device.type!r})",
        )
    return generator


def manual_seed(seed: int) -> Generator:
    """Seed the default generator of every device; return the CPU's.

    Parameters
    ----------
    seed : int
        In [-2**63, 2**64); a number that is not an int is truncated, as in PyTorch.
    """
    global _pending_seed
    _pending_seed = _check_seed("manual_seed", int(seed))
    for generator in list(_of_device.values()):
        generator.manual_seed(_pending_seed)
    return default_generator


def seed() -> int:
    """Seed the default generator of every device from the operating system; return the seed."""
    return manual_seed(_fresh_seed()).initial_seed()


def initial_seed() -> int:
    """Return the seed of the CPU's default generator."""
    return default_generator.initial_seed()


def get_rng_state() -> Any:
    """Return the state of the CPU's default generator as a uint8 tensor."""
    return default_generator.get_state()


def set_rng_state(new_state: Any) -> None:
    """Set the state of the CPU's default generator."""
    default_generator.set_state(new_state)


@contextlib.contextmanager
def fork_rng(
    devices: Iterable[Any] | None = None, enabled: bool = True, device_type: str = "cuda"
) -> Iterator[None]:
    """Put the default generators back, when the block ends, to where they stood at its start.

    Parameters
    ----------
    devices : iterable, optional
        The devices (or indices of `device_type`) to cover besides the CPU; default: all in use.
    enabled : bool
        False makes the block do nothing.
    device_type : str
        The type that bare indices stand for.
    """
    if not enabled:
        yield
        return
    covered = _covered(devices, device_type)
    before = [generator.state_bytes() for generator in covered]
    try:
        yield
    finally:
        for generator, state in zip(covered, before, strict=True):
            generator.load_state_bytes(state)


def _covered(devices: Iterable[Any] | None, device_type: str) -> list[Generator]:
    if devices is None:
        return list(_of_device.values())
    named = (Device(device_type, d) if isinstance(d, int) else Device(d) for d in devices)
    return [default_generator, *(generator_of(device) for device in named)]
