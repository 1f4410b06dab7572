"""Limits on memory for continuous integration: what may have grown, and by how much.

State
-----
None.

Invariants
----------
* A relative limit needs a baseline with the same name; a missing one is an error, not a pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from refruntime.errors import ArgumentValueError
from refruntime.lab.events import bytes_of


@dataclass(frozen=True, slots=True)
class Limit:
    """So many bytes, or so much more than a baseline.

    Parameters
    ----------
    nbytes : int
        Bytes: in all, or beyond the baseline.
    share : float
        Of the baseline, beyond it.
    relative : bool
        Whether there is a baseline.
    """

    nbytes: int = 0
    share: float = 0.0
    relative: bool = False

    @classmethod
    def parse(cls, text: str) -> Limit:
        """Read ``+1%``, ``+512M`` or ``40G``.

        Raises
        ------
        ArgumentValueError
            If it is none of these.
        """
        word = text.strip()
        if not word.endswith("%"):
            return cls(bytes_of(word.removeprefix("+")), relative=word.startswith("+"))
        try:
            share = float(word[:-1]) / 100
        except ValueError:
            raise ArgumentValueError(
                "limit", expected="+1%, +512M or 40G", got=repr(text)
            ) from None
        return cls(share=share, relative=True)

    def most(self, baseline: int) -> int:
        """Return the bytes that are allowed."""
        return int(baseline * (1 + self.share)) + self.nbytes if self.relative else self.nbytes


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of one file beside its limit."""

    file: str
    figure: str
    baseline: int | None
    now: int
    most: int

    @property
    def holds(self) -> bool:
        """Whether the figure is within the limit."""
        return self.now <= self.most

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {**{name: getattr(self, name) for name in self.__slots__}, "holds": self.holds}


def held(
    limits: Mapping[str, Limit], before: Mapping[str, Any], now: Mapping[str, Any]
) -> list[Row]:
    """Return each figure of each file beside its limit.

    Raises
    ------
    ArgumentValueError
        If a relative limit finds no baseline.
    """
    rows = []
    for file, figures in now.items():
        for figure, limit in limits.items():
            if limit.relative and file not in before:
                raise ArgumentValueError(
                    "lab gate", what=f"no baseline for {file or 'the file'}",
                    expected="BASELINE FILE, or a limit without a plus sign",
                )  # fmt: skip
            baseline = before[file][figure] if limit.relative else None
            rows.append(Row(file, figure, baseline, figures[figure], limit.most(baseline or 0)))
    return rows
