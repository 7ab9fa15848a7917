"""PackedBatch: every tensor against a plain loop over documents."""

import enum
import warnings
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from raypack.collate import BatchError, PackedBatch

DOCUMENTS = [[5, 6, 7], [8], [9, 10]]

lengths_of_documents = st.lists(st.integers(1, 9), max_size=8)


def packed_by_hand(documents, labels, size, pad_id):
    rows = [[], [], [], []]
    for number, (ids, marks) in enumerate(zip(documents, labels, strict=True), start=1):
        rows[0] += list(ids)
        rows[1] += [-100, *list(marks)[1:]]
        rows[2] += list(range(len(ids)))
        rows[3] += [number] * len(ids)
    pads = size - len(rows[0])
    for row, fill in zip(rows, (pad_id, -100, 0, 0), strict=True):
        row += [fill] * pads
    return rows


def tensors(batch):
    return [batch.input_ids, batch.labels, batch.position_ids, batch.segment_ids]


def numbered(lengths, start=1):
    flat = np.arange(start, start + sum(lengths), dtype=np.int32)
    return [list(map(int, part)) for part in np.split(flat, np.cumsum(lengths)[:-1])] if lengths else []


def test_a_packed_batch_of_three_documents():
    batch = PackedBatch.from_documents(DOCUMENTS, pad_to=8, pad_id=99)
    assert batch.input_ids.tolist() == [[5, 6, 7, 8, 9, 10, 99, 99]]
    assert batch.labels.tolist() == [[-100, 6, 7, -100, -100, 10, -100, -100]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 0, 0, 1, 0, 0]]
    assert batch.segment_ids.tolist() == [[1, 1, 1, 2, 3, 3, 0, 0]]
    assert batch.cu_seqlens.tolist() == [0, 3, 4, 6]
    assert (batch.max_seqlen, batch.num_tokens, batch.num_supervised) == (3, 6, 3)
    assert (batch.num_documents, batch.num_padding) == (3, 2)
    assert batch.indices.tolist() == [0, 1, 2]
    assert batch.plan is None
    assert batch.layout == "packed"


def test_dtypes_are_those_consumers_ask_for():
    batch = PackedBatch.from_documents(DOCUMENTS)
    for tensor in (batch.input_ids, batch.labels, batch.position_ids, batch.indices):
        assert tensor.dtype == torch.int64
    assert batch.segment_ids.dtype == batch.cu_seqlens.dtype == torch.int32
    assert type(batch.max_seqlen) is int


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_padded_batch_has_one_document_a_row(side):
    batch = PackedBatch.from_documents(DOCUMENTS, layout="padded", pad_to=4, pad_id=99, padding_side=side)
    right = {
        "input_ids": [[5, 6, 7, 99], [8, 99, 99, 99], [9, 10, 99, 99]],
        "labels": [[-100, 6, 7, -100], [-100] * 4, [-100, 10, -100, -100]],
        "position_ids": [[0, 1, 2, 0], [0, 0, 0, 0], [0, 1, 0, 0]],
        "segment_ids": [[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 0, 0]],
    }
    left = {
        "input_ids": [[99, 5, 6, 7], [99, 99, 99, 8], [99, 99, 9, 10]],
        "labels": [[-100, -100, 6, 7], [-100] * 4, [-100, -100, -100, 10]],
        "position_ids": [[0, 0, 1, 2], [0, 0, 0, 0], [0, 0, 0, 1]],
        "segment_ids": [[0, 1, 1, 1], [0, 0, 0, 1], [0, 0, 1, 1]],
    }
    for name, value in (right if side == "right" else left).items():
        assert getattr(batch, name).tolist() == value, name
    assert batch.cu_seqlens.tolist() == [0, 3, 4, 6]
    assert batch.num_padding == 6


