"""Checkpointing: same numbers, less memory, and what it says of functions that do not repeat."""

from __future__ import annotations

import functools
import gc
import warnings

import numpy as np
import pytest

import refruntime as torch
from refruntime import alloc, nn
from refruntime.utils.checkpoint import (
    CheckpointError,
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
    set_checkpoint_debug_enabled,
    set_checkpoint_early_stop,
)

BOTH = pytest.mark.parametrize("use_reentrant", [False, True])


def build(width=8, depth=6):
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(depth)])


def gradients(run):
    net = build()
    x = torch.ones(3, 8, requires_grad=True)
    run(net, x).sum().backward()
    return [x.grad.numpy(), *(p.grad.numpy() for p in net.parameters())]


@pytest.mark.parametrize(
    "run",
    [
        lambda net, x: checkpoint(net, x, use_reentrant=False),
        lambda net, x: checkpoint(net, x, use_reentrant=False, early_stop=False),
        lambda net, x: net[3:](checkpoint(net[:3], x, use_reentrant=True)),
        lambda net, x: checkpoint_sequential(net, 3, x, use_reentrant=False),
        lambda net, x: checkpoint_sequential([m.forward for m in net], 4, x, use_reentrant=True),
    ],
)
def test_gradients_are_those_of_the_plain_run(run):
    for ours, plain in zip(gradients(run), gradients(lambda net, x: net(x)), strict=True):
        np.testing.assert_array_equal(ours, plain)


def test_nested_calls_recompute_inside_recomputation():
    counts = {"inner": 0, "outer": 0}

    def inner(x):
        counts["inner"] += 1
        return x.sin().exp()

    def outer(x):
        counts["outer"] += 1
        return checkpoint(inner, x.cos(), use_reentrant=False).tanh()

    x = torch.linspace(0, 1, 5, requires_grad=True)
    y = checkpoint(outer, x, use_reentrant=False)
    y.sum().backward()
    plain = torch.linspace(0, 1, 5, requires_grad=True)
    plain.cos().sin().exp().tanh().sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), plain.grad.numpy(), rtol=1e-6)
    assert counts["outer"] == 2
    assert counts["inner"] >= 2


def test_parameters_get_gradients_when_no_input_does_unless_reentrant():
    net = build()
    checkpoint(net, torch.ones(3, 8), use_reentrant=False).sum().backward()
    assert all(p.grad is not None for p in net.parameters())
    with pytest.warns(UserWarning, match="Gradients will be None"):
        out = checkpoint(net, torch.ones(3, 8), use_reentrant=True)
    assert not out.requires_grad


@BOTH
def test_the_second_run_draws_the_same_numbers_and_leaves_the_generator_alone(use_reentrant):
    drop = nn.Dropout(0.5)
    x = torch.ones(200, requires_grad=True)
    torch.manual_seed(3)
    out = checkpoint(drop, x, use_reentrant=use_reentrant)
    mark = torch.get_rng_state().tolist()
    out.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), out.detach().numpy())
    assert torch.get_rng_state().tolist() == mark


def test_without_the_state_of_the_generator_the_second_run_draws_anew():
    x = torch.ones(200, requires_grad=True)
    run = functools.partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
    out = run(lambda x: x * (torch.rand(200) * x), x)
    out.sum().backward()
    assert not np.array_equal(x.grad.numpy(), 2 * out.detach().numpy())


@BOTH
def test_the_second_run_sees_the_autocast_region_of_the_first(use_reentrant):
    seen = []

    def body(x, w):
        y = x @ w
        seen.append(y.dtype)
        return y.float()

    x, w = torch.ones(4, 4, requires_grad=True), torch.ones(4, 4, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = checkpoint(body, x, w, use_reentrant=use_reentrant, early_stop=False)
    out.sum().backward()
    assert seen == [torch.bfloat16, torch.bfloat16]


@BOTH
def test_several_outputs_and_other_arguments(use_reentrant):
    def both(x, factor):
        return x * factor, x + 1.0

    x = torch.ones(2, requires_grad=True)
    first, second = checkpoint(both, x, 3.0, use_reentrant=use_reentrant)
    (first.sum() + 2 * second.sum()).backward()
    assert x.grad.tolist() == [5.0, 5.0]
    y = torch.ones(2, requires_grad=True)
    first, _ = checkpoint(both, y, 3.0, use_reentrant=use_reentrant)
    first.sum().backward()
    assert y.grad.tolist() == [3.0, 3.0]


def test_keywords_reach_the_function():
    x = torch.ones(2, requires_grad=True)
    checkpoint(
        lambda x, *, plus: (x + plus).exp(), x, plus=1.0, use_reentrant=False
    ).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), np.exp([2.0, 2.0]), rtol=1e-6)


