"""Modules as functions of their parameters: `functional_call`, `stack_module_state`.

Invariants
----------
* A call leaves the module as it was, also when it fails.
* Parameters that a module has under several names are replaced under all of them, unless
  ``tie_weights=False``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from refruntime._impl import TensorImpl
from refruntime._ops.opdef import ops
from refruntime.errors import ArgumentTypeError, ArgumentValueError, AutogradError

Tensors = dict[str, Any]


def functional_call(
    module: Any, parameter_and_buffer_dicts: Any, args: Any = None,
    kwargs: dict[str, Any] | None = None, *, tie_weights: bool = True, strict: bool = False,
) -> Any:  # fmt: skip
    """Call a module with other parameters and buffers than its own.

    Parameters
    ----------
    module : Module
        What is called.
    parameter_and_buffer_dicts : dict, or sequence of dicts
        Tensors by the names that ``named_parameters`` and ``named_buffers`` give.
    args, kwargs
        Of the call; one argument that is no tuple stands for itself.
    tie_weights : bool
        Replace a shared parameter under all its names.
    strict : bool
        Refuse names that are unknown or missing.

    Raises
    ------
    ArgumentValueError
        If a name comes twice.
    """
    given = _merged(parameter_and_buffer_dicts)
    arguments = () if args is None else args if isinstance(args, tuple) else (args,)
    with _replaced(module, given, tie_weights, strict):
        return module(*arguments, **(kwargs or {}))


def _merged(dicts: Any) -> Tensors:
    if isinstance(dicts, dict):
        return dict(dicts)
    if not isinstance(dicts, (list, tuple)) or not all(isinstance(d, dict) for d in dicts):
        raise ArgumentValueError(
            "functional_call",
            what="Expected parameter_and_buffer_dicts to be a dict, or a list/tuple of dicts",
            got=type(dicts).__name__,
        )
    names = [name for one in dicts for name in one]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ArgumentValueError(
            "functional_call",
            what=f"{twice} appeared in multiple dictionaries; behavior of functional call is "
            "ambiguous",
        )
    return {name: value for one in dicts for name, value in one.items()}


@contextlib.contextmanager
def _replaced(module: Any, given: Tensors, tie: bool, strict: bool) -> Iterator[None]:
    """Put tensors into the places of a module for a block."""
    for value in given.values():
        if not isinstance(value, TensorImpl):
            raise ArgumentTypeError(
                "functional_call", what=f"{value!r} is not an instance of torch.Tensor",
                expected="Tensor", got=type(value).__name__,
            )  # fmt: skip
    known = _named(module)
    if strict:
        _require_all(module, known, given)
    if tie:
        given = _tied(known, given)
    old: list[tuple[dict[str, Any], str, Any]] = []
    try:
        for name, value in given.items():
            if name in known:
                place, key, before = known[name]
                old.append((place, key, before))
                place[key] = value
        yield
    finally:
        for place, key, before in reversed(old):
            # A buffer that the module has set meanwhile stays as it was before the call, too.
            place[key] = before


def _named(module: Any) -> dict[str, tuple[dict[str, Any], str, Any]]:
    """Return, for each name of a parameter or buffer, where it stands and what stands there."""
    found = {}
    for prefix, child in module.named_modules(remove_duplicate=False):
        for place in (child._parameters, child._buffers):
            for key, value in place.items():
                if value is not None:
                    found[f"{prefix}.{key}" if prefix else key] = (place, key, value)
    return found


def _require_all(module: Any, known: Any, given: Tensors) -> None:
    unknown = sorted(set(given) - set(known))
    missing = sorted(set(known) - set(given))
    lines = [f"Unexpected key(s): {', '.join(map(repr, unknown))}."] if unknown else []
    lines += [f"Missing key(s): {', '.join(map(repr, missing))}."] if missing else []
    if lines:
        raise AutogradError(
            "functional_call",
            what=f"Error(s) in reparametrizing for {type(module).__name__}: " + " ".join(lines),
            remedy="pass strict=False to replace some of the tensors only",
        )


def _tied(known: Any, given: Tensors) -> Tensors:
    """Return tensors for all names of what is replaced under one of them."""
    names: dict[int, list[str]] = {}
    for name, (_, _, value) in known.items():
        names.setdefault(id(value), []).append(name)
    spread = dict(given)
    for name in given:
        if name not in known:
            continue
        group = names[id(known[name][2])]
        others = [other for other in group if other in given]
        if any(given[other] is not given[name] for other in others):
            raise ArgumentValueError(
                "functional_call",
                what=f"functional_call got multiple values for keys {sorted(others)}, which are "
                "tied. Consider using tie_weights=False",
            )
        spread.update(dict.fromkeys(group, given[name]))
    return spread


def replace_all_batch_norm_modules_(root: Any) -> Any:
    """Let all batch norms of a module use the statistics of their batch only; return the module.

    Running statistics would be shared between the samples of a `vmap`, which may not write to them.
    """
    for module in root.modules():
        if hasattr(module, "track_running_stats") and "running_mean" in module._buffers:
            module.running_mean = module.running_var = module.num_batches_tracked = None
            module.track_running_stats = False
    return root


def stack_module_state(models: Any) -> tuple[Tensors, Tensors]:
    """Return the parameters and the buffers of several modules of one class, stacked.

    Parameters
    ----------
    models : sequence of Module
        Of one class, all in training mode or none.

    Returns
    -------
    tuple of two dicts
        Parameters (leaves that require grad where the modules' do) and buffers, each with the
        modules as first dimension; for `vmap` over `functional_call`.
    """
    models = list(models)
    if not models:
        raise _unstackable("Expected at least one model, got 0.")
    if any(model.training != models[0].training for model in models):
        raise _unstackable("Expected all models to have the same training/eval mode.")
    if any(type(model) is not type(models[0]) for model in models):
        raise _unstackable("Expected all models to be of the same class.")
    parameters = [dict(model.named_parameters()) for model in models]
    buffers = [dict(model.named_buffers()) for model in models]
    stacked = {name: _stacked([one[name] for one in parameters]) for name in parameters[0]}
    return stacked, {name: _stacked([one[name] for one in buffers]) for name in buffers[0]}


def _stacked(values: list[Any]) -> Any:
    wanted = {value.requires_grad for value in values}
    if len(wanted) > 1:
        raise _unstackable("Expected parameters to have the same requires_grad.")
    made = ops.detach(ops.stack([ops.detach(value) for value in values]))
    return made.requires_grad_(wanted.pop())


def _unstackable(what: str) -> AutogradError:
    return AutogradError("stack_module_state", what=f"stack_module_state: {what}")
