"""Every op whose GPU half is a launch function, run through the dispatcher with that half alone.

The records' samples are called twice: as usual, and with each record's `cuda` kernel in the place
of its `cpu` kernel, launches being answered by the kernels built for the host. Results and
gradients must agree. Pointwise ops have a route of their own and tests of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import refruntime as torch
from refruntime._impl import TensorImpl
from refruntime._ops import indexing
from refruntime._ops.opdef import REGISTRY, OpDef
from refruntime._ops.samples import Sample, front_of, realize
from refruntime.errors import KernelMissingError
from refruntime.kernels import index, matmul_cuda, rearrange
from tests.kernels.cuda_host.launches import Router

SUBJECTS = [
    pytest.param(op, id=op.name)
    for op in sorted(REGISTRY.values(), key=lambda op: op.name)
    if op.cuda is not None and op.samples is not None and op.body is None
]

# Products go to cuBLAS, which is not one of our kernels; `empty` writes nothing.
LAUNCH_NOTHING = ("addmm", "baddbmm", "bmm", "dot", "empty", "linear", "mm", "mv", "vdot")


@pytest.fixture
def on_the_gpu_half(router: Router, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Switches: ``on_the_gpu_half(True)`` lets records run their `cuda` kernels."""
    monkeypatch.setattr(matmul_cuda, "gpu_array", lambda x: x.array())
    monkeypatch.setattr(matmul_cuda, "_optional", type("Fake", (), {"cupy": np}))
    plain, walk, copying = OpDef.kernel, index.run_walk, rearrange.copy_cpu

    def switch(on: bool) -> Router:
        chosen = (lambda op, _: op.cuda or op.cpu) if on else plain
        monkeypatch.setattr(OpDef, "kernel", chosen)
        for op in (REGISTRY["sum"], REGISTRY["mean"]):
            op.run.plans.clear()
        # Kernels that serve both devices choose by the tensor's, which is the CPU here.
        monkeypatch.setattr(indexing, "run_walk", index.run_walk_cuda if on else walk)
        monkeypatch.setattr(rearrange, "copy_cpu", rearrange.copy_cuda if on else copying)
        return router

    yield switch
    switch(False)


def tensors(value: Any) -> list[TensorImpl]:
    if isinstance(value, TensorImpl):
        return [value]
    if isinstance(value, (list, tuple)):
        return [found for part in value for found in tensors(part)]
    return []


def outcome(op: OpDef, sample: Sample) -> list[np.ndarray]:
    """Results of the call, and the gradients of its inputs."""
    front = front_of(op, sample)
    rng = np.random.default_rng(7)
    torch.manual_seed(11)
    args = realize(sample.args, rng, None, requires_grad=sample.grad)
    outputs = tensors(front(*args, **realize(sample.kwargs, rng)))
    made = [out.array().copy() for out in outputs]
    leaves = [x for x in tensors(args) if x.requires_grad]
    wanted = [out for out in outputs if out.requires_grad]
    if not leaves or not wanted:
        return made
    arrays = [rng.standard_normal(out.shape).astype(out.dtype.np) for out in wanted]
    seeds = [torch.from_numpy(array) for array in arrays]
    found = torch.autograd.grad(wanted, leaves, seeds, allow_unused=True)
    return made + [g.array().copy() for g in found if g is not None]


@pytest.mark.parametrize("op", SUBJECTS)
def test_the_gpu_half_agrees_with_the_cpu(op: OpDef, on_the_gpu_half: Any) -> None:
    samples = list(op.samples())
    expected = [outcome(op, sample) for sample in samples]
    router = on_the_gpu_half(True)
    for sample, wanted in zip(samples, expected, strict=True):
        try:
            got = outcome(op, sample)
        except KernelMissingError as error:
            # Conversions between complex and real numbers have no GPU instance, and say so.
            if "complex" not in error.got:
                raise
            continue
        assert len(got) == len(wanted)
        for a, b in zip(got, wanted, strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_allclose(
                a.astype(complex), b.astype(complex), rtol=1e-4, atol=1e-5, err_msg=str(sample)
            )
    # A kernel that serves both devices may be made of other ops alone.
    assert router.launched or op.cpu is op.cuda or op.name in LAUNCH_NOTHING
