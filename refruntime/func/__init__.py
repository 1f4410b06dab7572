"""torch.func: functions that are made of functions."""

from __future__ import annotations

from refruntime.autograd.batching import vmap
from refruntime.func.functional_call import (
    functional_call,
    replace_all_batch_norm_modules_,
    stack_module_state,
)
from refruntime.func.transforms import (
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    vjp,
)

__all__ = [
    "functional_call", "grad", "grad_and_value", "hessian", "jacfwd", "jacrev", "jvp", "linearize",
    "replace_all_batch_norm_modules_", "stack_module_state", "vjp", "vmap",
]  # fmt: skip
