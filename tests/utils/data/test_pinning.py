from __future__ import annotations

from collections import OrderedDict, namedtuple
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

import refruntime as torch
from refruntime import _storage
from refruntime.alloc import pinning as process
from refruntime.utils import data
from refruntime.utils.data.pinning import pin_memory

Pair = namedtuple("Pair", ["x", "y"])


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU to pin for, and a process that has pinned nothing."""
    monkeypatch.setattr(_storage, "gpu_allocators", [object()])
    monkeypatch.setattr(process, "_allocator", None)


def test_containers_keep_their_type(gpu: None) -> None:
    tensor = torch.arange(3)
    batch = OrderedDict(
        a=[tensor, "text", b"bytes", 7], b=Pair(tensor, None), c=(tensor, (tensor,))
    )
    pinned = pin_memory(batch)
    assert type(pinned) is OrderedDict and type(pinned["a"]) is list
    assert type(pinned["b"]) is Pair and type(pinned["c"]) is tuple
    tensors = [pinned["a"][0], pinned["b"].x, pinned["c"][0], pinned["c"][1][0]]
    assert all(each.is_pinned() and torch.equal(each, tensor) for each in tensors)
    assert pinned["a"][1:] == ["text", b"bytes", 7] and pinned["b"].y is None
    assert not batch["a"][0].is_pinned()


def test_what_pins_itself_is_asked_to() -> None:
    class Batch:
        def pin_memory(self) -> str:
            return "pinned"

    assert pin_memory([Batch(), {"a": Batch()}]) == ["pinned", {"a": "pinned"}]


def test_containers_that_cannot_be_made_anew_become_plain_ones() -> None:
    class Stubborn:
        def __init__(self) -> None:
            pass

        def __len__(self) -> int:
            return 1

    class Names(Stubborn, Mapping[str, int]):
        def __getitem__(self, key: str) -> int:
            return 1

        def __iter__(self) -> Any:
            return iter(["a"])

    class Numbers(Stubborn, Sequence[int]):
        def __getitem__(self, place: Any) -> Any:
            return [5][place]

    assert pin_memory(Names()) == {"a": 1}
    assert pin_memory(Numbers()) == [5]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("asked", [False, True])
def test_a_loader_pins_if_it_is_asked_to(gpu: None, workers: int, asked: bool) -> None:
    samples = data.TensorDataset(torch.arange(6), torch.ones(6))
    loader = data.DataLoader(samples, batch_size=4, num_workers=workers, pin_memory=asked)
    for numbers, ones in loader:
        assert numbers.is_pinned() is ones.is_pinned() is asked
    assert numbers.tolist() == [4, 5]


def test_a_loader_pins_nothing_without_a_gpu() -> None:
    samples = data.TensorDataset(torch.arange(6))
    (batch,) = next(iter(data.DataLoader(samples, batch_size=4, pin_memory=True)))
    assert not batch.is_pinned()
