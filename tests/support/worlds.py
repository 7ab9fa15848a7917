"""Small worlds of samplers for tests."""

import dataclasses

from raypack.sampling import ConsolidatedSamplerState, StatefulShardSampler


def world(length, world_size, **options):
    """One sampler a rank."""
    return [
        StatefulShardSampler("source", length, rank=rank, world_size=world_size, **options)
        for rank in range(world_size)
    ]


def shards(samplers):
    return [sampler.indices.tolist() for sampler in samplers]


def train(samplers, counts):
    """Issue and commit that many examples on each rank."""
    for sampler, count in zip(samplers, counts, strict=True):
        if count:
            sampler.next_indices(count)
            sampler.commit(count)
    return samplers


def consolidate(samplers):
    return ConsolidatedSamplerState.consolidate([sampler.state() for sampler in samplers])


def reshard(consolidated, world_size):
    return [StatefulShardSampler.reshard(consolidated, rank, world_size) for rank in range(world_size)]


def changed(record, **fields):
    """A copy of a record with other fields, checked as any record is."""
    return dataclasses.replace(record, **fields)


def picture(sampler):
    """All that a caller can see of a sampler."""
    return sampler.state(), sampler.issued, sampler.committed, sampler.indices.tolist()


class Rows:
    """A dataset whose row i is "row i", some of them missing."""

    def __init__(self, length, missing=()):
        self.length = length
        self.missing = missing

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if index in self.missing or not 0 <= index < self.length:
            raise IndexError(index)
        return f"row {index}"
