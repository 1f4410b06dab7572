"""torch.nn.parallel: one module on several GPUs."""

from __future__ import annotations

from refruntime.nn.parallel.data_parallel import DataParallel, data_parallel

__all__ = ["DataParallel", "data_parallel"]
