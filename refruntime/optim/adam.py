"""Adam and its kin: steps scaled by running moments of the gradient.

Sources: Kingma and Ba, "Adam", 2015 (Adam, Adamax); Reddi, Kale, Kumar, "On the convergence of Adam
and beyond", 2018 (amsgrad); Loshchilov and Hutter, "Decoupled weight decay regularization", 2019
(AdamW); Dozat, "Incorporating Nesterov momentum into Adam", 2016 (NAdam); Liu et al., "On the
variance of the adaptive learning rate and beyond", 2020 (RAdam).
"""

from __future__ import annotations

import math
from typing import Any

from refruntime._ops.opdef import ops
from refruntime.optim.optimizer import (
    ParameterwiseOptimizer,
    check_range,
    number,
    refuse_differentiable,
    scalar_state,
    zeros_state,
)

__all__ = ["Adam", "AdamW", "Adamax", "NAdam", "RAdam"]


def _check(op: str, lr: Any, betas: Any, eps: float, weight_decay: float) -> None:
    check_range(op, "learning rate", lr)
    check_range(op, "epsilon", eps)
    check_range(op, "beta parameter at index 0", betas[0], 0.0, 1.0)
    check_range(op, "beta parameter at index 1", betas[1], 0.0, 1.0)
    check_range(op, "weight_decay", weight_decay)


def _betas(group: dict[str, Any]) -> tuple[float, float]:
    return number(group["betas"][0]), number(group["betas"][1])


def _decayed(param: Any, grad: Any, group: dict[str, Any]) -> Any:
    """Apply the sign of the direction and the weight decay; return the gradient to use."""
    if group["maximize"]:
        grad = -grad
    decay = group["weight_decay"]
    if not decay:
        return grad
    if group.get("decoupled_weight_decay"):
        param.mul_(1 - number(group["lr"]) * decay)
        return grad
    return grad.add(param, alpha=decay)


def _advance(state: dict[str, Any]) -> float:
    """Count a step and return its number."""
    state["step"] += 1
    return float(state["step"].item())


def _moments(param: Any, grad: Any, state: dict[str, Any], beta1: float, beta2: float) -> Any:
    """Update the running mean and mean square of the gradient and return both."""
    mean, square = state["exp_avg"], state["exp_avg_sq"]
    mean.lerp_(grad, 1 - beta1)
    square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
    return mean, square


class Adam(ParameterwiseOptimizer):
    """Adam.

    Parameters
    ----------
    params : iterable
        Parameters or groups.
    lr : float
        Learning rate.
    betas : (float, float)
        How slowly the running mean and mean square forget.
    eps : float
        Added to the denominator.
    weight_decay : float
        L2 penalty, added to the gradient (or, decoupled, taken from the weights).
    amsgrad : bool
        Divide by the largest mean square so far.
    maximize : bool
        Go uphill.
    decoupled_weight_decay : bool
        As in AdamW.
    foreach, fused, capturable : bool
        Accepted; there is one implementation.
    differentiable : bool
        Not supported.
    """

    def __init__(
        self, params: Any, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 0, amsgrad: bool = False, *,
        foreach: bool | None = None, maximize: bool = False, capturable: bool = False,
        differentiable: bool = False, fused: bool | None = None,
        decoupled_weight_decay: bool = False,
    ) -> None:  # fmt: skip
        _check("Adam", lr, betas, eps, weight_decay)
        refuse_differentiable("Adam", differentiable)
        defaults = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad,
            "maximize": maximize, "foreach": foreach, "capturable": capturable,
            "differentiable": differentiable, "fused": fused,
            "decoupled_weight_decay": decoupled_weight_decay,
        }  # fmt: skip
        super().__init__(params, defaults)

    def update(self, param: Any, grad: Any, state: dict[str, Any], group: dict[str, Any]) -> None:
        """``p -= lr * m_hat / (sqrt(v_hat) + eps)`` with bias-corrected moments."""
        if not state:
            state["step"] = scalar_state()
            state["exp_avg"] = zeros_state(param)
            state["exp_avg_sq"] = zeros_state(param)
            if group["amsgrad"]:
                state["max_exp_avg_sq"] = zeros_state(param)
        mean, square = state["exp_avg"], state["exp_avg_sq"]
        largest = state["max_exp_avg_sq"] if group["amsgrad"] else None
        changed = (param, mean, square) if largest is None else (param, mean, square, largest)
        ops.adam_step(
            param, grad, mean, square, largest, number(group["lr"]), _advance(state),
            betas=_betas(group), eps=group["eps"], weight_decay=group["weight_decay"],
            decoupled=group["decoupled_weight_decay"], maximize=group["maximize"], out=changed,
        )  # fmt: skip


class AdamW(Adam):
    """Adam with weight decay taken from the weights, not added to the gradient.

    Parameters are those of `Adam`; `weight_decay` defaults to 0.01.
    """

    def __init__(
        self, params: Any, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 1e-2, amsgrad: bool = False, *,
        maximize: bool = False, foreach: bool | None = None, capturable: bool = False,
        differentiable: bool = False, fused: bool | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            params, lr, betas, eps, weight_decay, amsgrad, foreach=foreach, maximize=maximize,
            capturable=capturable, differentiable=differentiable, fused=fused,
            decoupled_weight_decay=True,
        )  # fmt: skip

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        # Checkpoints of Adam do not know the setting, or say no.
        for group in self.param_groups:
            group["decoupled_weight_decay"] = True


