"""L-BFGS: a quasi-Newton method that evaluates the model several times a step.

State
-----
One state for all parameters, under the first of them: counts, the last direction and step size, and
the last `history_size` pairs of moves and gradient changes.

Invariants
----------
* The parameters are seen as one flat vector; there is one group.
* A pair enters the history only if its curvature is positive.

Sources: Nocedal and Wright, "Numerical optimization", 2006, algorithms 7.4 (two loops), 3.5 and 3.6
(line search for the strong Wolfe conditions), equation 3.59 (cubic interpolation).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from refruntime._ops.opdef import ops
from refruntime.autograd import enable_grad, no_grad
from refruntime.errors import ArgumentTypeError, ArgumentValueError
from refruntime.optim.optimizer import Optimizer, check_range, number, tagged

__all__ = ["LBFGS"]

# Curvature below this does not enter the history.
_MIN_CURVATURE = 1e-10
_SUFFICIENT_DECREASE, _CURVATURE, _MAX_LINE_SEARCH = 1e-4, 0.9, 25


@dataclass(slots=True)
class _Point:
    """The objective along a direction: at distance t, its value, gradient and slope."""

    t: float
    loss: float
    grad: Any
    slope: float


class LBFGS(Optimizer):
    """L-BFGS.

    Parameters
    ----------
    params : iterable
        Parameters (one group).
    lr : float
        Learning rate, the first step size of each search.
    max_iter, max_eval : int
        Iterations and evaluations a step; by default 5 evaluations for 4 iterations.
    tolerance_grad, tolerance_change : float
        Stop when the largest gradient, or the move or the change of the loss, is below.
    history_size : int
        How many pairs are kept.
    line_search_fn : str, optional
        ``strong_wolfe`` or None.
    """

    def __init__(
        self, params: Any, lr: float = 1, max_iter: int = 20, max_eval: int | None = None,
        tolerance_grad: float = 1e-7, tolerance_change: float = 1e-9, history_size: int = 100,
        line_search_fn: str | None = None,
    ) -> None:  # fmt: skip
        check_range("LBFGS", "learning rate", lr)
        if line_search_fn not in (None, "strong_wolfe"):
            raise RuntimeError(
                f"LBFGS: expected line_search_fn None or 'strong_wolfe', got {line_search_fn!r}"
            )
        defaults = {
            "lr": lr, "max_iter": max_iter,
            "max_eval": max_iter * 5 // 4 if max_eval is None else max_eval,
            "tolerance_grad": tolerance_grad, "tolerance_change": tolerance_change,
            "history_size": history_size, "line_search_fn": line_search_fn,
        }  # fmt: skip
        super().__init__(params, defaults)
        if len(self.param_groups) != 1:
            raise ArgumentValueError(
                "LBFGS", what="LBFGS doesn't support per-parameter options (parameter groups)"
            )
        self._params = self.param_groups[0]["params"]

    # ------------------------------------------------------------------ the flat vector

    def _flat_grad(self) -> Any:
        parts = [
            ops.zeros(p.numel(), dtype=p.dtype) if p.grad is None else p.grad.reshape(-1)
            for p in self._params
        ]
        return ops.cat(parts, 0)

    def _move(self, t: float, direction: Any) -> None:
        start = 0
        for param in self._params:
            part = direction[start : start + param.numel()]
            param.add_(part.view(param.shape), alpha=t)
            start += param.numel()

    def _evaluate(self, closure: Callable[[], Any]) -> float:
        with enable_grad():
            return float(closure())

    # ------------------------------------------------------------------ the step

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take up to `max_iter` iterations; `closure` evaluates the model and its gradients.

        Returns
        -------
        The loss at the start.
        """
        if closure is None:
            raise ArgumentTypeError(
                "LBFGS.step", expected="a closure", got="None",
                remedy="pass a function that clears gradients, computes the loss, calls "
                "backward() and returns the loss",
            )  # fmt: skip
        with no_grad():
            return self._run(closure)

    def _run(self, closure: Callable[[], Any]) -> Any:
        group = self.param_groups[0]
        state = self.state[self._params[0]]
        state.setdefault("func_evals", 0)
        state.setdefault("n_iter", 0)
        with enable_grad():
            first = closure()
        loss, evaluations = float(first), 1
        state["func_evals"] += 1
        grad = self._flat_grad()
        if float(grad.abs().max()) <= group["tolerance_grad"]:
            return first
        for iteration in range(1, group["max_iter"] + 1):
            state["n_iter"] += 1
            direction = self._direction(state, grad, group["history_size"])
            last_grad, last_loss = grad.clone(), loss
            slope = float(grad.dot(direction))
            t = self._first_size(state, grad, number(group["lr"]))
            if slope > -group["tolerance_change"]:
                state.update(d=direction, t=t, prev_flat_grad=last_grad, prev_loss=last_loss)
                break
            loss, grad, t, spent = self._search(
                closure, _Point(0.0, loss, grad, slope), direction, t, iteration
            )
            evaluations += spent
            state["func_evals"] += spent
            state.update(d=direction, t=t, prev_flat_grad=last_grad, prev_loss=last_loss)
            moved = float(direction.mul(t).abs().max())
            if (
                evaluations >= group["max_eval"]
                or float(grad.abs().max()) <= group["tolerance_grad"]
                or moved <= group["tolerance_change"]
                or abs(loss - last_loss) < group["tolerance_change"]
            ):
                break
        return first

    def _first_size(self, state: dict[str, Any], grad: Any, lr: float) -> float:
        # Nothing is known of the scale at first: the step is then at most `lr` long in sum.
        return min(1.0, 1.0 / float(grad.abs().sum())) * lr if state["n_iter"] == 1 else lr

    def _direction(self, state: dict[str, Any], grad: Any, history_size: int) -> Any:
        """Return minus the approximate inverse Hessian times the gradient."""
        if state["n_iter"] == 1:
            state.update(old_dirs=[], old_stps=[], ro=[], H_diag=1)
            return tagged(grad.neg())
        change = grad.sub(state["prev_flat_grad"])
        move = state["d"].mul(state["t"])
        curvature = float(change.dot(move))
        if curvature > _MIN_CURVATURE:
            if len(state["old_dirs"]) == history_size:
                for name in ("old_dirs", "old_stps", "ro"):
                    state[name].pop(0)
            state["old_dirs"].append(tagged(change))
            state["old_stps"].append(tagged(move))
            state["ro"].append(1.0 / curvature)
            state["H_diag"] = curvature / float(change.dot(change))
        return tagged(_two_loops(state, grad))

    def _search(
        self, closure: Callable[[], Any], start: _Point, direction: Any, t: float, iteration: int
    ) -> tuple[float, Any, float, int]:
        """Move along the direction; return the loss, the gradient, the size, the evaluations."""
        group = self.param_groups[0]
        if group["line_search_fn"] is None:
            self._move(t, direction)
            if iteration == group["max_iter"]:
                # The last move of a step is not evaluated: the next step does it.
                return start.loss, start.grad, t, 0
            loss = self._evaluate(closure)
            return loss, self._flat_grad(), t, 1
        origin = [param.clone() for param in self._params]

        def at(distance: float) -> _Point:
            self._move(distance, direction)
            loss = self._evaluate(closure)
            grad = self._flat_grad()
            for param, value in zip(self._params, origin, strict=True):
                param.copy_(value)
            return _Point(distance, loss, grad, float(grad.dot(direction)))

        best, spent = _strong_wolfe(
            at, start, t, float(direction.abs().max()), group["tolerance_change"]
        )
        self._move(best.t, direction)
        return best.loss, best.grad, best.t, spent


