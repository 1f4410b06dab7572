"""torch.nn: modules, their functions, and what goes with them."""

from __future__ import annotations

from refruntime.nn import attention as attention
from refruntime.nn import functional, init, parameter
from refruntime.nn import modules as modules
from refruntime.nn import parallel as parallel
from refruntime.nn import utils as utils
from refruntime.nn.modules import *  # noqa: F403 - the list of names stands there
from refruntime.nn.parallel import DataParallel
from refruntime.nn.parameter import Buffer, Parameter

__all__ = [
    "Buffer", "DataParallel", "Parameter", "attention", "functional", "init", "modules", "parallel",
    "parameter", "utils",
]  # fmt: skip
__all__ += modules.__all__
