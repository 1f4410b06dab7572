"""The named workloads of all benches, written once against a module called `torch`.

State
-----
`WORKLOADS` maps a name to its `Workload`: a statement to time, and a function that makes the names
which the statement uses.

Invariants
----------
* A workload uses torch's public names only, so that refruntime and PyTorch run the same lines.
* Inputs come from one NumPy seed: both sides compute on equal numbers, and `result` is an
  expression by which the caller can see that they computed the same.
* Nothing here imports a framework; whoever times passes it in.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

MILLION_16 = 16 * 1024 * 1024


@dataclass(frozen=True)
class Workload:
    """One thing to time.

    Parameters
    ----------
    name, group : str
        What it is called, and which bench file runs it.
    setup : callable
        ``setup(torch)`` gives the names that `statement` uses.
    statement : str
        Python source that is timed.
    result : str
        An expression, evaluated after the statement, whose value must agree between frameworks.
    """

    name: str
    group: str
    setup: Callable[[Any], dict[str, Any]]
    statement: str
    result: str


WORKLOADS: dict[str, Workload] = {}


def workload(group: str, statement: str, result: str = "") -> Callable[[Any], Any]:
    """Enter a setup function as the workload of its name."""

    def enter(setup: Callable[[Any], dict[str, Any]]) -> Callable[[Any], dict[str, Any]]:
        name = setup.__name__
        WORKLOADS[name] = Workload(name, group, setup, statement, result or statement)
        return setup

    return enter


def floats(torch: Any, *shape: int, seed: int = 0, grad: bool = False) -> Any:
    """Return standard normal float32 numbers that depend on shape and seed only."""
    array = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    tensor = torch.from_numpy(array).clone()
    return tensor.requires_grad_() if grad else tensor


def integers(torch: Any, high: int, *shape: int) -> Any:
    """Return int64 numbers in [0, high)."""
    return torch.from_numpy(np.random.default_rng(0).integers(0, high, shape))


# ---------------------------------------------------------------------------------------------
# What one small op costs


@workload("ops", "x + y")
def add8(torch):
    return {"x": floats(torch, 8), "y": floats(torch, 8, seed=1)}


@workload("ops", "x + y")
def add8_grad(torch):
    return {"x": floats(torch, 8, grad=True), "y": floats(torch, 8, seed=1, grad=True)}


@workload("ops", "x.grad = y.grad = None; (x * y).sum().backward()", "x.grad")
def mul_sum_backward(torch):
    return {"x": floats(torch, 8, grad=True), "y": floats(torch, 8, seed=1, grad=True)}


def _thousand(x):
    for _ in range(500):
        x = x * 1.0001 + 1.0
    return x


def _thousand_mixed(x, c):
    for _ in range(200):
        x = ((x * 1.0001 + 1.0 - c) * c).tanh()
    return x


@workload("ops", "chain(x)")
def chain1000(torch):
    return {"x": floats(torch, 8, grad=True), "chain": _thousand}


@workload("ops", "x.grad = None; chain(x).backward(g)", "x.grad")
def chain1000_backward(torch):
    names = {"x": floats(torch, 8, grad=True), "g": floats(torch, 8, seed=1)}
    return {**names, "chain": _thousand}


@workload("ops", "x.grad = None; chain(x, c).backward(g)", "x.grad")
def chain1000_mixed_backward(torch):
    names = {"x": floats(torch, 8, grad=True), "g": floats(torch, 8, seed=1)}
    return {**names, "c": floats(torch, 8, seed=2), "chain": _thousand_mixed}


@workload("ops", "exp(x)")
def exp8(torch):
    return {"x": floats(torch, 8), "exp": torch.exp}


@workload("ops", "((x * y + 1.0).relu() - y).tanh()")
def chain8(torch):
    return {"x": floats(torch, 8), "y": floats(torch, 8, seed=1)}


@workload("ops", "x[1:3]")
def slice8(torch):
    return {"x": floats(torch, 8)}


# ---------------------------------------------------------------------------------------------
# Large elementwise work; the result is allocated each time


@workload("elementwise", "x + y")
def add_16m(torch):
    return {"x": floats(torch, MILLION_16), "y": floats(torch, MILLION_16, seed=1)}


@workload("elementwise", "relu(x * y + z)")
def mul_add_relu_16m(torch):
    names = {name: floats(torch, MILLION_16, seed=i) for i, name in enumerate("xyz")}
    return {**names, "relu": torch.relu}


@workload("elementwise", "exp(x)")
def exp_16m(torch):
    return {"x": floats(torch, MILLION_16), "exp": torch.exp}


@workload("elementwise", "gelu(x)")
def gelu_16m(torch):
    return {"x": floats(torch, MILLION_16), "gelu": torch.nn.functional.gelu}


@workload("elementwise", "x + y")
def add_transposed_4096(torch):
    return {"x": floats(torch, 4096, 4096).t(), "y": floats(torch, 4096, 4096, seed=1)}


@workload("elementwise", "x.sum()")
def sum_16m(torch):
    return {"x": floats(torch, MILLION_16)}


# ---------------------------------------------------------------------------------------------
# Rows


@workload("rows", "softmax(x, dim=-1)")
def softmax_4096x1024(torch):
    return {"x": floats(torch, 4096, 1024), "softmax": torch.nn.functional.softmax}


@workload("rows", "layer_norm(x, (1024,), w, b)")
def layer_norm_4096x1024(torch):
    return {
        "x": floats(torch, 4096, 1024),
        "w": floats(torch, 1024, seed=1),
        "b": floats(torch, 1024, seed=2),
        "layer_norm": torch.nn.functional.layer_norm,
    }


@workload("rows", "embedding(ids, table)")
def embedding_4096x256(torch):
    return {
        "ids": integers(torch, 32000, 4096),
        "table": floats(torch, 32000, 256),
        "embedding": torch.nn.functional.embedding,
    }


@workload("rows", "x.grad = None; cross_entropy(x, target).backward()", "x.grad")
def cross_entropy_4096x1000(torch):
    return {
        "x": floats(torch, 4096, 1000, grad=True),
        "target": integers(torch, 1000, 4096),
        "cross_entropy": torch.nn.functional.cross_entropy,
    }


# ---------------------------------------------------------------------------------------------
# Matrices


def _square(torch, size):
    return {"a": floats(torch, size, size), "b": floats(torch, size, size, seed=1)}


@workload("matmul", "a @ b")
def matmul_64(torch):
    return _square(torch, 64)


@workload("matmul", "a @ b")
def matmul_512(torch):
    return _square(torch, 512)


@workload("matmul", "a @ b")
def matmul_1024(torch):
    return _square(torch, 1024)


@workload("matmul", "a @ b")
def matmul_batched_32x128(torch):
    return {"a": floats(torch, 32, 128, 128), "b": floats(torch, 32, 128, 128, seed=1)}


@workload("matmul", "x.grad = w.grad = b.grad = None; linear(x, w, b).backward(g)", "w.grad")
def linear_256x512_backward(torch):
    return {
        "x": floats(torch, 256, 512, grad=True),
        "w": floats(torch, 512, 512, seed=1, grad=True),
        "b": floats(torch, 512, seed=2, grad=True),
        "g": floats(torch, 256, 512, seed=3),
        "linear": torch.nn.functional.linear,
    }


# ---------------------------------------------------------------------------------------------
# Two heavy branches that do not depend on each other, in backward. PyTorch's engine runs them on
# one thread; run with ``--threads 1`` to see what a second worker brings.


@contextlib.contextmanager
def workers(torch, count):
    """Let `count` threads run the nodes of backward, in a framework that has this setting."""
    module = sys.modules.get(f"{torch.__name__}.config")
    with module.config.patch(backward_workers=count) if module else contextlib.nullcontext():
        yield


def _branches(torch, count):
    x = floats(torch, 768, 768, grad=True)
    ends = []
    for seed in (1, 2):
        weight, y = floats(torch, 768, 768, seed=seed) / 28, x
        for _ in range(4):
            y = (y @ weight).tanh()
        ends.append(y)
    total = (ends[0] + ends[1]).sum()

    def step():
        x.grad = None
        with workers(torch, count):
            total.backward(retain_graph=True)

    return {"x": x, "step": step}


@workload("matmul", "step()", "x.grad")
def two_branches_1_worker(torch):
    return _branches(torch, 1)


@workload("matmul", "step()", "x.grad")
def two_branches_2_workers(torch):
    return _branches(torch, 2)


# ---------------------------------------------------------------------------------------------
# Convolution


def _conv(torch, grad):
    return {
        "x": floats(torch, 32, 32, 28, 28, grad=grad),
        "w": floats(torch, 64, 32, 3, 3, seed=1, grad=grad),
        "b": floats(torch, 64, seed=2, grad=grad),
        "g": floats(torch, 32, 64, 28, 28, seed=3),
        "conv2d": torch.nn.functional.conv2d,
    }


@workload("conv", "conv2d(x, w, b, padding=1)")
def conv2d(torch):
    return _conv(torch, False)


@workload(
    "conv", "x.grad = w.grad = b.grad = None; conv2d(x, w, b, padding=1).backward(g)", "w.grad"
)
def conv2d_backward(torch):
    return _conv(torch, True)


@workload("conv", "max_pool2d(x, 2)")
def max_pool2d(torch):
    return {"x": floats(torch, 32, 64, 28, 28), "max_pool2d": torch.nn.functional.max_pool2d}


# ---------------------------------------------------------------------------------------------
# Training


def convnet(torch):
    """Return the demo's network with known weights."""
    nn = torch.nn
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.25), nn.Linear(512, 10),
    )  # fmt: skip
    with torch.no_grad():
        for seed, parameter in enumerate(net.parameters()):
            parameter.copy_(floats(torch, *parameter.shape, seed=seed) * 0.05)
    return net


@workload("training", "step()", "loss_without_dropout()")
def training_step(torch):
    net = convnet(torch)
    # A rate this small leaves the loss where it is, however many steps a side has been timed for.
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-9)
    images, labels = floats(torch, 64, 1, 8, 8), integers(torch, 10, 64)
    cross_entropy = torch.nn.functional.cross_entropy

    def step():
        optimizer.zero_grad()
        cross_entropy(net(images), labels).backward()
        optimizer.step()

    def loss_without_dropout():
        net.eval()
        value = cross_entropy(net(images), labels)
        net.train()
        return value

    return {"step": step, "loss_without_dropout": loss_without_dropout}


# ---------------------------------------------------------------------------------------------
# Whole processes: source for ``python -c``, with the framework imported as torch

PROCESSES: dict[str, str] = {
    "import": "",
    "first_zeros": "torch.zeros(3)",
    "first_training_step": "import work; work.training_step(torch)['step']()",
}
