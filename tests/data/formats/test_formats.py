"""Every format and compression gives the same rows; what is broken is named."""

import bz2
import gzip
import json
import lzma
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raypack.data.formats.columns import row_columns
from raypack.data.formats.inputs import find_inputs
from raypack.data.formats.row import RowFault
from raypack.data.formats.rows import located, read_rows
from raypack.data.ingest.chunks import cut_chunks
from raypack.errors import PrepareError
from tests.support.preparing import examples_of, prepare_file


def zstd(data):
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


PACK = {"gz": gzip.compress, "zst": zstd, "bz2": bz2.compress, "xz": lzma.compress}
TEXTS = ["a", "", "bb\u2028b", "é" * 50, *(f"row {i} " * 20 for i in range(400))]


def lines_of(texts):
    return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()


def read(path, chunk_bytes=1 << 20, columns=None):
    columns = columns or row_columns("text", "text", None)
    chunks = cut_chunks(find_inputs(path), chunk_bytes)
    return [row for chunk in chunks for piece in chunk.pieces for row in read_rows(piece, columns)]


def texts_of(rows):
    return [row.fields["text"] for row in rows]


@pytest.mark.parametrize("suffix", PACK)
def test_compressed_lines_and_texts_are_read_as_they_were(tmp_path, suffix):
    data = lines_of(TEXTS)
    (tmp_path / f"x.jsonl.{suffix}").write_bytes(PACK[suffix](b"\xef\xbb\xbf" + data))
    # A large one is one chunk: it cannot be cut.
    rows = read(tmp_path / f"x.jsonl.{suffix}", chunk_bytes=10)
    assert texts_of(rows) == TEXTS
    assert [row.number for row in rows] == list(range(1, len(TEXTS) + 1))
    (tmp_path / f"x.txt.{suffix}").write_bytes(PACK[suffix](b"\xef\xbb\xbfone\ntwo"))
    assert texts_of(read(tmp_path / f"x.txt.{suffix}")) == ["one\ntwo"]


@pytest.mark.parametrize("suffix", PACK)
def test_members_one_after_the_other_are_one_file(tmp_path, suffix):
    path = tmp_path / f"x.jsonl.{suffix}"
    path.write_bytes(PACK[suffix](lines_of(["a"])) + PACK[suffix](lines_of(["b"])))
    assert texts_of(read(path)) == ["a", "b"]


@pytest.mark.parametrize("suffix", PACK)
@pytest.mark.parametrize("damage", ["cut", "noise", "empty", "plain"])
def test_a_broken_compressed_file_is_named(tmp_path, suffix, damage):
    packed = PACK[suffix](lines_of(TEXTS))
    data = {
        "cut": packed[: len(packed) // 2],
        "noise": b"\x07noise" * 9,
        "empty": b"",
        "plain": lines_of(["a"]),
    }
    path = tmp_path / f"x.jsonl.{suffix}"
    path.write_bytes(data[damage])
    fault = prepare_file(path, tmp_path).fault
    assert fault.startswith(f"{path}: the file is broken, or not ")
    assert os.listdir(tmp_path) == [path.name]


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(st.text(max_size=9), max_size=9), end=st.booleans(), blank=st.booleans())
def test_compressed_lines_are_the_lines(tmp_path, texts, end, blank):
    lines = [json.dumps({"text": text}) for text in texts]
    data = ("\n \n" if blank else "\n").join(lines) + ("\n" if end and lines else "")
    (tmp_path / "x.jsonl").write_bytes(data.encode())
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(data.encode()))
    plain, packed = read(tmp_path / "x.jsonl"), read(tmp_path / "x.jsonl.gz")
    assert [(row.number, row.fields) for row in packed] == [(row.number, row.fields) for row in plain]


def parquet(path, texts, **options):
    pq.write_table(pa.table({"id": range(len(texts)), "text": texts}), path, **options)
    return path


@pytest.mark.parametrize("chunk_bytes", [1, 300, 2000, 1 << 20])
def test_parquet_rows_are_read_once_however_the_file_is_cut(tmp_path, chunk_bytes):
    path = parquet(tmp_path / "x.parquet", TEXTS, row_group_size=37)
    rows = read(path, chunk_bytes)
    assert texts_of(rows) == TEXTS
    assert [row.number for row in rows] == list(range(len(TEXTS)))
    chunks = cut_chunks(find_inputs(path), chunk_bytes)
    assert sum(chunk.bytes for chunk in chunks) == path.stat().st_size
    assert (len(chunks) > 5) == (chunk_bytes < 3000)
    assert all(chunk.bytes >= 0 for chunk in chunks)


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
)
def test_any_text_type_of_parquet_is_read(tmp_path, kind):
    column = pa.array(["a", "b", "a"]).cast(kind)
    pq.write_table(pa.table({"text": column}), tmp_path / "x.parquet")
    result = prepare_file(tmp_path / "x.parquet", tmp_path)
    assert [ids for ids, _ in examples_of(tmp_path, result)] == [[97], [98], [97]]


