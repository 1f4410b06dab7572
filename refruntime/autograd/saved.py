"""Values that a node keeps for its backward.

Invariants
----------
* A saved value remembers the version of its tensor; unpacking it after a write raises.
* An output of the node is saved without its history (which would be a reference cycle through the
  node) and gets the history back when unpacked.
* Saving tags the bytes as SAVED; once released, a value is gone and says so.
"""

from __future__ import annotations

from typing import Any

from refruntime._impl import AutogradMeta, TensorImpl, detached
from refruntime.alloc.categories import ACTIVATION, SAVED, TEMPORARY
from refruntime.errors import AutogradError

_RETAG = (TEMPORARY, ACTIVATION)


class SavedValue:
    """A tensor kept for backward, with the version that it had."""

    __slots__ = ("is_output", "output_nr", "tensor", "version")

    def __init__(self, tensor: TensorImpl, is_output: bool = False, output_nr: int = 0) -> None:
        self.is_output = is_output
        self.output_nr = output_nr
        self.tensor = detached(tensor) if is_output else tensor
        self.version = tensor.counter.version
        if tensor.storage.category in _RETAG:
            tensor.storage.tag(SAVED)

    def unpack(self, node: Any) -> TensorImpl:
        """Return the tensor, checked against its version.

        Raises
        ------
        AutogradError
            If the tensor was written to since it was saved.
        """
        tensor = self.tensor
        if tensor.counter.version != self.version:
            raise _modified(tensor, self.version, node)
        if not self.is_output:
            return tensor
        output = detached(tensor)
        output.autograd = AutogradMeta(True, node, self.output_nr)
        return output


def _modified(tensor: TensorImpl, version: int, node: Any) -> AutogradError:
    return AutogradError(
        node.name(),
        what="one of the variables needed for gradient computation has been modified by an "
        f"inplace operation: {list(tensor.meta.shape)} of {tensor.meta.dtype}",
        expected=f"version {version}",
        got=f"is at version {tensor.counter.version}",
        remedy="write to a clone, or use the functional form of the in-place call",
    )
