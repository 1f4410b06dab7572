"""Recordings for the tests of the lab."""

from __future__ import annotations

from pathlib import Path

import pytest

DATA = Path(__file__).parent / "data"


@pytest.fixture
def mlp() -> Path:
    """A training run of a small network, as recorded by PyTorch's allocator."""
    return DATA / "mlp.pickle.gz"


@pytest.fixture
def resnet() -> Path:
    """A training run of a convolutional network, as recorded by PyTorch's allocator."""
    return DATA / "resnet18.pickle.gz"
