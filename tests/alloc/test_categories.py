from __future__ import annotations

import pytest

from refruntime.alloc import categories
from refruntime.errors import ArgumentValueError


def test_names_and_numbers_map_to_each_other() -> None:
    assert [categories.number(name) for name in categories.NAMES] == list(range(categories.COUNT))
    assert categories.name(categories.SAVED) == "saved"
    assert categories.name(categories.DEFAULT) == "temporary"


@pytest.mark.parametrize("number", [-1, categories.COUNT])
def test_unknown_numbers_are_refused(number: int) -> None:
    with pytest.raises(ArgumentValueError, match="category: expected 0 to 7"):
        categories.name(number)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ArgumentValueError, match="got 'weights'"):
        categories.number("weights")
