"""Connectionist temporal classification: the loss of a label sequence without an alignment.

Invariants
----------
* The probabilities of all alignments are summed from left to right in logarithms; the gradient is
  that of the sum, by autograd.

Source: Graves, Fernandez, Gomez, Schmidhuber, "Connectionist temporal classification", ICML 2006.
"""

from __future__ import annotations

import math
from typing import Any

from refruntime import _dtypes
from refruntime._impl import TensorImpl
from refruntime._ops.opdef import ops
from refruntime.errors import ArgumentValueError, ShapeError


def ctc_loss(
    log_probs: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Any:
    """Return minus the logarithm of the probability of label sequences.

    Parameters
    ----------
    log_probs : Tensor
        Logarithms of class probabilities, shape ``(time, batch, classes)`` or ``(time, classes)``.
    targets : Tensor
        Labels, shape ``(batch, labels)``, or all sequences in one row.
    input_lengths, target_lengths : Tensor or sequence of int
        How many time steps and labels each sequence has.
    blank : int
        The class that stands for no label.
    reduction : str
        ``none``, ``sum``, or ``mean``: over the batch, of each loss over its number of labels.
    zero_infinity : bool
        Count a sequence that does not fit into its time steps as 0.
    """
    if reduction not in ("none", "mean", "sum"):
        raise ArgumentValueError(
            "ctc_loss", what=f"{reduction} is not a valid value for reduction",
            expected="'none', 'mean' or 'sum'", got=repr(reduction),
        )  # fmt: skip
    batched = log_probs.dim() == 3
    rows = log_probs if batched else log_probs.unsqueeze(1)
    times, labels = _lengths(input_lengths), _lengths(target_lengths)
    _check(rows, times, labels, blank)
    target_table = _table(targets, labels)
    loss = -_log_likelihood(rows, target_table, times, labels, blank)
    if zero_infinity:
        loss = ops.where(ops.isinf(loss), 0.0, loss)
    if reduction == "mean":
        counts = ops.tensor([max(count, 1) for count in labels], dtype=loss.dtype)
        return (loss / counts.to(loss.device)).mean()
    if reduction == "sum":
        return loss.sum()
    return loss if batched else loss.squeeze(0)


def _lengths(value: Any) -> list[int]:
    if isinstance(value, TensorImpl):
        value = ops.reshape(value, (-1,)).tolist()
    return [int(one) for one in (value if isinstance(value, (list, tuple)) else [value])]


def _check(rows: Any, times: list[int], labels: list[int], blank: int) -> None:
    steps, batch, classes = rows.shape
    if len(times) != batch or len(labels) != batch:
        raise ShapeError(
            "ctc_loss", what="input_lengths and target_lengths must be of size batch_size",
            expected=str(batch), got=f"{len(times)} and {len(labels)}",
        )  # fmt: skip
    if not 0 <= blank < classes:
        raise ShapeError("ctc_loss", what="blank must be in label range",
                         expected=f"0 to {classes - 1}", got=str(blank))  # fmt: skip
    if max(times, default=0) > steps or min([*times, *labels], default=0) < 0:
        raise ShapeError(
            "ctc_loss", expected=f"input lengths of at most {steps}, and none negative",
            got=f"{times} and {labels}",
        )  # fmt: skip


def _table(targets: Any, labels: list[int]) -> Any:
    """Return the labels as a matrix with a row for each sequence."""
    longest = max(labels, default=0)
    if targets.dim() == 2:
        return targets.long()[:, :longest]
    if targets.numel() < sum(labels):
        raise ShapeError("ctc_loss", expected=f"{sum(labels)} labels", got=str(targets.numel()))
    rows, start = [], 0
    for count in labels:
        part = targets.long()[start : start + count]
        rows.append(ops.constant_pad_nd(part, (0, longest - count)))
        start += count
    return ops.stack(rows) if rows else targets.long().reshape(0, longest)


def _log_likelihood(
    rows: Any, targets: Any, times: list[int], labels: list[int], blank: int
) -> Any:
    batch, longest = targets.shape
    # Labels with blanks before, between and after them.
    states = ops.full((batch, 2 * longest + 1), blank, dtype=_dtypes.int64, device=rows.device)
    states[:, 1::2] = targets
    emitted = rows.gather(2, ops.expand(states, (rows.shape[0], *states.shape)))
    # A state may follow the last but one where that is another label.
    jumps = ops.zeros(tuple(states.shape), dtype=_dtypes.bool_, device=rows.device)
    jumps[:, 2:] = ops.logical_and(states[:, 2:] != blank, states[:, 2:] != states[:, :-2])
    alpha = ops.full(tuple(states.shape), -math.inf, dtype=rows.dtype, device=rows.device)
    begin = ops.arange(states.shape[1], device=rows.device) < 2
    alpha = ops.where(begin, emitted[0], alpha) if times and rows.shape[0] else alpha
    last = ops.tensor(times, device=rows.device).unsqueeze(1)
    for step in range(1, max(times, default=0)):
        before = ops.constant_pad_nd(alpha, (1, 0), -math.inf)[:, :-1]
        leap = ops.constant_pad_nd(alpha, (2, 0), -math.inf)[:, : alpha.shape[1]]
        leap = ops.where(jumps, leap, -math.inf)
        joined = ops.logsumexp(ops.stack([alpha, before, leap]), 0) + emitted[step]
        alpha = ops.where(last > step, joined, alpha)
    ends = ops.tensor([[2 * n, max(2 * n - 1, 0)] for n in labels], device=rows.device)
    final = alpha.gather(1, ends.reshape(batch, 2))
    # Without labels both places are the same one.
    alone = ops.tensor([[False, n == 0] for n in labels], device=rows.device).reshape(batch, 2)
    return ops.logsumexp(ops.masked_fill(final, alone, -math.inf), 1)
