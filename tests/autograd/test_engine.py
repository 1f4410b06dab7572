"""The engine: depth, nesting, memory, masks, streams, and what it logs."""

from __future__ import annotations

import contextlib
import gc
import json
import signal
import sys
import threading
import weakref

import numpy as np
import pytest

import refruntime as torch
from refruntime import alloc
from refruntime._ops.opdef import REGISTRY
from refruntime.autograd import engine, profiler, sharing, streams
from refruntime.config import config
from refruntime.testing import assert_no_leak


def share_everything(monkeypatch):
    monkeypatch.setattr(sharing, "WORTH_NS", 0.0)
    monkeypatch.setattr(sharing, "SMALL_BYTES", 0)


# -- depth and nesting ------------------------------------------------------------------------


def run_deep(depth):
    x = torch.ones(1, requires_grad=True)
    y = x
    for _ in range(depth):
        y = y + 1
    y.backward()
    assert x.grad.item() == 1.0
    node = weakref.ref(y.grad_fn)
    del y
    assert node() is None


def test_deep_graph_runs_and_dies_without_recursion():
    run_deep(20_000)


@pytest.mark.slow
def test_graph_of_a_million_nodes_runs_and_dies_without_recursion():
    run_deep(1_000_000)


class Nested(torch.autograd.Function):
    """Its backward builds a graph of itself, until `left` is zero, and runs backward through it."""

    left = 0
    threads: set = set()

    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, g):
        Nested.threads.add(threading.current_thread())
        if Nested.left:
            Nested.left -= 1
            with torch.enable_grad():
                x = torch.ones(1, requires_grad=True)
                y = Nested.apply(x)
            y.backward(g + 1)
            return x.grad
        return g


def test_a_thousand_nested_calls_neither_overflow_nor_deadlock():
    assert sys.getrecursionlimit() <= 10_000
    Nested.left, Nested.threads = 1000, set()
    x = torch.ones(1, requires_grad=True)
    Nested.apply(x).backward(torch.zeros(1))
    assert (Nested.left, x.grad.item()) == (0, 1000.0)
    assert threading.current_thread() in Nested.threads


def test_an_error_deep_in_a_nest_reaches_the_caller():
    class Failing(Nested):
        @staticmethod
        def backward(ctx, g):
            if Nested.left == 0:
                raise ZeroDivisionError("at the bottom")
            Nested.left -= 1
            with torch.enable_grad():
                y = Failing.apply(torch.ones(1, requires_grad=True))
            y.backward(g)
            return g

    Nested.left = 300
    with pytest.raises(ZeroDivisionError, match="at the bottom"):
        Failing.apply(torch.ones(1, requires_grad=True)).backward()
    run_deep(10)


def test_interrupt_while_a_deep_nest_runs_on_other_threads():
    class Interrupting(Nested):
        @staticmethod
        def backward(ctx, g):
            if Nested.left == 0:
                signal.raise_signal(signal.SIGINT)
                for _ in range(10**9):
                    pass
            Nested.left -= 1
            with torch.enable_grad():
                y = Interrupting.apply(torch.ones(1, requires_grad=True))
            y.backward(g)
            return g

    Nested.left = 150
    # A process that was started in the background ignores the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            Interrupting.apply(torch.ones(1, requires_grad=True)).backward()
    finally:
        signal.signal(signal.SIGINT, before)
    run_deep(10)


@pytest.mark.parametrize("workers", [1, 4])
def test_nested_calls_inside_of_shared_calls(monkeypatch, workers):
    share_everything(monkeypatch)
    with config.patch(backward_workers=workers):
        Nested.left, Nested.threads = 50, set()
        x = torch.ones(1, requires_grad=True)
        parts = [Nested.apply((x * k).tanh()).exp() for k in range(4)]
        sum(parts).backward()
    assert Nested.left == 0
    assert np.isfinite(x.grad.item())


# -- what is not asked for --------------------------------------------------------------------


def test_operands_that_lead_to_no_target_are_masked(monkeypatch):
    seen = []
    rule = REGISTRY["mm"].vjp

    def spy(g, n):
        seen.append(tuple(n.needs))
        return rule(g, n)

    monkeypatch.setattr(REGISTRY["mm"], "vjp", spy)
    a, b, c = (torch.randn(3, 3, requires_grad=True) for _ in range(3))
    out = ((a @ b) @ c).sum()
    (found,) = torch.autograd.grad(out, a, retain_graph=True)
    assert seen == [(True, False), (True, False)]
    seen.clear()
    torch.autograd.backward(out, inputs=[c])
    assert seen == [(False, True)]
    assert c.grad is not None and a.grad is None and found.shape == (3, 3)


