"""torch.jit: programs call it on functions and modules; here they stay Python.

Invariants
----------
* A scripted or traced function is the function itself: same results, same gradients. There is no
  second language, so nothing that Python can do is refused.
* What only a compiled form could do (saving it for another runtime) is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NoReturn, TypeVar

from refruntime.errors import KernelMissingError
from refruntime.nn.modules.module import Module

__all__ = [
    "Final", "ScriptModule", "annotate", "export", "fork", "freeze", "ignore", "is_scripting",
    "is_tracing", "isinstance", "load", "optimize_for_inference", "save", "script",
    "script_method", "trace", "trace_module", "unused", "wait",
]  # fmt: skip

T = TypeVar("T")
_isinstance = isinstance

# A scripted module is a module.
ScriptModule = Module


def script(obj: T, *args: Any, **kwargs: Any) -> T:
    """Return the function, class or module itself."""
    return obj


def script_method(fn: T) -> T:
    """Return the method itself."""
    return fn


def trace(func: T, example_inputs: Any = None, *args: Any, **kwargs: Any) -> T:
    """Call a function or module on the example, as tracing does, and return it."""
    if example_inputs is not None:
        inputs = example_inputs if _isinstance(example_inputs, tuple) else (example_inputs,)
        func(*inputs)  # type: ignore[operator]
    return func


def trace_module(mod: T, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> T:
    """Call methods of a module on the examples, and return it."""
    for name, example in inputs.items():
        values = example if _isinstance(example, tuple) else (example,)
        getattr(mod, name)(*values)
    return mod


def export(fn: T) -> T:
    """Return the method itself."""
    return fn


def unused(fn: T) -> T:
    """Return the method itself."""
    return fn


def ignore(drop: Any = False, **kwargs: Any) -> Any:
    """Return the function itself; as ``@ignore`` or ``@ignore(drop=True)``."""
    return drop if callable(drop) else lambda fn: fn


def freeze(mod: Module, *args: Any, **kwargs: Any) -> Module:
    """Return the module, which must be in eval mode, itself."""
    if mod.training:
        raise KernelMissingError(
            "jit.freeze", what="Freezing is currently only implemented for modules in eval mode",
            expected="a module in eval mode", got="one in training", remedy="call mod.eval()",
        )  # fmt: skip
    return mod


def optimize_for_inference(mod: T, *args: Any, **kwargs: Any) -> T:
    """Return the module itself."""
    return mod


def annotate(the_type: Any, the_value: T) -> T:
    """Return the value."""
    return the_value


def isinstance(obj: Any, target_type: Any) -> bool:
    """Say whether an object is of a type."""
    return _isinstance(obj, target_type)


def is_scripting() -> bool:
    """Return False: nothing is compiled by a script compiler."""
    return False


def is_tracing() -> bool:
    """Return False: nothing is being traced."""
    return False


def fork(func: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call a function at once."""
    return func(*args, **kwargs)


def wait(future: T) -> T:
    """Return what `fork` returned."""
    return future


def _refused(op: str) -> NoReturn:
    raise KernelMissingError(
        op, what="there is no compiled form to store", expected="a state_dict",
        got="a script module", remedy="use torch.save(module.state_dict(), path)",
    )  # fmt: skip


def save(m: Any, f: Any, *args: Any, **kwargs: Any) -> NoReturn:
    """Refuse: there is no compiled form."""
    _refused("jit.save")


def load(f: Any, *args: Any, **kwargs: Any) -> NoReturn:
    """Refuse: there is no compiled form."""
    _refused("jit.load")
