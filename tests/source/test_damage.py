"""A source that is not what its manifest says is refused, and the message names the file."""

import json
import os
import resource

import numpy as np
import pyarrow as pa
import pytest

from raypack.errors import SourceError
from raypack.source import open_source, write_source
from raypack.source.manifest.codec import dump_manifest, parse_manifest
from raypack.source.manifest.record import (
    MANIFEST_FILE,
    Extreme,
    ShardEntry,
    SourceManifest,
    TableEntry,
    digest_of,
)


@pytest.fixture
def folder(tmp_path):
    rows = pa.table({"input_ids": [[1, 2], [3], [4, 5, 6]], "labels": [[1, 2], [3], [4, 5, 6]]})
    write_source(tmp_path / "s", [rows], shard_tokens=3)
    return tmp_path / "s"


def edit(folder, change, *, seal=True):
    path = folder / MANIFEST_FILE
    record = json.loads(path.read_text())
    change(record)
    if seal:
        record["checksum"] = digest_of({k: v for k, v in record.items() if k != "checksum"})
    path.write_text(json.dumps(record))


def test_a_path_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(SourceError, match="nowhere does not exist"):
        open_source(tmp_path / "nowhere")


def test_a_file_is_no_source(tmp_path):
    (tmp_path / "f").write_text("x")
    with pytest.raises(SourceError, match="is a file"):
        open_source(tmp_path / "f")


def test_a_folder_without_manifest_is_no_source(tmp_path):
    with pytest.raises(SourceError, match=r"folder without manifest\.json"):
        open_source(tmp_path)


def test_an_unfinished_write_is_called_so(folder):
    (folder / MANIFEST_FILE).unlink()
    with pytest.raises(SourceError, match="its writing did not end"):
        open_source(folder)


@pytest.mark.parametrize(
    "name", ["shard-000000.arrow", "shard-000001.arrow", "lengths.i32", "supervised.i32"]
)
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(SourceError, match=f"{name} is missing"):
        open_source(folder)


@pytest.mark.parametrize("name", ["shard-000001.arrow", "lengths.i32", "supervised.i32"])
@pytest.mark.parametrize("change", [-1, 1])
def test_a_file_of_another_size_is_named(folder, name, change):
    size = (folder / name).stat().st_size
    os.truncate(folder / name, size + change)
    with pytest.raises(SourceError, match=f"{name} must have {size} bytes, got {size + change}"):
        open_source(folder)


def test_the_first_of_several_bad_files_is_named(folder):
    (folder / "lengths.i32").unlink()
    (folder / "shard-000001.arrow").unlink()
    with pytest.raises(SourceError, match="shard-000001"):
        open_source(folder)


def test_a_shard_of_noise_is_refused_when_it_is_mapped(folder):
    path = folder / "shard-000000.arrow"
    path.write_bytes(os.urandom(path.stat().st_size))
    source = open_source(folder)
    assert source[2]["input_ids"].tolist() == [4, 5, 6]
    with pytest.raises(SourceError, match=r"shard-000000\.arrow is no readable Arrow file"):
        source.take([0])


def write_same_size(path, table):
    """Replace a shard by another legal Arrow file and pad the manifest's word for it."""
    with pa.ipc.new_file(str(path), table.schema) as writer:
        for batch in table.to_batches():
            writer.write_batch(batch)
    return path.stat().st_size


