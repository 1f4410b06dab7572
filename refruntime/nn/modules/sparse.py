"""Embeddings: rows of a table by index."""

from __future__ import annotations

from typing import Any

from refruntime._ops.opdef import ops
from refruntime.autograd import no_grad
from refruntime.errors import ArgumentValueError, KernelMissingError
from refruntime.nn import functional, init
from refruntime.nn.modules.module import Module
from refruntime.nn.parameter import Parameter

__all__ = ["Embedding", "EmbeddingBag"]


def _row(op: str, padding_idx: int | None, rows: int) -> int | None:
    """Return the padding row as a number from 0."""
    if padding_idx is None:
        return None
    if not -rows <= padding_idx < rows:
        raise AssertionError(f"{op}: Padding_idx must be within num_embeddings")
    return padding_idx % rows


class _Table(Module):
    """The table of both embeddings and its first values: normal, with a zero padding row."""

    num_embeddings: int
    embedding_dim: int
    padding_idx: int | None

    def _make_table(
        self, weight: Any, freeze: bool, device: Any, dtype: Any
    ) -> None:
        shape = (self.num_embeddings, self.embedding_dim)
        if weight is None:
            made = Parameter(ops.empty(shape, device=device, dtype=dtype), not freeze)
            self.weight = made
            self.reset_parameters()
            return
        if tuple(weight.shape) != shape:
            raise AssertionError(
                "Shape of weight does not match num_embeddings and embedding_dim"
            )
        self.weight = Parameter(weight, not freeze)

    def reset_parameters(self) -> None:
        """Draw new first values."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            with no_grad():
                self.weight[self.padding_idx].fill_(0)


def _refuse_max_norm(op: str, max_norm: float | None) -> None:
    if max_norm is not None:
        raise KernelMissingError(
            op, what="max_norm is not supported", expected="max_norm=None", got=str(max_norm),
            remedy="scale the rows of the weight yourself before the look-up",
        )  # fmt: skip


class Embedding(_Table):
    """Rows of a table by index.

    Parameters
    ----------
    num_embeddings, embedding_dim : int
        Rows and columns of the table.
    padding_idx : int, optional
        A row that starts at 0 and takes no gradient.
    max_norm, norm_type : float
        Not supported: `max_norm` must be None.
    scale_grad_by_freq : bool
        Divide each row's gradient by how often the row was looked up.
    sparse : bool
        Accepted; gradients are dense.
    device, dtype : optional
        Of the table.
    """

    def __init__(
        self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None,
        max_norm: float | None = None, norm_type: float = 2.0, scale_grad_by_freq: bool = False,
        sparse: bool = False, _weight: Any = None, _freeze: bool = False, device: Any = None,
        dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        _refuse_max_norm("Embedding", max_norm)
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.padding_idx = _row("Embedding", padding_idx, num_embeddings)
        self.max_norm = max_norm
        self.norm_type = norm_type
        self.scale_grad_by_freq = scale_grad_by_freq
        self.sparse = sparse
        self._make_table(_weight, _freeze, device, dtype)

    def forward(self, input: Any) -> Any:
        """Return the rows at the indices: the shape of the indices, then `embedding_dim`."""
        return functional.embedding(
            input, self.weight, self.padding_idx, self.max_norm, self.norm_type,
            self.scale_grad_by_freq, self.sparse,
        )  # fmt: skip

    def extra_repr(self) -> str:
        """Return the settings that the printed form shows."""
        parts = [f"{self.num_embeddings}, {self.embedding_dim}"]
        if self.padding_idx is not None:
            parts.append(f"padding_idx={self.padding_idx}")
        if self.scale_grad_by_freq:
            parts.append("scale_grad_by_freq=True")
        if self.sparse:
            parts.append("sparse=True")
        return ", ".join(parts)

    @classmethod
    def from_pretrained(
        cls, embeddings: Any, freeze: bool = True, padding_idx: int | None = None,
        max_norm: float | None = None, norm_type: float = 2.0, scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Embedding:  # fmt: skip
        """Make an embedding over a given table, which is not trained while `freeze` is set."""
        if embeddings.dim() != 2:
            raise AssertionError("Embeddings parameter is expected to be 2-dimensional")
        rows, columns = embeddings.shape
        return cls(
            rows, columns, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse,
            _weight=embeddings, _freeze=freeze,
        )  # fmt: skip


class EmbeddingBag(_Table):
    """Sums, means or maxima over bags of rows of a table.

    Parameters
    ----------
    num_embeddings, embedding_dim : int
        Rows and columns of the table.
    max_norm, norm_type : float
        Not supported: `max_norm` must be None.
    scale_grad_by_freq : bool
        Not supported.
    mode : str
        ``sum``, ``mean`` or ``max``.
    sparse : bool
        Accepted; gradients are dense.
    include_last_offset : bool
        Whether the offsets end with the number of indices.
    padding_idx : int, optional
        A row that counts in no bag.
    device, dtype : optional
        Of the table.
    """

    def __init__(
        self, num_embeddings: int, embedding_dim: int, max_norm: float | None = None,
        norm_type: float = 2.0, scale_grad_by_freq: bool = False, mode: str = "mean",
        sparse: bool = False, _weight: Any = None, include_last_offset: bool = False,
        padding_idx: int | None = None, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        _refuse_max_norm("EmbeddingBag", max_norm)
        if mode not in ("sum", "mean", "max"):
            raise ArgumentValueError(
                "EmbeddingBag", expected="mode 'sum', 'mean' or 'max'", got=repr(mode)
            )
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.max_norm = max_norm
        self.norm_type = norm_type
        self.scale_grad_by_freq = scale_grad_by_freq
        self.padding_idx = _row("EmbeddingBag", padding_idx, num_embeddings)
        self.mode = mode
        self.sparse = sparse
        self.include_last_offset = include_last_offset
        self._make_table(_weight, False, device, dtype)

    def forward(
        self,
        input: Any,
        offsets: Any = None,
        per_sample_weights: Any = None,
    ) -> Any:
        """Return one row a bag; bags are the rows of `input`, or begin at `offsets`."""
        return functional.embedding_bag(
            input, self.weight, offsets, self.max_norm, self.norm_type, self.scale_grad_by_freq,
            self.mode, self.sparse, per_sample_weights, self.include_last_offset,
            self.padding_idx,
        )  # fmt: skip

    def extra_repr(self) -> str:
        """Return the settings that the printed form shows."""
        text = f"{self.num_embeddings}, {self.embedding_dim}, mode={self.mode!r}"
        if self.padding_idx is not None:
            text += f", padding_idx={self.padding_idx}"
        return text
