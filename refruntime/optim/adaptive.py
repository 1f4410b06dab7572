"""Optimizers that scale each coordinate by its own history of gradients.

Sources: Duchi, Hazan, Singer, "Adaptive subgradient methods", 2011 (Adagrad); Hinton's lecture 6e,
2012, and Graves, arXiv:1308.0850 (RMSprop, centered); Zeiler, arXiv:1212.5701 (Adadelta);
Riedmiller and Braun, "A direct adaptive method for faster backpropagation learning", 1993 (Rprop);
Polyak and Juditsky, "Acceleration of stochastic approximation by averaging", 1992 (ASGD).
"""

from __future__ import annotations

from typing import Any

from refruntime._ops.opdef import ops
from refruntime.errors import ArgumentValueError
from refruntime.optim.optimizer import (
    ParameterwiseOptimizer,
    check_range,
    number,
    refuse_differentiable,
    scalar_state,
    tagged,
    zeros_state,
)

__all__ = ["ASGD", "Adadelta", "Adagrad", "RMSprop", "Rprop"]


def _penalised(param: Any, grad: Any, group: dict[str, Any]) -> Any:
    if group["maximize"]:
        grad = -grad
    decay = group["weight_decay"]
    return grad.add(param, alpha=decay) if decay else grad


class Adagrad(ParameterwiseOptimizer):
    """Adagrad: divide by the root of the sum of all squared gradients.

    Parameters
    ----------
    params : iterable
        Parameters or groups.
    lr, lr_decay : float
        The rate at step t is ``lr / (1 + (t - 1) * lr_decay)``.
    weight_decay : float
        L2 penalty.
    initial_accumulator_value : float
        Where the sums start.
    eps : float
        Added to the denominator.
    maximize : bool
        Go uphill.
    """

    def __init__(
        self, params: Any, lr: float = 1e-2, lr_decay: float = 0, weight_decay: float = 0,
        initial_accumulator_value: float = 0, eps: float = 1e-10, foreach: bool | None = None, *,
        maximize: bool = False, differentiable: bool = False, fused: bool | None = None,
    ) -> None:  # fmt: skip
        check_range("Adagrad", "learning rate", lr)
        check_range("Adagrad", "lr_decay", lr_decay)
        check_range("Adagrad", "weight_decay", weight_decay)
        check_range("Adagrad", "initial_accumulator_value", initial_accumulator_value)
        check_range("Adagrad", "epsilon", eps)
        refuse_differentiable("Adagrad", differentiable)
        defaults = {
            "lr": lr, "lr_decay": lr_decay, "eps": eps, "weight_decay": weight_decay,
            "initial_accumulator_value": initial_accumulator_value, "foreach": foreach,
            "maximize": maximize, "differentiable": differentiable, "fused": fused,
        }  # fmt: skip
        super().__init__(params, defaults)
        # The sums exist from the start, as in torch, where checkpoints show them before a step.
        for group in self.param_groups:
            for param in group["params"]:
                self._begin(param, self.state[param], group)

    def _begin(self, param: Any, state: dict[str, Any], group: dict[str, Any]) -> None:
        state["step"] = scalar_state()
        state["sum"] = tagged(ops.full_like(param, group["initial_accumulator_value"]))

    def update(self, param: Any, grad: Any, state: dict[str, Any], group: dict[str, Any]) -> None:
        """``s += g^2``; ``p -= rate * g / (sqrt(s) + eps)``."""
        if not state:
            self._begin(param, state, group)
        state["step"] += 1
        grad = _penalised(param, grad, group)
        rate = number(group["lr"]) / (1 + (float(state["step"].item()) - 1) * group["lr_decay"])
        total = state["sum"].addcmul_(grad, grad, value=1)
        param.addcdiv_(grad, total.sqrt().add_(group["eps"]), value=-rate)


