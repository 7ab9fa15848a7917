"""What each query row of a mask may see: an interval of keys, computed on the tensors' own device.

Every kind of mask here (causal, bidirectional, prefix, each with or without a window) lets a query see
one stretch of its document. Two integers a row therefore say all that an S×S mask says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

KINDS = ("causal", "bidirectional", "prefix")
PAD_ROWS = ("blocked", "self")


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """Contiguous stretches of one id, told for every token."""

    ids: torch.Tensor
    """(B, S) integers; 0 is padding."""
    starts: torch.Tensor
    """(B, S) int64: where the token's run starts in its row."""
    stops: torch.Tensor
    """(B, S) int64: where it ends, exclusive."""

    @property
    def places(self) -> torch.Tensor:
        """(S,) int64: each token's place in its row."""
        return torch.arange(self.ids.shape[1], device=self.ids.device)


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """The keys each query may see: ``low <= key < high``."""

    low: torch.Tensor
    """(B, S) int64."""
    high: torch.Tensor
    """(B, S) int64; equal to `low` where a row is wholly blocked."""


def runs_of_offsets(cu_seqlens: torch.Tensor, total: int) -> Runs:
    """Tell (1, total) tokens their documents; those past the last offset are one run of padding.

    No value is read back from a device.
    """
    if cu_seqlens.device.type == "cpu":
        return _runs_on_host(cu_seqlens.numpy(), total)
    return runs_by_search(cu_seqlens, total)


def runs_by_search(cu_seqlens: torch.Tensor, total: int) -> Runs:
    """Look each token's document up, in steps whose sizes do not depend on values."""
    places = torch.arange(total, device=cu_seqlens.device)
    edges = torch.cat([cu_seqlens.long(), cu_seqlens.new_full((1,), total, dtype=torch.int64)])
    owners = torch.searchsorted(edges[:-1], places, right=True)
    starts, stops = edges[owners - 1], edges[owners]
    ids = torch.where(owners < cu_seqlens.shape[0], owners, 0)
    return Runs(ids=ids[None], starts=starts[None], stops=stops[None])


def _runs_on_host(offsets: npt.NDArray[Any], total: int) -> Runs:
    """Repeat each document's values over its tokens; a search would wake torch's threads."""
    starts = offsets.astype(np.int64)
    stops = np.append(starts[1:], total)
    numbers = np.arange(1, len(starts) + 1)
    numbers[-1] = 0
    widths = stops - starts
    ids, first, last = (torch.from_numpy(each.repeat(widths)[None]) for each in (numbers, starts, stops))
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


def prefix_stops(runs: Runs, prefix_lengths: torch.Tensor) -> torch.Tensor:
    """Return where each token's prefix ends in its row: (B, S) int64.

    Args:
        runs: (B, S) tokens.
        prefix_lengths: (B, D) tokens that every token of document 1, 2, …, D may see; a document
            past D has no prefix.
    """
    padded = torch.nn.functional.pad(prefix_lengths.long(), (1, 1))
    known = runs.ids.long().clamp(max=padded.shape[1] - 1)
    return runs.starts + padded.gather(1, known)


def key_intervals(
    runs: Runs,
    kind: str,
    window: int | None,
    pad_rows: str,
    prefix: torch.Tensor | None,
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
    places = runs.places.expand(runs.ids.shape)
    low, high = (runs.starts, runs.stops) if within_runs else (places.new_zeros(()), places.shape[1])
    if kind == "causal":
        high = places + 1
    elif kind == "prefix" and prefix is not None:
        high = torch.minimum(torch.maximum(places + 1, prefix), runs.stops)
    low, high = torch.broadcast_tensors(
        torch.as_tensor(low), torch.as_tensor(high, device=places.device), places
    )[:2]
    if window is not None:
        low, high = torch.maximum(low, places - (window - 1)), torch.minimum(high, places + window)
    padding = runs.ids == 0
    own = places + 1 if pad_rows == "self" else places
    return Intervals(low=torch.where(padding, places, low), high=torch.where(padding, own, high))
