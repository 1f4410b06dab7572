"""The outside: the one call through which the core asks for what it cannot do itself.

Interpreted, the core asks a Python object (`Outside`), which turns to an upstream. Compiled, for
replay, it asks the virtual device in `driver`, without leaving machine code. The core asks only
where its tables are whole, so an outside may raise: the call is then given up, and nothing is lost.
"""

from __future__ import annotations

from typing import Any, Protocol

from refruntime._native import Lazy
from refruntime.alloc import driver

__all__ = ["Outside", "ask"]



class Outside(Protocol):
    """Who answers the interpreted core."""

    def answer(self, question: int, a: int, b: int, c: int, d: int) -> int:
        """Do what `questions` says, and return its answer."""


class _Ask(Lazy):
    """``ask(o, question, a, b, c, d)``: see the module."""

    def __call__(self, o: Any, question: int, a: int, b: int, c: int, d: int) -> int:
        # In pure mode replay is interpreted too, over the words of the virtual device.
        if hasattr(o, "answer"):
            return int(o.answer(question, a, b, c, d))
        return int(driver.answer(o, question, a, b, c, d))

    def resolve(self) -> Any:
        return driver.answer.resolve()

    def sources(self) -> set[str]:
        return driver.answer.sources() | {__file__}


ask = _Ask()
