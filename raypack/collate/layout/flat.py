"""Documents on the host: parsed at the door, flat, counted, checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from raypack.arguments import type_name
from raypack.choices import IGNORE_INDEX, INT32_MAX
from raypack.errors import BatchError

Tokens: TypeAlias = "npt.NDArray[Any] | torch.Tensor"
Document: TypeAlias = "Sequence[int] | npt.NDArray[Any] | torch.Tensor"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatDocuments:
    """Documents one after another, with what the host knows of them."""

    input_ids: Tokens
    """(total,) integers: numpy on the host, or a tensor that already lies on a device."""
    labels: Tokens | None
    """(total,) integers as `input_ids`; None: the ids themselves."""
    offsets: npt.NDArray[np.int32]
    """(documents + 1,): where each document starts, and the total."""
    max_seqlen: int
    """The longest document's tokens."""
    num_supervised: int | None
    """Labels that count once each document's first is ignored; None where only a device knows."""

    @property
    def total(self) -> int:
        """Tokens in all documents."""
        return int(self.offsets[-1])

    @property
    def documents(self) -> int:
        """Number of documents."""
        return len(self.offsets) - 1


def parse_flat(input_ids: Tokens, lengths: Tokens, labels: Tokens | None) -> FlatDocuments:
    """Check flat tokens against their lengths.

    Args:
        input_ids: (total,) integers, all documents' tokens one after another.
        lengths: (documents,) integers on the host, each at least 1.
        labels: (total,) integers, -100 where nothing is to be learnt; None: the ids themselves.

    Raises:
        TypeError: something is no integer array or tensor.
        BatchError: shapes, lengths or values do not fit together.
    """
    ids = _one_dimensional("input_ids", input_ids)
    marks = None if labels is None else _one_dimensional("labels", labels)
    sizes = _one_dimensional("lengths", lengths)
    if isinstance(sizes, torch.Tensor):
        raise BatchError(f"lengths must lie on the host, got a tensor on {sizes.device}; pass lengths.cpu()")
    offsets = _offsets(sizes, len(ids))
    if marks is not None and len(marks) != len(ids):
        raise BatchError(f"labels must have one entry a token: {len(ids)}, got {len(marks)}")
    _check_ids(ids)
    return FlatDocuments(
        input_ids=ids,
        labels=marks,
        offsets=offsets,
        max_seqlen=int(sizes.max()) if len(sizes) else 0,
        num_supervised=_supervised(marks, offsets),
    )


def parse_documents(documents: Sequence[Document], labels: Sequence[Document] | None) -> FlatDocuments:
    """Put token lists, arrays or tensors one after another.

    Args:
        documents: one sequence of integers a document.
        labels: as `documents`, of the same lengths; None: the ids themselves.

    Raises:
        TypeError: a document is no sequence of integers.
        BatchError: a document is empty, or its labels have another length.
    """
    rows = [_document("documents", i, value) for i, value in enumerate(documents)]
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    marks = None
    if labels is not None:
        marks = [_document("labels", i, value) for i, value in enumerate(labels)]
        _check_same_lengths(lengths, marks)
    return parse_flat(_joined(rows), lengths, None if marks is None else _joined(marks))


def _check_same_lengths(lengths: npt.NDArray[np.int64], labels: list[npt.NDArray[Any]]) -> None:
    if len(labels) != len(lengths):
        raise BatchError(f"labels must have one entry a document: {len(lengths)}, got {len(labels)}")
    for i, row in enumerate(labels):
        if len(row) != lengths[i]:
            raise BatchError(
                f"labels[{i}] must be as long as documents[{i}]: {lengths[i]} tokens, got {len(row)}"
            )


def _joined(rows: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return np.concatenate(rows) if rows else np.empty(0, dtype=np.int32)


def _document(name: str, position: int, value: Document) -> npt.NDArray[Any]:
    where = f"{name}[{position}]"
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
    elif not isinstance(value, np.ndarray):
        if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
            raise TypeError(f"{where} must be a sequence of integers, got {type_name(value)}")
        value = np.array(value) if len(value) else np.empty(0, dtype=np.int32)
    array = _one_dimensional(where, value)
    assert isinstance(array, np.ndarray)
    return array


def _one_dimensional(name: str, value: Tokens) -> Tokens:
    """Return a 1-D integer array, or a 1-D integer tensor where it lies on a device."""
    if isinstance(value, torch.Tensor):
        if value.dtype.is_floating_point or value.dtype.is_complex or value.dtype == torch.bool:
            raise TypeError(f"{name} must hold integers, got {value.dtype}")
        if value.device.type == "cpu":
            value = value.detach().numpy()
    elif not isinstance(value, np.ndarray):
        raise TypeError(f"{name} must be a numpy array or a tensor, got {type_name(value)}")
    elif value.dtype.kind not in "iu":
        raise TypeError(f"{name} must hold integers, got {value.dtype}")
    if value.ndim != 1:
        raise BatchError(f"{name} must be 1-D, got shape {tuple(value.shape)}")
    return value


def _offsets(lengths: npt.NDArray[Any], total: int) -> npt.NDArray[np.int32]:
    if len(lengths) and lengths.min() < 1:
        first = int(np.argmax(lengths < 1))
        raise BatchError(f"lengths must be at least 1, got {lengths[first]} at document {first}; drop it")
    ends = lengths.cumsum(dtype=np.int64)
    summed = int(ends[-1]) if len(ends) else 0
    if summed != total:
        raise BatchError(f"lengths must add up to the {total} tokens of input_ids, got {summed}")
    if total > INT32_MAX:
        raise BatchError(f"a batch must hold at most {INT32_MAX} tokens, got {total}; lower the budget")
    offsets = np.empty(len(lengths) + 1, dtype=np.int32)
    offsets[0], offsets[1:] = 0, ends
    return offsets


def _check_ids(ids: Tokens) -> None:
    """Refuse ids that no embedding has; a tensor on a device is not read back."""
    if isinstance(ids, torch.Tensor) or not len(ids):
        return
    if (low := int(ids.min())) < 0:
        raise BatchError(f"input_ids must not be negative, got {low} at token {int(ids.argmin())}")
    _check_width("input_ids", ids)


def _check_width(name: str, values: npt.NDArray[Any]) -> None:
    """Refuse what int32 cannot carry to a device."""
    if values.dtype != np.int32 and len(values) and (high := int(values.max())) > INT32_MAX:
        raise BatchError(f"{name} must be below 2**31, got {high} at token {int(values.argmax())}")


def _supervised(labels: Tokens | None, offsets: npt.NDArray[np.int32]) -> int | None:
    """Count the labels that train something, and refuse those that no loss knows."""
    if labels is None:
        return int(offsets[-1]) - (len(offsets) - 1)
    if isinstance(labels, torch.Tensor):
        return None
    ignored = int(np.count_nonzero(labels < 0))
    if ignored != np.count_nonzero(labels == IGNORE_INDEX):
        _refuse_negative(labels)
    _check_width("labels", labels)
    firsts = int(np.count_nonzero(labels[offsets[:-1]] >= 0))
    return len(labels) - ignored - firsts


def _refuse_negative(labels: npt.NDArray[Any]) -> None:
    first = int(np.argmax((labels < 0) & (labels != IGNORE_INDEX)))
    raise BatchError(f"labels must be token ids or {IGNORE_INDEX}, got {labels[first]} at token {first}")