def _two_loops(state: dict[str, Any], grad: Any) -> Any:
    changes, moves, inverse = state["old_dirs"], state["old_stps"], state["ro"]
    weights = [0.0] * len(changes)
    q = grad.neg()
    for i in reversed(range(len(changes))):
        weights[i] = float(moves[i].dot(q)) * inverse[i]
        q.add_(changes[i], alpha=-weights[i])
    r = q.mul(state["H_diag"])
    for i in range(len(changes)):
        r.add_(moves[i], alpha=weights[i] - float(changes[i].dot(r)) * inverse[i])
    return r


def _cubic_minimum(
    a: _Point, b: _Point, bounds: tuple[float, float] | None = None
) -> float:
    """Return where the cubic through both points and slopes is lowest, within the bounds."""
    low, high = bounds if bounds is not None else (min(a.t, b.t), max(a.t, b.t))
    left, right = (a, b) if a.t <= b.t else (b, a)
    d1 = left.slope + right.slope - 3 * (left.loss - right.loss) / (left.t - right.t)
    square = d1**2 - left.slope * right.slope
    if square < 0:
        return (low + high) / 2
    d2 = math.sqrt(square)
    span = right.t - left.t
    place = right.t - span * ((right.slope + d2 - d1) / (right.slope - left.slope + 2 * d2))
    return min(max(place, low), high)


