"""Records that anybody may have edited: a SamplerError or a valid record, never anything else."""

import copy
import random
import resource

import numpy as np
import pytest

from raypack.batching import (
    ConsolidatedTokenBatchState,
    StatefulTokenBatchSampler,
    TokenBatchOptions,
    TokenBatchState,
)
from raypack.errors import SamplerError
from raypack.sampling import ConsolidatedSamplerState, SamplerState
from tests.support.worlds import consolidate, reshard, train, world

LENGTHS = np.random.default_rng(0).integers(1, 9, 40)
MUTATIONS = 9_000


def deep(levels):
    nested = []
    for _ in range(levels):
        nested = [nested]
    return nested


NONSENSE = [
    None, True, False, 0, 1, -1, 2, 3, 7, 40, 41, 255, 2**31, 2**60, 2**62, 2**63, 2**64, -(2**70), 10**5000,
    0.0, 1.0, -0.5, float("nan"), float("inf"), 1e308, "", "0", "a", "uneven", "drop", "full", "block",
    "packed", "\x00", "é", "=", "A" * 10_000, "eJwDAAAAAAE=", [], [0], [[]], {}, {"count": 2**60}, {"a": {}},
    (), (1,), b"", b"bytes", {1, 2}, object(), deep(10), deep(100_000), [10**5000],
    {"count": 10**9, "width": 8, "data": "eJwDAAAAAAE="},
]  # fmt: skip


def records():
    fresh = world(40, 3, seed=5)
    scoped = reshard(consolidate(train(world(40, 4, seed=5), [9, 0, 2, 9])), 3)
    explicit = train(world(40, 3, order=np.random.default_rng(2).permutation(40)), [3, 0, 1])
    for samplers in (fresh, scoped, explicit):
        options = TokenBatchOptions(12, 5)
        batches = [StatefulTokenBatchSampler(sampler, LENGTHS, options) for sampler in samplers]
        yield SamplerState, samplers[1].state()
        yield ConsolidatedSamplerState, consolidate(samplers)
        yield TokenBatchState, batches[2].state()
        yield (
            ConsolidatedTokenBatchState,
            ConsolidatedTokenBatchState.consolidate([b.state() for b in batches]),
        )


def places(value, path=()):
    """The paths of all values inside a nested dict."""
    for key, inner in value.items():
        yield (*path, key)
        if isinstance(inner, dict):
            yield from places(inner, (*path, key))


def other_value(rng, value):
    kind = rng.randrange(4)
    if kind == 0 and isinstance(value, int):
        return value + rng.choice([-2, -1, 1, 2, 2**20, 2**61])
    if kind == 0 and isinstance(value, str) and value:
        at = rng.randrange(len(value))
        return value[:at] + rng.choice("A0_=\n/é") + value[at + rng.randrange(2) :]
    if kind == 1 and isinstance(value, str):
        return value[: rng.randrange(len(value) + 1)]
    return nonsense(rng)


def nonsense(rng):
    value = rng.choice(NONSENSE)
    return copy.deepcopy(value) if isinstance(value, dict) else value


def mutated(rng, whole):
    """A copy with one to three faults."""
    record = copy.deepcopy(whole)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        found = list(places(record))
        *path, key = rng.choice(found)
        parent = record
        for step in path:
            parent = parent[step]
        kind = rng.randrange(12)
        if kind == 0:
            del parent[key]
        elif kind == 1:
            parent[rng.choice(["more", "", 5, None, (1, 2)])] = nonsense(rng)
        elif kind == 2:
            other = copy.deepcopy(whole)
            for step in rng.choice(list(places(whole))):
                other = other[step]
            parent[key] = other
        else:
            parent[key] = other_value(rng, parent[key])
    return record


RECORDS = list(records())


@pytest.mark.parametrize(("kind", "record"), RECORDS, ids=lambda value: getattr(value, "__name__", ""))
def test_thousands_of_damaged_records_are_refused_or_valid(kind, record):
    rng = random.Random(kind.__name__)
    whole = record.to_dict()
    assert kind.from_dict(whole) == record
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused = 0
    for _ in range(MUTATIONS):
        try:
            valid = kind.from_dict(mutated(rng, whole))
        except SamplerError:
            refused += 1
        else:
            assert kind.from_dict(valid.to_dict()) == valid
    assert refused > 0.8 * MUTATIONS
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 64 * 1024, f"{grown} KiB were allocated"


@pytest.mark.parametrize(
    "kind", [SamplerState, ConsolidatedSamplerState, TokenBatchState, ConsolidatedTokenBatchState]
)
@pytest.mark.parametrize("value", NONSENSE, ids=lambda value: type(value).__name__)
def test_what_is_no_record_at_all_is_refused(kind, value):
    with pytest.raises(SamplerError):
        kind.from_dict(value)


def test_a_bomb_is_not_inflated():
    import base64
    import zlib

    bomb = base64.b64encode(zlib.compress(bytes(20_000_000), 1)).decode()
    record = RECORDS[0][1].to_dict()
    for count in (0, 1, 20_000_000, 10**12, 2**60):
        record["head"] = {"count": count, "width": 1, "data": bomb}
        with pytest.raises(SamplerError):
            SamplerState.from_dict(record)


def test_damaged_worlds_are_no_worlds():
    """Valid records of one world, some of them changed: an error or a whole epoch, nothing between."""
    rng = random.Random(1)
    worlds = [world(40, 3, seed=5), reshard(consolidate(train(world(40, 4, seed=5), [9, 0, 2, 9])), 3)]
    refused = 0
    for _ in range(4_000):
        states = [sampler.state().to_dict() for sampler in rng.choice(worlds)]
        for _ in range(rng.randrange(1, 3)):
            at = rng.randrange(3)
            key = rng.choice(
                ["committed", "rank", "head_size", "epoch", "carried_consumed", "scope_size", "head"]
            )
            if key == "head":
                states[at][key] = states[rng.randrange(3)][key]
            else:
                states[at][key] += rng.choice([-1, 1, 2, 5, 2**50])
        try:
            consolidated = ConsolidatedSamplerState.consolidate(map(SamplerState.from_dict, states))
        except SamplerError:
            refused += 1
        else:
            assert consolidated.consumed + len(consolidated.remaining_indices) == 40
            assert len(set(consolidated.remaining_indices.tolist())) == consolidated.remaining
    assert refused > 1_000
