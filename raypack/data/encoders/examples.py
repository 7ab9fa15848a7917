"""Examples between encoding and shard, cut to the maximum length."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from raypack.choices import INT32_MAX
from raypack.data.formats.row import RowFault
from raypack.data.ingest.counts import PrepareCounts
from raypack.data.ingest.options import PrepareOptions
from raypack.source.index.views import cut_views, first_over
from raypack.source.store.rows import Rows


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
    limit = INT32_MAX if options.max_length is None else options.max_length
    if options.oversize == "error" and (row := first_over(examples.lengths, limit)) is not None:
        raise examples.fault(row, _too_long(int(examples.lengths[row]), limit))
    views = cut_views(examples.lengths, options.max_length, options.oversize)
    for name, number in views.counts.items():
        setattr(counts, name, getattr(counts, name) + number)
    ids, labels = examples.ids, examples.labels
    if views.lengths.sum() < len(ids):
        places = views.tokens()
        ids, labels = ids[places], None if labels is None else labels[places]
    rows = Rows(views.lengths.astype(np.int32), ids, labels)
    return rows if labels is None else _supervised(rows, views.rows, examples, options, counts)


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
