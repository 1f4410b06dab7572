"""torch.backends: what computes, as programs ask for it and set it.

Here products go to NumPy's BLAS and to cuBLAS, and everything else to this package's own kernels,
so a setting that chooses between libraries is kept for the program that reads it back, and changes
no result.
"""

from __future__ import annotations

from refruntime.backends import cpu, cuda, cudnn, mkl, mkldnn, mps, openmp

__all__ = ["cpu", "cuda", "cudnn", "mkl", "mkldnn", "mps", "openmp"]
