"""Examples on their way from rows to a shard, cut to the length that is allowed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raypack.data.input_row import RowFault
from raypack.data.prepare_counts import PrepareCounts
from raypack.data.prepare_options import PrepareOptions
from raypack.source.rows import Rows

_INT32_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Examples:
    """The examples of consecutive rows, one a row.

    Attributes:
        lengths: int64 (n,), tokens of each; 0 where a row gave none.
        ids: int32 (t,), the tokens of all in order.
        labels: int32 (t,), their labels; None where every token is trained.
        fault: Makes the fault of the row at a place, from what is wrong with it.
    """

    lengths: NDArray[np.int64]
    ids: NDArray[np.int32]
    labels: NDArray[np.int32] | None
    fault: Callable[[int, str], RowFault]


def fit(examples: Examples, options: PrepareOptions, counts: PrepareCounts) -> Rows:
    """Cut what is too long and leave out what is empty or teaches nothing, as the options say.

    Args:
        examples: One a row.
        options: What the user chose.
        counts: What happens is added here.

    Returns:
        The examples that are kept, which may be none.

    Raises:
        RowFault: an example is too long, or has no label to train on, and that is an error.
    """
    counts.empty += int(np.count_nonzero(examples.lengths == 0))
    pieces, kept, is_kept = _cut(examples, options, counts)
    labels = None if examples.labels is None else examples.labels[is_kept]
    # (m,) the row of each piece.
    origin = np.repeat(np.arange(len(examples.lengths)), pieces)
    full = kept > 0
    rows = Rows(kept[full].astype(np.int32), examples.ids[is_kept], labels)
    if labels is None:
        return rows
    return _supervised(rows, origin[full], examples, options, counts)


def _cut(
    examples: Examples, options: PrepareOptions, counts: PrepareCounts
) -> tuple[NDArray[np.int64], NDArray[np.int64], Any]:
    """Return pieces of each row (n,), tokens of each piece (m,), and which tokens stay, (t,) or all."""
    lengths = examples.lengths
    ones = np.ones(len(lengths), np.int64)
    limit = _INT32_MAX if options.max_length is None else options.max_length
    over = lengths > limit
    if not over.any():
        return ones, lengths, slice(None)
    if options.oversize == "error" or options.max_length is None:
        row = int(np.argmax(over))
        raise examples.fault(row, _too_long(int(lengths[row]), limit))
    if options.oversize == "split":
        # Pieces of `limit`, and one of what is left over.
        pieces = np.where(over, -(-lengths // limit), 1)
        cut = np.full(int(pieces.sum()), limit, np.int64)
        cut[np.cumsum(pieces) - 1] = lengths - (pieces - 1) * limit
        counts.split += int(over.sum())
        counts.pieces += int(pieces[over].sum())
        return pieces, cut, slice(None)
    if options.oversize == "truncate":
        counts.truncated += int(over.sum())
        kept = np.minimum(lengths, limit)
    else:
        counts.dropped += int(over.sum())
        kept = np.where(over, 0, lengths)
    # (t,) the place of each token in its row, and so whether it stays.
    starts = np.cumsum(lengths) - lengths
    place = np.arange(len(examples.ids)) - np.repeat(starts, lengths)
    return ones, kept, place < np.repeat(kept, lengths)


def _too_long(length: int, limit: int) -> str:
    return (
        f"the document has {length} tokens, more than max_length {limit}; raise it, or choose "
        "oversize split, truncate or drop"
    )


def _supervised(
    rows: Rows,
    origin: NDArray[np.int64],
    examples: Examples,
    options: PrepareOptions,
    counts: PrepareCounts,
) -> Rows:
    """Leave out the examples without a label to train on, or raise at the first."""
    idle = rows.supervised() == 0
    if not idle.any():
        return rows
    if options.unsupervised == "error":
        raise examples.fault(int(origin[np.argmax(idle)]), _idle(options))
    counts.unsupervised += int(idle.sum())
    stay = np.repeat(~idle, rows.lengths)
    labels = None if rows.labels is None else rows.labels[stay]
    return Rows(rows.lengths[~idle], rows.input_ids[stay], labels)


def _idle(options: PrepareOptions) -> str:
    cut = (
        f", or only past max_length {options.max_length}" if options.oversize in ("split", "truncate") else ""
    )
    return (
        f"no token of the example is trained on{cut} (its first one never is); correct the row, or choose "
        "unsupervised 'drop' to leave such examples out"
    )
