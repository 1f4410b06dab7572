"""Grad modes as contexts, decorators and across generators and threads."""

from __future__ import annotations

import threading

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