def test_operands_are_saved_only_for_the_gradients_that_read_them():
    constant, x = torch.randn(4, 4), torch.randn(4, 4, requires_grad=True)
    y = x * 1
    for node in ((y * constant).grad_fn, (y @ constant).grad_fn, (y * 2.0).grad_fn):
        assert node.input is None
    assert (y * constant).grad_fn.other is constant
    assert (constant @ y).grad_fn.mat2 is None


def test_a_masked_node_still_works_in_place():
    x, w = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    y = x * 2
    y.mul_(w)
    assert torch.autograd.grad(y.sum(), w)[0].tolist() == [2.0] * 3


# -- memory -----------------------------------------------------------------------------------

SIZE = 1 << 18  # elements: 1 MiB of float32, served in blocks of exactly that


def peak_above(before, function):
    host = alloc.host()
    host.reset_peak_stats()
    function()
    return host.stats()["allocated_bytes.all.peak"] - before


def in_use():
    # What earlier tests left in cycles must not be freed in the middle of a measurement.
    gc.collect()
    return alloc.host().stats()["allocated_bytes.all.current"]


def liveness_bound(root, nbytes):
    """Walk a chain as one thread does; return the most bytes that must be alive at once.

    A node holds its saved output until it has run, and the gradient that has arrived until then
    too; what it makes is alive with both. The gradient that a sum shows to its operand is a view.
    """
    saved = {node for node in below(root) if node.op.saves == ("out",)}
    arrived, peak = 0, 0
    for node in sorted(below(root), key=lambda node: -node.sequence_nr):
        made = 0 if node.op.name == "sum" else 1
        peak = max(peak, len(saved) + arrived + made)
        arrived = made
        saved.discard(node)
    return peak * nbytes


def below(root):
    found, stack = {root}, [root]
    while stack:
        for node, _ in stack.pop().next_functions:
            if node is not None and node.name() != "AccumulateGrad" and node not in found:
                found.add(node)
                stack.append(node)
    return found


@pytest.mark.parametrize("steps", [("exp",) * 6, ("exp", "neg", "tanh", "neg"), ("neg",) * 4])
def test_peak_of_one_thread_is_the_liveness_bound(steps):
    x = torch.zeros(SIZE, requires_grad=True)
    with config.patch(backward_workers=1):
        y = x
        for name in steps:
            y = getattr(y, name)()
        out = y.sum()
        del y
        bound = liveness_bound(out.grad_fn, 4 * SIZE)
        # The saved values are there when backward starts.
        start = in_use()
        saved = sum(name != "neg" for name in steps) * 4 * SIZE
        assert peak_above(start - saved, out.backward) == bound


def test_gradients_that_meet_are_summed_in_place():
    x = torch.zeros(SIZE, requires_grad=True)
    y = -x
    parts = [-y for _ in range(6)]
    out = (parts[0] + parts[1] + parts[2] + parts[3] + parts[4] + parts[5]).sum()
    del parts
    # The shown gradient of the sum takes no memory: the sum, and one gradient that joins it.
    with config.patch(backward_workers=1):
        assert peak_above(in_use(), out.backward) == 2 * 4 * SIZE


def test_more_threads_take_no_more_than_their_gradients_in_flight(monkeypatch):
    share_everything(monkeypatch)
    workers = 3

    def peak(count):
        x = torch.zeros(SIZE, requires_grad=True)
        branches = []
        for _ in range(4):
            y = x
            for _ in range(3):
                y = y.exp().neg()
            branches.append(y)
        out = (branches[0] + branches[1] + branches[2] + branches[3]).sum()
        del branches, y
        with config.patch(backward_workers=count):
            return peak_above(in_use(), out.backward)

    alone = peak(1)
    # Each further worker has a gradient in, one out, and perhaps one that waits for its turn.
    assert peak(workers) <= alone + (workers - 1) * 3 * 4 * SIZE


def test_saved_values_go_as_soon_as_their_node_has_run():
    x = torch.zeros(SIZE, requires_grad=True)
    y = x.exp()
    z = y.tanh()
    out = z.sum()
    storages = [weakref.ref(y.storage), weakref.ref(z.storage)]
    alive = []
    y.register_hook(lambda g: alive.append([storage() is not None for storage in storages]))
    del y, z
    out.backward()
    assert alive == [[True, False]]
    assert [storage() for storage in storages] == [None, None]


def test_nothing_is_left_behind():
    x = torch.ones(100, requires_grad=True)
    x.grad = torch.zeros(100)
    for _ in range(3):
        with assert_no_leak():
            (x * 2).exp().sum().backward()
            torch.autograd.grad((x * x).sum(), x, create_graph=True)


