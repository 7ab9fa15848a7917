"""Examples as views of rows: where each begins, and how long it is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Views:
    """The examples of consecutive rows.

    Attributes:
        rows: int64 (m,), the row of each example.
        starts: int64 (m,), its first token, counted through the tokens of all rows.
        lengths: int64 (m,), its tokens, at least 1.
        counts: How many rows were ``empty``, ``split`` (into so many ``pieces``), ``truncated`` or
            ``dropped``.
    """

    rows: NDArray[np.int64]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    counts: dict[str, int]

    def tokens(self) -> NDArray[np.int64]:
        """Return the place of each token of each example among the tokens of all rows, int64 (t,)."""
        ends = np.cumsum(self.lengths)
        shift = self.starts - (ends - self.lengths)
        return np.arange(ends[-1] if len(ends) else 0) + np.repeat(shift, self.lengths)


def first_over(lengths: NDArray[np.integer], limit: int) -> int | None:
    """Return the first row of more than ``limit`` tokens; None where there is none."""
    over = lengths > limit
    return int(np.argmax(over)) if over.any() else None


def cut_views(lengths: NDArray[np.integer], limit: int | None, oversize: str) -> Views:
    """Cut rows into examples; a row without tokens gives none.

    Args:
        lengths: Integers (n,), tokens of each row.
        limit: Tokens of an example at the most; None for no limit.
        oversize: What happens to a longer row: ``split`` into pieces of ``limit`` and one of the rest,
            ``truncate`` to the beginning, or ``drop``. Longer rows are cut off where it is ``error``; see
            `first_over`.
    """
    whole = lengths.astype(np.int64)
    over = np.zeros(len(whole), bool) if limit is None else whole > limit
    step = int(whole.max(initial=1)) if limit is None else limit
    pieces = (whole > 0).astype(np.int64)
    if oversize == "split":
        pieces = -(-whole // step)
    elif oversize == "drop":
        pieces[over] = 0
    rows = np.repeat(np.arange(len(whole)), pieces)
    # (m,) the place of each example in its row.
    nth = np.arange(len(rows)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    starts = (np.cumsum(whole) - whole)[rows] + nth * step
    kept = np.minimum(whole[rows] - nth * step, step)
    counts = {"empty": int(np.count_nonzero(whole == 0))}
    number = int(np.count_nonzero(over))
    if oversize == "split":
        counts |= {"split": number, "pieces": int(pieces[over].sum())}
    elif oversize != "error":
        counts["truncated" if oversize == "truncate" else "dropped"] = number
    return Views(rows, starts, kept, counts)