LISTS = pa.large_list(pa.int32())


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (pa.table({"input_ids": pa.array([[1, 2], [3]], LISTS)}), "must hold 2 rows of"),
        (pa.table({"input_ids": [[1, 2], [3]], "labels": [[1, 2], [3]]}), "must hold 2 rows of"),
        (pa.table({k: pa.array([[1, 2, 3]], LISTS) for k in ("input_ids", "labels")}), "got 1 rows"),
        (
            pa.table({k: pa.array([[1, 2], [3, 4]], LISTS) for k in ("input_ids", "labels")}),
            "3 tokens, got 4",
        ),
        (pa.table({k: pa.array([[1, 2], None], LISTS) for k in ("input_ids", "labels")}), "nulls"),
        (
            pa.table({"input_ids": pa.array([[1, 2], [3]], LISTS), "labels": pa.array([[1], [2, 3]], LISTS)}),
            "not as long as",
        ),
        (
            pa.concat_tables(
                pa.table({k: pa.array([row], LISTS) for k in ("input_ids", "labels")})
                for row in ([1, 2], [3])
            ),
            "1 record batch, got 2",
        ),
    ],
)
def test_a_shard_with_other_rows_or_columns_is_refused(folder, table, message):
    size = write_same_size(folder / "shard-000000.arrow", table)
    edit(folder, lambda record: record["shards"][0].update(bytes=size))
    with pytest.raises(SourceError, match=message) as caught:
        open_source(folder).take([0])
    assert "shard-000000.arrow" in str(caught.value)


def test_lengths_that_do_not_agree_with_a_shard_are_refused(folder):
    np.array([1, 2, 3], "<i4").tofile(folder / "lengths.i32")
    with pytest.raises(SourceError, match=r"example 0 lies at tokens 0 to 2 of shard-000000\.arrow"):
        open_source(folder).take_flat([0])
    with pytest.raises(SourceError, match="example 1"):
        open_source(folder)[1]


def test_verify_contents_finds_edited_tokens_and_tables(folder):
    open_source(folder).verify_contents()
    path = folder / "supervised.i32"
    path.write_bytes(bytes(12))
    with pytest.raises(SourceError, match=r"supervised\.i32"):
        open_source(folder).verify_contents()
    path = folder / "shard-000001.arrow"
    data = path.read_bytes()
    tokens = np.array([4, 5, 6], "<i4").tobytes()
    assert tokens in data
    path.write_bytes(data.replace(tokens, np.array([4, 5, 7], "<i4").tobytes(), 1))
    with pytest.raises(SourceError, match=r"shard-000001\.arrow .* other tokens"):
        open_source(folder).verify_contents()


def test_an_edited_manifest_is_refused(folder):
    edit(folder, lambda record: record["counts"].update(dropped=1), seal=False)
    with pytest.raises(SourceError, match=r"manifest\.json is damaged: its checksum"):
        open_source(folder)


@pytest.mark.parametrize("cut", [0, 1, 100, -2])
def test_a_truncated_manifest_is_refused(folder, cut):
    path = folder / MANIFEST_FILE
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(SourceError, match=r"manifest\.json is damaged"):
        open_source(folder)


@pytest.mark.parametrize("text", [b"[]", b"null", b"1", b'{"format": "other"}', b'"x"'])
def test_json_of_something_else_is_refused(folder, text):
    (folder / MANIFEST_FILE).write_bytes(text)
    with pytest.raises(SourceError, match="is no manifest of a raypack source"):
        open_source(folder)


@pytest.mark.parametrize(
    "text", [b"\xff\xfe", b'{"format": NaN}', b"9" * 5000, b"[" * 100_000, b'{"a":1,"a":1}']
)
def test_hostile_json_is_refused(folder, text):
    (folder / MANIFEST_FILE).write_bytes(text)
    with pytest.raises(SourceError, match=r"manifest\.json is damaged"):
        open_source(folder)


@pytest.mark.parametrize("version", [0, 2, "1", True, None, 1.0])
def test_another_version_is_refused(folder, version):
    edit(folder, lambda record: record.update(version=version))
    with pytest.raises(SourceError, match="reads version 1"):
        open_source(folder)


