"""torch.onnx can be imported; exporting says that it is not offered."""

from __future__ import annotations

import pytest

import refruntime as torch
import refruntime.onnx
from refruntime.errors import KernelMissingError


def test_export_is_refused():
    with pytest.raises(KernelMissingError, match="state_dict"):
        refruntime.onnx.export(torch.nn.Linear(1, 1), torch.ones(1), "model.onnx")
