"""What each query row of a mask may see: an interval of keys, computed where the boundaries lie.

Every kind of mask here (causal, bidirectional, prefix, each with or without a window) lets a query see
one stretch of its document. Two integers a row therefore say all that an S×S mask says.

The arrays are torch's on a device and numpy's on the host, where numpy's small steps cost half as much.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

KINDS = ("causal", "bidirectional", "prefix")
PAD_ROWS = ("blocked", "self")


Array: TypeAlias = Any
"""A numpy array on the host, a tensor on a device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """Contiguous runs of one id, given for every token."""

    ids: Array
    """(B, S) integers; 0 is padding."""
    starts: Array
    """(B, S) int64: where the token's run starts in its row."""
    stops: Array
    """(B, S) int64: where it ends, exclusive."""

    @property
    def device(self) -> torch.device:
        """Where the arrays lie."""
        return self.ids.device if isinstance(self.ids, torch.Tensor) else torch.device("cpu")

    @property
    def places(self) -> Array:
        """(S,) int64: each token's place in its row."""
        length = self.ids.shape[1]
        if isinstance(self.ids, torch.Tensor):
            return torch.arange(length, device=self.ids.device)
        return np.arange(length)


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """The keys each query may see: ``low <= key < high``."""

    low: Array
    """(B, S) int64."""
    high: Array
    """(B, S) int64; equal to `low` where a row is wholly blocked."""


def runs_of_offsets(cu_seqlens: torch.Tensor, total: int) -> Runs:
    """Tell (1, total) tokens their documents; those past the last offset are one run of padding.

    Documents are looked up in steps whose sizes do not depend on values: nothing is read back.
    """
    places = torch.arange(total, device=cu_seqlens.device)
    edges = torch.cat([cu_seqlens.long(), cu_seqlens.new_full((1,), total, dtype=torch.int64)])
    owners = torch.searchsorted(edges[:-1], places, right=True)
    starts, stops = edges[owners - 1], edges[owners]
    ids = torch.where(owners < cu_seqlens.shape[0], owners, 0)
    return Runs(ids=ids[None], starts=starts[None], stops=stops[None])


def host_runs_of_offsets(offsets: npt.NDArray[Any], total: int) -> Runs:
    """Do the same on the host, where each document's values are repeated over its tokens."""
    edges = np.empty(len(offsets) + 1, dtype=np.int64)
    edges[:-1], edges[-1] = offsets, total
    numbers = np.arange(1, len(edges))
    numbers[-1] = 0
    widths = edges[1:] - edges[:-1]
    ids, starts, stops = (each.repeat(widths)[None] for each in (numbers, edges[:-1], edges[1:]))
    return Runs(ids=ids, starts=starts, stops=stops)


def host_runs_of_segments(ids: npt.NDArray[Any]) -> Runs:
    """Do the same as `runs_of_segments` on the host."""
    changed = np.ones(ids.shape, dtype=np.bool_)
    np.not_equal(ids[:, 1:], ids[:, :-1], out=changed[:, 1:])
    starts = np.flatnonzero(changed)
    stops = np.append(starts[1:], ids.size)[: len(starts)]
    widths = stops - starts
    offsets = starts - starts % max(ids.shape[1], 1)
    first, last = ((each - offsets).repeat(widths).reshape(ids.shape) for each in (starts, stops))
    return Runs(ids=ids, starts=first, stops=last)


def runs_of_segments(segment_ids: torch.Tensor) -> Runs:
    """Find the runs of equal ids in (B, S) rows."""
    rows, length = segment_ids.shape
    places = torch.arange(length, device=segment_ids.device)
    edge = torch.ones((rows, 1), dtype=torch.bool, device=segment_ids.device)
    changed = segment_ids[:, 1:] != segment_ids[:, :-1]
    if length == 0:
        edge = edge[:, :0]
    starts = torch.where(torch.cat([edge, changed], dim=1), places, 0).cummax(dim=1).values
    lasts = torch.where(torch.cat([changed, edge], dim=1), places + 1, length)
    stops = lasts.flip(1).cummin(dim=1).values.flip(1)
    return Runs(ids=segment_ids, starts=starts, stops=stops)


def prefix_stops(runs: Runs, prefix_lengths: torch.Tensor) -> Array:
    """Return where each token's prefix ends in its row: (B, S) int64.

    Args:
        runs: (B, S) tokens.
        prefix_lengths: (B, D) tokens that every token of document 1, 2, …, D may see; a document
            past D has no prefix.
    """
    padded = torch.nn.functional.pad(prefix_lengths.long(), (1, 1))
    known = torch.as_tensor(runs.ids).long().clamp(max=padded.shape[1] - 1)
    lengths = padded.gather(1, known)
    return runs.starts + (lengths if isinstance(runs.starts, torch.Tensor) else lengths.numpy())


def key_intervals(
    runs: Runs,
    kind: str,
    window: int | None,
    pad_rows: str,
    prefix: Array | None,
    *,
    within_runs: bool,
) -> Intervals:
    """Return the keys each query may see.

    Args:
        runs: (B, S) tokens.
        kind: one of `KINDS`.
        window: keys further away than ``window - 1`` are blocked; None: no window.
        pad_rows: one of `PAD_ROWS`.
        prefix: (B, S) ends of the prefixes, for the kind ``"prefix"``.
        within_runs: end intervals at the run's edges; otherwise ids are still to be compared.
    """
    library: Any = torch if isinstance(runs.ids, torch.Tensor) else np
    places = runs.places
    low, high = runs.starts, runs.stops
    if not within_runs:
        low, high = library.zeros_like(places), library.full_like(places, len(places))
    if kind == "causal":
        high = places + 1
    elif kind == "prefix":
        high = library.minimum(library.maximum(places + 1, prefix), runs.stops)
    if window is not None:
        window = min(window, len(places))  # larger ones are the same, and would overflow
        low = library.maximum(low, places - (window - 1))
        high = library.minimum(high, places + window)
    padding = runs.ids == 0
    own = places + 1 if pad_rows == "self" else places
    return Intervals(low=library.where(padding, places, low), high=library.where(padding, own, high))