def test_a_null_row_and_a_wrong_type_are_named_with_their_row(tmp_path):
    path = parquet(tmp_path / "x.parquet", ["a"] * 50 + [None], row_group_size=7)
    fault = prepare_file(path, tmp_path).fault
    assert fault == f"{path}, row 50 (from 0): field 'text' must be a string, got NoneType"
    fault = prepare_file(path, tmp_path, text_field="id").fault
    assert fault == f"{path}, row 0 (from 0): field 'id' must be a string, got int"


def test_a_missing_column_is_named_with_those_that_there_are(tmp_path):
    path = parquet(tmp_path / "x.parquet", ["a"])
    fault = prepare_file(path, tmp_path, text_field="body").fault
    assert fault == (
        f"{path}: field 'body' is missing (there are ['id', 'text']); "
        "name the one with the text by text_field"
    )


def test_files_of_another_schema_are_named(tmp_path):
    parquet(tmp_path / "a.parquet", ["a"])
    pq.write_table(pa.table({"content": ["b"]}), tmp_path / "b.parquet")
    assert prepare_file(tmp_path, tmp_path).fault.startswith(f"{tmp_path}/b.parquet: field 'text' is missing")


@pytest.mark.parametrize("damage", ["cut", "noise", "empty", "middle"])
@pytest.mark.parametrize("chunk_bytes", [10, 1 << 20])
def test_a_broken_parquet_file_is_named(tmp_path, damage, chunk_bytes):
    path = parquet(tmp_path / "x.parquet", TEXTS, row_group_size=37)
    data = path.read_bytes()
    spoilt = data[:4] + b"\xff" * (len(data) // 2) + data[4 + len(data) // 2 :]
    path.write_bytes({"cut": data[:-9], "noise": b"x" * 99, "empty": b"", "middle": spoilt}[damage])
    with pytest.raises((PrepareError, RowFault)) as caught:
        read(path, chunk_bytes)
    text = located(caught.value) if isinstance(caught.value, RowFault) else str(caught.value)
    assert text.startswith(f"{path}: the file is broken, or no Parquet file as its name says")


def test_a_parquet_file_that_changed_meanwhile_is_refused(tmp_path):
    path = parquet(tmp_path / "x.parquet", ["a"])
    chunks = cut_chunks(find_inputs(path), 1 << 20)
    parquet(path, ["b"] * 999)
    with pytest.raises(RowFault, match="do not change it meanwhile"):
        list(read_rows(chunks[0].pieces[0], row_columns("text", "text", None)))


def test_lines_and_parquet_may_be_mixed(tmp_path):
    parquet(tmp_path / "a.parquet", ["a"])
    (tmp_path / "b.jsonl").write_bytes(lines_of(["b"]))
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(lines_of(["c"])))
    (tmp_path / "d.txt").write_text("d")
    assert texts_of(read(tmp_path)) == ["a", "b", "c", "d"]


NAMES = ["a.txt", "b1.txt", "b2.txt", "c[1].txt", "sub/b3.txt", "sub/deep/b4.txt", ".hidden/b5.txt"]


@pytest.fixture
def tree(tmp_path):
    for name in NAMES:
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text("x")
    return tmp_path / "in"


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.txt", ["a.txt", "b1.txt", "b2.txt", "c[1].txt"]),
        ("b?.txt", ["b1.txt", "b2.txt"]),
        ("b[2-9].txt", ["b2.txt"]),
        ("b[!2].txt", ["b1.txt"]),
        ("**/b*.txt", ["b1.txt", "b2.txt", "sub/b3.txt", "sub/deep/b4.txt"]),
        ("*/b*.txt", ["sub/b3.txt"]),
        ("s*/**", ["sub/b3.txt", "sub/deep/b4.txt"]),
        ("c[1].txt", ["c[1].txt"]),
    ],
)
def test_patterns_match_the_same_in_every_file_system(tree, pattern, expected):
    # In a URI a question mark begins the options.
    for scheme in ("", "file://", "fsspec+file://") if "?" not in pattern else ("",):
        files = find_inputs(f"{scheme}{tree}/{pattern}")
        assert [file.name.split("/in/")[1] for file in files] == expected
        assert all(texts_of(read(file.name)) == ["x"] for file in files)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [("*.md", "matches no file"), ("no/*.txt", "matches no file"), ("[z-a]*", "no pattern of file names")],
)
def test_a_pattern_without_a_match_is_named(tree, pattern, message):
    with pytest.raises(PrepareError, match=message):
        find_inputs(tree / pattern)


def test_a_file_matched_twice_is_refused(tree):
    with pytest.raises(PrepareError, match=r"b1\.txt comes twice"):
        find_inputs([tree / "*.txt", tree / "b1.txt"])


def test_a_compressed_file_larger_than_a_shard_gives_several(tmp_path, monkeypatch):
    monkeypatch.setattr("raypack.data.ingest.chunk_task.SHARD_TOKENS", 100)
    texts = [f"document {i}" for i in range(50)]
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(lines_of(texts)))
    result = prepare_file(tmp_path / "x.jsonl.gz", tmp_path)
    assert len(result.shards) > 4
    assert result.shards[1].file == "shard-000000-0001.arrow"
    assert [bytes(ids).decode() for ids, _ in examples_of(tmp_path, result)] == texts
    assert [shard.tokens <= 100 for shard in result.shards]
    assert sum(shard.examples for shard in result.shards) == len(result.lengths)