# -- streams ----------------------------------------------------------------------------------


class FakeStreams:
    """Streams that write down what they are told."""

    def __init__(self):
        self.now = "main"
        self.events = []

    def current(self):
        return self.now

    @contextlib.contextmanager
    def use(self, stream):
        before, self.now = self.now, stream
        try:
            yield
        finally:
            self.now = before

    def wait(self, waiting, for_stream):
        self.events.append((waiting, for_stream))


def test_nodes_run_on_the_stream_of_their_forward(monkeypatch):
    fake = FakeStreams()
    monkeypatch.setattr(streams, "active", fake)
    ran = []
    x = torch.ones(2, requires_grad=True)
    with fake.use("side"):
        a = x * 2
    with fake.use("other"):
        b = x * 3
    out = (a + b).sum()
    for value in (a, b, out):
        value.register_hook(lambda g: ran.append(fake.now))
    fake.events.clear()
    out.backward()
    assert sorted(ran) == ["main", "other", "side"]
    assert {("side", "main"), ("other", "main"), ("main", "side"), ("main", "other")} <= set(
        fake.events
    )
    assert x.grad.tolist() == [5.0, 5.0]


def test_without_streams_a_node_has_none():
    assert (torch.ones(1, requires_grad=True) * 2).grad_fn.forward_stream is None


# -- what it logs -----------------------------------------------------------------------------


def test_trace_names_each_node_with_its_thread(tmp_path):
    x = torch.ones(2, requires_grad=True)
    with profiler.trace() as log:
        with profiler.record_function("whole step", "details"):
            (x * 2).sum().backward()
        log.save(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = [event["name"] for event in events if event["ph"] == "X"]
    assert names == ["whole step", "SumBackward0", "MulBackward0", "AccumulateGrad"]
    threads = {event["tid"] for event in events}
    assert threads == {threading.get_ident()}
    assert all(event["dur"] > 0 for event in events if event["ph"] == "X")
    assert not engine.observers


def test_record_function_decorates_and_does_nothing_without_a_trace():
    @profiler.record_function("square")
    def square(x):
        return x * x

    assert square(3) == 9
    with profiler.trace() as log:
        square(3)
    assert [one.name for one in log.ranges] == ["square"]


def test_trace_shows_workers(monkeypatch):
    share_everything(monkeypatch)
    x = torch.zeros(3, requires_grad=True)
    a, b = x.exp(), x.tanh()
    meeting = threading.Barrier(2)

    def rule(node, grads):
        meeting.wait(60)  # until the other one runs too
        return [grads[0]]

    for value in (a, b):
        kind = type(value.grad_fn)
        names = {"apply": rule, "apply_plain": rule, "__slots__": ()}
        value.grad_fn.__class__ = type(kind.__name__, (kind,), names)
    with config.patch(backward_workers=4), profiler.trace() as log:
        (a + b).sum().backward()
    assert any(name.startswith("refruntime-backward") for name in log.threads.values())


# -- what a call refuses ----------------------------------------------------------------------


def test_calls_refuse_what_cannot_be_meant():
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    with pytest.raises(RuntimeError, match="cannot be empty"):
        torch.autograd.grad(y.sum(), [])
    with pytest.raises(RuntimeError, match="got 2 tensors and 1 gradients"):
        torch.autograd.backward([y, y], [torch.ones(2)])
    with pytest.raises(RuntimeError, match="Mismatch in shape"):
        y.backward(torch.ones(3))
    with pytest.raises(ValueError, match="allow_unused"):
        torch.autograd.grad(y.sum(), x, materialize_grads=True, allow_unused=False)
    with pytest.raises(ValueError, match="batch"):
        torch.autograd.grad(y.sum(), x, torch.ones(()), is_grads_batched=True)


def test_batched_gradients_give_a_row_each():
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    y = torch.ones(1, requires_grad=True)
    (rows, unused) = torch.autograd.grad(
        x**2, (x, y), torch.eye(2), is_grads_batched=True, allow_unused=True
    )
    assert rows.tolist() == [[2.0, 0.0], [0.0, 4.0]]
    assert unused is None


def test_the_implicit_gradient_is_never_shared_with_the_user():
    seen = []
    x = torch.ones(1, requires_grad=True)
    for _ in range(2):
        out = (x * 1).sum()
        out.register_hook(seen.append)
        out.backward()
    seen[0].mul_(7)
    assert seen[1].item() == 1.0
    (x * 1).sum().backward()
    assert x.grad.item() == 3.0