def _strong_wolfe(
    at: Callable[[float], _Point], start: _Point, t: float, scale: float, tolerance: float
) -> tuple[_Point, int]:
    """Find a point that meets the strong Wolfe conditions; also return the evaluations."""
    point = at(t)
    spent, rounds = 1, 0
    previous, bracket, done = start, [start, point], False
    while rounds < _MAX_LINE_SEARCH:
        fails = point.loss > start.loss + _SUFFICIENT_DECREASE * point.t * start.slope
        if fails or (rounds > 0 and point.loss >= previous.loss):
            bracket = [previous, point]
            break
        if abs(point.slope) <= -_CURVATURE * start.slope:
            return point, spent
        if point.slope >= 0:
            bracket = [previous, point]
            break
        # Still going down: extrapolate, between a little and tenfold.
        bounds = (point.t + 0.01 * (point.t - previous.t), point.t * 10)
        distance = _cubic_minimum(previous, point, bounds)
        previous, point = point, at(distance)
        spent += 1
        rounds += 1
    else:
        bracket = [start, point]
    return _zoom(at, start, bracket, (scale, tolerance), rounds, spent, done)


def _zoom(
    at: Callable[[float], _Point], start: _Point, bracket: list[_Point],
    limits: tuple[float, float], rounds: int, spent: int, done: bool,
) -> tuple[_Point, int]:  # fmt: skip
    """Shrink a bracket that holds a good point; the lower end is the answer."""
    scale, tolerance = limits
    stalled = False
    low, high = (0, 1) if bracket[0].loss <= bracket[-1].loss else (1, 0)
    while not done and rounds < _MAX_LINE_SEARCH:
        left, right = sorted((bracket[0].t, bracket[1].t))
        if (right - left) * scale < tolerance:
            break
        t, stalled = _guarded(_cubic_minimum(bracket[0], bracket[1]), left, right, stalled)
        point = at(t)
        spent += 1
        rounds += 1
        fails = point.loss > start.loss + _SUFFICIENT_DECREASE * t * start.slope
        if fails or point.loss >= bracket[low].loss:
            bracket[high] = point
            low, high = (0, 1) if bracket[0].loss <= bracket[1].loss else (1, 0)
            continue
        if abs(point.slope) <= -_CURVATURE * start.slope:
            done = True
        elif point.slope * (bracket[high].t - bracket[low].t) >= 0:
            bracket[high] = bracket[low]
        bracket[low] = point
    return bracket[low], spent


def _guarded(t: float, left: float, right: float, stalled: bool) -> tuple[float, bool]:
    """Keep a trial point off the ends of the bracket when it was close to them twice."""
    margin = 0.1 * (right - left)
    if min(right - t, t - left) >= margin:
        return t, False
    if stalled or t >= right or t <= left:
        return (right - margin if abs(t - right) < abs(t - left) else left + margin), False
    return t, True
