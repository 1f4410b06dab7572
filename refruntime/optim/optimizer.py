"""Optimizer: parameter groups, per-parameter state, and the contract that subclasses rely on.

State
-----
`param_groups` is a list of dicts (the parameters under "params", beside the group's settings) and
`state` maps a parameter to a dict. Both are read and changed by programs, so they are the truth.

Invariants
----------
* A parameter stands in one group only, and is a leaf.
* Updates run without recording, in place, and never replace a parameter.
* What an update keeps for a parameter is tagged OPTIMIZER in the allocator.
"""

from __future__ import annotations

import functools
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable
from copy import deepcopy
from itertools import chain
from typing import Any

from refruntime._dtypes import float32, float64, get_default_dtype
from refruntime._impl import TensorImpl
from refruntime._ops.opdef import ops
from refruntime.alloc import categories
from refruntime.autograd import enable_grad, no_grad
from refruntime.autograd.hooks import RemovableHandle
from refruntime.errors import ArgumentTypeError, ArgumentValueError

__all__ = ["Optimizer", "ParameterwiseOptimizer", "required"]

Hook = Callable[..., Any]


class _Required:
    """Marks a setting that each group must give."""

    def __repr__(self) -> str:
        return "<required parameter>"


required = _Required()


def zeros_state(param: Any, dtype: Any = None) -> Any:
    """Make a zero tensor shaped like a parameter, counted as optimizer state."""
    return tagged(ops.zeros_like(param, dtype=dtype))


def tagged(tensor: Any) -> Any:
    """Count a tensor as optimizer state and return it."""
    tensor.storage.tag(categories.OPTIMIZER)
    return tensor


def scalar_state(value: float = 0.0) -> Any:
    """Make a zero-dim tensor, such as the step count that checkpoints hold."""
    kind = float64 if get_default_dtype() is float64 else float32
    return tagged(ops.full((), value, dtype=kind))


def number(value: Any) -> Any:
    """Return a setting as a Python number; a learning rate may be a tensor of one element."""
    return value.item() if hasattr(value, "item") else value


def check_range(
    op: str, name: str, value: Any, low: float = 0.0, high: float | None = None
) -> None:
    """Raise ValueError unless low <= value (and < high)."""
    if not low <= number(value) or (high is not None and not number(value) < high):
        kind = f"in [{low}, {high})" if high is not None else f"at least {low}"
        raise ArgumentValueError(
            op, what=f"Invalid {name} value: {value}", expected=kind, got=str(value)
        )


