"""The checks of derivatives find wrong rules, and say where."""

from __future__ import annotations

import pytest

import refruntime as torch
from refruntime.autograd import Function, gradcheck, gradgradcheck
from refruntime.errors import GradcheckError


def double(*shape, grad=True):
    torch.manual_seed(0)
    return torch.randn(*shape, dtype=torch.float64).requires_grad_(grad)


class Twice(Function):
    backward_factor = 2.0
    forward_factor = 2.0
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @classmethod
    def _factors(cls):
        return cls.backward_factor, cls.forward_factor

    @staticmethod
    def backward(ctx, g):
        return g * ctx.function.backward_factor if hasattr(ctx, "function") else g * 2

    @staticmethod
    def jvp(ctx, t):
        return t * ctx.function.forward_factor if hasattr(ctx, "function") else t * 2


class WrongBackward(Twice):
    backward_factor = 3.0


class WrongForward(Twice):
    forward_factor = 3.0


@pytest.mark.parametrize("fast", [False, True])
def test_right_rules_pass_in_every_way(fast):
    x, y = double(2, 3), double(3, 2)
    everything = {
        "check_forward_ad": True, "check_batched_grad": True, "check_batched_forward_grad": True,
        "check_grad_dtypes": True, "fast_mode": fast,
    }  # fmt: skip
    assert gradcheck(lambda x, y: (x @ y, x.sum()), (x, y), **everything)
    assert gradcheck(Twice.apply, x, check_forward_ad=True, fast_mode=fast)
    assert gradgradcheck(lambda x: (x**3).sum(0), x, fast_mode=fast, check_fwd_over_rev=True)
    assert gradgradcheck(torch.sin, x, fast_mode=fast, gen_non_contig_grad_outputs=True)


@pytest.mark.parametrize("fast", [False, True])
def test_wrong_rules_are_found_and_shown(fast):
    x = double(3)
    with pytest.raises(GradcheckError, match=r"Jacobian mismatch for output 0 .* input 0"):
        gradcheck(WrongBackward.apply, x, fast_mode=fast)
    with pytest.raises(GradcheckError, match="forward mode mismatch"):
        gradcheck(WrongForward.apply, x, fast_mode=fast, check_forward_ad=True)
    assert not gradcheck(WrongBackward.apply, x, fast_mode=fast, raise_exception=False)
    assert gradcheck(
        WrongBackward.apply, x, fast_mode=fast, check_forward_ad=True, check_backward_ad=False
    )


def test_complex_numbers_count_as_two_real_ones():
    z = torch.randn(3, dtype=torch.complex128).requires_grad_()
    for fast in (False, True):
        for func in (lambda z: z * z, lambda z: z.abs(), lambda z: z.real * z.imag, torch.exp):
            assert gradcheck(func, z, fast_mode=fast)
    assert gradgradcheck(lambda z: z * z, z)
    with pytest.raises(GradcheckError):
        gradcheck(lambda z: WrongBackward.apply(z), z)


def test_a_backward_that_is_not_repeatable_is_found():
    class Noisy(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2 + torch.randn(3, dtype=torch.float64) * 1e-7

    with pytest.raises(GradcheckError, match="not reentrant"):
        gradcheck(Noisy.apply, double(3))
    assert gradcheck(Noisy.apply, double(3), nondet_tol=1e-5, check_undefined_grad=False)


def test_a_backward_that_needs_every_gradient_is_found():
    class Needy(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.set_materialize_grads(False)
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return torch.ones(3, dtype=torch.float64) if g is None else g * 2

    with pytest.raises(GradcheckError, match="undefined"):
        gradcheck(Needy.apply, double(3))
    assert gradcheck(Needy.apply, double(3), check_undefined_grad=False)


def test_inputs_that_cannot_be_checked_are_refused():
    with pytest.raises(ValueError, match="at least one input"):
        gradcheck(torch.sin, double(3, grad=False))
    with pytest.raises(RuntimeError, match="stride 0"):
        gradcheck(torch.sin, double(1).expand(3))
    with pytest.raises(ValueError, match="check_forward_ad or check_backward_ad"):
        gradcheck(torch.sin, double(3), check_backward_ad=False)
    with pytest.warns(UserWarning, match="double precision"), pytest.raises(GradcheckError):
        gradcheck(torch.sin, torch.randn(3, requires_grad=True))
    # Inputs come back bit for bit.
    x = double(4)
    before = x.tolist()
    gradcheck(torch.sin, x)
    assert x.tolist() == before