class RMSprop(ParameterwiseOptimizer):
    """RMSprop: divide by the root of a running mean of squared gradients.

    Parameters
    ----------
    params : iterable
        Parameters or groups.
    lr : float
        Learning rate.
    alpha : float
        How slowly the mean forgets.
    eps : float
        Added to the denominator.
    weight_decay : float
        L2 penalty.
    momentum : float
        Momentum of the scaled steps.
    centered : bool
        Divide by the standard deviation instead.
    maximize : bool
        Go uphill.
    """

    def __init__(
        self, params: Any, lr: float = 1e-2, alpha: float = 0.99, eps: float = 1e-8,
        weight_decay: float = 0, momentum: float = 0, centered: bool = False,
        capturable: bool = False, foreach: bool | None = None, maximize: bool = False,
        differentiable: bool = False,
    ) -> None:  # fmt: skip
        check_range("RMSprop", "learning rate", lr)
        check_range("RMSprop", "epsilon", eps)
        check_range("RMSprop", "momentum", momentum)
        check_range("RMSprop", "weight_decay", weight_decay)
        check_range("RMSprop", "alpha", alpha)
        refuse_differentiable("RMSprop", differentiable)
        defaults = {
            "lr": lr, "momentum": momentum, "alpha": alpha, "eps": eps, "centered": centered,
            "weight_decay": weight_decay, "capturable": capturable, "foreach": foreach,
            "maximize": maximize, "differentiable": differentiable,
        }  # fmt: skip
        super().__init__(params, defaults)

    def update(self, param: Any, grad: Any, state: dict[str, Any], group: dict[str, Any]) -> None:
        """``p -= lr * g / (sqrt(mean square) + eps)``, through the momentum if there is one."""
        if not state:
            state["step"] = scalar_state()
            state["square_avg"] = zeros_state(param)
            if group["momentum"] > 0:
                state["momentum_buffer"] = zeros_state(param)
            if group["centered"]:
                state["grad_avg"] = zeros_state(param)
        state["step"] += 1
        grad = _penalised(param, grad, group)
        alpha = group["alpha"]
        square = state["square_avg"].mul_(alpha).addcmul_(grad, grad, value=1 - alpha)
        if group["centered"]:
            mean = state["grad_avg"].lerp_(grad, 1 - alpha)
            spread = square.addcmul(mean, mean, value=-1).sqrt_()
        else:
            spread = square.sqrt()
        spread.add_(group["eps"])
        lr = number(group["lr"])
        if group["momentum"] > 0:
            velocity = state["momentum_buffer"].mul_(group["momentum"]).addcdiv_(grad, spread)
            param.add_(velocity, alpha=-lr)
        else:
            param.addcdiv_(grad, spread, value=-lr)


class Adadelta(ParameterwiseOptimizer):
    """Adadelta: steps in the units of the parameters.

    Parameters
    ----------
    params : iterable
        Parameters or groups.
    lr : float
        Scales the step.
    rho : float
        How slowly the means forget.
    eps : float
        Added under the roots.
    weight_decay : float
        L2 penalty.
    maximize : bool
        Go uphill.
    """

    def __init__(
        self, params: Any, lr: float = 1.0, rho: float = 0.9, eps: float = 1e-6,
        weight_decay: float = 0, foreach: bool | None = None, *, capturable: bool = False,
        maximize: bool = False, differentiable: bool = False,
    ) -> None:  # fmt: skip
        check_range("Adadelta", "learning rate", lr)
        if not 0.0 <= rho <= 1.0:
            raise ArgumentValueError("Adadelta", what=f"Invalid rho value: {rho}")
        check_range("Adadelta", "epsilon", eps)
        check_range("Adadelta", "weight_decay", weight_decay)
        refuse_differentiable("Adadelta", differentiable)
        defaults = {
            "lr": lr, "rho": rho, "eps": eps, "weight_decay": weight_decay, "maximize": maximize,
            "capturable": capturable, "foreach": foreach, "differentiable": differentiable,
        }  # fmt: skip
        super().__init__(params, defaults)

    def update(self, param: Any, grad: Any, state: dict[str, Any], group: dict[str, Any]) -> None:
        """``d = g * sqrt(mean d^2 + eps) / sqrt(mean g^2 + eps)``; ``p -= lr * d``."""
        if not state:
            state["step"] = scalar_state()
            state["square_avg"] = zeros_state(param)
            state["acc_delta"] = zeros_state(param)
        state["step"] += 1
        grad = _penalised(param, grad, group)
        rho, eps = group["rho"], group["eps"]
        square = state["square_avg"].mul_(rho).addcmul_(grad, grad, value=1 - rho)
        moved = state["acc_delta"]
        delta = moved.add(eps).sqrt_().div_(square.add(eps).sqrt_()).mul_(grad)
        moved.mul_(rho).addcmul_(delta, delta, value=1 - rho)
        param.add_(delta, alpha=-number(group["lr"]))