def _with_hooks(step: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a ``step`` so that the hooks of the optimizer run around it."""

    @functools.wraps(step)
    def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
        before, after = self._optimizer_step_pre_hooks, self._optimizer_step_post_hooks
        for hook in list(before.values()):
            answer = hook(self, args, kwargs)
            if answer is not None:
                args, kwargs = _pair(answer)
        result = step(self, *args, **kwargs)
        for hook in list(after.values()):
            hook(self, args, kwargs)
        return result

    hooked.hooked = True  # type: ignore[attr-defined]
    return hooked


def _pair(answer: Any) -> tuple[Any, Any]:
    if not (isinstance(answer, tuple) and len(answer) == 2):
        raise RuntimeError(
            "step pre-hook: expected None or a tuple of (new_args, new_kwargs), "
            f"got {answer!r}; return both, changed or not"
        )
    return answer


class Optimizer:
    """Base class of all optimizers.

    Parameters
    ----------
    params : iterable
        Tensors, ``(name, tensor)`` pairs, or dicts that give a group's ``params`` and settings.
    defaults : dict
        The settings of groups that do not give their own.
    """

    _optimizer_step_pre_hooks: OrderedDict[int, Hook]
    _optimizer_step_post_hooks: OrderedDict[int, Hook]
    _state_dict_pre_hooks: OrderedDict[int, Hook]
    _state_dict_post_hooks: OrderedDict[int, Hook]
    _load_state_dict_pre_hooks: OrderedDict[int, Hook]
    _load_state_dict_post_hooks: OrderedDict[int, Hook]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        step = cls.__dict__.get("step")
        if step is not None and not getattr(step, "hooked", False):
            cls.step = _with_hooks(step)  # type: ignore[method-assign]

    def __init__(self, params: Any, defaults: dict[str, Any]) -> None:
        self.defaults = defaults
        self._make_hook_slots()
        if isinstance(params, TensorImpl):
            raise ArgumentTypeError(
                type(self).__name__,
                what="params argument given to the optimizer should be an iterable of Tensors or "
                "dicts", got="a Tensor", remedy="put it into a list",
            )  # fmt: skip
        self.state: defaultdict[Any, Any] = defaultdict(dict)
        self.param_groups: list[dict[str, Any]] = []
        groups = list(params)
        if not groups:
            raise ArgumentValueError(
                type(self).__name__, what="optimizer got an empty parameter list",
                remedy="pass model.parameters()",
            )  # fmt: skip
        if not isinstance(groups[0], dict):
            groups = [{"params": groups}]
        for group in groups:
            self.add_param_group(dict(group))

    def _make_hook_slots(self) -> None:
        for slot in _HOOK_SLOTS:
            setattr(self, slot, OrderedDict())

    def __getstate__(self) -> dict[str, Any]:
        return {
            "defaults": self.defaults, "state": self.state, "param_groups": self.param_groups
        }  # fmt: skip

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        for slot in _HOOK_SLOTS:
            self.__dict__.setdefault(slot, OrderedDict())

    def __repr__(self) -> str:
        lines = [f"{self.__class__.__name__} ("]
        for i, group in enumerate(self.param_groups):
            lines += ["", f"Parameter Group {i}"] if i else [f"Parameter Group {i}"]
            lines += [f"    {key}: {group[key]}" for key in sorted(group) if key != "params"]
        return "\n".join([*lines, ")"])

    # ------------------------------------------------------------------ groups

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group: ``{"params": tensors, setting: value, ...}``.

        Raises
        ------
        TypeError
            If the group is no dict, or something in it is no tensor.
        ValueError
            If a parameter is no leaf, stands in another group, or a required setting is missing.
        """
        if not isinstance(param_group, dict):
            raise ArgumentTypeError(
                "add_param_group", what=f"param_group must be a dict, but got {type(param_group)}"
            )
        self._name_params(param_group)
        members = param_group["params"]
        for param in members:
            self._check_param(param)
        if len(set(members)) != len(members):
            raise ArgumentValueError(
                "add_param_group",
                what="optimizer contains a parameter group with duplicate parameters",
                remedy="pass each parameter once",
            )
        for name, default in self.defaults.items():
            if default is required and name not in param_group:
                raise ArgumentValueError(
                    "add_param_group",
                    what=f"parameter group didn't specify a value of required optimization "
                    f"parameter {name}",
                )
            param_group.setdefault(name, default)
        known = set(chain.from_iterable(group["params"] for group in self.param_groups))
        if not known.isdisjoint(members):
            raise ArgumentValueError(
                "add_param_group", what="some parameters appear in more than one parameter group"
            )
        self.param_groups.append(param_group)

    def _name_params(self, group: dict[str, Any]) -> None:
        """Make "params" a list, and keep the names of named parameters beside it."""
        given = group["params"]
        if isinstance(given, TensorImpl):
            given = [given]
        elif isinstance(given, set):
            raise ArgumentTypeError(
                "add_param_group",
                what="optimizer parameters need to be organized in ordered collections, but the "
                "ordering of tensors in sets will change between runs",
                expected="a list", got="a set",
            )  # fmt: skip
        members = list(given)
        named = [isinstance(member, tuple) for member in members]
        if any(named):
            if not all(named):
                raise ArgumentValueError(
                    "add_param_group",
                    what="all optimizer params should be with/without names",
                )
            group["param_names"] = [name for name, _ in members]
            members = [param for _, param in members]
        if any(("param_names" in g) != ("param_names" in group) for g in self.param_groups):
            raise ArgumentValueError(
                "add_param_group", what="all optimizer param groups should be with/without names"
            )
        group["params"] = members

    def _check_param(self, param: Any) -> None:
        if not isinstance(param, TensorImpl):
            raise ArgumentTypeError(
                type(self).__name__,
                what="optimizer can only optimize Tensors, but one of the params is "
                + type(param).__name__,
            )
        leaf: Any = param
        if not self.defaults.get("differentiable") and not (leaf.is_leaf or leaf.retains_grad):
            raise ArgumentValueError(
                type(self).__name__, what="can't optimize a non-leaf Tensor",
                remedy="optimize the tensors that it was computed from",
            )  # fmt: skip

    # ------------------------------------------------------------------ steps

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients of all parameters, or set them to zero."""
        for group in self.param_groups:
            for param in group["params"]:
                grad = param.grad
                if grad is None:
                    continue
                if set_to_none:
                    param.grad = None
                elif grad.grad_fn is not None:
                    param.grad = grad.detach().zero_()
                else:
                    grad.requires_grad_(False)
                    grad.zero_()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters once; each optimizer defines its own."""
        raise NotImplementedError

    def register_step_pre_hook(self, hook: Hook) -> RemovableHandle:
        """Call ``hook(optimizer, args, kwargs)`` before each step; it may return new ones."""
        return RemovableHandle.enter(self._optimizer_step_pre_hooks, hook)

    def register_step_post_hook(self, hook: Hook) -> RemovableHandle:
        """Call ``hook(optimizer, args, kwargs)`` after each step."""
        return RemovableHandle.enter(self._optimizer_step_post_hooks, hook)

    # ------------------------------------------------------------------ state dict

    def register_state_dict_pre_hook(self, hook: Hook, prepend: bool = False) -> RemovableHandle:
        """Call ``hook(optimizer)`` before the state dict is made."""
        return RemovableHandle.enter(self._state_dict_pre_hooks, hook, prepend)

    def register_state_dict_post_hook(self, hook: Hook, prepend: bool = False) -> RemovableHandle:
        """Call ``hook(optimizer, state_dict)`` after it was made; it may return another."""
        return RemovableHandle.enter(self._state_dict_post_hooks, hook, prepend)

    def register_load_state_dict_pre_hook(
        self, hook: Hook, prepend: bool = False
    ) -> RemovableHandle:
        """Call ``hook(optimizer, state_dict)`` before loading; it may return another."""
        return RemovableHandle.enter(self._load_state_dict_pre_hooks, hook, prepend)

    def register_load_state_dict_post_hook(
        self, hook: Hook, prepend: bool = False
    ) -> RemovableHandle:
        """Call ``hook(optimizer)`` after loading."""
        return RemovableHandle.enter(self._load_state_dict_post_hooks, hook, prepend)

    def state_dict(self) -> dict[str, Any]:
        """Return ``{"state": {number: dict}, "param_groups": [...]}``.

        Parameters are numbered in the order of the groups; the values are not copied.
        """
        for hook in self._state_dict_pre_hooks.values():
            hook(self)
        numbers: dict[int, int] = {}
        groups = []
        for group in self.param_groups:
            for param in group["params"]:
                numbers.setdefault(id(param), len(numbers))
            packed = {key: value for key, value in group.items() if key != "params"}
            packed["params"] = [numbers[id(param)] for param in group["params"]]
            groups.append(packed)
        state = {
            numbers[id(key)] if isinstance(key, TensorImpl) else key: value
            for key, value in self.state.items()
        }
        made: dict[str, Any] = {"state": state, "param_groups": groups}
        for hook in self._state_dict_post_hooks.values():
            answer = hook(self, made)
            made = made if answer is None else answer
        return made

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the state and the settings of a `state_dict`.

        Tensors are copied, and cast to the dtype and device of their parameters.

        Raises
        ------
        ValueError
            If the groups, or the numbers of parameters in them, differ.
        """
        state_dict = dict(state_dict)
        for hook in self._load_state_dict_pre_hooks.values():
            answer = hook(self, state_dict)
            state_dict = state_dict if answer is None else answer
        saved = deepcopy(state_dict["param_groups"])
        _check_groups(self.param_groups, saved)
        old_numbers = chain.from_iterable(group["params"] for group in saved)
        params = chain.from_iterable(group["params"] for group in self.param_groups)
        owner = dict(zip(old_numbers, params, strict=True))
        state: defaultdict[Any, Any] = defaultdict(dict)
        for key, value in state_dict["state"].items():
            if key in owner:
                state[owner[key]] = _fitted(owner[key], value)
            else:
                state[key] = value
        groups = []
        for own, group in zip(self.param_groups, saved, strict=True):
            group["params"] = own["params"]
            if "param_names" in own:
                group.setdefault("param_names", own["param_names"])
            groups.append(group)
        self.__setstate__({"state": state, "param_groups": groups})
        for hook in self._load_state_dict_post_hooks.values():
            hook(self)


_HOOK_SLOTS = (
    "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks", "_state_dict_pre_hooks",
    "_state_dict_post_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks",
)  # fmt: skip


def _check_groups(own: list[dict[str, Any]], saved: list[dict[str, Any]]) -> None:
    if len(own) != len(saved):
        raise ArgumentValueError(
            "load_state_dict", what="loaded state dict has a different number of parameter groups",
            expected=str(len(own)), got=str(len(saved)),
        )  # fmt: skip
    for mine, theirs in zip(own, saved, strict=True):
        if len(mine["params"]) != len(theirs["params"]):
            raise ArgumentValueError(
                "load_state_dict",
                what="loaded state dict contains a parameter group that doesn't match the size of "
                "optimizer's group",
                expected=str(len(mine["params"])), got=str(len(theirs["params"])),
            )  # fmt: skip


def _fitted(param: Any, value: Any, key: str = "") -> Any:
    """Copy state for a parameter; floating tensors take its dtype, step counts keep theirs."""
    if isinstance(value, TensorImpl):
        tensor: Any = value
        if key == "step":
            return tagged(tensor.detach().clone())
        dtype = param.dtype if param.dtype.is_floating_point else tensor.dtype
        return tagged(tensor.detach().to(device=param.device, dtype=dtype, copy=True))
    if isinstance(value, dict):
        return {k: _fitted(param, v, str(k)) for k, v in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
        return type(value)(_fitted(param, v) for v in value)  # type: ignore[call-arg]
    return value


class ParameterwiseOptimizer(Optimizer):
    """An optimizer that updates each parameter by itself, from its gradient and its state."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient.

        Parameters
        ----------
        closure : callable, optional
            Evaluates the model again and returns the loss.

        Returns
        -------
        The loss that `closure` returned, or None.
        """
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        with no_grad():
            for group in self.param_groups:
                for param in group["params"]:
                    if param.grad is not None:
                        self._update_one(param, group)
        return loss

    def _update_one(self, param: Any, group: dict[str, Any]) -> None:
        state = self.state.get(param)
        if state is None:
            state = {}
            self.update(param, param.grad, state, group)
            # Plain SGD keeps nothing, and its state dict shows nothing.
            if state:
                self.state[param] = state
        else:
            self.update(param, param.grad, state, group)

    def update(self, param: Any, grad: Any, state: dict[str, Any], group: dict[str, Any]) -> None:
        """Change one parameter in place; `state` is empty at its first step."""
        raise NotImplementedError

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        # Groups written by an older version lack newer settings; step counts may be numbers.
        for group in self.param_groups:
            for name, default in getattr(self, "defaults", {}).items():
                group.setdefault(name, default)
        for held in self.state.values():
            if isinstance(held, dict) and isinstance(held.get("step"), (int, float)):
                held["step"] = scalar_state(held["step"])


def refuse_differentiable(op: str, differentiable: bool) -> None:
    """Raise if gradients should flow through the update, which is in place here."""
    if differentiable:
        raise ArgumentValueError(
            op, what="differentiable=True is not supported", expected="differentiable=False",
            got="True", remedy="write the update with differentiable ops",
        )  # fmt: skip
