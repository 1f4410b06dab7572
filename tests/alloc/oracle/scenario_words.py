"""Scenarios written as words, such as ``a1=4K u1@2 f1``."""

from __future__ import annotations

import re


def bytes_of(text):
    """Reads a sum of numbers, each with K or M behind it or not."""
    return sum(
        int(number) << {"": 0, "K": 10, "M": 20}[unit]
        for number, unit in re.findall(r"([+-]?\d+)([KM]?)", text)
    )


def events_of(text, words):
    """Reads a scenario; `words` maps the pattern of a word to the function that makes its event."""
    found = []
    for word in text.split():
        pattern, make = next(
            (re.fullmatch(pattern, word), make)
            for pattern, make in words.items()
            if re.fullmatch(pattern, word)
        )
        found.append(make(*pattern.groups()))
    return found
