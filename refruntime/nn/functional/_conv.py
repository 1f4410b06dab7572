"""Convolutions: the registry's functions, which have torch's signatures."""

from __future__ import annotations

from typing import Any

# Importing the tensor layer loads every family, so the names below are there.
from refruntime import _tensor as _tensor
from refruntime._ops.opdef import ops

conv1d: Any = ops.conv1d
conv2d: Any = ops.conv2d
conv3d: Any = ops.conv3d
conv_transpose1d: Any = ops.conv_transpose1d
conv_transpose2d: Any = ops.conv_transpose2d
conv_transpose3d: Any = ops.conv_transpose3d