class Adamax(ParameterwiseOptimizer):
    """Adam with the infinity norm in the place of the mean square.

    Parameters
    ----------
    params, lr, betas, eps, weight_decay, maximize
        As in `Adam`.
    """

    def __init__(
        self, params: Any, lr: float = 2e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 0, foreach: bool | None = None, *,
        maximize: bool = False, differentiable: bool = False, capturable: bool = False,
    ) -> None:  # fmt: skip
        _check("Adamax", lr, betas, eps, weight_decay)
        refuse_differentiable("Adamax", differentiable)
        defaults = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "foreach": foreach,
            "maximize": maximize, "differentiable": differentiable, "capturable": capturable,
        }  # fmt: skip
        super().__init__(params, defaults)

    def update(self, param: Any, grad: Any, state: dict[str, Any], group: dict[str, Any]) -> None:
        """``u = max(beta2 * u, |g| + eps)``; ``p -= lr / (1 - beta1^t) * m / u``."""
        if not state:
            state["step"] = scalar_state()
            state["exp_avg"] = zeros_state(param)
            state["exp_inf"] = zeros_state(param)
        beta1, beta2 = _betas(group)
        step = _advance(state)
        grad = _decayed(param, grad, group)
        state["exp_avg"].lerp_(grad, 1 - beta1)
        norm = state["exp_inf"]
        ops.maximum(norm.mul_(beta2), grad.abs().add_(group["eps"]), out=norm)
        param.addcdiv_(state["exp_avg"], norm, value=-number(group["lr"]) / (1 - beta1**step))


class NAdam(ParameterwiseOptimizer):
    """Adam with Nesterov momentum.

    Parameters
    ----------
    params, lr, betas, eps, weight_decay, decoupled_weight_decay, maximize
        As in `Adam`.
    momentum_decay : float
        How fast the momentum schedule rises to beta1.
    """

    def __init__(
        self, params: Any, lr: float = 2e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 0, momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False, *, foreach: bool | None = None,
        maximize: bool = False, capturable: bool = False, differentiable: bool = False,
    ) -> None:  # fmt: skip
        _check("NAdam", lr, betas, eps, weight_decay)
        check_range("NAdam", "momentum_decay", momentum_decay)
        refuse_differentiable("NAdam", differentiable)
        defaults = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay,
            "momentum_decay": momentum_decay, "decoupled_weight_decay": decoupled_weight_decay,
            "maximize": maximize, "foreach": foreach, "capturable": capturable,
            "differentiable": differentiable,
        }  # fmt: skip
        super().__init__(params, defaults)

    def update(self, param: Any, grad: Any, state: dict[str, Any], group: dict[str, Any]) -> None:
        """Step along the momentum of the next step and the gradient of this one."""
        if not state:
            state["step"] = scalar_state()
            state["mu_product"] = scalar_state(1.0)
            state["exp_avg"] = zeros_state(param)
            state["exp_avg_sq"] = zeros_state(param)
        beta1, beta2 = _betas(group)
        step = _advance(state)
        grad = _decayed(param, grad, group)
        decay = group["momentum_decay"]
        now = beta1 * (1 - 0.5 * 0.96 ** (step * decay))
        after = beta1 * (1 - 0.5 * 0.96 ** ((step + 1) * decay))
        state["mu_product"] *= now
        product = float(state["mu_product"].item())
        mean, square = _moments(param, grad, state, beta1, beta2)
        spread = square.div(1 - beta2**step).sqrt_().add_(group["eps"])
        lr = number(group["lr"])
        param.addcdiv_(grad, spread, value=-lr * (1 - now) / (1 - product))
        param.addcdiv_(mean, spread, value=-lr * after / (1 - product * after))


class RAdam(ParameterwiseOptimizer):
    """Adam whose adaptive scale begins only when its variance can be estimated.

    Parameters
    ----------
    params, lr, betas, eps, weight_decay, decoupled_weight_decay, maximize
        As in `Adam`.
    """

    def __init__(
        self, params: Any, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 0, decoupled_weight_decay: bool = False, *,
        foreach: bool | None = None, maximize: bool = False, capturable: bool = False,
        differentiable: bool = False,
    ) -> None:  # fmt: skip
        _check("RAdam", lr, betas, eps, weight_decay)
        refuse_differentiable("RAdam", differentiable)
        defaults = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay,
            "maximize": maximize, "foreach": foreach, "capturable": capturable,
            "decoupled_weight_decay": decoupled_weight_decay, "differentiable": differentiable,
        }  # fmt: skip
        super().__init__(params, defaults)

    def update(self, param: Any, grad: Any, state: dict[str, Any], group: dict[str, Any]) -> None:
        """Adam's step times the rectification, or plain momentum while that is undefined."""
        if not state:
            state["step"] = scalar_state()
            state["exp_avg"] = zeros_state(param)
            state["exp_avg_sq"] = zeros_state(param)
        beta1, beta2 = _betas(group)
        step = _advance(state)
        grad = _decayed(param, grad, group)
        mean, square = _moments(param, grad, state, beta1, beta2)
        lr = number(group["lr"]) / (1 - beta1**step)
        factor = _rectification(beta2, step)
        if factor is None:
            param.add_(mean, alpha=-lr)
            return
        spread = square.sqrt().add_(group["eps"])
        param.addcdiv_(mean, spread, value=-lr * factor * math.sqrt(1 - beta2**step))


def _rectification(beta2: float, step: float) -> float | None:
    """Return r_t of the RAdam paper, or None while the length of the average is at most 5."""
    longest = 2 / (1 - beta2) - 1
    length = longest - 2 * step * beta2**step / (1 - beta2**step)
    if length <= 5:
        return None
    upper = (length - 4) * (length - 2) * longest
    lower = (longest - 4) * (longest - 2) * length
    return math.sqrt(upper / lower)
