"""Private pools as users see them: making them, directing requests to them, letting them go.

State
-----
Which requests go to which private pool (`Route`), oldest first, and how many of the routes are
captures of graphs. The pools themselves are rows of the tables (see `pools`).

Invariants
----------
* Of the routes that match a request, the one that was begun last counts.
* The gate has ROUTED set while there is a route, so that compiled calls take the long way.
* A route's pool has at least one user.
* Everything but `row_for` and `row_of`, which their callers run inside the guard, enters the guard
  itself; `in_capture` needs none.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

import numpy as np

from refruntime.alloc import checkpoints, events, pools
from refruntime.alloc.asking import UpstreamOutside
from refruntime.alloc.checkpoints import PoolState
from refruntime.alloc.graphs import GraphOrder
from refruntime.alloc.guard import Guard
from refruntime.alloc.tables import (
    FREE,
    GATE,
    MALLOC_COUNT,
    NO_SPLIT,
    OWNER,
    POOL,
    REUSE_IN_CAPTURE,
    ROUTED,
    ROW,
    SIZE,
    STATE,
    USE_COUNT,
    USE_ON_OOM,
    Tables,
)
from refruntime.alloc.upstream import Upstream
from refruntime.errors import ArgumentValueError

PoolId = tuple[int, int]
StreamFilter = Callable[[int], bool]

_numbers: Final = itertools.count(1)


def new_pool_id() -> PoolId:
    """Return a name for a private pool that no other has."""
    return 0, next(_numbers)


@dataclass(frozen=True, slots=True)
class Route:
    """Requests that go to a private pool: those for which `matches` holds."""

    pool: PoolId
    row: int
    matches: StreamFilter
    captures: bool


class PrivatePools:
    """The private pools of one allocator."""

    def __init__(
        self,
        tables: Tables,
        guard: Guard,
        outside: UpstreamOutside,
        enter_core: Callable[[], None],
        graphs: GraphOrder | None,
    ) -> None:
        self._tables = tables
        self._guard = guard
        self._outside = outside
        self._enter_core = enter_core
        self._graphs = graphs
        self._routes: list[Route] = []
        self._captures = 0

    def in_capture(self) -> bool:
        """Whether a call of this thread is made inside the capture of a graph.

        What counts is the thread's current stream, not those of the call: so does PyTorch.
        """
        return self._captures > 0 and (self._graphs is None or self._graphs.capturing())

    def row_for(self, stream: int) -> int:
        """Return the private pool that serves a request of the calling thread, or 0."""
        for route in reversed(self._routes):
            if route.matches(stream):
                return route.row
        return 0

    def create(
        self,
        pool: PoolId,
        *,
        no_split: bool = False,
        use_on_oom: bool = False,
        upstream: Upstream | None = None,
    ) -> None:
        """Make a private pool, or count one more user of it.

        Parameters
        ----------
        pool : pair of int
            Its name; see `new_pool_id`.
        no_split : bool
            Give out whole segments only.
        use_on_oom : bool
            Let its free blocks serve other requests when memory is short.
        upstream : Upstream, optional
            Where its segments come from, if not from the allocator's own.
        """
        with self._guard:
            number = 0
            if upstream is not None:
                self._outside.upstreams.append(upstream)
                number = len(self._outside.upstreams) - 1
            self._need(pool, NO_SPLIT * no_split | USE_ON_OOM * use_on_oom, number)

    def begin(
        self, pool: PoolId, matches: StreamFilter | None = None, *, captures: bool = False
    ) -> None:
        """Serve requests from a private pool until `end`.

        Parameters
        ----------
        pool : pair of int
            The pool, made if it is not there; this counts as one user of it.
        matches : callable, optional
            Which streams' requests; by default those of the calling thread.
        captures : bool
            Whether a graph is being captured: calls from inside the capture (`in_capture`) then ask
            for no events and give no memory back.
        """
        thread = threading.get_ident()
        own_thread: StreamFilter = lambda stream: threading.get_ident() == thread  # noqa: E731
        with self._guard:
            if any(route.pool == pool for route in self._routes):
                raise ArgumentValueError("begin", expected="a pool not begun yet", got=repr(pool))
            self._need(pool)
            self._routes.append(Route(pool, self.row_of(pool), matches or own_thread, captures))
            self._update()

    def end(self, pool: PoolId) -> None:
        """Serve requests from a pool no more; its user count stays.

        After a capture in which blocks were to be used again, those of the pool that could not be
        are freed, or wait for the events of the streams that used them before.
        """
        with self._guard:
            found = [route for route in self._routes if route.pool == pool]
            if not found:
                raise ArgumentValueError("end", expected="a pool that was begun", got=repr(pool))
            self._routes.remove(found[0])
            self._update()
            if found[0].captures and self._tables.header[REUSE_IN_CAPTURE]:
                self._enter_core()
                self._settle_deferred(found[0].row)
            if self._captures == 0 and self._outside.marks is not None:
                self._outside.marks.forget_walks()

    def release(self, pool: PoolId) -> None:
        """Count one user of a pool less; without users its memory goes with the cache."""
        with self._guard:
            row = self.row_of(pool)
            least = 1 + any(route.row == row for route in self._routes)
            if self._tables.blocks[row + USE_COUNT] < least:
                raise ArgumentValueError(
                    "release", expected="a pool that has a user and is not begun", got=repr(pool)
                )
            pools.release_pool(self._tables.header, self._tables.blocks, row)

    def checkpoint(self, pool: PoolId) -> PoolState:
        """Return which blocks of a pool are in use, for `restore`."""
        with self._guard:
            self._enter_core()
            row = self.row_of(pool)
            self._settle_deferred(0)
            return checkpoints.state_of(self._tables, pool, row)

    def restore(self, state: PoolState, stale: Collection[int]) -> list[int]:
        """Make the blocks of a pool what they were at a checkpoint.

        Parameters
        ----------
        state : PoolState
            What `checkpoint` returned.
        stale : collection of int
            The addresses of all blocks of the pool that are in use now. They end here: whoever has
            them must not free them.

        Returns
        -------
        list of int
            The addresses of the blocks that are in use again.

        Raises
        ------
        ArgumentValueError
            If nobody needs the pool any more, a block in use is not stale, a block waits for
            streams, or the pool lacks memory that it had. Nothing is changed then.
        """
        with self._guard:
            self._enter_core()
            row = self.row_of(state.pool)
            if self._tables.blocks[row + USE_COUNT] == 0:
                raise ArgumentValueError(
                    "restore", expected="a pool that has a user", got=repr(state.pool)
                )
            checkpoints.bring_back(self._tables, row, state, stale)
            return state.live

    def _settle_deferred(self, owner: int) -> None:
        events.settle_deferred(self._tables.header, self._tables.blocks, self._outside, owner)

    def use_count(self, pool: PoolId) -> int:
        """Return how many graphs and pools of the user need a pool."""
        with self._guard:
            return self._tables.blocks[self.row_of(pool) + USE_COUNT]

    def segment_count(self, pool: PoolId) -> int:
        """Return how many segments a pool holds."""
        with self._guard:
            return self._tables.blocks[self.row_of(pool) + MALLOC_COUNT]

    def row_of(self, pool: PoolId) -> int:
        """Return the row of a pool; raise if there is none. Its caller runs it inside the guard."""
        row = pools.find_private_pool(self._tables.header, self._tables.blocks, *pool)
        if row == 0:
            raise ArgumentValueError("memory pool", expected="a pool in use", got=repr(pool))
        return int(row)

    def _need(self, pool: PoolId, flags: int = 0, upstream: int = 0) -> None:
        self._tables.make_room()
        header, blocks = self._tables.header, self._tables.blocks
        row = pools.find_private_pool(header, blocks, *pool)
        if row == 0:
            row = pools.new_private_pool(header, blocks, *pool, flags, upstream)
        pools.need_pool(header, blocks, row)

    def _update(self) -> None:
        header = self._tables.header
        self._captures = sum(route.captures for route in self._routes)
        header[GATE] = header[GATE] | ROUTED if self._routes else header[GATE] & ~ROUTED


def free_in_private_pools(tables: Tables) -> int:
    """Return the free bytes of all private pools."""
    rows = tables.rows()
    free = rows[rows[:, STATE] == FREE]
    owners = rows[free[:, POOL] // ROW, OWNER]
    return int(np.sum(free[owners != 0, SIZE]))
