"""An index points into files that stay as they are, and refuses them where they do not."""

import json
import os
import pickle
import shutil

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raypack.errors import SourceError
from raypack.source import describe_change, index_source, open_source
from raypack.source.manifest.record import MANIFEST_FILE, digest_of
from tests.support.making import FORMATS, make_source, write_files

ROWS = pa.table({"input_ids": [[1, 2], [3], [4, 5, 6], [7]], "labels": [[1, -100], [3], [-100, 5, 6], [7]]})
ROW = st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=9)


def files_of(folder):
    return sorted(p for p in folder.iterdir() if p.suffix in (".parquet", ".arrow"))


@pytest.mark.parametrize("kind", FORMATS)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(ROW, min_size=1, max_size=9),
    limit=st.integers(1, 9),
    policy=st.sampled_from(["split", "truncate", "drop"]),
)
def test_each_view_is_what_a_plain_loop_cuts(tmp_path_factory, kind, rows, limit, policy):
    root = tmp_path_factory.mktemp("p")
    ids = [[token for token, _ in row] for row in rows]
    labels = [[token if trained else -100 for token, trained in row] for row in rows]
    lists = pa.list_(pa.int64())
    files = write_files(
        root / "in", kind, [pa.table({"input_ids": pa.array(ids, lists), "labels": pa.array(labels, lists)})]
    )
    expected = []
    for row in zip(ids, labels, strict=True):
        if policy == "drop" and len(row[0]) > limit:
            continue
        starts = range(0, len(row[0]), limit) if policy == "split" else range(min(len(row[0]), 1))
        expected += [tuple(part[i : i + limit] for part in row) for i in starts]
    source = index_source(files, labels_column="labels", out=root / "s", max_length=limit, oversize=policy)

    order = np.random.default_rng(0).permutation(len(expected))
    taken = source.take(order)
    assert taken["input_ids"].to_pylist() == [expected[i][0] for i in order]
    assert taken["labels"].to_pylist() == [expected[i][1] for i in order]
    assert source.supervised.tolist() == [sum(label != -100 for label in row[1][1:]) for row in expected]
    counts = source.manifest.counts
    over = sum(len(row) > limit for row in rows)
    assert counts[{"split": "split", "truncate": "truncated", "drop": "dropped"}[policy]] == over
    assert (counts["rows"], counts["empty"]) == (len(rows), ids.count([]))
    assert (counts["examples"], counts["tokens"]) == (len(expected), sum(len(row[0]) for row in expected))
    source.verify_contents()


def test_only_tables_are_written_and_the_files_are_not_touched(tmp_path):
    files = write_files(tmp_path / "in", "parquet", [ROWS, ROWS])
    before = [(p, p.read_bytes(), p.stat().st_mtime_ns) for p in files_of(files)]
    source = index_source(files, out=tmp_path / "s")
    assert sorted(p.name for p in (tmp_path / "s").iterdir()) == [
        "lengths.i32",
        "manifest.json",
        "starts.i32",
        "supervised.i32",
    ]
    assert [(p, p.read_bytes(), p.stat().st_mtime_ns) for p in files_of(files)] == before
    assert not source.has_labels
    assert source.take(range(8))["input_ids"].to_pylist() == ROWS["input_ids"].to_pylist() * 2


def test_files_of_both_formats_may_be_indexed_together(tmp_path):
    for kind in FORMATS:
        write_files(tmp_path / kind, kind, [ROWS])
    paths = [tmp_path / "parquet", tmp_path / "ipc_file" / "*.arrow", tmp_path / "ipc_stream"]
    source = index_source(paths, out=tmp_path / "s")
    assert source.take([11, 4, 0, 9])["input_ids"].to_pylist() == [[7], [1, 2], [1, 2], [3]]
    assert open_source(tmp_path / "s").fingerprint == source.fingerprint


def test_a_longer_row_is_an_error_by_default_that_names_it(tmp_path):
    files = write_files(tmp_path / "in", "parquet", [ROWS])
    with pytest.raises(SourceError, match=r"\.parquet: row 2 has 3 tokens, more than max_length 2; raise it"):
        index_source(files, out=tmp_path / "s", max_length=2)
    assert os.listdir(tmp_path) == ["in"]


