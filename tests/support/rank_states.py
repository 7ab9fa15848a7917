"""Checkpoints of the rank deal, made by real samplers without a cluster."""

import numpy as np

from raypack.batching.options import TokenBatchOptions
from raypack.batching.rank.sampler import StatefulTokenBatchSampler
from raypack.batching.sequence.rank_steps import commit_examples
from raypack.checkpoint.files import loader_folder, write_manifest, write_rank, write_state
from raypack.checkpoint.goal import Goal
from raypack.checkpoint.ledger import Attempt, EpochEntry, Ledger
from raypack.checkpoint.run_state import state_values
from raypack.sampling.receipt import Receipt, receipt_key
from raypack.sampling.sampler import StatefulShardSampler

OPTIONS = TokenBatchOptions(64)


def train(source, *, world_size=3, steps=4, seed=4):
    """Return the samplers of all ranks after some steps of one batch a rank, and the receipt."""
    key, receipt, samplers = receipt_key(source.fingerprint, 0), Receipt(), []
    for rank in range(world_size):
        shard = StatefulShardSampler(
            source.fingerprint, len(source), rank=rank, world_size=world_size, seed=seed
        )
        sampler = StatefulTokenBatchSampler(shard, source.lengths, OPTIONS)
        for plan in sampler.plans(0, steps):
            receipt += Receipt.of(key, plan.indices, plan.real_tokens)
            commit_examples(sampler, len(plan))
        samplers.append(sampler)
    return samplers, receipt


def write_ranks(directory, source, samplers, receipt, *, steps=4, name=None, report_id="d" * 32):
    """Write their checkpoint as a report does, and return its directory."""
    world_size, folder = len(samplers), loader_folder(directory, name)
    attempt = Attempt(
        number=0,
        world_size=world_size,
        first_step=0,
        steps=steps,
        batches_per_step=world_size,
        options=OPTIONS,
    )
    values = state_values(
        deal="rank",
        report_id=report_id,
        world_size=world_size,
        source_path=source.path,
        source=source.summary(),
        goal=Goal(epochs=1),
        plan={"epoch": 0, "steps": steps, "batches_per_step": world_size},
        ledger=Ledger((attempt,), (EpochEntry(epoch=0, steps=steps, receipt=receipt),)),
    )
    files = write_state(folder, values)
    for rank, sampler in enumerate(samplers):
        files |= write_rank(
            folder, sampler.state().to_dict(), report_id=report_id, rank=rank, world_size=world_size
        )
    write_manifest(folder, values, files)
    return directory


def remaining_of(samplers):
    """Return all indices that the samplers have not committed, sorted."""
    return sorted(np.concatenate([s.sampler.indices[s.sampler.committed :] for s in samplers]).tolist())
