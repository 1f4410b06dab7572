"""Fixtures of the kernel tests: the CUDA files built as host C++, and cached on disk."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from refruntime.kernels import launch
from tests.kernels.cuda_host import harness, launches


@pytest.fixture(scope="session")
def host(request: pytest.FixtureRequest) -> Callable[[str], harness.HostModule]:
    """``host(file)``: the kernels of a .cu file, runnable on this machine's CPU."""
    if shutil.which(harness.COMPILER) is None:
        pytest.skip(f"{harness.COMPILER} is not installed; it builds the CUDA kernels for the host")
    folder = request.config.cache.mkdir("cuda_host")

    @cache
    def module(file: str) -> harness.HostModule:
        return harness.HostModule(harness.build(file, folder))

    return module


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(1234)


@pytest.fixture
def router(
    host: Callable[[str], harness.HostModule], monkeypatch: pytest.MonkeyPatch
) -> launches.Router:
    """Answers `launch.raw` with the kernels built for this machine, while a test lasts."""
    router = launches.Router(host)
    monkeypatch.setattr(launch, "raw", router)
    return router
