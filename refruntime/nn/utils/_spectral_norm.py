"""Spectral normalization as a forward pre-hook (the older form; see `parametrizations`).

Source: Miyato et al., "Spectral normalization for generative adversarial networks", 2018.
"""

from __future__ import annotations

from typing import Any

from refruntime._ops.opdef import ops
from refruntime.autograd import no_grad
from refruntime.nn import functional
from refruntime.nn.modules.conv import _Transposed
from refruntime.nn.modules.module import Module
from refruntime.nn.parameter import Parameter

__all__ = ["SpectralNorm", "remove_spectral_norm", "spectral_norm"]


def as_matrix(weight: Any, dim: int) -> Any:
    """Return the weight as a matrix whose rows run along `dim`."""
    if dim:
        weight = weight.permute(dim, *[d for d in range(weight.dim()) if d != dim])
    return weight.reshape(weight.shape[0], -1)


def output_dim(module: Module, dim: int | None) -> int:
    """Return `dim`, or by default the dimension of the outputs in the weight of `module`."""
    if dim is not None:
        return dim
    return 1 if isinstance(module, _Transposed) else 0


def power_iterations(matrix: Any, u: Any, v: Any, count: int, eps: float) -> tuple[Any, Any]:
    """Improve the estimates of the leading singular vectors."""
    with no_grad():
        for _ in range(count):
            v = functional.normalize(ops.mv(matrix.t(), u), dim=0, eps=eps)
            u = functional.normalize(ops.mv(matrix, v), dim=0, eps=eps)
    return u, v


class SpectralNorm:
    """The hook: before each forward, the weight is divided by its largest singular value."""

    def __init__(self, name: str, n_power_iterations: int, dim: int, eps: float) -> None:
        if n_power_iterations <= 0:
            raise ValueError(
                "Expected n_power_iterations to be positive, but got "
                f"n_power_iterations={n_power_iterations}"
            )
        self.name = name
        self.dim = dim
        self.n_power_iterations = n_power_iterations
        self.eps = eps

    def compute_weight(self, module: Any, improve: bool) -> Any:
        """Return the weight; `improve` runs the power iterations first."""
        weight = getattr(module, self.name + "_orig")
        u, v = getattr(module, self.name + "_u"), getattr(module, self.name + "_v")
        matrix = as_matrix(weight, self.dim)
        if improve:
            new_u, new_v = power_iterations(matrix, u, v, self.n_power_iterations, self.eps)
            with no_grad():
                u.copy_(new_u)
                v.copy_(new_v)
            # The graph keeps copies: the buffers change again at the next forward.
            u, v = u.clone(), v.clone()
        return weight / ops.dot(u, ops.mv(matrix, v))

    def __call__(self, module: Any, inputs: Any) -> None:
        setattr(module, self.name, self.compute_weight(module, module.training))


def spectral_norm(
    module: Module, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12,
    dim: int | None = None,
) -> Module:  # fmt: skip
    """Divide a parameter by its largest singular value, estimated by power iterations.

    Parameters
    ----------
    module : Module
    name : str
        The parameter.
    n_power_iterations : int
        Iterations a forward (while training).
    eps : float
        The smallest norm that is divided by.
    dim : int, optional
        The dimension of the outputs: 1 for transposed convolutions, else 0.
    """
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, SpectralNorm) and hook.name == name:
            raise RuntimeError(
                f"Cannot register two spectral_norm hooks on the same parameter {name}"
            )
    rows = output_dim(module, dim)
    hook = SpectralNorm(name, n_power_iterations, rows, eps)
    weight: Any = module._parameters.pop(name)
    with no_grad():
        height, width = as_matrix(weight, rows).shape
        u = functional.normalize(ops.empty((height,), dtype=weight.dtype).normal_(0, 1), dim=0)
        v = functional.normalize(ops.empty((width,), dtype=weight.dtype).normal_(0, 1), dim=0)
    module.register_parameter(name + "_orig", weight)
    setattr(module, name, weight.data)
    module.register_buffer(name + "_u", u)
    module.register_buffer(name + "_v", v)
    module.register_forward_pre_hook(hook)
    return module


def remove_spectral_norm(module: Module, name: str = "weight") -> Module:
    """Make the divided parameter the parameter."""
    for number, hook in module._forward_pre_hooks.items():
        if isinstance(hook, SpectralNorm) and hook.name == name:
            with no_grad():
                weight = hook.compute_weight(module, improve=False)
            delattr(module, name)
            for end in ("_orig", "_u", "_v"):
                delattr(module, name + end)
            module.register_parameter(name, Parameter(weight.detach()))
            del module._forward_pre_hooks[number]
            return module
    raise ValueError(f"spectral_norm of '{name}' not found in {module}")
