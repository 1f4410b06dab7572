"""Define-by-run automatic differentiation: modes, nodes, saved values, the engine, `Function`."""

from __future__ import annotations

from refruntime import _dispatch
from refruntime.autograd import engine, function, functional, record
from refruntime.autograd.api import backward, grad
from refruntime.autograd.function import Function
from refruntime.autograd.gradcheck import gradcheck, gradgradcheck
from refruntime.autograd.modes import (
    enable_grad,
    inference_mode,
    is_grad_enabled,
    no_grad,
    set_grad_enabled,
)

__all__ = [
    "Function",
    "Variable",
    "backward",
    "enable_grad",
    "function",
    "functional",
    "grad",
    "gradcheck",
    "gradgradcheck",
    "inference_mode",
    "is_grad_enabled",
    "no_grad",
    "set_grad_enabled",
]

_dispatch.autograd = record
engine.calibrate()


def Variable(tensor: object, requires_grad: bool = False) -> object:
    """Return `tensor`: variables and tensors are one thing since long; kept for old programs."""
    if requires_grad:
        tensor.requires_grad_(True)  # type: ignore[attr-defined]
    return tensor
