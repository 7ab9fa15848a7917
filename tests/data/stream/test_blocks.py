import numpy as np
import pyarrow as pa
import pytest

from raypack.batching.sequence.plan_block import PlanBlock, RowMeta
from raypack.data.stream.blocks import SCHEMA, decode_block, encode_block, load_block
from raypack.errors import StreamError

WIDTH = len(RowMeta._fields)


def block(num_expired=0):
    counts = np.array([2, 0, 3], np.int64)
    counts[:num_expired] = 0
    indices = np.array([4, 1, 0, 5, 2], np.int64)[2 * bool(num_expired) :]
    meta = np.arange(3 * WIDTH, dtype=np.int64).reshape(3, WIDTH)
    return PlanBlock(first=9, num_expired=num_expired, meta=meta, counts=counts, indices=indices)


@pytest.mark.parametrize("labels", [False, True])
def test_a_block_comes_out_as_it_went_in(make_source, labels):
    source = make_source([3, 1, 4, 1, 5, 9], labels=labels)
    table = encode_block(block(), source)
    assert table.num_rows == 1
    assert table.schema.equals(SCHEMA)
    rows = decode_block(table)
    assert [row.address for row in rows] == [9, 10, 11]
    assert [row.indices.tolist() for row in rows] == [[4, 1], [], [0, 5, 2]]
    assert [row.lengths.tolist() for row in rows] == [[5, 1], [], [3, 9, 4]]
    assert [row.meta for row in rows] == [RowMeta(*r) for r in block().meta.tolist()]
    for row in rows:
        documents = [source[int(i)] for i in row.indices]
        assert row.input_ids.tolist() == sum((d["input_ids"].tolist() for d in documents), [])
        if labels:
            assert row.labels.tolist() == sum((d["labels"].tolist() for d in documents), [])
        else:
            assert row.labels is None


def test_rows_that_are_gone_are_left_out(make_source):
    rows = decode_block(encode_block(block(num_expired=2), make_source([3, 1, 4, 1, 5, 9])))
    assert [row.address for row in rows] == [11]


@pytest.mark.parametrize("num_expired", [0, 1])
@pytest.mark.parametrize("labels", [False, True])
def test_a_block_for_a_loop_in_this_process_is_the_same_without_a_table(make_source, labels, num_expired):
    source = make_source([3, 1, 4, 1, 5, 9], labels=labels)
    ours, theirs = (
        load_block(block(num_expired), source),
        decode_block(encode_block(block(num_expired), source)),
    )
    assert len(ours) == len(theirs) == 3 - num_expired
    for one, other in zip(ours, theirs, strict=True):
        assert (one.address, one.meta) == (other.address, other.meta)
        for name in ("indices", "lengths", "input_ids", "labels"):
            mine, its = getattr(one, name), getattr(other, name)
            assert (mine is None and its is None) or (mine.dtype == its.dtype and np.array_equal(mine, its))


def test_rows_are_views_of_the_tables_memory(make_source):
    table = encode_block(block(), make_source([3, 1, 4, 1, 5, 9]))
    row = decode_block(table)[2]
    assert not row.input_ids.flags.owndata
    assert not row.input_ids.flags.writeable


def test_a_sliced_table_is_read_at_its_own_offsets(make_source):
    source = make_source([3, 1, 4, 1, 5, 9])
    both = pa.concat_tables([encode_block(block(), source)] * 2).combine_chunks()
    rows = decode_block(both.slice(1, 1))
    assert [row.indices.tolist() for row in rows] == [[4, 1], [], [0, 5, 2]]
    assert rows[2].input_ids.tolist() == decode_block(both)[2].input_ids.tolist()


def test_a_table_of_another_schema_is_refused():
    with pytest.raises(StreamError, match="a block must have the schema"):
        decode_block(pa.table({"a": [1]}))
