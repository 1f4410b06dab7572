"""Stochastic gradient descent, with momentum.

Source: Sutskever, Martens, Dahl, Hinton, "On the importance of initialization and momentum in deep
learning", 2013; the velocity is kept before the learning rate is applied, as in PyTorch.
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
    zeros_state,
)

__all__ = ["SGD"]


class SGD(ParameterwiseOptimizer):
    """Stochastic gradient descent.

    Parameters
    ----------
    params : iterable
        Parameters or groups.
    lr : float
        Learning rate.
    momentum, dampening : float
        ``v = momentum * v + (1 - dampening) * g``.
    weight_decay : float
        L2 penalty, added to the gradient.
    nesterov : bool
        Look ahead along the velocity.
    maximize : bool
        Go uphill.
    foreach, fused : bool, optional
        Accepted; there is one implementation.
    differentiable : bool
        Not supported.
    """

    def __init__(
        self, params: Any, lr: float = 1e-3, momentum: float = 0, dampening: float = 0,
        weight_decay: float = 0, nesterov: bool = False, *, maximize: bool = False,
        foreach: bool | None = None, differentiable: bool = False, fused: bool | None = None,
    ) -> None:  # fmt: skip
        check_range("SGD", "learning rate", lr)
        check_range("SGD", "momentum", momentum)
        check_range("SGD", "weight_decay", weight_decay)
        refuse_differentiable("SGD", differentiable)
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ArgumentValueError(
                "SGD", what="Nesterov momentum requires a momentum and zero dampening",
                got=f"momentum={momentum}, dampening={dampening}",
            )  # fmt: skip
        defaults = {
            "lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay,
            "nesterov": nesterov, "maximize": maximize, "foreach": foreach,
            "differentiable": differentiable, "fused": fused,
        }  # fmt: skip
        super().__init__(params, defaults)

    def update(self, param: Any, grad: Any, state: dict[str, Any], group: dict[str, Any]) -> None:
        """``p -= lr * v``."""
        momentum = group["momentum"]
        velocity = state.get("momentum_buffer") if momentum else None
        first = bool(momentum) and velocity is None
        if first:
            velocity = state["momentum_buffer"] = zeros_state(param)
        ops.sgd_step(
            param, grad, velocity, number(group["lr"]), momentum=momentum,
            dampening=group["dampening"], weight_decay=number(group["weight_decay"]),
            nesterov=group["nesterov"], maximize=group["maximize"], first=first,
            out=param if velocity is None else (param, velocity),
        )  # fmt: skip
