"""Backend settings: what is there is said truthfully, what a program sets it reads back."""

from __future__ import annotations

import refruntime as torch
from refruntime import backends


def test_no_foreign_library_is_claimed():
    for name in ("cudnn", "mkl", "mkldnn", "mps", "openmp"):
        assert not getattr(backends, name).is_available()
    assert backends.cudnn.version() is None
    assert backends.cpu.get_cpu_capability() in ("AVX512", "AVX2", "DEFAULT")


def test_settings_are_read_back():
    with torch.backends.cudnn.flags(benchmark=True, deterministic=False):
        assert torch.backends.cudnn.benchmark
        assert not torch.backends.cudnn.deterministic
    assert not torch.backends.cudnn.benchmark
    assert torch.backends.cudnn.deterministic
    torch.backends.cuda.matmul.allow_tf32 = True
    assert torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False


def test_attention_switches_hold_inside_the_block_only():
    with torch.backends.cuda.sdp_kernel(enable_math=False, enable_flash=False):
        assert not torch.backends.cuda.math_sdp_enabled()
        assert not torch.backends.cuda.flash_sdp_enabled()
        assert torch.backends.cuda.mem_efficient_sdp_enabled()
    assert torch.backends.cuda.math_sdp_enabled()
    torch.backends.cuda.enable_math_sdp(False)
    assert not torch.backends.cuda.math_sdp_enabled()
    torch.backends.cuda.enable_math_sdp(True)
