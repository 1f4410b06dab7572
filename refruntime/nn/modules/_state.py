"""ModuleState: a module's parameters and buffers as a flat dict of names, out and in.

State
-----
Hooks by number in `_state_dict_hooks`, `_state_dict_pre_hooks`, `_load_state_dict_pre_hooks` and
`_load_state_dict_post_hooks`.

Invariants
----------
* Keys are dotted paths, in the order of registration: parameters, persistent buffers, extra state,
  then children; so a state dict written by PyTorch loads, and the other way round.
* Loading copies in place: the tensors of the module stay the same objects, unless `assign` is set.
* Loading looks at everything before it complains: one error lists all that is wrong.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from refruntime._impl import TensorImpl
from refruntime.autograd import no_grad
from refruntime.autograd.hooks import RemovableHandle
from refruntime.errors import ArgumentTypeError
from refruntime.nn.modules._tree import ModuleTree
from refruntime.nn.parameter import Parameter

EXTRA_STATE = "_extra_state"


class _Keys(NamedTuple):
    missing_keys: list[str]
    unexpected_keys: list[str]


class IncompatibleKeys(_Keys):
    """What `load_state_dict` did not find, and what it did not use."""

    __slots__ = ()

    def __repr__(self) -> str:
        if not self.missing_keys and not self.unexpected_keys:
            return "<All keys matched successfully>"
        return super().__repr__()

    __str__ = __repr__


class StateLoadError(RuntimeError):
    """A state dict does not fit the module; the message lists every difference."""


class _Loading:
    """One call of `load_state_dict`: where it reads, and what it found wrong so far."""

    def __init__(self, state: dict[str, Any], metadata: Any, strict: bool, assign: bool) -> None:
        self.state = state
        self.metadata = metadata
        self.strict = strict
        self.assign = assign
        self.missing: list[str] = []
        self.unexpected: list[str] = []
        self.errors: list[str] = []

    def visit(self, module: ModuleState, state: dict[str, Any], prefix: str) -> None:
        local: dict[str, Any] = {}
        if self.metadata is not None:
            local = self.metadata.get(prefix[:-1], {})
        if self.assign:
            local["assign_to_params_buffers"] = True
        module._load_from_state_dict(
            state, prefix, local, True, self.missing, self.unexpected, self.errors
        )
        for name, child in module._modules.items():
            if child is not None:
                below = prefix + name + "."
                self.visit(child, {k: v for k, v in state.items() if k.startswith(below)}, below)
        keys = IncompatibleKeys(self.missing, self.unexpected)
        for hook in module._load_state_dict_post_hooks.values():
            if hook(module, keys) is not None:
                raise ArgumentTypeError(
                    "load_state_dict",
                    what="a post hook returned a value",
                    expected="None (change the keys in place)",
                )

    def result(self, name: str) -> IncompatibleKeys:
        errors = list(self.errors)
        if self.strict and self.missing:
            errors.insert(0, f"Missing key(s) in state_dict: {_quoted(self.missing)}. ")
        if self.strict and self.unexpected:
            errors.insert(0, f"Unexpected key(s) in state_dict: {_quoted(self.unexpected)}. ")
        if errors:
            listed = "\n\t".join(errors)
            raise StateLoadError(f"Error(s) in loading state_dict for {name}:\n\t{listed}")
        return IncompatibleKeys(self.missing, self.unexpected)


def _quoted(names: list[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


class ModuleState(ModuleTree):
    """`state_dict` and `load_state_dict`, with their hooks."""

    _version = 1
    _state_dict_hooks: dict[int, Callable[..., Any]]
    _state_dict_pre_hooks: dict[int, Callable[..., Any]]
    _load_state_dict_pre_hooks: dict[int, Callable[..., Any]]
    _load_state_dict_post_hooks: dict[int, Callable[..., Any]]

    # ------------------------------------------------------------------ extra state

    def get_extra_state(self) -> Any:
        """Return what the state dict shall hold besides tensors; a subclass defines it."""
        raise RuntimeError(
            f"{type(self).__name__}.get_extra_state: expected an override, since the module asks "
            "for extra state; define get_extra_state() and set_extra_state()"
        )

    def set_extra_state(self, state: Any) -> None:
        """Take what `get_extra_state` returned when the state was saved."""
        raise RuntimeError(
            f"{type(self).__name__}.set_extra_state: expected an override, since the state dict "
            "holds extra state for the module; define set_extra_state()"
        )

    def _keeps_extra_state(self) -> bool:
        return type(self).get_extra_state is not ModuleState.get_extra_state

    def _takes_extra_state(self) -> bool:
        return type(self).set_extra_state is not ModuleState.set_extra_state

    # ------------------------------------------------------------------ out

    def state_dict(
        self, *args: Any, destination: Any = None, prefix: str = "", keep_vars: bool = False
    ) -> dict[str, Any]:
        """Return the parameters and persistent buffers of the whole tree by dotted name.

        Parameters
        ----------
        destination : dict, optional
            A mapping to fill; a new ordered one by default.
        prefix : str
            Put before every key.
        keep_vars : bool
            Give the tensors themselves instead of detached views of them.

        Returns
        -------
        dict
            The values share memory with the module.
        """
        if args:  # The old positional order.
            destination, prefix, keep_vars = (*args, prefix, keep_vars)[:3]
        if destination is None:
            destination = OrderedDict()
            destination._metadata = OrderedDict()
        local = {"version": self._version}
        if hasattr(destination, "_metadata"):
            destination._metadata[prefix[:-1]] = local
        for hook in self._state_dict_pre_hooks.values():
            hook(self, prefix, keep_vars)
        self._save_to_state_dict(destination, prefix, keep_vars)
        for name, module in self._modules.items():
            if module is not None:
                module.state_dict(
                    destination=destination, prefix=prefix + name + ".", keep_vars=keep_vars
                )
        for hook in self._state_dict_hooks.values():
            replaced = hook(self, destination, prefix, local)
            destination = destination if replaced is None else replaced
        return destination  # type: ignore[no-any-return]

    def _persistent_members(self) -> Iterator[tuple[str, Any]]:
        hidden = self._non_persistent_buffers_set
        persistent = ((k, v) for k, v in self._buffers.items() if k not in hidden)
        for name, value in itertools.chain(self._parameters.items(), persistent):
            if value is not None:
                yield name, value

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        for name, value in self._persistent_members():
            destination[prefix + name] = value if keep_vars else value.detach()
        if self._keeps_extra_state():
            destination[prefix + EXTRA_STATE] = self.get_extra_state()

    # ------------------------------------------------------------------ in

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> IncompatibleKeys:
        """Copy values by name into the parameters and persistent buffers of the whole tree.

        Parameters
        ----------
        state_dict : mapping
            Names to tensors.
        strict : bool
            Whether missing and unexpected names are errors.
        assign : bool
            Put the given tensors in the place of the module's own, instead of copying.

        Returns
        -------
        IncompatibleKeys
            ``missing_keys`` and ``unexpected_keys``.

        Raises
        ------
        RuntimeError
            Listing all names that are missing or unexpected (`strict`) and all shapes that differ.
        """
        if not isinstance(state_dict, Mapping):
            raise ArgumentTypeError(
                "load_state_dict", expected="state_dict to be dict-like",
                got=str(type(state_dict)), remedy="pass the result of state_dict()",
            )  # fmt: skip
        loading = _Loading(
            OrderedDict(state_dict), getattr(state_dict, "_metadata", None), strict, assign
        )
        loading.visit(self, loading.state, "")
        return loading.result(type(self).__name__)

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        arguments = (state_dict, prefix, local_metadata, strict)
        lists = (missing_keys, unexpected_keys, error_msgs)
        for hook in self._load_state_dict_pre_hooks.values():
            hook(*arguments, *lists)
        assign = bool(local_metadata.get("assign_to_params_buffers", False))
        members = dict(self._persistent_members())
        for name, value in members.items():
            key = prefix + name
            if key not in state_dict:
                if strict:
                    missing_keys.append(key)
                continue
            problem = self._load_member(name, value, key, state_dict[key], assign)
            if problem:
                error_msgs.append(problem)
        self._load_extra_state(state_dict, prefix, strict, missing_keys, unexpected_keys)
        if strict:
            unexpected_keys.extend(self._unknown_keys(state_dict, prefix, members))

    def _load_member(self, name: str, own: Any, key: str, given: Any, assign: bool) -> str:
        """Put one value in place; return what is wrong with it, or an empty text."""
        if not isinstance(given, TensorImpl):
            return (
                f'While copying the parameter named "{key}", expected torch.Tensor or '
                f"Tensor-like object from checkpoint but received {type(given)}"
            )
        # Checkpoints from long ago hold scalars as tensors of one element.
        if own.ndim == 0 and tuple(given.shape) == (1,):
            given = given[0]  # type: ignore[index]
        if tuple(own.shape) != tuple(given.shape):
            return (
                f"size mismatch for {key}: copying a param with shape {given.shape} from "
                f"checkpoint, the shape in current model is {own.shape}."
            )
        try:
            if assign:
                self._assign_member(name, own, given)
            else:
                with no_grad():
                    own.copy_(given)
        except Exception as error:
            return (
                f'While copying the parameter named "{key}", whose dimensions in the model are '
                f"{own.shape} and whose dimensions in the checkpoint are {given.shape}, "
                f"an exception occurred : {error.args}."
            )
        return ""

    def _assign_member(self, name: str, own: Any, given: Any) -> None:
        if isinstance(own, Parameter):
            if not isinstance(given, Parameter):
                given = Parameter(given, requires_grad=own.requires_grad)
            else:
                given.requires_grad_(own.requires_grad)
        setattr(self, name, given)

    def _load_extra_state(
        self, state: dict[str, Any], prefix: str, strict: bool, missing: list[str], extra: list[str]
    ) -> None:
        key = prefix + EXTRA_STATE
        if self._takes_extra_state():
            if key in state:
                self.set_extra_state(state[key])
            elif strict:
                missing.append(key)
        elif strict and key in state:
            extra.append(key)

    def _unknown_keys(
        self, state: dict[str, Any], prefix: str, members: dict[str, Any]
    ) -> Iterator[str]:
        for key in state:
            if not key.startswith(prefix) or key == prefix + EXTRA_STATE:
                continue
            head, _, below = key[len(prefix) :].partition(".")
            if head not in (self._modules if below else members):
                yield key

    # ------------------------------------------------------------------ hooks

    def register_state_dict_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call ``hook(module, prefix, keep_vars)`` before the module's state is collected."""
        return RemovableHandle.enter(self._state_dict_pre_hooks, hook)

    def register_state_dict_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call ``hook(module, state_dict, prefix, local_metadata)`` after it was collected."""
        return RemovableHandle.enter(self._state_dict_hooks, hook)

    def _register_state_dict_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        return RemovableHandle.enter(self._state_dict_hooks, hook)

    def _register_load_state_dict_pre_hook(
        self, hook: Callable[..., Any], with_module: bool = False
    ) -> RemovableHandle:
        bound = _WithModule(hook, self) if with_module else hook
        return RemovableHandle.enter(self._load_state_dict_pre_hooks, bound)

    def register_load_state_dict_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call ``hook(module, state_dict, prefix, ...)`` before the module's own keys are read."""
        return self._register_load_state_dict_pre_hook(hook, with_module=True)

    def register_load_state_dict_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call ``hook(module, incompatible_keys)`` after the module and its children loaded."""
        return RemovableHandle.enter(self._load_state_dict_post_hooks, hook)


class _WithModule:
    """A hook that gets its module first; picklable and copyable, unlike a lambda."""

    def __init__(self, hook: Callable[..., Any], module: ModuleState) -> None:
        self.hook = hook
        self.module = module

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.hook(self.module, *args, **kwargs)
