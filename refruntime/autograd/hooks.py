"""The handle that a hook registration returns, on tensors, nodes, modules and optimizers alike.

Invariants
----------
* A handle holds its dict weakly: a hook never keeps a module or a node alive.
* Numbers never repeat, so that hooks run in the order of registration.
"""

from __future__ import annotations

import itertools
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

Hook = Callable[..., Any]
_numbers = itertools.count()


class RemovableHandle:
    """Removes a hook: ``handle.remove()``, or by leaving a ``with`` block.

    Parameters
    ----------
    hooks_dict : dict
        Where the hook stands.
    extra_dict : dict or list of dict, optional
        Where the same number stands beside it.
    """

    def __init__(self, hooks_dict: Any, *, extra_dict: Any = None) -> None:
        self.id = next(_numbers)
        self.hooks_dict_ref = weakref.ref(hooks_dict)
        extras = extra_dict if isinstance(extra_dict, (list, tuple)) else [extra_dict]
        self.extra_dict_ref = tuple(weakref.ref(extra) for extra in extras if extra is not None)

    @classmethod
    def enter(
        cls, hooks: Any, hook: Hook, prepend: bool = False, flags: Any = ()
    ) -> RemovableHandle:
        """Put `hook` into `hooks`, its number into each dict of `flags`; return the handle."""
        handle = cls(hooks, extra_dict=list(flags))
        hooks[handle.id] = hook
        for flag in flags:
            flag[handle.id] = True
        if prepend:
            hooks.move_to_end(handle.id, last=False)
        return handle

    def remove(self) -> None:
        """Take the hook out; a second call does nothing."""
        for ref in (self.hooks_dict_ref, *self.extra_dict_ref):
            held = ref()
            if held is not None:
                held.pop(self.id, None)

    def __getstate__(self) -> tuple[Any, ...]:
        return self.hooks_dict_ref(), self.id, tuple(ref() for ref in self.extra_dict_ref)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        hooks, self.id, extras = state
        alive = OrderedDict() if hooks is None else hooks
        self.hooks_dict_ref = weakref.ref(alive)
        self.extra_dict_ref = tuple(weakref.ref(x) for x in extras if x is not None)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()