def test_second_derivatives_go_through_a_checkpointed_call():
    x = torch.tensor([0.5, 1.0], requires_grad=True)
    y = checkpoint(lambda x: x.exp().sin(), x, use_reentrant=False)
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    e = np.exp([0.5, 1.0])
    np.testing.assert_allclose(first.detach().numpy(), e * np.cos(e), rtol=1e-5)
    np.testing.assert_allclose(second.numpy(), e * np.cos(e) - e * e * np.sin(e), rtol=1e-5)


def test_function_transforms_run_through_checkpointed_calls():
    from refruntime.func import grad, vmap

    def body(x):
        return x.exp().sin()

    def total(x):
        return checkpoint(body, x, use_reentrant=False).sum()

    x = torch.tensor([[0.5, 1.0], [0.0, 2.0]])
    want = grad(lambda x: body(x).sum())(x)
    np.testing.assert_array_equal(grad(total)(x).numpy(), want.numpy())
    with pytest.warns(UserWarning, match="activations are kept"):
        rows = vmap(grad(total))(x)
    np.testing.assert_allclose(rows.numpy(), want.numpy(), rtol=1e-6)


def test_a_retained_graph_is_computed_again_for_each_backward():
    calls = []

    def body(x):
        calls.append(1)
        return x.exp().sin()

    x = torch.tensor([0.5], requires_grad=True)
    y = checkpoint(body, x, use_reentrant=False)
    y.backward(retain_graph=True)
    once = x.grad.item()
    y.backward()
    assert x.grad.item() == pytest.approx(2 * once)
    assert len(calls) == 3


def test_early_stop_leaves_out_what_nothing_needs():
    ran = []

    def body(x):
        y = x.exp()
        ran.append("needed")
        z = y.sin()
        ran.append("not needed again")
        return z + 1

    def run(**settings):
        ran.clear()
        x = torch.ones(2, requires_grad=True)
        checkpoint(body, x, use_reentrant=False, **settings).sum().backward()
        return ran.count("not needed again")

    assert run() == 1
    assert run(early_stop=False) == 2
    with set_checkpoint_early_stop(False):
        assert run() == 2


def test_a_function_that_does_something_else_is_found_out():
    runs = []

    def fewer(x):
        runs.append(1)
        return x.sin().exp() if len(runs) % 2 else x.sin()

    x = torch.ones(3, requires_grad=True)
    y = checkpoint(fewer, x, use_reentrant=False)
    with pytest.raises(CheckpointError, match="different number of tensors"):
        y.sum().backward()

    def smaller(x):
        runs.append(1)
        return x.sin().exp() if len(runs) % 2 else x[:1].sin().exp()

    runs.clear()
    y = checkpoint(smaller, x, use_reentrant=False)
    with pytest.raises(CheckpointError, match=r"position 0:\s*saved metadata: .*\(3,\)"):
        y.sum().backward()


def test_debug_shows_where_each_tensor_was_saved():
    runs = []

    def fewer(x):
        runs.append(1)
        return x.sin().exp() if len(runs) == 1 else x.sin()

    x = torch.ones(3, requires_grad=True)
    with set_checkpoint_debug_enabled(True):
        y = checkpoint(fewer, x, use_reentrant=False)
    with pytest.raises(CheckpointError, match=r"forward 0: .*x\.sin\(\)\.exp\(\)"):
        y.sum().backward()


def test_without_gradients_the_function_is_just_called():
    with torch.no_grad():
        assert not checkpoint(build(), torch.ones(1, 8), use_reentrant=False).requires_grad


def test_mistakes_are_named():
    x = torch.ones(3, requires_grad=True)
    with pytest.raises(TypeError, match="a function"):
        checkpoint(3, use_reentrant=False)
    with pytest.raises(ValueError, match="Unexpected keyword arguments: foo"):
        checkpoint(torch.sin, x, use_reentrant=True, foo=1)
    with pytest.raises(ValueError, match="only supported when use_reentrant=False"):
        checkpoint(torch.sin, x, use_reentrant=True, debug=True)
    with pytest.raises(ValueError, match="determinism_check"):
        checkpoint(torch.sin, x, use_reentrant=False, determinism_check="often")
    with pytest.warns(UserWarning, match="use_reentrant"):
        checkpoint(torch.sin, x)
    y = checkpoint(lambda x: x.detach(), x, use_reentrant=True)
    with pytest.raises(RuntimeError, match="none of output has requires_grad"):
        y.sum().backward()


# ---------------------------------------------------------------------------------------------
# Memory


