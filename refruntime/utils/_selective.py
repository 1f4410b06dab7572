"""Selective checkpointing: which results of a checkpointed call are kept, op by op.

State
-----
`_Store` is what a first run kept: for each op the results in the order of its calls. Both contexts
of one call share it.

Invariants
----------
* The first run asks the policy for each op and keeps the results that it wants; the second run
  takes a kept result where the first one had the same op for the same time, and computes the rest.
* Views and in-place writes are always done again: a kept view would not be a view of anything.
* A kept result that was written to since is an error, unless the program allows it.
"""

from __future__ import annotations

import enum
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from refruntime import _dispatch
from refruntime._impl import detached
from refruntime._ops.opdef import OpDef
from refruntime.errors import ArgumentTypeError, AutogradError


class CheckpointPolicy(enum.Enum):
    """What a policy says of the results of one op.

    ``MUST_`` binds; ``PREFER_`` leaves the last word to a compiler. In eager execution both do the
    same. The ``CPU_OFFLOAD`` policies keep the result, in host memory.
    """

    MUST_SAVE = 0
    PREFER_SAVE = 1
    MUST_RECOMPUTE = 2
    PREFER_RECOMPUTE = 3
    MUST_CPU_OFFLOAD = 4
    PREFER_CPU_OFFLOAD = 5


_SAVES = (CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_SAVE)
_OFFLOADS = (CheckpointPolicy.MUST_CPU_OFFLOAD, CheckpointPolicy.PREFER_CPU_OFFLOAD)


@dataclass(slots=True)
class SelectiveCheckpointContext:
    """What a policy is told besides the op: whether this is the second run."""

    is_recompute: bool


@dataclass(slots=True)
class _Kept:
    """Results of one call of an op, with the versions that they had."""

    outputs: Any
    versions: tuple[int, ...]
    devices: tuple[Any, ...]


class _Store:
    def __init__(self, allow_mutation: bool) -> None:
        self.allow_mutation = allow_mutation
        self.results: dict[tuple[str, int], _Kept] = {}