@pytest.fixture(params=FORMATS)
def indexed(tmp_path, request):
    make_source(tmp_path / "s", request.param, [ROWS, ROWS])
    return tmp_path / "s", files_of(tmp_path / "s-files")


def test_a_missing_original_is_named(indexed):
    out, files = indexed
    files[1].unlink()
    with pytest.raises(SourceError, match=rf"{files[1].name} is missing, and an index holds no tokens"):
        open_source(out)


def test_an_original_of_another_size_is_named(indexed):
    out, files = indexed
    size = files[0].stat().st_size
    os.truncate(files[0], size - 1)
    with pytest.raises(SourceError, match=rf"{files[0].name} had {size} bytes .* and has {size - 1} now"):
        open_source(out)


def test_an_original_that_was_written_again_is_named_and_can_be_indexed_again(indexed, tmp_path):
    out, files = indexed
    source = open_source(out)
    files[0].write_bytes(files[0].read_bytes())
    with pytest.raises(SourceError, match=rf"{files[0].name} was written again since it was indexed"):
        open_source(out)
    again = index_source(tmp_path / "s-files", labels_column="labels", out=tmp_path / "again")
    assert again.fingerprint == source.fingerprint
    assert describe_change(source.summary(), again) == ""


def test_an_edit_that_hides_its_date_is_found_by_verifying(tmp_path):
    source = make_source(tmp_path / "s", "ipc_stream", [ROWS])
    [file] = files_of(tmp_path / "s-files")
    data, stat = file.read_bytes(), file.stat()
    wanted = np.array([4, 5, 6], "<i8").tobytes()
    assert wanted in data
    file.write_bytes(data.replace(wanted, np.array([4, 5, 8], "<i8").tobytes()))
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    again = open_source(tmp_path / "s")
    assert again.fingerprint == source.fingerprint
    with pytest.raises(
        SourceError, match=r"part \d+ of .*\.arrow holds other tokens than when it was indexed"
    ):
        again.verify_contents()


def test_a_copy_of_other_contents_is_refused_when_it_is_read(tmp_path):
    make_source(tmp_path / "s", "parquet", [ROWS])
    [file] = files_of(tmp_path / "s-files")
    stat = file.stat()
    file.write_bytes(b"x" * stat.st_size)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with pytest.raises(SourceError, match=r"\.parquet cannot be read: .*; restore the file"):
        open_source(tmp_path / "s").take([0])


def test_it_pickles_and_a_pickled_one_refuses_changed_files(indexed):
    out, files = indexed
    data = pickle.dumps(open_source(out))
    assert pickle.loads(data).take([5])["input_ids"].to_pylist() == [[3]]
    files[0].write_bytes(files[0].read_bytes())
    with pytest.raises(SourceError, match="written again"):
        pickle.loads(data)


def test_each_part_is_decoded_once_a_take_whatever_the_cache_holds(tmp_path, monkeypatch):
    monkeypatch.setattr("raypack.source.store.shard_cache.DECODED_BYTES", 1)
    rows = pa.table({"input_ids": [[i] * (i % 3 + 1) for i in range(40)]})
    source = make_source(tmp_path / "s", "parquet", [rows])
    loads = []
    load = source._shards._load
    source._shards._load = lambda number: loads.append(number) or load(number)
    order = np.random.default_rng(0).permutation(40)
    assert source.take(order)["input_ids"].to_pylist() == [rows["input_ids"][int(i)].as_py() for i in order]
    assert sorted(loads) == list(range(20))
    assert source[7]["input_ids"].base is None


def test_a_few_decoded_parts_are_kept(tmp_path):
    source = make_source(tmp_path / "s", "parquet", [ROWS])
    loads = []
    load = source._shards._load
    source._shards._load = lambda number: loads.append(number) or load(number)
    for _ in range(3):
        source.take([0, 3])
    assert sorted(loads) == [0, 1]


