"""Define-by-run automatic differentiation: modes, nodes, saved values, the engine, `Function`."""

from __future__ import annotations

import importlib

from refruntime import _dispatch
from refruntime.autograd import function, graph, profiler, record
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
    "graph",
    "inference_mode",
    "is_grad_enabled",
    "no_grad",
    "profiler",
    "set_grad_enabled",
]

_dispatch.autograd = record

# What few programs ask for is loaded when they do: names, by the module that they stand in.
_LAZY = {
    "anomaly": "anomaly", "detect_anomaly": "anomaly", "draw": "drawing",
    "forward_ad": "forward_ad", "functional": "functional", "grad_mode": "grad_mode",
    "set_detect_anomaly": "anomaly",
}  # fmt: skip


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_LAZY[name]}")
    return module if _LAZY[name] == name else getattr(module, name)


def Variable(tensor: object, requires_grad: bool = False) -> object:
    """Return `tensor`: variables and tensors are one thing since long; kept for old programs."""
    if requires_grad:
        tensor.requires_grad_(True)  # type: ignore[attr-defined]
    return tensor
