from __future__ import annotations

import numpy as np
import pytest

import refruntime as torch
from refruntime._ops.opdef import ops
from refruntime._ops.samples_attention import attention as reference
from refruntime.autograd import gradcheck, gradgradcheck
from refruntime.config import config
from refruntime.kernels import attention as kernels

attend = ops.scaled_dot_product_attention


def double(*shape):
    rng = np.random.default_rng(sum(shape))
    return torch.from_numpy(rng.standard_normal(shape)).requires_grad_()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("gqa", [False, True])
def test_fused_attention_has_derivatives_of_both_orders(causal, gqa):
    shared = 2 if gqa else 4
    inputs = [double(2, 4, 5, 3), double(2, shared, 6, 3), double(2, shared, 6, 2)]

    def function(q, k, v):
        return attend(q, k, v, is_causal=causal, enable_gqa=gqa)

    assert gradcheck(function, inputs, fast_mode=True)
    assert gradgradcheck(function, inputs, fast_mode=True)


def test_masked_attention_has_derivatives_of_both_orders():
    mask = torch.ones(5, 6, dtype=torch.bool).tril(1)
    mask[2] = False
    inputs = [double(3, 5, 4), double(3, 6, 4), double(3, 6, 4)]
    assert gradcheck(lambda q, k, v: attend(q, k, v, mask), inputs, fast_mode=True)
    assert gradgradcheck(lambda q, k, v: attend(q, k, v, mask), inputs, fast_mode=True)


def test_a_learned_mask_gets_a_gradient():
    inputs = [double(2, 5, 4), double(2, 6, 4), double(2, 6, 4), double(5, 6)]
    assert gradcheck(attend, inputs, fast_mode=True)


def test_the_score_matrix_is_never_allocated(monkeypatch):
    length = 2048
    made = []
    allocate = kernels.empty_impl

    def watch(meta, *args):
        made.append(meta.nbytes)
        return allocate(meta, *args)

    monkeypatch.setattr(kernels, "empty_impl", watch)
    q = torch.randn(1, 1, length, 16, requires_grad=True)
    with config.patch(num_threads=1):
        attend(q, q, q, is_causal=True).sum().backward()
    assert 0 < max(made) < length * length * 4 / 4


def test_a_query_that_sees_nothing_gives_zero():
    q = torch.randn(1, 3, 4)
    mask = torch.tensor([[True, False, True], [False, False, False], [True, True, True]])
    y = attend(q, q, q, mask)
    assert y[0, 1].tolist() == [0, 0, 0, 0]
    added = torch.zeros(3, 3).masked_fill(mask.logical_not(), float("-inf"))
    np.testing.assert_allclose(attend(q, q, q, added).numpy(), y.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (2, 2, 3)])
def test_any_number_of_leading_dimensions(lead):
    q, k, v = (double(*lead, n, 4).detach() for n in (5, 6, 6))
    mask = torch.ones(5, 6, dtype=torch.bool).tril(2)
    expected = reference(q.numpy(), k.numpy(), v.numpy(), mask.numpy())
    np.testing.assert_allclose(attend(q, k, v, mask).numpy(), expected, atol=1e-12)


def test_operands_that_broadcast_run_as_products():
    q, k = torch.randn(4, 2, 5, 3), torch.randn(1, 2, 6, 3)
    expected = reference(q.numpy(), k.numpy(), k.numpy())
    np.testing.assert_allclose(attend(q, k, k).numpy(), expected, rtol=1e-4, atol=1e-5)


def test_dropout_keeps_the_mean_and_drops_whole_weights():
    torch.manual_seed(0)
    q = torch.zeros(1, 400, 4)
    y = attend(q, q, torch.ones(1, 400, 1), dropout_p=0.5)
    assert y.mean().item() == pytest.approx(1.0, abs=0.02)
    assert y.std().item() > 0.01


def test_heads_that_do_not_divide_are_refused():
    with pytest.raises(RuntimeError, match="must divide"):
        attend(*(torch.ones(1, heads, 2, 2) for heads in (3, 2, 2)), enable_gqa=True)
