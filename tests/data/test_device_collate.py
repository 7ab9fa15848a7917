"""DeviceCollate under a real Ray Data: each batch is that of its rows, packed or padded."""

import pickle
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
import ray
import torch

from raypack import DeviceCollate, PackedBatch
from raypack.collate import BatchError
from tests.conftest import documents_table, long_tailed
from tests.support.local_ray import local_ray

LENGTHS = long_tailed(50)
TENSORS = ("input_ids", "labels", "position_ids", "segment_ids", "cu_seqlens", "indices")


@pytest.fixture(scope="module")
def cluster():
    with local_ray():
        yield


def assert_same(ours, theirs):
    for name in TENSORS:
        assert torch.equal(getattr(ours, name), getattr(theirs, name)), name
    assert (ours.max_seqlen, ours.num_supervised) == (theirs.max_seqlen, theirs.num_supervised)


def by_hand(rows, **options):
    labels = [row["labels"] for row in rows] if "labels" in rows[0] else None
    return PackedBatch.from_documents([row["input_ids"] for row in rows], labels, **options)


@pytest.mark.ray
@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("labelled", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"pad_to_multiple": 8, "pad_id": 3},
        {"pad_to": 1024, "pad_documents_to": 9, "position_offset": 2},
        {"layout": "padded", "padding_side": "left", "pad_to": 64},
    ],
)
def test_batches_of_a_dataset_are_those_of_its_rows(labelled, options):
    table = documents_table(LENGTHS, labels=labelled)
    dataset = ray.data.from_arrow([table.slice(0, 17), table.slice(17)])
    batches = list(dataset.iter_torch_batches(batch_size=8, collate_fn=DeviceCollate(**options)))
    rows = table.to_pylist()
    assert len(batches) == 7
    for k, batch in enumerate(batches):
        assert type(batch) is PackedBatch
        assert_same(batch, by_hand(rows[8 * k : 8 * k + 8], **options))


@pytest.mark.ray
@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("lengths", [(4, 4, 4), (2, 5, 3)])
def test_rows_that_were_numpy_arrays_are_taken_too(lengths):
    rows = [{"input_ids": np.arange(1, n + 1), "number": 10 * n} for n in lengths]
    dataset = ray.data.from_items(rows).map(lambda row: {**row, "input_ids": row["input_ids"] + 1})
    [batch] = dataset.iter_torch_batches(batch_size=3, collate_fn=DeviceCollate(index_column="number"))
    expected = {10 * n: list(range(2, n + 2)) for n in lengths}
    offsets = batch.cu_seqlens.tolist()
    found = zip(batch.indices.tolist(), pairwise(offsets), strict=True)
    for number, (start, stop) in found:
        assert batch.input_ids[0, start:stop].tolist() == expected[number]


def table(**columns):
    return pa.table(columns)


def test_other_names_are_taken():
    collate = DeviceCollate(column="tokens", labels_column="targets", index_column="n")
    batch = collate(table(tokens=[[1, 2], [3]], targets=[[5, 6], [7]], n=[40, 2]))
    assert batch.input_ids.tolist() == [[1, 2, 3]]
    assert batch.labels.tolist() == [[-100, 6, -100]]
    assert batch.indices.tolist() == [40, 2]


def test_labels_may_be_left_aside():
    batch = DeviceCollate(labels_column=None)(table(input_ids=[[1, 2]], labels=[[5, 6]]))
    assert batch.labels.tolist() == [[-100, 2]]


def test_a_batch_without_rows_is_a_batch_of_padding():
    empty = table(input_ids=pa.array([], pa.list_(pa.int32())))
    assert DeviceCollate(pad_to=4)(empty).input_ids.tolist() == [[0, 0, 0, 0]]


def test_it_travels_to_other_processes():
    collate = pickle.loads(pickle.dumps(DeviceCollate(pad_to=4, device="cpu")))
    assert collate(table(input_ids=[[1, 2]])).input_ids.tolist() == [[1, 2, 0, 0]]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"ids": [[1]]}, r"must have a column 'input_ids', got \['ids'\]"),
        ({"input_ids": [[1], None]}, "no null rows, got one at row 1"),
        ({"input_ids": [[1], []]}, "at least 1, got 0 at document 1; drop it"),
        (
            {"input_ids": [[1], [2, 3]], "labels": [[1], [2]]},
            "'labels' must be as long as 'input_ids' in each row, got 1 labels for 2 tokens at row 1",
        ),
        ({"input_ids": [[1] * 9]}, "pad_to must hold the 9 tokens of this batch, got 8"),
        ({"input_ids": [[1]] * 4}, "pad_documents_to must hold the 4 documents of this batch, got 3"),
    ],
)
def test_rows_that_make_no_batch_are_refused(columns, message):
    with pytest.raises(BatchError, match=message):
        DeviceCollate(pad_to=8, pad_documents_to=3)(table(**columns))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"column": ""}, BatchError, "column must be a non-empty str"),
        ({"labels_column": 3}, TypeError, "labels_column must be a str, got int"),
        ({"layout": "dense"}, BatchError, "layout must be one of"),
        ({"pad_to": 0}, BatchError, "pad_to must be at least 1"),
        ({"pad_to": 9, "pad_to_multiple": 4}, BatchError, "multiple of pad_to_multiple=4, got 9"),
    ],
)
def test_options_that_fit_no_batch_are_refused_at_once(options, error, message):
    with pytest.raises(error, match=message):
        DeviceCollate(**options)
