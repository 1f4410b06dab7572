"""torch.jit leaves functions and modules what they are, and refuses to store them compiled."""

from __future__ import annotations

import pytest

import refruntime as torch
from refruntime.errors import KernelMissingError


def test_scripted_and_traced_things_are_themselves():
    @torch.jit.script
    def double(x):
        return 2 * x

    assert double(torch.ones(1)).tolist() == [2.0]
    module = torch.nn.Linear(2, 1)
    assert torch.jit.script(module) is module
    assert torch.jit.trace(module, torch.ones(1, 2)) is module
    assert torch.jit.freeze(module.eval()) is module
    assert issubclass(torch.jit.ScriptModule, torch.nn.Module)
    with pytest.raises(KernelMissingError, match="eval"):
        torch.jit.freeze(module.train())


def test_tracing_calls_the_function_once():
    seen = []
    torch.jit.trace(lambda a, b: seen.append((a, b)), (1, 2))
    assert seen == [(1, 2)]


def test_decorators_in_both_forms():
    def method(self):
        return self

    assert torch.jit.ignore(method) is method
    assert torch.jit.ignore(drop=True)(method) is method
    assert torch.jit.unused(method) is torch.jit.export(method) is method
    assert not torch.jit.is_scripting()
    assert torch.jit.wait(torch.jit.fork(max, 1, 2)) == 2


def test_compiled_files_are_refused():
    for act in (torch.jit.save, torch.jit.load):
        with pytest.raises(KernelMissingError, match="state_dict"):
            act("module", "file.pt")
