"""Weight normalization as a forward pre-hook (the older form; see `parametrizations`).

Source: Salimans and Kingma, "Weight normalization", 2016.
"""

from __future__ import annotations

from typing import Any

from refruntime._ops.opdef import ops
from refruntime.nn.modules.module import Module
from refruntime.nn.parameter import Parameter

__all__ = ["WeightNorm", "remove_weight_norm", "weight_norm"]


def norm_except_dim(v: Any, dim: int) -> Any:
    """Return the norm over all dimensions but one (all, if it is -1), with kept dimensions."""
    dims = [d for d in range(v.dim()) if d != dim]
    return ops.linalg_vector_norm(v, 2.0, dims, True)


def scaled(v: Any, g: Any, dim: int) -> Any:
    """Return ``g * v / |v|``."""
    return v * (g / norm_except_dim(v, dim))


class WeightNorm:
    """The hook: before each forward, the weight is computed from its length and direction."""

    def __init__(self, name: str, dim: int) -> None:
        self.name = name
        self.dim = dim

    def compute_weight(self, module: Any) -> Any:
        """Return the weight."""
        g = getattr(module, self.name + "_g")
        v = getattr(module, self.name + "_v")
        return scaled(v, g if self.dim != -1 else g.reshape([1] * v.dim()), self.dim)

    def __call__(self, module: Any, inputs: Any) -> None:
        setattr(module, self.name, self.compute_weight(module))


def _hook_of(module: Any, name: str) -> tuple[int, WeightNorm] | None:
    for number, hook in module._forward_pre_hooks.items():
        if isinstance(hook, WeightNorm) and hook.name == name:
            return number, hook
    return None


def weight_norm(module: Module, name: str = "weight", dim: int | None = 0) -> Module:
    """Split a parameter into a length ``name_g`` and a direction ``name_v``.

    Parameters
    ----------
    module : Module
    name : str
        The parameter.
    dim : int or None
        The dimension along which there is one length each; None for one in all.
    """
    if _hook_of(module, name) is not None:
        raise RuntimeError(
            f"Cannot register two weight_norm hooks on the same parameter {name}"
        )
    weight: Any = getattr(module, name)
    hook = WeightNorm(name, -1 if dim is None else dim % weight.dim())
    del module._parameters[name]
    length = norm_except_dim(weight.detach(), hook.dim)
    if dim is None:
        length = length.reshape(())
    module.register_parameter(name + "_g", Parameter(length))
    module.register_parameter(name + "_v", Parameter(weight.data))
    setattr(module, name, hook.compute_weight(module))
    module.register_forward_pre_hook(hook)
    return module


def remove_weight_norm(module: Module, name: str = "weight") -> Module:
    """Make the parameter one again."""
    found = _hook_of(module, name)
    if found is None:
        raise ValueError(f"weight_norm of '{name}' not found in {module}")
    number, hook = found
    weight = hook.compute_weight(module)
    delattr(module, name)
    del module._parameters[name + "_g"], module._parameters[name + "_v"]
    setattr(module, name, Parameter(weight.detach()))
    del module._forward_pre_hooks[number]
    return module