LISTS = pa.list_(pa.int64())


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"ids": [[1]]}, r"has no column 'input_ids', there are \['ids'\]; name the one with the tokens"),
        ({"input_ids": [[1]]}, "has no column 'labels'.* name the one with the labels by labels_column"),
        ({"input_ids": [[1], [2], None]}, "input_ids must have no nulls; row 2 is null"),
        ({"input_ids": [[1], [2], [None]]}, "input_ids must have no nulls; row 2 holds one"),
        ({"input_ids": [[1], [2], [-3]]}, "input_ids must be at least 0; row 2 has -3"),
        ({"input_ids": [[1], [2], [2**31]]}, r"input_ids must fit int32 \(rows 2 to 2\)"),
        (
            {"labels": [[1, 2], [3], [4, 5]]},
            "labels must be as long as input_ids; row 2 has 2 labels and 3 tokens",
        ),
        ({"labels": [[1, 2], [3], [4, 5, -1]]}, "labels must be at least 0, or -100 .*; row 2 has -1"),
    ],
)
def test_a_bad_column_or_value_is_named_and_nothing_is_left(tmp_path, kind, columns, message):
    good = {"input_ids": [[1, 2], [3], [4, 5, 6]]}
    if columns.get("ids") is None and "labels" not in columns and len(columns["input_ids"]) > 1:
        columns = {**columns, "labels": [[1]] * 3}
    columns = columns if "labels" not in columns else {**good, **columns}
    rows = pa.table({name: pa.array(values, LISTS) for name, values in columns.items()})
    files = write_files(tmp_path / "in", kind, [rows])
    with pytest.raises(SourceError, match=rf"data-00000-of-00001\.\w+:? {message}"):
        index_source(files, labels_column="labels", out=tmp_path / "s")
    assert os.listdir(tmp_path) == ["in"]


def test_a_column_of_something_else_is_refused(tmp_path):
    pq.write_table(pa.table({"input_ids": ["a"]}), tmp_path / "x.parquet")
    with pytest.raises(SourceError, match=r"x\.parquet: input_ids must be a list or large_list of integers"):
        index_source(tmp_path / "x.parquet", out=tmp_path / "s")


def test_other_columns_are_neither_needed_nor_read(tmp_path):
    rows = pa.table({"id": [1, 2], "tokens": [[5], [6, 7]], "text": pa.array(["a", "b"]).dictionary_encode()})
    for kind in ("parquet", "ipc_file"):
        files = write_files(tmp_path / kind, kind, [rows])
        source = index_source(files, "tokens", out=tmp_path / f"{kind}-s")
        assert source.take([1, 0])["input_ids"].to_pylist() == [[6, 7], [5]]
    with pytest.raises(SourceError, match="is a stream with a dictionary"):
        index_source(write_files(tmp_path / "stream", "ipc_stream", [rows]), "tokens", out=tmp_path / "s")


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("damage", ["cut", "noise", "empty"])
def test_a_broken_file_is_named(tmp_path, kind, damage):
    files = write_files(tmp_path / "in", kind, [ROWS])
    [file] = files_of(files)
    data = file.read_bytes()
    # The end of a stream is a mark of eight bytes.
    file.write_bytes({"cut": data[:-8], "noise": b"\x01" * 99, "empty": b""}[damage])
    with pytest.raises(SourceError, match=rf"{file.name} cannot be read: "):
        index_source(files, out=tmp_path / "s")
    assert os.listdir(tmp_path) == ["in"]


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"_data_files": []}, "is a dataset without files"),
        ({"_data_files": [{"filename": "../x.arrow"}]}, "which lies elsewhere"),
        ({"_data_files": [{"filename": "/x.arrow"}]}, "which lies elsewhere"),
        ({"_data_files": [{"filename": "gone.arrow"}]}, r"gone\.arrow does not exist"),
        ({"_data_files": 3}, "names no data files"),
        ([], "names no data files"),
        ({"_data_files": [], "_indices_data_files": [{"filename": "i.arrow"}]}, "flatten_indices"),
        ("nonsense", None),
    ],
)
def test_a_dataset_folder_with_another_state_is_refused(tmp_path, state, message):
    files = write_files(tmp_path / "in", "ipc_stream", [ROWS])
    (files / "state.json").write_text("{" if message is None else json.dumps(state))
    with pytest.raises(SourceError, match=message or "state.json is no JSON"):
        index_source(files, out=tmp_path / "s")
    assert os.listdir(tmp_path) == ["in"]


