"""Backward on several threads: the same bits, the same errors, and nothing left behind.

The threshold from which nodes are worth a second thread is set to zero here, so that small graphs
take the shared way.
"""

from __future__ import annotations

import os
import threading
import traceback

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import refruntime as torch
from refruntime.autograd import sharing
from refruntime.autograd.accumulate import fit
from refruntime.autograd.pool import pool
from refruntime.config import config


@pytest.fixture(autouse=True)
def share_everything(monkeypatch):
    monkeypatch.setattr(sharing, "WORTH_NS", 0.0)
    monkeypatch.setattr(sharing, "SMALL_BYTES", 0)
    with config.patch(backward_workers=4):
        yield
    with pool.lock:
        assert pool.running == 0
        assert not any(queue.entries for queue in pool.queues.values())


def leaves_of(count):
    rng = np.random.default_rng(0)
    return [
        torch.tensor(rng.standard_normal(5, dtype=np.float32), requires_grad=True)
        for _ in range(count)
    ]


# Each step of a random graph: what it does, and to which earlier values.
BINARY = {
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "sub": lambda a, b: a - b,
    "where": lambda a, b: torch.where(a > b, a, b),
}
UNARY = {
    "tanh": torch.tanh,
    "exp": lambda a: (-a * a).exp(),
    "sum": lambda a: a.sum().expand(5),
    "halves": lambda a: torch.cat(a.split([2, 3])[::-1]),
    "select": lambda a: a[1].expand(5),
}
STEPS = st.lists(
    st.tuples(st.sampled_from([*BINARY, *UNARY]), st.integers(0, 99), st.integers(0, 99)),
    min_size=1, max_size=30,
)  # fmt: skip


def build(steps, leaves):
    values = list(leaves)
    for name, first, second in steps:
        a, b = values[first % len(values)], values[second % len(values)]
        values.append(BINARY[name](a, b) if name in BINARY else UNARY[name](a))
    return values


def reference_gradients(root, leaves):
    """Walk the graph in the order of the sequence numbers, one node at a time, with plain sums."""
    arrived = {(root.grad_fn, 0): torch.ones(5)}
    waiting = {root.grad_fn}
    while waiting:
        node = max(waiting, key=lambda n: n.sequence_nr)
        waiting.remove(node)
        if node.name() == "AccumulateGrad":
            continue
        grads = [arrived.pop((node, k), None) for k in range(len(node.output_metas))]
        for edge, gradient in zip(node.next_functions, node.apply(grads), strict=True):
            if edge[0] is None or gradient is None:
                continue
            gradient = fit(gradient, edge[0].output_metas[edge[1]], "reference").clone()
            arrived[edge] = arrived[edge] + gradient if edge in arrived else gradient
            waiting.add(edge[0])
    found = {node.variable: gradient for (node, _), gradient in arrived.items()}
    return [found.get(leaf) for leaf in leaves]


def bits(values):
    return [None if value is None else value.detach().numpy().tobytes() for value in values]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(STEPS)
def test_random_graphs_give_the_bits_of_a_plain_walk_for_any_number_of_threads(steps):
    leaves = leaves_of(3)
    root = build(steps, leaves)[-1]
    if not root.requires_grad or root.grad_fn is None:
        return
    with torch.no_grad():
        expected = bits(reference_gradients(root, leaves))
    for workers in (1, 2, 8):
        with config.patch(backward_workers=workers):
            found = torch.autograd.grad(
                root, leaves, torch.ones(5), retain_graph=True, allow_unused=True
            )
        assert bits(found) == expected
        for leaf in leaves:
            leaf.grad = None
        with config.patch(backward_workers=workers):
            root.backward(torch.ones(5), retain_graph=True)
        assert bits([leaf.grad for leaf in leaves]) == expected


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(STEPS, st.integers(0, 99), st.booleans())
def test_fault_in_a_random_node_reaches_the_caller_and_leaves_the_engine_usable(
    steps, place, python
):
    leaves = leaves_of(3)
    values = build(steps, leaves)
    root = values[-1]
    if root.grad_fn is None:
        return
    nodes = sorted(nodes_below(root.grad_fn), key=lambda node: node.sequence_nr)
    victim = nodes[place % len(nodes)]
    if python:
        victim.register_prehook(fail)
    else:
        replace_rule(victim, fail)
    with pytest.raises(ZeroDivisionError, match="on purpose"):
        root.backward(torch.ones(5))
    for leaf in leaves:
        leaf.grad = None
    (leaves[0] * 2).sum().backward()
    assert leaves[0].grad.tolist() == [2.0] * 5


