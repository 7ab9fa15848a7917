"""Rows on their way into a shard: flat arrays, never lists of tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from raypack.arguments import type_name
from raypack.choices import IGNORE_INDEX
from raypack.errors import SourceError

_COLUMNS = {("input_ids",), ("input_ids", "labels")}


@dataclass(frozen=True, slots=True)
class Rows:
    """Consecutive examples as flat arrays.

    Attributes:
        lengths: int32 (n,), tokens of each example, at least 1.
        input_ids: int32 (t,), the tokens of all examples in order.
        labels: int32 (t,), their labels; None where there are none.
    """

    lengths: NDArray[np.int32]
    input_ids: NDArray[np.int32]
    labels: NDArray[np.int32] | None

    def supervised(self) -> NDArray[np.int32]:
        """Return the label tokens of each example, int32 (n,); an example's first label never counts."""
        if self.labels is None:
            return self.lengths - np.int32(1)
        if not len(self.lengths):
            return np.zeros(0, np.int32)
        counted = self.labels != IGNORE_INDEX
        ends = np.cumsum(self.lengths, dtype=np.int64)
        counted[ends - self.lengths] = False
        return np.add.reduceat(counted, ends - self.lengths, dtype=np.int32)

    def part(self, start: int, stop: int, first_token: int, last_token: int) -> Rows:
        """Return the examples [start, stop), whose tokens are [first_token, last_token), as views."""
        labels = None if self.labels is None else self.labels[first_token:last_token]
        return Rows(self.lengths[start:stop], self.input_ids[first_token:last_token], labels)


def join_rows(parts: list[Rows]) -> Rows:
    """Return the examples of all ``parts`` (at least one, with the same columns) in order."""
    if len(parts) == 1:
        return parts[0]
    labels = [part.labels for part in parts if part.labels is not None]
    return Rows(
        np.concatenate([part.lengths for part in parts]),
        np.concatenate([part.input_ids for part in parts]),
        np.concatenate(labels) if labels else None,
    )


def read_batches(batches: Iterable[pa.Table | pa.RecordBatch]) -> Iterator[Rows]:
    """Turn Arrow tables or record batches into rows, each value checked.

    Raises:
        TypeError: an item is neither a table nor a record batch.
        SourceError: a column or a value cannot be stored; the message names the example.
    """
    if isinstance(batches, (pa.Table, pa.RecordBatch)):
        batches = [batches]
    columns: tuple[str, ...] | None = None
    examples = 0
    for batch in batches:
        if not isinstance(batch, (pa.Table, pa.RecordBatch)):
            raise TypeError(f"batches must hold pyarrow tables or record batches, got {type_name(batch)}")
        names = tuple(sorted(batch.schema.names))
        _check_columns(names, columns)
        columns = names
        for piece in batch.to_batches() if isinstance(batch, pa.Table) else (batch,):
            yield _read_batch(piece, examples)
            examples += piece.num_rows


def _check_columns(names: tuple[str, ...], before: tuple[str, ...] | None) -> None:
    if names not in _COLUMNS:
        raise SourceError(
            f"columns must be input_ids and, where there are any, labels; got {', '.join(names) or 'none'}: "
            "select these columns first"
        )
    if before not in (None, names):
        raise SourceError(f"all batches must have the same columns; got {names} after {before}")


def _read_batch(batch: pa.RecordBatch, first: int) -> Rows:
    lengths, ids = read_lists(batch, "input_ids", first)
    check_values("input_ids", ids, lengths, ids < 0, "at least 0", first)
    if not lengths.all():
        raise SourceError(
            f"example {first + int(np.argmin(lengths))} has no tokens; leave empty examples out"
        )
    if "labels" not in batch.schema.names:
        return Rows(lengths, ids, None)
    label_lengths, labels = read_lists(batch, "labels", first)
    if not np.array_equal(label_lengths, lengths):
        row = int(np.argmax(label_lengths != lengths))
        raise SourceError(
            f"labels must be as long as input_ids; example {first + row} has {int(label_lengths[row])} "
            f"labels and {int(lengths[row])} tokens"
        )
    wrong = (labels < 0) & (labels != IGNORE_INDEX)
    check_values("labels", labels, lengths, wrong, f"at least 0, or {IGNORE_INDEX} (not trained)", first)
    return Rows(lengths, ids, labels)


def check_values(
    name: str,
    values: NDArray[Any],
    lengths: NDArray[Any],
    wrong: NDArray[Any],
    rule: str,
    first: int,
    *,
    unit: str = "example",
) -> None:
    """Raise SourceError at the first value (t,) that is ``wrong`` (t,); see `read_lists` for the rest."""
    if wrong.any():
        token = int(np.argmax(wrong))
        row = int(np.searchsorted(np.cumsum(lengths, dtype=np.int64), token, side="right"))
        raise SourceError(f"{name} must be {rule}; {unit} {first + row} has {int(values[token])}")


def read_lists(
    batch: pa.RecordBatch, name: str, first: int, *, unit: str = "example"
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return lengths int32 (n,) and flat values int32 (t,) of a list column.

    Args:
        batch: The rows.
        name: Name of the column.
        first: The number of the first row, for messages.
        unit: What messages call a row.

    Raises:
        SourceError: the column holds no lists of integers that fit int32, or holds nulls.
    """
    column = batch.column(name)
    kind = column.type
    if pa.types.is_fixed_size_list(kind):
        column = column.cast(pa.list_(kind.value_type))
        kind = column.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_integer(
        kind.value_type
    ):
        raise SourceError(
            f"{name} must be a list or large_list of integers, got {kind}; cast the column first"
        )
    if column.null_count:
        row = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
        raise SourceError(f"{name} must have no nulls; {unit} {first + row} is null")
    if not len(column):
        return np.zeros(0, np.int32), np.zeros(0, np.int32)
    # The offsets of a sliced column do not start at 0, and its values are those of the whole column.
    offsets = column.offsets.to_numpy().astype(np.int64, copy=False)
    values = column.values.slice(offsets[0], offsets[-1] - offsets[0])
    if values.null_count:
        token = int(np.argmax(values.is_null().to_numpy(zero_copy_only=False))) + int(offsets[0])
        row = int(np.searchsorted(offsets, token, side="right")) - 1
        raise SourceError(f"{name} must have no nulls; {unit} {first + row} holds one")
    try:
        narrow = pc.cast(values, pa.int32()).to_numpy()
        return pc.cast(pa.array(np.diff(offsets)), pa.int32()).to_numpy(), narrow
    except pa.ArrowInvalid as error:
        raise SourceError(
            f"{name} must fit int32 ({unit}s {first} to {first + batch.num_rows - 1}): {error}"
        ) from error


def cut_shards(rows: Iterable[Rows], limit: int) -> Iterator[Rows]:
    """Cut a stream of examples into shards of at most ``limit`` tokens, or of one longer example.

    The cuts depend on the examples alone, not on how they come in batches.
    """
    pending: list[Rows] = []
    room = limit
    for block in rows:
        ends = np.cumsum(block.lengths, dtype=np.int64)
        start, done = 0, 0
        while start < len(ends):
            stop = int(np.searchsorted(ends, done + room, side="right"))
            if stop == start and not pending:
                stop = start + 1
            if stop > start:
                last = int(ends[stop - 1])
                pending.append(block.part(start, stop, done, last))
                room -= last - done
                start, done = stop, last
            if start < len(ends):
                yield join_rows(pending)
                pending, room = [], limit
    if pending:
        yield join_rows(pending)