def test_a_folder_of_several_datasets_asks_for_one(tmp_path):
    for split in ("train", "test"):
        write_files(tmp_path / "in" / split, "ipc_stream", [ROWS])
    (tmp_path / "in" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(SourceError, match=r"holds several datasets; name one of them: \['train', 'test'\]"):
        index_source(tmp_path / "in", out=tmp_path / "s")
    assert len(index_source(tmp_path / "in" / "test", out=tmp_path / "s")) == 4


def test_the_files_of_a_dataset_come_in_its_own_order(tmp_path):
    files = write_files(tmp_path / "in", "ipc_stream", [ROWS.slice(0, 1), ROWS.slice(1, 1)])
    state = json.loads((files / "state.json").read_text())
    state["_data_files"].reverse()
    (files / "state.json").write_text(json.dumps(state))
    assert index_source(files, out=tmp_path / "s").take([0, 1])["input_ids"].to_pylist() == [[3], [1, 2]]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"paths": "nowhere"}, SourceError, "nowhere does not exist"),
        ({"paths": []}, SourceError, "paths must name at least one"),
        ({"paths": 3}, TypeError, "paths must be|path must be|not iterable"),
        ({"paths": "x.jsonl"}, SourceError, r"x\.jsonl is neither Parquet"),
        ({"column": ""}, SourceError, "column must be"),
        ({"column": 3}, TypeError, "column must be"),
        ({"labels_column": ""}, SourceError, "labels_column must be"),
        ({"oversize": "chop"}, SourceError, "oversize must be one of"),
        ({"oversize": "split"}, SourceError, "oversize 'split' needs max_length"),
        ({"max_length": 0}, SourceError, "max_length must be at least 1"),
        ({"max_length": True}, TypeError, "max_length must be an integer"),
    ],
)
def test_wrong_arguments_are_refused_and_nothing_is_left(tmp_path, monkeypatch, options, error, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.jsonl").write_text("{}")
    parquet = {"paths": write_files(tmp_path / "in", "parquet", [ROWS])}
    with pytest.raises(error, match=message):
        index_source(**{**parquet, **options}, out=tmp_path / "s")
    assert sorted(os.listdir(tmp_path)) == ["in", "x.jsonl"]


@pytest.mark.parametrize("kind", FORMATS)
def test_files_and_index_may_lie_in_a_store_far_away(tmp_path, monkeypatch, kind):
    monkeypatch.setenv("RAYPACK_CACHE_DIR", str(tmp_path / "cache"))
    files = write_files(tmp_path / "in", kind, [ROWS, ROWS])
    uri = f"fsspec+file://{files}"
    source = index_source(uri, labels_column="labels", out=f"fsspec+file://{tmp_path}/s")
    assert source.take([7, 2, 0])["labels"].to_pylist() == [[7], [-100, 5, 6], [1, -100]]
    near = index_source(files, labels_column="labels", out=tmp_path / "near")
    assert near.fingerprint == source.fingerprint
    source.verify_contents()
    shutil.rmtree(files)
    with pytest.raises(SourceError, match="is missing, and an index holds no tokens of its own"):
        open_source(source.path)


def test_a_key_in_a_uri_is_not_kept(tmp_path):
    files = write_files(tmp_path / "in", "parquet", [ROWS])
    with pytest.raises(SourceError, match="must not be named with a key") as caught:
        index_source(f"fsspec+file://user:secret@{files}", out=tmp_path / "s")
    assert "secret" not in str(caught.value)


def edit(folder, change):
    path = folder / MANIFEST_FILE
    record = json.loads(path.read_text())
    change(record)
    record["checksum"] = digest_of({k: v for k, v in record.items() if k != "checksum"})
    path.write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r["index"].update(more=1), "index has the unknown field 'more'"),
        (lambda r: r["index"].pop("column"), "index lacks the field 'column'"),
        (lambda r: r["index"].update(column=""), "column must be a non-empty string"),
        (lambda r: r["index"].update(labels_column=None), "labels_column must be given"),
        (lambda r: r["index"].update(originals={}), "originals must be a list"),
        (lambda r: r["index"]["originals"][0].update(kind="csv"), "kind must be one of"),
        (lambda r: r["index"]["originals"][0].update(modified=-1), "modified must be an integer"),
        (lambda r: r["index"]["originals"][0].update(uri=3), "uri must be a non-empty string"),
        (
            lambda r: r["index"]["starts"].update(bytes=5),
            "table starts.i32 must have 4 bytes an example, got 5",
        ),
        (lambda r: r["index"]["starts"].update(file="../x"), "file must be a plain file name"),
        (lambda r: r["index"]["starts"].update(digest="0" * 32), "fingerprint does not belong"),
        (lambda r: r["shards"][0].update(original=9), "original must be less than 1, got 9"),
        (lambda r: r["shards"][0].update(values=0), "values must be at least the tokens"),
        (lambda r: r["shards"][0].update(file="x"), "a segment has the unknown field 'file'"),
        (lambda r: r.pop("index"), "a shard lacks the field"),
    ],
)
def test_each_wrong_field_of_an_index_is_named(tmp_path, change, message):
    make_source(tmp_path / "s", "parquet", [ROWS])
    edit(tmp_path / "s", change)
    with pytest.raises(SourceError, match=rf"manifest\.json is damaged: {message}"):
        open_source(tmp_path / "s")


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("starts", [[0, 2, 0, 9], [-1, 2, 0, 3]])
def test_starts_that_point_outside_are_refused(tmp_path, kind, starts):
    make_source(tmp_path / "s", kind, [ROWS])
    np.array(starts, "<i4").tofile(tmp_path / "s" / "starts.i32")
    with pytest.raises(SourceError, match=r"starts\.i32 of .* points outside part"):
        open_source(tmp_path / "s").take(range(4))
    with pytest.raises(SourceError, match=r"starts\.i32 .* other values"):
        open_source(tmp_path / "s").verify_contents()