def nodes_below(root):
    found, stack = {root}, [root]
    while stack:
        for node, _ in stack.pop().next_functions:
            if node is not None and node.name() != "AccumulateGrad" and node not in found:
                found.add(node)
                stack.append(node)
    return found


def replace_rule(node, rule):
    names = {"apply": rule, "apply_plain": rule, "__slots__": ()}
    node.__class__ = type(node.name(), (type(node),), names)


def fail(*args):
    raise ZeroDivisionError("on purpose")


def two_branches(x, steps=4):
    a, b = x, x
    for _ in range(steps):
        a, b = torch.tanh(a * 2), torch.exp(b * -0.5)
    return a + b


def test_error_of_a_worker_shows_the_frames_of_both_threads(monkeypatch):
    seen = threading.Event()

    def on_worker(node, grads):
        if threading.current_thread() is threading.main_thread():
            seen.wait(10)
            return [grads[0]]
        seen.set()
        raise ZeroDivisionError("on purpose")

    x = torch.ones(3, requires_grad=True)
    a, b = x * 2, x * 3
    out = a + b
    for value in (a, b):
        replace_rule(value.grad_fn, lambda node, grads: [*on_worker(node, grads), None])
    with pytest.raises(ZeroDivisionError) as caught:
        out.backward(torch.ones(3))
    text = "".join(traceback.format_exception(caught.value))
    assert "in on_worker" in text
    assert "in test_error_of_a_worker_shows_the_frames_of_both_threads" in text
    assert "refruntime-backward" in text


def test_python_of_the_user_runs_on_the_thread_of_the_caller():
    threads = set()

    class Probe(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            threads.add(threading.current_thread())
            return g * 2

    x = torch.ones(5, requires_grad=True)
    parts = [Probe.apply(two_branches(x)) for _ in range(4)]
    for part in parts:
        part.register_hook(lambda g: threads.add(threading.current_thread()))
        part.grad_fn.register_prehook(lambda g: threads.add(threading.current_thread()))
        part.grad_fn.register_hook(lambda g, h: threads.add(threading.current_thread()))
    x.register_hook(lambda g: threads.add(threading.current_thread()))
    x.register_post_accumulate_grad_hook(lambda leaf: threads.add(threading.current_thread()))
    sum(part.sum() for part in parts).backward()
    assert threads == {threading.current_thread()}


def test_grad_mode_of_the_call_holds_on_every_thread():
    x = torch.full((3,), 0.5, requires_grad=True)
    (first,) = torch.autograd.grad(two_branches(x).sum(), x, create_graph=True)
    assert first.requires_grad
    (second,) = torch.autograd.grad(first.sum(), x)
    with config.patch(backward_workers=1):
        (plain,) = torch.autograd.grad(two_branches(x).sum(), x, create_graph=True)
        (expected,) = torch.autograd.grad(plain.sum(), x)
    assert bits([second]) == bits([expected])
    assert bits([first]) == bits([plain])


def test_interrupt_in_a_hook_stops_the_call_and_leaves_the_engine_usable():
    x = torch.ones(5, requires_grad=True)
    out = two_branches(x)

    def interrupt(gradient):
        raise KeyboardInterrupt

    handle = x.register_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        out.sum().backward()
    handle.remove()
    two_branches(x).sum().backward()
    assert x.grad is not None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_of_a_fork_runs_backward_with_workers_of_its_own():
    x = torch.ones(5, requires_grad=True)
    two_branches(x).sum().backward()
    expected = x.grad.tolist()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            x.grad = None
            two_branches(x).sum().backward()
            status = int(x.grad.tolist() != expected)
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_inside_of_a_shared_call_is_an_error_in_the_child_only():
    x = torch.ones(5, requires_grad=True)
    out = two_branches(x).sum()
    children = []

    def fork(gradient):
        children.append(os.fork())

    x.register_hook(fork)
    try:
        out.backward()
    except RuntimeError as error:
        os._exit(0 if "forked" in str(error) else 2)
    if children == [0]:
        os._exit(3)
    assert os.waitpid(children[0], 0)[1] == 0
    assert x.grad is not None


def test_calls_from_eight_threads_over_shared_leaves_lose_nothing():
    x = torch.zeros(5, requires_grad=True)
    rounds, threads = 25, 8

    def work():
        for _ in range(rounds):
            a, b = x * 2, x * 3
            (a + b).sum().backward()

    team = [threading.Thread(target=work) for _ in range(threads)]
    for thread in team:
        thread.start()
    for thread in team:
        thread.join()
    assert x.grad.tolist() == [5.0 * rounds * threads] * 5
