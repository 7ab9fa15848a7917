"""A changed source says what changed."""

import json

import pyarrow as pa
import pytest

from raypack.errors import SourceError
from raypack.source import describe_change, write_source


def make(path, documents=((1, 2), (3,)), labels=None, prepared=None, **options):
    columns = {"input_ids": [list(ids) for ids in documents]}
    if labels is not None:
        columns["labels"] = labels
    prepared = {"tokenizer": "bytes", "max_length": 8} if prepared is None else prepared
    return write_source(path, [pa.table(columns)], prepared=prepared, **options)


@pytest.fixture
def old(tmp_path):
    return json.loads(json.dumps(make(tmp_path / "old").summary()))


def test_the_same_rows_prepared_the_same_way_are_no_change(tmp_path, old):
    assert describe_change(old, make(tmp_path / "new")) == ""


def test_counts_are_no_change(tmp_path, old):
    assert describe_change(old, make(tmp_path / "new", counts={"dropped": 3})) == ""


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"documents": [(1, 2), (3,), (4,)]}, ["number of examples: 2 -> 3", "number of tokens: 3 -> 4"]),
        ({"documents": [(1, 2), (9,)]}, ["contents: other tokens"]),
        ({"documents": [(1,), (2, 3)]}, ["lengths"]),
        ({"labels": [[1, 2], [3]]}, ["labels: None -> 'large_list<int32>'"]),
        ({"prepared": {"tokenizer": "file", "max_length": 8}}, ["tokenizer: 'bytes' -> 'file'"]),
        ({"prepared": {"tokenizer": "bytes", "max_length": 9}}, ["max length: 8 -> 9"]),
        ({"prepared": {}}, ["tokenizer: 'bytes' -> None", "max length: 8 -> None"]),
    ],
)
def test_each_kind_of_change_is_named(tmp_path, old, change, expected):
    text = describe_change(old, make(tmp_path / "new", **change))
    for part in expected:
        assert part in text
    assert "\n" not in text


def test_a_summary_is_small_plain_json(old):
    assert len(json.dumps(old)) < 1024


@pytest.mark.parametrize("old", [{}, {"fingerprint": 3}, None, []])
def test_what_is_no_summary_is_refused(tmp_path, old):
    with pytest.raises(SourceError, match="summary must have a field 'fingerprint'"):
        describe_change(old, make(tmp_path / "new"))