@pytest.mark.parametrize("kind", FORMATS)
def test_a_negative_length_of_a_damaged_table_is_refused(tmp_path, kind):
    make_source(tmp_path / "s", kind, [ROWS])
    path = tmp_path / "s" / "lengths.i32"
    lengths = np.fromfile(path, "<i4")
    lengths[1] = -1
    lengths.tofile(path)
    with pytest.raises(SourceError, match=r"starts\.i32 of .* points outside part"):
        open_source(tmp_path / "s").take_flat(range(4))


@pytest.mark.parametrize("change", [{"part": 9}, {"part": 10**6}, {"values": 99}])
@pytest.mark.parametrize("kind", FORMATS)
def test_a_part_that_is_not_there_is_refused(tmp_path, kind, change):
    make_source(tmp_path / "s", kind, [ROWS])

    def point_elsewhere(record):
        record["shards"][0].update(change)

    edit(tmp_path / "s", point_elsewhere)
    with pytest.raises(SourceError, match=r"cannot be read|must hold 99 values"):
        open_source(tmp_path / "s").take([0])


@pytest.mark.parametrize("kind", FORMATS)
def test_lists_of_a_fixed_size_are_lists(tmp_path, kind):
    lists = pa.list_(pa.int16(), 2)
    rows = pa.table({"input_ids": pa.array([[1, 2], [3, 4], [5, 6]], lists)})
    source = make_source(tmp_path / "s", kind, [rows])
    assert source.take([2, 0])["input_ids"].to_pylist() == [[5, 6], [1, 2]]
    assert source.prefers_blocks == (kind == "parquet")


def test_files_in_memory_have_no_date_and_are_known_by_their_size(tmp_path, monkeypatch):
    monkeypatch.setenv("RAYPACK_CACHE_DIR", str(tmp_path / "cache"))
    root = f"memory://{tmp_path.name}"
    with fsspec.open(f"{root}/x.parquet", "wb") as file:
        pq.write_table(ROWS, file)
    source = index_source(f"{root}/*.parquet", labels_column="labels", out=f"{root}-s")
    assert source.take([3, 0])["labels"].to_pylist() == [[7], [1, -100]]
    with fsspec.open(f"{root}/x.parquet", "wb") as file:
        file.write(b"x")
    with pytest.raises(SourceError, match=r"x\.parquet had \d+ bytes when it was indexed and has 1 now"):
        open_source(source.path)


def test_the_part_that_was_not_used_for_longest_goes_first(tmp_path, monkeypatch):
    rows = pa.table({"input_ids": [[i] * 10 for i in range(6)]})
    source = make_source(tmp_path / "s", "parquet", [rows])
    size = source._shards.get(0).input_ids.nbytes + 2 * 16
    monkeypatch.setattr("raypack.source.store.shard_cache.DECODED_BYTES", 2 * size)
    loads = []
    load = source._shards._load
    source._shards._load = lambda number: loads.append(number) or load(number)
    for index in (0, 2, 0, 4, 0, 2):
        source.take([index])
    assert loads == [1, 2, 1]
