"""Grad modes as contexts, decorators and across generators and threads."""

from __future__ import annotations

import threading

import pytest

import refruntime as torch


def test_nested_modes_restore_each_other():
    with torch.no_grad():
        assert not torch.is_grad_enabled()
        with torch.enable_grad():
            assert torch.is_grad_enabled()
        assert not torch.is_grad_enabled()
    assert torch.is_grad_enabled()


def test_decorators_with_and_without_parentheses():
    @torch.no_grad()
    def first():
        return torch.is_grad_enabled()

    @torch.no_grad
    def second():
        return torch.is_grad_enabled()

    assert not first() and not second() and torch.is_grad_enabled()


def test_decorated_generator_has_the_mode_only_while_it_runs():
    @torch.no_grad()
    def values():
        received = yield torch.is_grad_enabled()
        yield received, torch.is_grad_enabled()

    generator = values()
    assert next(generator) is False
    assert torch.is_grad_enabled()
    assert generator.send("x") == ("x", False)


def test_set_grad_enabled_acts_at_once_and_as_a_context():
    torch.set_grad_enabled(False)
    try:
        assert not torch.is_grad_enabled()
    finally:
        torch.set_grad_enabled(True)
    with torch.set_grad_enabled(False):
        assert not torch.is_grad_enabled()
    assert torch.is_grad_enabled()


def test_mode_is_thread_local():
    seen = []
    with torch.no_grad():
        thread = threading.Thread(target=lambda: seen.append(torch.is_grad_enabled()))
        thread.start()
        thread.join()
    assert seen == [True]


def test_inference_mode_records_nothing():
    x = torch.ones(1, requires_grad=True)
    with torch.inference_mode():
        assert not (x * 2).requires_grad
    with torch.inference_mode(False):
        assert (x * 2).requires_grad


# ---------------------------------------------------------------------------------------------
# Inference tensors


@pytest.fixture
def made():
    with torch.inference_mode():
        return torch.ones(3)


def test_inference_mode_switches_and_nests(made):
    assert made.is_inference()
    assert torch.is_inference(made)
    with torch.inference_mode():
        assert torch.tensor([1.0, 2.0]).is_inference()
    with torch.inference_mode():
        assert torch.is_inference_mode_enabled()
        with torch.inference_mode(False):
            assert torch.is_grad_enabled()
            assert not torch.is_inference_mode_enabled()
            assert not torch.ones(2).is_inference()
        assert torch.is_inference_mode_enabled()
    with torch.no_grad(), torch.inference_mode(False):
        assert torch.is_grad_enabled()
    assert not torch.ones(2).is_inference()


def test_inference_tensors_can_be_read_anywhere(made):
    w = torch.ones(3, requires_grad=True)
    assert (made + 1).tolist() == [2.0] * 3
    assert not (made + 1).is_inference()
    assert (made + w).requires_grad
    assert made.clone().is_inference() is False
    assert made.view(3, 1).is_inference()
    assert made.detach().is_inference()
    assert made.numpy().tolist() == [1.0] * 3


def test_inference_tensors_are_not_saved_or_written_to_outside(made):
    w = torch.ones(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="cannot be saved for backward"):
        made * w
    for write in (
        lambda: made.add_(1), lambda: made.view(3, 1).mul_(2), lambda: made.zero_(),
        lambda: torch.add(w.detach(), 1, out=made),
    ):  # fmt: skip
        with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
            write()
        with torch.no_grad(), pytest.raises(RuntimeError, match="Inplace update"):
            write()
    assert made.tolist() == [1.0] * 3
    with pytest.raises(RuntimeError, match="version counter"):
        _ = made._version
    with pytest.raises(RuntimeError, match=r"[Ii]nference"):
        made.requires_grad_()
    with torch.inference_mode():
        made.add_(1)
    assert made.tolist() == [2.0] * 3


def test_other_tensors_keep_their_rules_inside():
    p, leaf = torch.ones(2), torch.ones(2, requires_grad=True)
    with torch.inference_mode():
        view = p.view(2, 1)
        assert not view.is_inference()
        before = p._version
        p.add_(1)
        assert p._version == before + 1
        leaf.add_(1)
    view.add_(1)
    assert p.tolist() == [3.0, 3.0]
    assert leaf.tolist() == [2.0, 2.0]


def test_inference_mode_holds_for_its_thread_and_inside_generators():
    @torch.inference_mode()
    def values():
        yield torch.ones(1).is_inference()
        yield torch.is_inference_mode_enabled()

    generator = values()
    assert next(generator)
    assert not torch.is_inference_mode_enabled()
    assert next(generator)
    seen = []
    with torch.inference_mode():
        thread = threading.Thread(target=lambda: seen.append(torch.ones(1).is_inference()))
        thread.start()
        thread.join()
    assert seen == [False]
