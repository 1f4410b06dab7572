"""torch.onnx: programs import it; exporting is not offered."""

from __future__ import annotations

from typing import Any, NoReturn

from refruntime.errors import KernelMissingError


def export(model: Any, *args: Any, **kwargs: Any) -> NoReturn:
    """Refuse: there is no exporter.

    Raises
    ------
    KernelMissingError
        Always.
    """
    raise KernelMissingError(
        "onnx.export",
        what="refruntime writes no ONNX files",
        expected="another format",
        got=type(model).__name__,
        remedy="save the state_dict with torch.save, load it in PyTorch and export it there",
    )
