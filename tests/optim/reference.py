"""Optimizers written again in NumPy from their papers, in float64, for comparison."""

from __future__ import annotations

import numpy as np


def run(rule, start, grads, **settings):
    """Apply a rule ``(x, g, state, t) -> x`` to each gradient in turn."""
    x, state = np.asarray(start, np.float64), {}
    for t, g in enumerate(grads, 1):
        x = rule(x, np.asarray(g, np.float64), state, t, **settings)
    return x


def sgd(x, g, state, t, lr, momentum=0.0, dampening=0.0, weight_decay=0.0, nesterov=False):
    g = g + weight_decay * x
    if momentum:
        v = g if t == 1 else momentum * state["v"] + (1 - dampening) * g
        state["v"] = v
        g = g + momentum * v if nesterov else v
    return x - lr * g


def _moments(g, state, b1, b2):
    state["m"] = b1 * state.get("m", 0.0) + (1 - b1) * g
    state["s"] = b2 * state.get("s", 0.0) + (1 - b2) * g * g
    return state["m"], state["s"]


def adam(x, g, state, t, lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, amsgrad=False,
         decoupled=False):  # fmt: skip
    b1, b2 = betas
    if decoupled:
        x = x * (1 - lr * weight_decay)
    else:
        g = g + weight_decay * x
    m, s = _moments(g, state, b1, b2)
    if amsgrad:
        s = state["largest"] = np.maximum(state.get("largest", 0.0), s)
    return x - lr * (m / (1 - b1**t)) / (np.sqrt(s / (1 - b2**t)) + eps)


def adamax(x, g, state, t, lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0):
    b1, b2 = betas
    g = g + weight_decay * x
    m, _ = _moments(g, state, b1, b2)
    u = state["u"] = np.maximum(b2 * state.get("u", 0.0), np.abs(g) + eps)
    return x - lr / (1 - b1**t) * m / u


def nadam(x, g, state, t, lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, psi=4e-3):
    b1, b2 = betas
    g = g + weight_decay * x
    m, s = _moments(g, state, b1, b2)
    mu = [b1 * (1 - 0.5 * 0.96 ** (k * psi)) for k in (t, t + 1)]
    product = state["product"] = state.get("product", 1.0) * mu[0]
    step = mu[1] * m / (1 - product * mu[1]) + (1 - mu[0]) * g / (1 - product)
    return x - lr * step / (np.sqrt(s / (1 - b2**t)) + eps)


def radam(x, g, state, t, lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0):
    b1, b2 = betas
    g = g + weight_decay * x
    m, s = _moments(g, state, b1, b2)
    m = m / (1 - b1**t)
    limit = 2 / (1 - b2) - 1
    rho = limit - 2 * t * b2**t / (1 - b2**t)
    if rho <= 5:
        return x - lr * m
    r = np.sqrt((rho - 4) * (rho - 2) * limit / ((limit - 4) * (limit - 2) * rho))
    return x - lr * m * r * np.sqrt(1 - b2**t) / (np.sqrt(s) + eps)


def adagrad(x, g, state, t, lr, lr_decay=0.0, weight_decay=0.0, first=0.0, eps=1e-10):
    g = g + weight_decay * x
    s = state["s"] = state.get("s", first) + g * g
    return x - lr / (1 + (t - 1) * lr_decay) * g / (np.sqrt(s) + eps)


def rmsprop(x, g, state, t, lr, alpha=0.99, eps=1e-8, weight_decay=0.0, momentum=0.0,
            centered=False):  # fmt: skip
    g = g + weight_decay * x
    s = state["s"] = alpha * state.get("s", 0.0) + (1 - alpha) * g * g
    if centered:
        mean = state["mean"] = alpha * state.get("mean", 0.0) + (1 - alpha) * g
        s = s - mean * mean
    step = g / (np.sqrt(s) + eps)
    if momentum:
        step = state["v"] = momentum * state.get("v", 0.0) + step
    return x - lr * step


def adadelta(x, g, state, t, lr, rho=0.9, eps=1e-6, weight_decay=0.0):
    g = g + weight_decay * x
    s = state["s"] = rho * state.get("s", 0.0) + (1 - rho) * g * g
    step = np.sqrt(state.get("d", 0.0) + eps) / np.sqrt(s + eps) * g
    state["d"] = rho * state.get("d", 0.0) + (1 - rho) * step * step
    return x - lr * step


def rprop(x, g, state, t, lr, etas=(0.5, 1.2), bounds=(1e-6, 50)):
    agree = np.sign(g * state.get("g", 0.0))
    size = state.get("size", np.full_like(x, lr))
    factor = np.where(agree > 0, etas[1], np.where(agree < 0, etas[0], 1.0))
    size = state["size"] = np.clip(size * factor, *bounds)
    g = state["g"] = np.where(agree < 0, 0.0, g)
    return x - np.sign(g) * size


def asgd(x, g, state, t, lr, lambd=1e-4, alpha=0.75, t0=1e6, weight_decay=0.0):
    g = g + weight_decay * x
    eta = state.get("eta", lr)
    x = x * (1 - lambd * eta) - eta * g
    mu = state.get("mu", 1.0)
    state["average"] = state.get("average", 0.0) * (1 - mu) + mu * x
    state["eta"] = lr / (1 + lambd * lr * t) ** alpha
    state["mu"] = 1 / max(1, t - t0)
    return x
