"""Every instance of every CUDA kernel compiles to machine code, with no card at hand."""

from __future__ import annotations

import importlib.util

import pytest

from refruntime.kernels import cuda_instances
from tests.kernels.cuda_host import offline_nvrtc
from tests.kernels.cuda_host.offline_nvrtc import ARCHITECTURES, FULL, QUICK

needs_nvrtc = pytest.mark.skipif(
    importlib.util.find_spec("cupy") is None or importlib.util.find_spec("numba_cuda") is None,
    reason="cupy brings the binding of NVRTC, numba-cuda the half-precision headers",
)


@needs_nvrtc
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("file", cuda_instances.files())
def test_every_instance_compiles(file: str, architecture: str) -> None:
    names, cubin = offline_nvrtc.compile_file(file, architecture, QUICK)
    assert len(set(names.values())) == len(cuda_instances.expressions(file))
    assert cubin[:4] == b"\x7fELF"
    for name in names.values():
        assert name.encode() in cubin


# Fully optimised code takes long to make. One card stands for all, but for the kernels whose
# registers decide whether they run well: those that keep patches of a product in them.
OPTIMISED = [(file, "sm_80") for file in cuda_instances.files()]
OPTIMISED += [(file, card) for file in ("attention", "conv") for card in ("sm_75", "sm_90")]


@needs_nvrtc
@pytest.mark.slow
@pytest.mark.parametrize(("file", "architecture"), OPTIMISED)
def test_optimised_code_fits_the_card(file: str, architecture: str) -> None:
    for resources in offline_nvrtc.resources_of(file, architecture, FULL):
        assert resources.static_shared <= 48 * 1024, resources
        # Blocks have at most 256 threads, and a multiprocessor has 65536 registers.
        assert resources.registers * 256 <= 65536, resources
        assert resources.spilled <= 512, resources


@needs_nvrtc
def test_a_kernel_that_does_not_compile_is_reported_with_the_log() -> None:
    with pytest.raises(RuntimeError, match="undeclared_name"):
        offline_nvrtc.compile_text(
            "__global__ void broken(float* x) { *x = undeclared_name; }", ("broken",), "sm_80"
        )
