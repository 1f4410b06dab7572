"""``autograd.graph``: edges, hooks of saved tensors, hooks of several tensors, mutation."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest

import refruntime as torch
from refruntime import alloc
from refruntime.alloc import categories
from refruntime.autograd import graph


def leaf(*values):
    return torch.tensor(values or (1.0, 2.0, 3.0), requires_grad=True)


# -- edges ------------------------------------------------------------------------------------


def test_gradient_edges_stand_for_tensors_in_every_call():
    x = leaf()
    y = x * 2
    z = (y * y).sum()
    edge, leaf_edge, out = map(graph.get_gradient_edge, (y, x, z))
    assert edge.node is y.grad_fn and edge.output_nr == 0
    assert leaf_edge.node.variable is x
    del y, z
    found = torch.autograd.grad(out, (edge, leaf_edge), torch.ones(()), retain_graph=True)
    assert [g.tolist() for g in found] == [[4.0, 8.0, 12.0], [8.0, 16.0, 24.0]]
    torch.autograd.backward(out, inputs=[leaf_edge])
    assert x.grad.tolist() == [8.0, 16.0, 24.0]


def test_edge_of_a_constant_is_refused():
    with pytest.raises(RuntimeError, match="gradient edge"):
        graph.get_gradient_edge(torch.ones(2))


def test_node_names_metadata_and_saved_values():
    x = leaf()
    node = (x * x).exp().grad_fn
    assert isinstance(node, graph.Node)
    assert node.name() == "ExpBackward0"
    node.metadata["mine"] = 1
    assert node.metadata == {"mine": 1}
    mul = node.next_functions[0][0]
    assert mul._saved_self.tolist() == [1.0, 4.0, 9.0] or mul._saved_self is x


def test_increment_version_is_seen_by_saved_values():
    x = leaf()
    y = x * 1
    z = (y * y).sum()
    graph.increment_version(y)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.backward()


# -- hooks of saved tensors -------------------------------------------------------------------


def test_pack_sees_what_is_saved_and_unpack_gives_it_back():
    packed = []

    def pack(tensor):
        packed.append((tensor.requires_grad, tensor.is_leaf))
        return tensor.numpy(force=True).copy()

    x = leaf()
    with graph.saved_tensors_hooks(pack, torch.from_numpy):
        y = (x * 2).exp()
        z = (y * x).sum()
    assert packed == [(False, True), (True, False), (True, True)]
    z.backward()
    expected = np.exp([2.0, 4.0, 6.0]) * (1 + 2 * np.array([1.0, 2.0, 3.0]))
    np.testing.assert_allclose(x.grad.numpy(), expected, rtol=1e-5)


def test_unpacked_values_keep_their_place_in_the_graph():
    x = leaf()
    with graph.saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t):
        y = x.exp()
        z = (y * x * x).sum()
    (first,) = torch.autograd.grad(z, x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    values = x.detach().numpy()
    expected = np.exp(values) * (values**2 + 4 * values + 2)
    np.testing.assert_allclose(second.numpy(), expected, rtol=1e-5)


def test_innermost_hooks_are_used_and_hooks_do_not_see_their_own_saves():
    seen = []

    def named(name):
        def pack(tensor):
            seen.append(name)
            return tensor.detach() * torch.ones(3)

        return pack

    x = leaf()
    with graph.saved_tensors_hooks(named("outer"), lambda t: t):
        with graph.saved_tensors_hooks(named("inner"), lambda t: t):
            y = x.exp()
        z = y.exp()
    z.sum().backward()
    assert seen == ["inner", "outer"]


def test_mistakes_in_hooks_are_named():
    x = leaf()
    with graph.saved_tensors_hooks(lambda t: t, lambda t: 3):
        y = x.exp().sum()
    with pytest.raises(TypeError, match="expected to be a Tensor"):
        y.backward()
    with (
        pytest.raises(RuntimeError, match="modifying its input in place"),
        graph.saved_tensors_hooks(lambda t: t.add_(1), lambda t: t),
        torch.no_grad(),
        torch.enable_grad(),
    ):
        (x * 1).exp()


def test_hooks_hold_on_their_own_thread_only_and_may_be_disabled():
    seen = []
    x = leaf()

    def work():
        x.exp()

    with graph.saved_tensors_hooks(seen.append, lambda t: t):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert seen == []
    with (
        graph.disable_saved_tensors_hooks("not here"),
        pytest.raises(RuntimeError, match="not here"),
        graph.saved_tensors_hooks(seen.append, lambda t: t),
    ):
        pass


def test_hooks_run_on_the_thread_of_the_caller(monkeypatch):
    from refruntime.autograd import sharing
    from refruntime.config import config

    monkeypatch.setattr(sharing, "WORTH_NS", 0.0)
    monkeypatch.setattr(sharing, "SMALL_BYTES", 0)
    threads = set()

    def unpack(tensor):
        threads.add(threading.current_thread())
        return tensor

    x = leaf()
    with config.patch(backward_workers=4):
        with graph.saved_tensors_hooks(lambda t: t, unpack):
            parts = [(x * k).exp().tanh() for k in range(1, 5)]
        sum(parts).sum().backward()
    assert threads == {threading.current_thread()}


def test_save_on_cpu_gives_the_same_gradients():
    x, y = leaf(), leaf()
    with graph.save_on_cpu():
        (x * x).exp().sum().backward()
    (y * y).exp().sum().backward()
    assert x.grad.tolist() == y.grad.tolist()


# -- hooks of several tensors -----------------------------------------------------------------


def test_all_mode_calls_once_with_none_for_what_is_not_reached():
    x, y, z = leaf(), leaf(), leaf()
    calls = []
    handle = graph.register_multi_grad_hook((x, y, z), calls.append)
    for _ in range(2):
        (x * y).sum().backward()
    assert [[g is None for g in found] for found in calls] == [[False, False, True]] * 2
    torch.autograd.grad((x * y * z).sum(), (x, z))
    assert [g is None for g in calls[2]] == [False, True, False]
    handle.remove()
    (x * y).sum().backward()
    assert len(calls) == 3


def test_any_mode_calls_with_the_first_gradient_of_each_call():
    x, y = leaf(), leaf()
    calls = []
    graph.register_multi_grad_hook((x, y), calls.append, mode="any")
    (x * y).sum().backward()
    (x * y).sum().backward()
    assert len(calls) == 2
    with pytest.raises(ValueError, match="mode"):
        graph.register_multi_grad_hook((x,), calls.append, mode="some")


# -- mutation ---------------------------------------------------------------------------------


def test_mutation_of_saved_tensors_copies_them_first():
    x = leaf()
    with graph.allow_mutation_on_saved_tensors():
        y = x * 1
        z = (y * y).sum()
        other = y.exp()
        y.add_(10)
        other.mul_(0)
        z.backward(retain_graph=True)
        assert x.grad.tolist() == [2.0, 4.0, 6.0]
    with pytest.raises(RuntimeError, match="outside of"):
        z.backward()


def test_unwritten_saved_tensors_are_not_copied():
    x = leaf()
    with graph.allow_mutation_on_saved_tensors():
        y = x * 1
        before = alloc.host().stats()["allocation.all.allocated"]
        z = y * y
        after = alloc.host().stats()["allocation.all.allocated"]
        assert after - before == 1
        del z


# -- retain_grad and retag --------------------------------------------------------------------


def test_retained_gradient_is_what_the_hooks_leave_even_those_registered_later():
    x = leaf()
    y = x * 2
    y.retain_grad()
    y.register_hook(lambda g: g * 10)
    y.sum().backward()
    assert y.grad.tolist() == [10.0] * 3
    assert x.grad.tolist() == [20.0] * 3


def test_retain_grad_follows_a_write_in_place():
    x = leaf()
    y = x * 2
    y.retain_grad()
    y.mul_(3)
    (y * y).sum().backward()
    assert y.grad.tolist() == [12.0, 24.0, 36.0]


def test_saved_bytes_are_tagged_until_their_node_has_run():
    x = leaf()
    y = x * 1
    z = y.exp()
    kept = z * y
    assert (y.storage.category, z.storage.category) == (categories.SAVED, categories.SAVED)
    kept.sum().backward()
    assert (y.storage.category, z.storage.category) == (
        categories.ACTIVATION, categories.ACTIVATION,
    )  # fmt: skip


# -- memory -----------------------------------------------------------------------------------


OPS = {
    "exp": lambda x: x.exp(),
    "tanh": lambda x: x.tanh(),
    "softmax": lambda x: x.softmax(0),
    "max": lambda x: x.max(0)[0],
    "var_mean": lambda x: torch.var_mean(x, 0)[0],
    "cat": lambda x: torch.cat([x, x]),
    "matmul": lambda x: x @ x,
    "layer_norm": lambda x: torch.nn.functional.layer_norm(x, (3,)),
    "relu_": lambda x: (x * 1).relu_(),
    "setitem": lambda x: _written(x),
    "pow": lambda x: x**2,
}


def _written(x):
    y = x * 1
    y[0] = x[1] * 2
    return y


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("hooked", [False, True])
def test_graphs_die_without_the_collector(name, hooked):
    x = leaf()
    gc.collect()
    gc.disable()
    try:
        if hooked:
            with graph.saved_tensors_hooks(lambda t: t, lambda t: t):
                out = OPS[name](x)
        else:
            out = OPS[name](x)
        node = weakref.ref(out.grad_fn)
        value = weakref.ref(out)
        del out
        assert value() is None
        assert node() is None
        out = OPS[name](x).sum()
        out.backward()
        node = weakref.ref(out.grad_fn)
        del out
        assert node() is None
    finally:
        gc.enable()
