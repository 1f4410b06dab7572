"""What a function that is run again must find as it was: random streams and autocast regions.

Invariants
----------
* The streams covered are the default generators of the CPU and of the devices of the arguments.
* A block that is run again leaves generators and regions as they were before it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from refruntime._impl import TensorImpl
from refruntime.amp.autocast_mode import autocast, get_autocast_dtype, is_autocast_enabled
from refruntime.random import default_generator, fork_rng, generator_of


class Surroundings:
    """The states of the generators and the autocast regions at the first run."""

    def __init__(self, keep_rng: bool, args: tuple[Any, ...]) -> None:
        devices = {arg.meta.device for arg in args if isinstance(arg, TensorImpl)}
        generators = {default_generator, *map(generator_of, devices)} if keep_rng else set()
        self.streams = [(generator, generator.state_bytes()) for generator in generators]
        self.regions = [
            (kind, is_autocast_enabled(kind), get_autocast_dtype(kind)) for kind in ("cpu", "cuda")
        ]

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """Run a block as the first run was run, and leave everything as it was."""
        with contextlib.ExitStack() as stack:
            for kind, enabled, dtype in self.regions:
                stack.enter_context(autocast(kind, dtype=dtype, enabled=enabled))
            if self.streams:
                stack.enter_context(fork_rng())
            for generator, state in self.streams:
                generator.load_state_bytes(state)
            yield