@given(lengths_of_documents, st.integers(1, 7), st.integers(0, 3), st.data())
@settings(max_examples=60, deadline=None)
def test_a_packed_batch_equals_the_loop_by_hand(lengths, multiple, more, data):
    documents = numbered(lengths)
    labels = [data.draw(st.lists(st.sampled_from([-100, 1, 2]), min_size=n, max_size=n)) for n in lengths]
    size = -(-max(sum(lengths), 1) // multiple) * multiple
    sizes = {"pad_to_multiple": multiple} if more == 0 else {"pad_to": size + more}
    batch = PackedBatch.from_documents(documents, labels, pad_id=7, **sizes)
    expected = packed_by_hand(documents, labels, size + more, 7)
    assert [tensor.tolist() for tensor in tensors(batch)] == [[row] for row in expected]
    assert batch.num_supervised == sum(label != -100 for label in expected[1])
    assert batch.max_seqlen == max(lengths, default=0)


@given(lengths_of_documents, st.sampled_from(["right", "left"]))
@settings(max_examples=40, deadline=None)
def test_padded_rows_are_the_packed_documents(lengths, side):
    packed = PackedBatch.from_documents(numbered(lengths))
    padded = PackedBatch.from_documents(numbered(lengths), layout="padded", padding_side=side)
    real = padded.segment_ids != 0
    assert padded.input_ids.shape == (max(len(lengths), 1), max(lengths, default=1))
    for ours, theirs in zip(tensors(padded)[:3], tensors(packed)[:3], strict=True):
        assert ours[real].tolist() == theirs[packed.segment_ids != 0].tolist()
    assert padded.cu_seqlens.tolist() == packed.cu_seqlens.tolist()


@pytest.mark.parametrize(
    ("layout", "pad_to"), [("packed", None), ("packed", 6), ("padded", 6), ("padded", None)]
)
def test_an_empty_plan_is_a_legal_batch_of_padding(layout, pad_to):
    plan = SimpleNamespace(indices=(), real_tokens=0)
    batch = PackedBatch.from_flat(
        np.empty(0, np.int32), np.empty(0, np.int32), plan=plan, layout=layout, pad_to=pad_to, pad_id=3
    )
    size = pad_to or 1
    assert [tensor.tolist() for tensor in tensors(batch)] == [
        [[3] * size],
        [[-100] * size],
        [[0] * size],
        [[0] * size],
    ]
    assert batch.cu_seqlens.tolist() == [0]
    assert (batch.max_seqlen, batch.num_tokens, batch.num_supervised) == (0, 0, 0)
    assert batch.indices.shape == (0,)


def arrow_flat(values):
    array = pa.array([values], type=pa.large_list(pa.int32()))
    return array.values.to_numpy(zero_copy_only=True)


def test_views_of_arrow_buffers_are_taken_without_a_warning_and_never_written():
    ids, labels = arrow_flat([1, 2, 3, 4]), arrow_flat([5, 6, 7, 8])
    assert not ids.flags.writeable
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batch = PackedBatch.from_flat(ids, arrow_flat([2, 2]), labels=labels, pad_to=5)
    assert batch.labels.tolist() == [[-100, 6, -100, 8, -100]]
    assert labels.tolist() == [5, 6, 7, 8]
    batch.input_ids.zero_()
    assert ids.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_tensors_are_taken_as_arrays_are_and_never_shared(layout, dtype):
    ids, lengths = torch.tensor([1, 2, 3, 4], dtype=dtype), torch.tensor([4])
    batch = PackedBatch.from_flat(ids, lengths, labels=ids, layout=layout)
    for tensor in tensors(batch):
        tensor.fill_(0)
    assert ids.tolist() == [1, 2, 3, 4]
    assert batch.num_supervised == 3


def test_every_integer_dtype_and_stride_is_taken():
    expected = [[1, 2, 3]]
    for dtype in (np.int8, np.uint8, np.uint16, np.int32, np.uint32, np.int64, np.uint64):
        ids = np.array([1, 9, 2, 9, 3, 9], dtype=dtype)[::2]
        assert PackedBatch.from_flat(ids, np.array([3])).input_ids.tolist() == expected


def test_labels_default_to_the_ids_and_are_not_shared_with_them():
    batch = PackedBatch.from_documents([[1, 2]])
    batch.labels.fill_(9)
    assert batch.input_ids.tolist() == [[1, 2]]


class Layout(enum.Enum):
    PADDED = "padded"


def test_the_layout_may_be_an_enum():
    assert PackedBatch.from_documents(DOCUMENTS, layout=Layout.PADDED).input_ids.shape == (3, 3)


def test_indices_come_from_the_plan_unless_given():
    plan = SimpleNamespace(indices=(40, 7, 11), real_tokens=6)
    assert PackedBatch.from_documents(DOCUMENTS, plan=plan).indices.tolist() == [40, 7, 11]
    given_ones = np.array([1, 2, 3], dtype=np.int32)
    batch = PackedBatch.from_documents(DOCUMENTS, plan=plan, indices=given_ones)
    assert batch.indices.tolist() == [1, 2, 3]
    assert batch.plan is plan


def test_a_batch_is_frozen_and_slotted():
    batch = PackedBatch.from_documents(DOCUMENTS)
    with pytest.raises(AttributeError):
        batch.max_seqlen = 3
    assert not hasattr(batch, "__dict__")


def flat(ids, lengths, **options):
    return lambda: PackedBatch.from_flat(np.asarray(ids), np.asarray(lengths), **options)


def documents(values, labels=None, **options):
    return lambda: PackedBatch.from_documents(values, labels, **options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (flat([1, 2, 3], [1, 1]), "add up to the 3 tokens of input_ids, got 2"),
        (flat([1, 2], [2, 0]), "at least 1, got 0 at document 1"),
        (flat([1, 2], [3, -1]), "at least 1, got -1 at document 1"),
        (flat([[1, 2]], [1]), r"input_ids must be 1-D, got shape \(1, 2\)"),
        (flat([1, 2], [2], labels=np.array([1])), "labels must have one entry a token: 2, got 1"),
        (flat([1, 2], [2], labels=np.array([1, -1])), "token ids or -100, got -1 at token 1"),
        (flat([1, -2], [2]), "input_ids must not be negative, got -2 at token 1"),
        (flat([1, 2**31], [2]), r"input_ids must be below 2\*\*31, got 2147483648 at token 1"),
        (flat([1, 2], [2], pad_to=1), "pad_to must hold the 2 tokens of this batch, got 1"),
        (flat([1, 2], [2], pad_to=9, pad_to_multiple=4), "multiple of pad_to_multiple=4, got 9"),
        (flat([1, 2], [2], pad_to=0), "pad_to must be at least 1"),
        (flat([1, 2], [1, 1], pad_documents_to=1), "hold the 2 documents of this batch, got 1; raise it"),
        (flat([1, 2], [2], pad_documents_to=0), "pad_documents_to must be at least 1, got 0"),
        (flat([1, 2], [2], position_offset=-1), "position_offset must be at least 0, got -1"),
        (flat([1, 2], [2], labels=np.array([1, 2**31])), r"labels must be below 2\*\*31, got 2147483648"),
        (flat([1, 2], [2], pad_id=-1), "pad_id must be at least 0"),
        (flat([1, 2], [2], layout="dense"), "layout must be one of 'packed', 'padded'"),
        (flat([1, 2], [2], padding_side="left"), "use layout='padded'"),
        (flat([1, 2], [2], padding_side="both"), "padding_side must be one of"),
        (flat([1, 2], [2], indices=np.array([1, 2])), r"one entry a document: 1, got shape \(2,\)"),
        (
            flat([1, 2], [2], plan=SimpleNamespace(indices=(1,), real_tokens=3)),
            "1 of 3 tokens .* got 1 of 2",
        ),
        (documents([[1, 2], []]), "at least 1, got 0 at document 1"),
        (documents([[1, 2]], [[1]]), r"labels\[0\] must be as long as documents\[0\]: 2 tokens, got 1"),
        (documents([[1, 2]], []), "labels must have one entry a document: 1, got 0"),
    ],
)
def test_what_does_not_fit_is_refused(make, message):
    with pytest.raises(BatchError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (flat([1.0, 2.0], [2]), "input_ids must hold integers, got float64"),
        (flat([True, False], [2]), "input_ids must hold integers, got bool"),
        (flat([1, 2], [2], pad_to=2.0), "pad_to must be an integer, got float"),
        (flat([1, 2], [2], pad_documents_to=2.0), "pad_documents_to must be an integer, got float"),
        (flat([1, 2], [2], layout=3), "layout must be a str"),
        (flat([1, 2], [2], indices=np.array([1.5])), "indices must hold integers"),
        (documents([[1, 2], "ab"]), r"documents\[1\] must be a sequence of integers, got str"),
        (documents([[1.5, 2]]), r"documents\[0\] must hold integers, got float64"),
        (lambda: PackedBatch.from_flat([1, 2], np.array([2])), "numpy array or a tensor, got list"),
        (
            lambda: PackedBatch.from_flat(torch.ones(2), np.array([2])),
            "integers, got torch.float32",
        ),
    ],
)
def test_wrong_types_are_refused(make, message):
    with pytest.raises(TypeError, match=message):
        make()
