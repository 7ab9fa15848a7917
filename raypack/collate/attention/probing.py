"""Whose logits move when another document's tokens change: the same shapes, kernels and positions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from itertools import pairwise

import torch

from raypack.collate.attention.calling import Caller
from raypack.collate.batch import PackedBatch

MAXIMUM_PROBES = 32
"""Documents changed one by one at the most, to find where a leak comes from."""
MAXIMUM_DOCUMENTS, NEIGHBOURS = 4, 4
"""Documents and neighbours in other rows that noise is measured on."""

Run = Callable[[PackedBatch], torch.Tensor]


def moved_by_others(run: Run, batch: PackedBatch, packed: torch.Tensor) -> list[torch.Tensor]:
    """Return how far each document's logits move when others' tokens and the padding change.

    Half of the documents change at a time, by the bits of their numbers, so that each pair is once on
    different sides; and twice, to two different tokens, so that no mere exchange of tokens goes unseen.

    Returns:
        One (tokens,) tensor a document: the largest of its differences.
    """
    owners = _owners(batch)
    worst = [difference.new_zeros(len(difference)) for difference in split(packed[:, 0].double(), batch)]
    for changed in _sides(batch.num_documents, owners):
        for ids in _other_ids(batch):
            probe = dataclasses.replace(batch, input_ids=torch.where(changed, ids, batch.input_ids))
            moved = split(token_differences(run(probe), packed), batch)
            for number, kept in enumerate(_kept(changed, owners, batch.num_documents)):
                if kept:
                    worst[number] = torch.maximum(worst[number], moved[number])
    return worst


def moved_by_own(run: Run, batch: PackedBatch, packed: torch.Tensor) -> float | None:
    """Return how far later logits move when the first half of each document changes.

    None where no document has a second token.
    """
    offsets = batch.document_offsets
    if batch.max_seqlen < 2:
        return None
    lengths = offsets.diff()
    place = torch.arange(batch.num_tokens, device=batch.device) - torch.repeat_interleave(
        offsets[:-1], lengths
    )
    early = place < torch.repeat_interleave(lengths // 2, lengths)
    changed = torch.zeros_like(batch.segment_ids, dtype=torch.bool)
    changed[batch.segment_ids != 0] = early
    ids = torch.where(changed, next(_other_ids(batch)), batch.input_ids)
    moved = token_differences(run(dataclasses.replace(batch, input_ids=ids)), packed)
    late = ~early & (torch.repeat_interleave(lengths, lengths) > 1)
    return float(moved[late].max())


def leaks(
    run: Run, batch: PackedBatch, packed: torch.Tensor, allowed: float
) -> Iterator[tuple[int | None, int]]:
    """Yield (from, to) for documents whose change moves another's logits; None stands for padding."""
    owners = _owners(batch)
    sources = [*range(min(batch.num_documents, MAXIMUM_PROBES)), *([-1] if batch.num_padding else [])]
    for source in sources:
        seen = [0.0] * batch.num_documents
        for ids in _other_ids(batch):
            probe = dataclasses.replace(batch, input_ids=torch.where(owners == source, ids, batch.input_ids))
            moved = split(token_differences(run(probe), packed), batch)
            seen = [max(before, float(now.max())) for before, now in zip(seen, moved, strict=True)]
        for target, distance in enumerate(seen):
            if target != source and distance > allowed:
                yield (None if source < 0 else source), target


def noise_of(caller: Caller, batch: PackedBatch, packed: torch.Tensor, moved: list[torch.Tensor]) -> float:
    """Return how far logits move where no document can see another.

    The batch is run again; and the documents that moved most are run in a row of their own, beside rows
    that change. Rows of a batch share nothing but the kernels, the experts' load and the like.
    """
    noise = float(token_differences(caller.together(batch), packed).max())
    if caller.rows is None:
        return noise
    documents = document_ids(batch)
    ranked = sorted(range(len(moved)), key=lambda number: float(moved[number].max()), reverse=True)
    generator = torch.Generator().manual_seed(0)
    known = batch.input_ids[batch.segment_ids != 0].unique()
    for number in ranked[:MAXIMUM_DOCUMENTS]:
        ids = documents[number]
        first = caller.rows(torch.stack([ids, ids]))[0]
        for _ in range(NEIGHBOURS):
            drawn = torch.randint(len(known), (len(ids),), generator=generator).to(known.device)
            beside = caller.rows(torch.stack([ids, known[drawn]]))[0]
            noise = max(noise, float(token_differences(beside, first).max()))
    return noise


def token_differences(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Return each token's root mean square difference, (tokens,) float64; what is not finite is infinite.

    Equal infinities (a vocabulary's unused part, say) do not differ.
    """
    wide = first.double(), second.double()
    gap = torch.where(wide[0] == wide[1], 0.0, wide[0] - wide[1])
    return gap.square().mean(dim=1).sqrt().nan_to_num(nan=torch.inf, posinf=torch.inf)


def split(values: torch.Tensor, batch: PackedBatch) -> list[torch.Tensor]:
    """Cut values of the real tokens by documents."""
    return [values[start:stop] for start, stop in pairwise(batch.document_offsets.tolist())]


def document_ids(batch: PackedBatch) -> list[torch.Tensor]:
    """Return the documents' token ids."""
    return split(batch.input_ids[batch.segment_ids != 0], batch)


def _owners(batch: PackedBatch) -> torch.Tensor:
    """Return the number of each token's document from 0; -1 is padding."""
    owners = torch.full_like(batch.segment_ids, -1)
    lengths = batch.document_offsets.diff()
    owners[batch.segment_ids != 0] = torch.repeat_interleave(lengths).to(owners.dtype)
    return owners


def _sides(documents: int, owners: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield masks of tokens to change: padding always, and one side of each bit."""
    padding = owners < 0
    if documents == 1:
        yield padding
    for bit in range((documents - 1).bit_length()):
        side = (owners >> bit) & 1 == 1
        yield side | padding
        yield ~side | padding


def _kept(changed: torch.Tensor, owners: torch.Tensor, documents: int) -> list[bool]:
    touched = set(owners[changed].unique().tolist())
    return [number not in touched for number in range(documents)]


def _other_ids(batch: PackedBatch) -> Iterator[torch.Tensor]:
    """Yield ids that differ everywhere from the batch's, and that the model knows: two ways."""
    known = batch.input_ids[batch.segment_ids != 0].unique()
    if len(known) == 1:
        known = torch.cat([known, torch.where(known == 0, 1, known - 1)])
    for common, instead in ((known[0], known[-1]), (known[len(known) // 2], known[0])):
        yield torch.where(batch.input_ids == common, instead, common)
