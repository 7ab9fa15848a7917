"""All ranks' records put together: which positions of the epoch nobody has trained."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from raypack.arguments import shown, type_name
from raypack.errors import SamplerError
from raypack.sampling.shard import StridedShard
from raypack.sampling.states.rank_state import SamplerState

_SHARED = (
    "source_id",
    "source_length",
    "world_size",
    "epoch",
    "seed",
    "tail",
    "shuffle",
    "order",
    "order_digest",
    "epoch_size",
    "carried_consumed",
    "scope_size",
    "head_size",
)
_MISSING_NAMED = 5


def one_of_each_rank(states: Iterable[SamplerState]) -> list[SamplerState]:
    """Return the records of rank 0, 1, … of one world, each once and each checked.

    Args:
        states: Records in any order, with or without equal copies.

    Raises:
        TypeError: something else is among them.
        SamplerError: a record is invalid, a rank is missing, or two records contradict each other.
    """
    found: dict[int, SamplerState] = {}
    first: SamplerState | None = None
    for state in states:
        if not isinstance(state, SamplerState):
            raise TypeError(f"states must be SamplerState records, got {type_name(state)}")
        state.validate()
        first = first or state
        _check_shared(first, state)
        if found.setdefault(state.rank, state) != state:
            raise SamplerError(
                f"states of data rank {state.rank} must be equal copies, got records that differ; "
                "save all ranks at one step"
            )
    if first is None:
        raise SamplerError("states must hold the record of every data rank, got none")
    _check_complete(found, first.world_size)
    return [found[rank] for rank in range(first.world_size)]


def remaining_head(ranks: list[SamplerState]) -> NDArray[np.int64]:
    """Return the positions that remain before the place from which all remain.

    Args:
        ranks: One record of every rank, in their order.

    Returns:
        (h,) int64, strictly increasing: what ranks have left of the scope's own head, and what they have
        left of the tail up to where the furthest rank has come.

    Raises:
        SamplerError: two ranks claim one position.
    """
    scopes = [state.scope for state in ranks]
    _check_heads(scopes)
    furthest = max(state.committed for state in ranks)
    left = [np.empty(0, np.int64)]
    for scope, state in zip(scopes, ranks, strict=True):
        stop = min(max(furthest, len(scope.head)), scope.shard_size)
        left.append(scope.positions(min(state.committed, stop), stop))
    head = np.sort(np.concatenate(left))
    consumed = scopes[0].consumed + sum(state.committed for state in ranks)
    return _without_dense_end(head, consumed + len(head))


def _check_shared(first: SamplerState, state: SamplerState) -> None:
    for name in _SHARED:
        mine, other = getattr(first, name), getattr(state, name)
        if mine != other:
            raise SamplerError(
                f"states must agree in {name}, got {shown(mine)} on rank {first.rank} and {shown(other)} "
                f"on rank {state.rank}; take all records from one checkpoint"
            )


def _check_complete(found: dict[int, SamplerState], world_size: int) -> None:
    if len(found) == world_size:
        return
    missing: list[int] = []
    rank = 0
    while len(missing) < min(_MISSING_NAMED, world_size - len(found)):
        if rank not in found:
            missing.append(rank)
        rank += 1
    raise SamplerError(
        f"states must hold every data rank of {world_size}, got {len(found)}; the first missing are "
        f"{', '.join(map(str, missing))}"
    )


def _check_heads(scopes: list[StridedShard]) -> None:
    """Deal the ranks' parts of the head back into one, which must increase."""
    head = np.empty(scopes[0].head_size, np.int64)
    for scope in scopes:
        head[scope.rank :: scope.world_size] = scope.head
    wrong = np.flatnonzero(head[1:] <= head[:-1])
    if len(wrong):
        slot = int(wrong[0])
        ranks = sorted({slot % len(scopes), (slot + 1) % len(scopes)})
        raise SamplerError(
            f"heads of data ranks {ranks} must deal out increasing positions, got {int(head[slot])} before "
            f"{int(head[slot + 1])}: they claim the same part of the epoch; "
            "take all records from one checkpoint"
        )


def _without_dense_end(head: NDArray[np.int64], tail_start: int) -> NDArray[np.int64]:
    """Leave to the tail what already is dense at the head's end."""
    ragged = np.flatnonzero(head != np.arange(tail_start - len(head), tail_start))
    return head[: int(ragged[-1]) + 1] if len(ragged) else head[:0]
