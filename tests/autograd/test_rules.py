"""The shorter ways of common rules, and of recording, give what the general ways give."""

from __future__ import annotations

import numpy as np
import pytest

import refruntime as torch
from refruntime._dispatch import call
from refruntime._ops.opdef import REGISTRY
from refruntime.autograd import node
from refruntime.autograd.node import OpNode
from refruntime.config import config


def tensors(dtype, count, requires):
    rng = np.random.default_rng(1)
    values = [torch.tensor(rng.uniform(0.5, 2.0, (3, 4))).to(dtype) for _ in range(count)]
    for value, wanted in zip(values, requires, strict=False):
        value.requires_grad_(wanted)
    return values


def bits(values):
    return [None if value is None else value.contiguous().numpy().tobytes() for value in values]


def node_of(name, operands):
    params = {"dim": None, "keepdim": False, "dtype": None} if name == "sum" else {}
    if name == "expand":
        params = {"size": (3, 4)}
    return call(REGISTRY[name], tuple(operands), params)


assert node._plain_rule("add")
REAL_ONLY = ("relu", "log", "expand")
CASES = [
    (name, requires, dtype)
    for name in sorted(node.plain_rules)
    for requires in ((True, True), (True, False), (False, True))
    for dtype in (torch.float32, torch.float64, torch.complex64)
    if len(REGISTRY[name].inputs) == 2 or requires == (True, True)
    if name not in REAL_ONLY or dtype is not torch.complex64
]


@pytest.mark.parametrize(("name", "requires", "dtype"), CASES)
def test_plain_rules_give_the_bits_of_the_derivative_rules(name, requires, dtype):
    op = REGISTRY[name]
    count = len(op.inputs)
    operands = tensors(dtype, count, requires[:count])
    out = node_of(name, operands)
    shape = tuple(out.shape)
    gradient = torch.ones(shape, dtype=out.dtype) * 1.5
    with torch.no_grad():
        general = out.grad_fn.apply([gradient])
        plain = out.grad_fn.apply_plain([gradient])
    wanted = [edge[0] is not None for edge in out.grad_fn.next_functions]
    general = [g for g, keep in zip(general, wanted, strict=True) if keep]
    plain = [g for g, keep in zip(plain, wanted, strict=True) if keep]
    assert bits(plain) == bits(general)


@pytest.mark.parametrize("number", [2, 2.5])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "div"])
def test_plain_rules_take_numbers(name, number):
    (x,) = tensors(torch.float32, 1, (True,))
    for operands in ((x, number), (number, x)):
        out = node_of(name, operands)
        with torch.no_grad():
            gradient = torch.ones(3, 4)
            general = out.grad_fn.apply([gradient])
            plain = out.grad_fn.apply_plain([gradient])
        place = [edge[0] is not None for edge in out.grad_fn.next_functions].index(True)
        assert bits([plain[place]]) == bits([general[place]])


@pytest.mark.parametrize("name", ["mul", "exp", "tanh", "div"])
def test_plain_rules_check_versions_and_release(name):
    operands = tensors(torch.float32, len(REGISTRY[name].inputs), (True, True))
    inner = [operand * 1 for operand in operands]
    out = node_of(name, inner)
    with torch.no_grad():
        (out if len(inner) == 1 else inner[1]).add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()
    out = node_of(name, [operand * 1 for operand in operands]).sum()
    out.backward()
    with pytest.raises(RuntimeError, match="second time"):
        out.backward()


def test_subclasses_take_the_general_way():
    class Odd(torch.Tensor):
        pass

    x = torch.ones(3, requires_grad=True)
    out = (x * x.detach().as_subclass(Odd)).sum()
    assert isinstance(out, Odd)
    out.backward()
    assert x.grad.tolist() == [1.0, 1.0, 1.0]


CALLS = {
    "two tensors": lambda x, y: x * y,
    "tensor and number": lambda x, y: x * 2.0,
    "number and tensor": lambda x, y: 3.0 / x,
    "one tensor": lambda x, y: x.exp(),
    "view": lambda x, y: x[1:],
    "of a view": lambda x, y: x[1:] * y[1:],
    "three operands": lambda x, y: torch.lerp(x, y, x),
    "reduction": lambda x, y: x.sum(0),
    "saved input": lambda x, y: x.log(),
}


@pytest.mark.parametrize("name", CALLS)
def test_recorders_write_what_the_constructor_writes(name):
    x, y = tensors(torch.float32, 2, (True, True))
    out = CALLS[name](x, y)
    made = out.grad_fn
    assert isinstance(made, OpNode)
    assert made.output_metas == (out.meta,)
    assert made.sequence_nr < (x * 1).grad_fn.sequence_nr
    assert all(
        successor is None or successor.sequence_nr != made.sequence_nr
        for successor, _ in made.next_functions
    )
    for kept, (kind, _, reader) in zip(made.op.saves, made.save_plan, strict=True):
        value = getattr(made, kept)
        if kind == "in" and reader is not None and made.next_functions[reader][0] is None:
            assert value is None
        else:
            assert value is not None
    (total,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    assert total.shape == x.shape


def test_a_node_stands_for_the_history_of_its_only_output():
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    assert y.autograd is y.grad_fn
    assert (y.requires_grad, y.is_leaf, y.output_nr) == (True, False, 0)
    y.retain_grad()
    y.sum().backward()
    assert y.grad.tolist() == [1.0, 1.0]
    a, b = (x * 1).unbind(0)
    assert (a.output_nr, b.output_nr) == (0, 1)
    assert a.grad_fn is b.grad_fn


def test_reductions_and_launches_from_plans_agree_with_numpy():
    x = np.random.default_rng(2).standard_normal((5, 6, 7)).astype(np.float32)
    for grain in (1, 1 << 20):
        with config.patch(parallel_grain=grain):
            t = torch.tensor(x)
            for dim in (None, 0, 1, (0, 2), (1, 2)):
                for keepdim in (False, True):
                    if dim is None and keepdim:
                        continue
                    got = t.sum() if dim is None else t.sum(dim, keepdim)
                    want = x.sum(axis=dim, keepdims=keepdim)
                    np.testing.assert_allclose(got.numpy(), want, rtol=1e-4, atol=1e-4)
                    got = t.mean() if dim is None else t.mean(dim, keepdim)
                    want = x.mean(axis=dim, keepdims=keepdim)
                    np.testing.assert_allclose(got.numpy(), want, rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose((t.mT * 2 + t.mT).numpy(), x.swapaxes(1, 2) * 3, rtol=1e-6)
            np.testing.assert_allclose((1.5 - t[..., :1] * t).numpy(), 1.5 - x[..., :1] * x)


def test_the_first_complex_call_of_an_op_takes_conjugates():
    op = REGISTRY["pow"]
    # As in a process that has not met a complex number yet.
    op.conjugates, op.node_class = False, None
    op.run.__self__.forget()
    z = torch.tensor([1.0 + 2.0j], requires_grad=True)
    torch.real(z**3).sum().backward()
    assert z.grad.tolist() == [pytest.approx((3 * (1 + 2j) ** 2).conjugate())]