class Rprop(ParameterwiseOptimizer):
    """Rprop: only the sign of the gradient counts; each coordinate has its own step size.

    Parameters
    ----------
    params : iterable
        Parameters or groups.
    lr : float
        The first step size.
    etas : (float, float)
        By what a step size shrinks and grows.
    step_sizes : (float, float)
        Its bounds.
    maximize : bool
        Go uphill.
    """

    def __init__(
        self, params: Any, lr: float = 1e-2, etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50), *, capturable: bool = False,
        foreach: bool | None = None, maximize: bool = False, differentiable: bool = False,
    ) -> None:  # fmt: skip
        check_range("Rprop", "learning rate", lr)
        if not 0.0 < etas[0] < 1.0 < etas[1]:
            raise ArgumentValueError("Rprop", what=f"Invalid eta values: {etas[0]}, {etas[1]}")
        refuse_differentiable("Rprop", differentiable)
        defaults = {
            "lr": lr, "etas": etas, "step_sizes": step_sizes, "foreach": foreach,
            "maximize": maximize, "differentiable": differentiable, "capturable": capturable,
        }  # fmt: skip
        super().__init__(params, defaults)

    def update(self, param: Any, grad: Any, state: dict[str, Any], group: dict[str, Any]) -> None:
        """Grow the step while the sign stays; shrink it, and skip once, when it flips."""
        if not state:
            state["step"] = scalar_state()
            state["prev"] = zeros_state(param)
            state["step_size"] = tagged(ops.full_like(param, number(group["lr"])))
        state["step"] += 1
        if group["maximize"]:
            grad = -grad
        shrink, grow = group["etas"]
        agreement = grad * state["prev"]
        factor = ops.where(agreement > 0, grow, ops.where(agreement < 0, shrink, 1.0))
        size = state["step_size"].mul_(factor).clamp_(*group["step_sizes"])
        grad = ops.where(agreement < 0, ops.zeros_like(grad), grad)
        param.addcmul_(grad.sign(), size, value=-1)
        state["prev"].copy_(grad)


class ASGD(ParameterwiseOptimizer):
    """Averaged stochastic gradient descent; the average is in the state, under ``ax``.

    Parameters
    ----------
    params : iterable
        Parameters or groups.
    lr : float
        Learning rate.
    lambd, alpha : float
        The rate at step t is ``lr / (1 + lambd * lr * t) ** alpha``.
    t0 : float
        The step at which averaging starts.
    weight_decay : float
        L2 penalty.
    maximize : bool
        Go uphill.
    """

    def __init__(
        self, params: Any, lr: float = 1e-2, lambd: float = 1e-4, alpha: float = 0.75,
        t0: float = 1e6, weight_decay: float = 0, foreach: bool | None = None,
        maximize: bool = False, differentiable: bool = False, capturable: bool = False,
    ) -> None:  # fmt: skip
        check_range("ASGD", "learning rate", lr)
        check_range("ASGD", "weight_decay", weight_decay)
        refuse_differentiable("ASGD", differentiable)
        defaults = {
            "lr": lr, "lambd": lambd, "alpha": alpha, "t0": t0, "weight_decay": weight_decay,
            "foreach": foreach, "maximize": maximize, "differentiable": differentiable,
            "capturable": capturable,
        }  # fmt: skip
        super().__init__(params, defaults)

    def update(self, param: Any, grad: Any, state: dict[str, Any], group: dict[str, Any]) -> None:
        """Decay, step, and move the average."""
        lr = number(group["lr"])
        if not state:
            state["step"] = scalar_state()
            state["eta"] = scalar_state(lr)
            state["mu"] = scalar_state(1.0)
            state["ax"] = zeros_state(param)
        state["step"] += 1
        step = float(state["step"].item())
        grad = _penalised(param, grad, group)
        eta = float(state["eta"].item())
        param.mul_(1 - group["lambd"] * eta)
        param.add_(grad, alpha=-eta)
        weight = float(state["mu"].item())
        average = state["ax"]
        if weight == 1:
            average.copy_(param)
        else:
            average.lerp_(param, weight)
        state["eta"].fill_(lr / (1 + group["lambd"] * lr * step) ** group["alpha"])
        state["mu"].fill_(1 / max(1.0, step - group["t0"]))