def _tuple(outputs: Any) -> tuple[Any, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def _policy_of(policy: Any) -> Callable[..., Any]:
    """Return a policy function; a list of ops (records, functions or names) are those to save."""
    if callable(policy):
        return policy  # type: ignore[no-any-return]
    if not isinstance(policy, (list, tuple, set)):
        raise ArgumentTypeError(
            "create_selective_checkpoint_contexts",
            what="policy_fn_or_list must be either a function or a list of ops",
            expected="a function or a list", got=type(policy).__name__,
        )  # fmt: skip
    names = {_name_of(op) for op in policy}

    def saves_listed(ctx: Any, op: OpDef, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        listed = op.name in names
        return CheckpointPolicy.MUST_SAVE if listed else CheckpointPolicy.PREFER_RECOMPUTE

    return saves_listed


def _name_of(op: Any) -> str:
    if isinstance(op, OpDef):
        return op.name
    if isinstance(op, str):
        parts = [
            part for part in op.replace("::", ".").split(".") if part not in ("aten", "default")
        ]
        return parts[0]
    record = getattr(op, "op", None)
    if isinstance(record, OpDef):
        return record.name
    raise ArgumentTypeError(
        "create_selective_checkpoint_contexts",
        what=f"Expected op in `op_list` to be an OpOverload but got: {op} of type {type(op)}",
        expected="an op's record, its function or its name", got=type(op).__name__,
    )  # fmt: skip


class _Mode:
    """A dispatcher mode of one thread; counts the calls of each op."""

    def __init__(self, store: _Store, policy: Callable[..., Any], recompute: bool) -> None:
        self.store = store
        self.policy = policy
        self.context = SelectiveCheckpointContext(recompute)
        self.counts: dict[str, int] = defaultdict(int)

    def __enter__(self) -> None:
        self.thread = threading.get_ident()
        self.busy = False
        self.counts.clear()
        _dispatch.modes.append(self.take)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        _dispatch.modes.remove(self.take)

    # Bound once, so that the list of modes can be searched for it.
    @property
    def take(self) -> Any:
        """The function that the dispatcher calls."""
        if not hasattr(self, "_take"):
            self._take = self._dispatched
        return self._take

    def _dispatched(self, op: OpDef, inputs: Any, params: Any, out: Any) -> Any:
        mine = threading.get_ident() == self.thread and not self.busy
        if not mine or op.view is not None or out is not None:
            return _dispatch.call_under(self.take, op, inputs, params, out)
        number = self.counts[op.name]
        self.counts[op.name] += 1
        return self.run((op.name, number), op, inputs, params)

    def run(self, key: tuple[str, int], op: OpDef, inputs: Any, params: Any) -> Any:
        """Run or replace one call."""
        raise NotImplementedError

    def ask(self, op: OpDef, inputs: Any, params: Any) -> CheckpointPolicy:
        """Return what the policy says; True and False stand for save and recompute."""
        self.busy = True
        try:
            answer = self.policy(self.context, op, *inputs, **params)
        finally:
            self.busy = False
        if isinstance(answer, bool):
            return CheckpointPolicy.MUST_SAVE if answer else CheckpointPolicy.PREFER_RECOMPUTE
        return answer  # type: ignore[no-any-return]


class _Keeping(_Mode):
    """The first run: keeps what the policy wants."""

    def run(self, key: tuple[str, int], op: OpDef, inputs: Any, params: Any) -> Any:
        """Run one call and keep its results if the policy says so."""
        outputs = _dispatch.call_under(self.take, op, inputs, params, None)
        policy = self.ask(op, inputs, params)
        if policy in _SAVES or policy in _OFFLOADS:
            self.store.results[key] = self._kept(outputs, policy in _OFFLOADS)
        return outputs

    def _kept(self, outputs: Any, offload: bool) -> _Kept:
        self.busy = True
        try:
            plain = tuple(detached(x) for x in _tuple(outputs))
            devices = tuple(x.meta.device for x in plain)
            if offload:
                plain = tuple(x.cpu() for x in plain)  # type: ignore[attr-defined]
        finally:
            self.busy = False
        versions = tuple(x.counter.version for x in plain)
        return _Kept(plain if isinstance(outputs, tuple) else plain[0], versions, devices)


class _Using(_Mode):
    """The second run: takes what was kept."""

    def run(self, key: tuple[str, int], op: OpDef, inputs: Any, params: Any) -> Any:
        """Return the kept results of one call, or compute them."""
        kept = self.store.results.get(key)
        if kept is None:
            return _dispatch.call_under(self.take, op, inputs, params, None)
        self._check(op, kept)
        replaced = _Replaced(op, self._given(kept))
        return _dispatch.call_under(self.take, replaced.record, inputs, params, None)

    def _check(self, op: OpDef, kept: _Kept) -> None:
        if self.store.allow_mutation:
            return
        for value, version in zip(_tuple(kept.outputs), kept.versions, strict=True):
            if value.counter.version != version:
                raise AutogradError(
                    "selective checkpoint",
                    what=f"Tensor cached during selective activation checkpoint has been mutated: "
                    f"a result of {op.name}",
                    expected=f"version {version}", got=f"version {value.counter.version}",
                    remedy="pass allow_cache_entry_mutation=True if this is meant",
                )  # fmt: skip

    def _given(self, kept: _Kept) -> Any:
        self.busy = True
        try:
            back = tuple(
                detached(x) if x.meta.device == device else x.to(device)
                for x, device in zip(_tuple(kept.outputs), kept.devices, strict=True)
            )
        finally:
            self.busy = False
        return back if isinstance(kept.outputs, tuple) else back[0]


class _Replaced:
    """A copy of an op's record whose run returns a result that exists."""

    def __init__(self, op: OpDef, outputs: Any) -> None:
        from dataclasses import replace

        self.record = replace(op, run=lambda op, inputs, params: outputs)


def create_selective_checkpoint_contexts(
    policy_fn_or_list: Any, allow_cache_entry_mutation: bool = False
) -> tuple[Any, Any]:
    """Return the two contexts of a call that keeps some results and computes the others again.

    Parameters
    ----------
    policy_fn_or_list : callable or list
        ``policy(ctx, op, *args, **kwargs) -> CheckpointPolicy``, where `op` is the record of an op
        and ``ctx.is_recompute`` says which run this is; or the ops whose results are kept.
    allow_cache_entry_mutation : bool
        Accept results that were written to after they were kept.

    Examples
    --------
    >>> context_fn = functools.partial(create_selective_checkpoint_contexts, ["mm", "bmm"])
    >>> checkpoint(block, x, use_reentrant=False, context_fn=context_fn)
    """
    policy = _policy_of(policy_fn_or_list)
    store = _Store(allow_cache_entry_mutation)
    return _Keeping(store, policy, False), _Using(store, policy, True)
