"""One batch ahead: what is queued where and in which order, and that nobody waits."""

from contextlib import contextmanager

import numpy as np
import pytest
import torch

from raypack.collate import PackedBatch
from raypack.collate.transfer import CudaStreams, DevicePrefetcher, device_tensors, streams_of


class Recorder:
    """Streams that write down what is asked of them, in order."""

    def __init__(self):
        self.log = []
        self.owned = []
        self.on_side = False
        self.marks = 0

    @contextmanager
    def side(self):
        assert not self.on_side
        self.on_side = True
        try:
            yield
        finally:
            self.on_side = False

    def mark(self):
        assert not self.on_side
        self.marks += 1
        self.log.append(f"mark {self.marks}")
        return self.marks

    def join(self, mark, tensors):
        assert not self.on_side
        self.log.append(f"join {mark}")
        self.owned.append(tensors)

    def make(self, row):
        self.log.append(f"make {row[0]} {'aside' if self.on_side else 'here'}")
        return PackedBatch.from_flat(np.array(row), np.array([len(row)]))


ROWS = [[1, 2], [3], [4, 5, 6]]


def loop(prefetcher, log):
    """Train as a step does: take, begin with the next, work."""
    for k, row in enumerate(ROWS):
        batch = prefetcher.take(row)
        if k + 1 < len(ROWS):
            prefetcher.start(ROWS[k + 1])
        log.append(f"work {int(batch.input_ids[0, 0])}")


def test_the_next_batch_is_begun_aside_before_the_last_one_is_worked_on():
    streams = Recorder()
    loop(DevicePrefetcher(streams.make, streams), streams.log)
    assert streams.log == [
        *("make 1 aside", "mark 1", "join 1"),
        *("make 3 aside", "mark 2", "work 1", "join 2"),
        *("make 4 aside", "mark 3", "work 3", "join 3"),
        "work 4",
    ]


def test_without_streams_a_batch_is_made_when_it_is_taken():
    streams = Recorder()
    prefetcher = DevicePrefetcher(streams.make, None)
    assert not prefetcher.looks_ahead
    loop(prefetcher, streams.log)
    assert streams.log == ["make 1 here", "work 1", "make 3 here", "work 3", "make 4 here", "work 4"]


def test_every_tensor_of_a_batch_is_owned_by_the_stream_that_joins():
    streams = Recorder()
    prefetcher = DevicePrefetcher(streams.make, streams)
    batch = prefetcher.take(ROWS[0])
    held = [getattr(batch, name) for name in batch.__slots__]
    on_device = {id(value) for value in held if isinstance(value, torch.Tensor)} - {id(batch.indices)}
    assert {id(tensor) for tensor in streams.owned[0]} == on_device


def test_a_row_begun_twice_is_made_once():
    streams = Recorder()
    prefetcher = DevicePrefetcher(streams.make, streams)
    prefetcher.start(ROWS[0])
    prefetcher.start(ROWS[0])
    prefetcher.take(ROWS[0])
    assert streams.log == ["make 1 aside", "mark 1", "join 1"]


def test_rows_are_known_by_themselves_and_not_by_what_they_hold():
    streams = Recorder()
    prefetcher = DevicePrefetcher(streams.make, streams)
    prefetcher.start([1, 2])
    prefetcher.take(ROWS[0])
    assert streams.log.count("make 1 aside") == 2


def test_a_row_taken_in_between_leaves_what_was_begun():
    streams = Recorder()
    prefetcher = DevicePrefetcher(streams.make, streams)
    prefetcher.start(ROWS[2])
    prefetcher.take(ROWS[0])
    prefetcher.take(ROWS[2])
    assert streams.log == ["make 4 aside", "mark 1", "make 1 aside", "mark 2", "join 2", "join 1"]


def test_an_error_of_a_row_comes_where_it_is_begun_and_leaves_no_half_made_batch():
    streams = Recorder()
    prefetcher = DevicePrefetcher(streams.make, streams)
    with pytest.raises(ValueError, match="must not be negative"):
        prefetcher.start([-1])
    assert int(prefetcher.take(ROWS[0]).input_ids[0, 0]) == 1


def test_masks_are_made_aside_with_their_batch_and_owned_with_it():
    streams = Recorder()

    def make(row):
        batch = streams.make(row)
        return batch, batch.for_hf_eager(torch.float32)

    batch, arguments = DevicePrefetcher(make, streams).take(ROWS[0])
    owned = {id(tensor) for tensor in streams.owned[0]}
    assert id(arguments["attention_mask"]) in owned
    assert id(batch.cu_seqlens) in owned


def test_the_tensors_of_a_block_mask_and_those_its_rule_reads_are_found():
    batch = PackedBatch.from_documents([[1] * 200, [2] * 90])
    block_mask = batch.for_flex()["block_mask"]
    found = {id(tensor) for tensor in device_tensors({"mask": [block_mask], "width": 3})}
    assert id(batch.segment_ids) in found
    assert id(block_mask.kv_indices) in found
    assert id(block_mask.full_kv_num_blocks) in found


def test_what_may_hide_tensors_is_refused():
    with pytest.raises(TypeError, match="must become batches, masks and numbers, got object"):
        list(device_tensors([object()]))


def test_the_cpu_has_no_streams():
    assert streams_of(torch.device("cpu")) is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_on_cuda_batches_come_ahead_and_equal_those_of_the_cpu():
    device = torch.device("cuda")
    rng = np.random.default_rng(0)
    rows = [(rng.integers(0, 99, 5000), rng.multinomial(4000, [0.1] * 10) + 100) for _ in range(20)]

    def make(row):
        return PackedBatch.from_flat(*row, device=device)

    streams = streams_of(device)
    assert isinstance(streams, CudaStreams)
    prefetcher = DevicePrefetcher(make, streams)
    for k, row in enumerate(rows):
        batch = prefetcher.take(row)
        if k + 1 < len(rows):
            prefetcher.start(rows[k + 1])
        expected = PackedBatch.from_flat(*row, device="cpu")
        for name in ("input_ids", "labels", "position_ids", "segment_ids", "cu_seqlens"):
            assert torch.equal(getattr(batch, name).cpu(), getattr(expected, name))
