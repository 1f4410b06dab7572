"""Ready parametrizations: weight norm and spectral norm."""

from __future__ import annotations

from typing import Any

from refruntime._ops.opdef import ops
from refruntime.autograd import no_grad
from refruntime.nn import functional
from refruntime.nn.modules.module import Module
from refruntime.nn.utils import parametrize
from refruntime.nn.utils._spectral_norm import as_matrix, output_dim, power_iterations
from refruntime.nn.utils._weight_norm import norm_except_dim, scaled

__all__ = ["spectral_norm", "weight_norm"]


class _WeightNorm(Module):
    """``g * v / |v|``, from the length ``original0`` and the direction ``original1``."""

    def __init__(self, dim: int | None = 0) -> None:
        super().__init__()
        self.dim = -1 if dim is None else dim

    def forward(self, weight_g: Any, weight_v: Any) -> Any:
        """Return the weight."""
        return scaled(weight_v, weight_g, self.dim)

    def right_inverse(self, weight: Any) -> tuple[Any, Any]:
        """Return the length and the direction of a weight."""
        return norm_except_dim(weight, self.dim), weight


class _SpectralNorm(Module):
    """A weight divided by its largest singular value."""

    _u: Any
    _v: Any

    def __init__(self, weight: Any, n_power_iterations: int, dim: int, eps: float) -> None:
        super().__init__()
        if n_power_iterations <= 0:
            raise ValueError(
                "Expected n_power_iterations to be positive, but got "
                f"n_power_iterations={n_power_iterations}"
            )
        self.dim = dim
        self.eps = eps
        self.n_power_iterations = n_power_iterations
        if weight.dim() > 1:
            with no_grad():
                matrix = as_matrix(weight, dim)
                u, v = (ops.empty((n,), dtype=weight.dtype).normal_(0, 1) for n in matrix.shape)
                u, v = power_iterations(matrix, functional.normalize(u, dim=0), v, 15, eps)
            self.register_buffer("_u", u)
            self.register_buffer("_v", v)

    def forward(self, weight: Any) -> Any:
        """Return the divided weight; while training, improve the estimate first."""
        if weight.dim() == 1:
            return functional.normalize(weight, dim=0, eps=self.eps)
        matrix = as_matrix(weight, self.dim)
        if self.training:
            u, v = power_iterations(matrix, self._u, self._v, self.n_power_iterations, self.eps)
            with no_grad():
                self._u.copy_(u)
                self._v.copy_(v)
        u, v = self._u.clone(), self._v.clone()
        return weight / ops.dot(u, ops.mv(matrix, v))

    def right_inverse(self, value: Any) -> Any:
        """Return the value: it is taken for a divided weight already."""
        return value


def weight_norm(module: Module, name: str = "weight", dim: int | None = 0) -> Module:
    """Train the length and the direction of a parameter apart.

    Parameters
    ----------
    module : Module
    name : str
        The parameter.
    dim : int or None
        The dimension along which there is one length each; None for one in all.
    """
    return parametrize.register_parametrization(module, name, _WeightNorm(dim), unsafe=True)


def spectral_norm(
    module: Module, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12,
    dim: int | None = None,
) -> Module:  # fmt: skip
    """Divide a parameter by its largest singular value.

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
    rows = output_dim(module, dim)
    norm = _SpectralNorm(getattr(module, name), n_power_iterations, rows, eps)
    return parametrize.register_parametrization(module, name, norm)