def test_activations_are_not_kept():
    def kept(run):
        net, x = build(), torch.ones(4096, 8, requires_grad=True)
        gc.collect()
        before = alloc.host().stats()["allocated_bytes.all.current"]
        out = run(net, x)
        gc.collect()
        return alloc.host().stats()["allocated_bytes.all.current"] - before, out

    plain, _ = kept(lambda net, x: net(x))
    thrifty, _ = kept(lambda net, x: checkpoint(net, x, use_reentrant=False))
    assert thrifty < plain / 3


class Block(nn.Module):
    """A block of a transformer: attention and a perceptron, each with a norm before it."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, time, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, time, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(batch, time, width))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


def peak_of_step(blocks, x, run):
    """Return the bytes above the start at the peak of one forward and backward."""
    for block in blocks:
        block.zero_grad(set_to_none=False)  # gradients exist before and after
    x.grad = torch.zeros_like(x)
    gc.collect()
    host = alloc.host()
    before = host.stats()["allocated_bytes.all.current"]
    host.reset_peak_stats()
    run(blocks, x).sum().backward()
    return host.stats()["allocated_bytes.all.peak"] - before


def test_a_checkpointed_transformer_peaks_at_the_blocks_inputs_and_one_block():
    torch.manual_seed(0)
    blocks = [Block(64, 4) for _ in range(12)]
    for block in blocks:
        for p in block.parameters():
            p.grad = torch.zeros_like(p)
    x = torch.randn(8, 128, 64, requires_grad=True)

    def plain(blocks, x):
        for block in blocks:
            x = block(x)
        return x

    def thrifty(blocks, x):
        for block in blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x

    peak_of_step(blocks, x, thrifty)  # caches of the runtime fill once
    one = peak_of_step(blocks[-1:], x, plain)
    everything = peak_of_step(blocks, x, plain)
    least = peak_of_step(blocks, x, thrifty)
    # The inputs of the blocks but the first, which exists before; the last block's output is
    # counted in `one`.
    inputs = 11 * x.numel() * 4
    assert least == pytest.approx(inputs + one, rel=0.02)
    assert least < everything / 4


# ---------------------------------------------------------------------------------------------
# Selective


def counting(counts):
    """Return a body whose products are counted by a policy that keeps them."""

    def policy(ctx, op, *args, **kwargs):
        counts.append((op.name, ctx.is_recompute))
        keeps = op.name == "mm"
        return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE

    return policy


def test_a_policy_keeps_results_that_are_not_computed_again(monkeypatch):
    launched = []
    kernel = torch.mm.op.cpu

    def counted(*args, **kwargs):
        launched.append(1)
        kernel(*args, **kwargs)

    monkeypatch.setattr(torch.mm.op, "cpu", counted)

    def run(context_fn):
        x = torch.linspace(0, 1, 9).reshape(3, 3).requires_grad_()
        w = torch.linspace(1, 2, 9).reshape(3, 3).requires_grad_()
        extra = {} if context_fn is None else {"context_fn": context_fn}
        launched.clear()
        out = checkpoint(lambda x: (x @ w).sin().exp(), x, use_reentrant=False, **extra)
        out.sum().backward()
        return len(launched), x.grad.numpy()

    plain, expected = run(None)
    asked = []
    for policy in (counting(asked), ["mm"], [torch.mm], ["aten.mm.default"], [torch.mm.op]):
        saved, got = run(functools.partial(create_selective_checkpoint_contexts, policy))
        assert saved == plain - 1
        np.testing.assert_array_equal(got, expected)
    assert {name for name, _ in asked} >= {"mm", "sin", "exp"}


def test_a_kept_result_that_was_written_to_is_an_error():
    def body(x):
        y = x.exp()
        z = y + 1
        y.mul_(2)
        return z.sin()

    x = torch.ones(3, requires_grad=True)
    keep = functools.partial(create_selective_checkpoint_contexts, ["exp"])
    out = checkpoint(body, x, use_reentrant=False, context_fn=keep)
    with pytest.raises(RuntimeError, match="has been mutated"):
        out.sum().backward()
    keep = functools.partial(keep, allow_cache_entry_mutation=True)
    checkpoint(body, x, use_reentrant=False, context_fn=keep).sum().backward()
    with pytest.raises(TypeError, match="function or a list"):
        create_selective_checkpoint_contexts(3)
    with pytest.raises(TypeError, match="OpOverload"):
        create_selective_checkpoint_contexts([3])


def test_no_warning_with_an_explicit_form():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = torch.ones(2, requires_grad=True)
        checkpoint(torch.sin, x, use_reentrant=False).sum().backward()