def shard(record, **fields):
    record["shards"][0].update(fields)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r.update(more=1), "unknown field 'more'"),
        (lambda r: r.pop("tokens"), "lacks the field 'tokens'"),
        (lambda r: r.update(examples=4), "examples is 4, but its shards hold 3"),
        (lambda r: r.update(tokens=7), "tokens is 7, but its shards hold 6"),
        (lambda r: r.update(examples=True), "examples must be an integer"),
        (lambda r: r.update(tokens=6.0), "tokens must be an integer"),
        (lambda r: r.update(supervised_tokens=-1), "supervised_tokens must be an integer of at least 0"),
        (lambda r: r.update(supervised_tokens=4), "supervised_tokens is 4, more"),
        (lambda r: r.update(shards={}), "shards must be a list"),
        (lambda r: r["shards"].append(3), "a shard must be an object"),
        (lambda r: shard(r, file="../x"), "file must be a plain file name"),
        (lambda r: shard(r, file=".."), "file must be a plain file name"),
        (lambda r: shard(r, file="lengths.i32"), "a file is named twice"),
        (lambda r: shard(r, digest="0" * 63), "digest must match"),
        (lambda r: shard(r, digest="0" * 64), "fingerprint does not belong"),
        (lambda r: shard(r, more=1), "a shard has the unknown field"),
        (lambda r: r["lengths"].update(bytes=13), "4 bytes an example, got 13"),
        (lambda r: r.update(lengths=None), "lengths must be an object"),
        (lambda r: r.update(schema={"input_ids": "string"}), "schema must be"),
        (lambda r: r.update(schema=[]), "schema must be"),
        (lambda r: r.update(shortest=None), "shortest and longest must be given"),
        (lambda r: r["shortest"].update(index=3), "must be examples of the source"),
        (lambda r: r["shortest"].update(length=0), "at least 1 token"),
        (lambda r: r["longest"].update(length=1), "between the shortest and the longest"),
        (lambda r: r.update(prepared={"a": []}), "prepared must be an object of plain values"),
        (lambda r: r.update(counts={"a": "1"}), "counts must be an object of plain values"),
        (lambda r: r.update(fingerprint="0" * 64), "fingerprint does not belong"),
    ],
)
def test_each_wrong_field_of_a_manifest_is_named(folder, change, message):
    edit(folder, change)
    with pytest.raises(SourceError, match=message):
        open_source(folder)


def test_the_manifest_survives_its_own_json(folder):
    manifest = open_source(folder).manifest
    assert parse_manifest(dump_manifest(manifest), "m") == manifest
    with pytest.raises(AttributeError):
        manifest.examples = 3


def test_opening_a_billion_examples_reads_none_of_them(tmp_path):
    examples, shards = 10**9, 100
    digest = "0" * 64
    entries = []
    for number in range(shards):
        # Files of the right size without contents: whoever reads lengths finds them wrong.
        (tmp_path / f"shard-{number}.arrow").write_bytes(bytes(8))
        entries.append(
            ShardEntry(file=f"shard-{number}.arrow", bytes=8, examples=10**7, tokens=10**9, digest=digest)
        )
    tables = []
    for name in ("lengths.i32", "supervised.i32"):
        (tmp_path / name).touch()
        os.truncate(tmp_path / name, 4 * examples)
        tables.append(TableEntry(file=name, bytes=4 * examples, digest="0" * 32))
    manifest = SourceManifest(
        examples=examples,
        tokens=100 * examples,
        supervised_tokens=0,
        has_labels=False,
        shards=tuple(entries),
        lengths=tables[0],
        supervised=tables[1],
        shortest=Extreme(length=7, index=5),
        longest=Extreme(length=700, index=6),
    )
    (tmp_path / MANIFEST_FILE).write_bytes(dump_manifest(manifest))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt

    source = open_source(tmp_path)

    assert len(source) == len(source.lengths) == len(source.supervised) == examples
    assert (source.lengths.minimum, source.lengths.maximum_index) == (7, 6)
    assert source.lengths.digest == "0" * 32
    assert len(json.dumps(source.summary())) < 1024
    # The two tables have two million pages.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 20_000
