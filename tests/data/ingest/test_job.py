"""The prepare job on a real Ray: the order of the input, whatever the parallelism and whoever dies."""

import json
import logging
import os
import signal
import sys
import threading
import time

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray
from fsspec.implementations.local import LocalFileSystem
from ray import cloudpickle
from ray.data import DataContext

from raypack.data import TextTokenizer, prepare
from raypack.data.ingest.job import what_failed
from raypack.errors import PrepareError, SourceError
from raypack.source import describe_change, open_source
from tests.support.local_ray import local_ray
from tests.support.preparing import chat_folder, write_rows

pytestmark = pytest.mark.ray
# Workers do not have the tests on their path.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module", autouse=True)
def cluster():
    with local_ray():
        yield


class Slow(TextTokenizer):
    """Bytes, with a delay that makes the first chunks the last to be done."""

    kind = "own"
    digest = None
    vocabulary = 256
    special_tokens = False

    def encode(self, texts):
        blobs = [text.encode() for text in texts]
        if any(text.startswith("slow") for text in texts):
            time.sleep(0.7)
        lengths = np.array([len(blob) for blob in blobs], np.int64)
        return lengths, np.frombuffer(b"".join(blobs), np.uint8).astype(np.int32)


class Killer(Slow):
    """Kills its own process at the document "die", as often as it is told."""

    def __init__(self, folder, times):
        self._folder, self._times = str(folder), times

    def encode(self, texts):
        if "die" in texts and len(os.listdir(self._folder)) < self._times:
            open(os.path.join(self._folder, str(os.getpid())), "x").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().encode(texts)


def write_lines(path, texts):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def texts_of(source):
    ids, lengths, _ = source.take_flat(np.arange(len(source)))
    parts = np.split(ids, np.cumsum(lengths)[:-1])
    return [bytes(part.astype("u1")).decode() for part in parts]


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def texts():
    return ["slow start", *(f"document {i} " * (i % 5) for i in range(60)), "the end"]


def test_the_order_is_the_inputs_and_the_bytes_do_not_depend_on_the_parallelism(tmp_path, texts):
    write_lines(tmp_path / "in.jsonl", texts)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "b.txt").write_text("one whole\nfile")
    (tmp_path / "in" / "a.txt").write_text("")
    inputs = [tmp_path / "in.jsonl", tmp_path / "in"]
    seen = []
    wide = prepare(
        inputs,
        tmp_path / "wide",
        tokenizer=Slow(),
        chunk_bytes=500,
        progress=lambda counts, total: seen.append((counts.bytes, total)),
    )

    expected = [text for text in [*texts, "one whole\nfile"] if text]
    assert texts_of(wide) == expected
    assert len(wide.manifest.shards) > 4
    assert wide.supervised.tolist() == [len(text.encode()) - 1 for text in expected]
    assert wide.manifest.counts["documents"] == len(texts) + 2
    assert wide.manifest.counts["empty"] == texts.count("") + 1
    assert wide.manifest.counts["examples"] == len(wide) == len(expected)
    assert wide.manifest.counts["tokens"] == wide.manifest.tokens
    size = (tmp_path / "in.jsonl").stat().st_size + len("one whole\nfile")
    assert seen[-1] == (size, size)
    assert seen == sorted(seen)

    # One task at a time: a running task holds a CPU, so one of the two is taken away.
    holder = ray.remote(num_cpus=1)(_Holder).remote()
    ray.get(holder.ping.remote())
    narrow = prepare(inputs, tmp_path / "narrow", tokenizer=Slow(), chunk_bytes=500)
    ray.kill(holder)
    assert narrow.fingerprint == wide.fingerprint
    assert files_of(tmp_path / "narrow") == files_of(tmp_path / "wide")


class _Holder:
    def ping(self):
        return True


def test_a_killed_worker_is_tried_again_and_changes_nothing(tmp_path, texts):
    write_lines(tmp_path / "in.jsonl", [*texts[:30], "die", *texts[30:]])
    (tmp_path / "deaths").mkdir()
    killed = prepare(
        tmp_path / "in.jsonl", tmp_path / "killed", tokenizer=Killer(tmp_path / "deaths", 1), chunk_bytes=500
    )
    assert len(os.listdir(tmp_path / "deaths")) == 1
    calm = prepare(
        tmp_path / "in.jsonl", tmp_path / "calm", tokenizer=Killer(tmp_path / "deaths", 0), chunk_bytes=500
    )
    assert killed.fingerprint == calm.fingerprint
    assert files_of(tmp_path / "killed") == files_of(tmp_path / "calm")


def test_a_task_that_always_dies_ends_the_job_and_leaves_nothing(tmp_path):
    write_lines(tmp_path / "in.jsonl", ["fine", "die", "fine"])
    (tmp_path / "deaths").mkdir()
    with pytest.raises(PrepareError, match=r"workers died one after the other on .*in\.jsonl.*memory"):
        prepare(tmp_path / "in.jsonl", tmp_path / "new" / "out", tokenizer=Killer(tmp_path / "deaths", 99))
    assert sorted(os.listdir(tmp_path)) == ["deaths", "in.jsonl"]
    assert len(os.listdir(tmp_path / "deaths")) == 4


def test_the_first_bad_line_in_input_order_ends_the_job_and_leaves_nothing(tmp_path, texts, capfd):
    path = write_lines(tmp_path / "in.jsonl", texts)
    lines = path.read_text().splitlines()
    # The first fault lies in the slowest chunk, the others are found long before it.
    lines[3], lines[40], lines[60] = "bad", '{"text": 1}', "{}"
    path.write_text("\n".join(lines))
    with pytest.raises(PrepareError) as caught:
        prepare(path, tmp_path / "out", tokenizer=Slow(), chunk_bytes=300)
    assert str(caught.value).startswith(f"{path}, line 4: invalid JSON")
    time.sleep(1.0)
    assert os.listdir(tmp_path) == ["in.jsonl"]
    assert "Traceback" not in "".join(capfd.readouterr())


def test_an_error_of_the_callers_own_leaves_nothing(tmp_path, texts):
    path = write_lines(tmp_path / "in.jsonl", texts)

    def stop(counts, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(path, tmp_path / "out", tokenizer=Slow(), chunk_bytes=100, progress=stop)
    time.sleep(1.0)
    assert os.listdir(tmp_path) == ["in.jsonl"]


def test_a_tokenizer_that_no_worker_can_load_is_a_prepare_error(tmp_path):
    class Broken(Slow):
        def __setstate__(self, state):
            raise RuntimeError("no such thing here")

    tokenizer = Broken()
    tokenizer.weight = 1
    path = write_lines(tmp_path / "in.jsonl", ["a"])
    with pytest.raises(
        PrepareError, match=r"the tokenizer cannot be loaded in a worker: .*no such thing here"
    ):
        prepare(path, tmp_path / "out", tokenizer=tokenizer)
    assert os.listdir(tmp_path) == ["in.jsonl"]


class DriverOnly(LocalFileSystem):
    """A file system that workers have no client for."""

    protocol = "driveronly"

    @classmethod
    def _strip_protocol(cls, path):
        return path.removeprefix("driveronly://")


def test_an_error_of_a_worker_is_a_prepare_error(tmp_path):
    fsspec.register_implementation("driveronly", DriverOnly, clobber=True)
    path = write_lines(tmp_path / "in.jsonl", ["a"])
    with pytest.raises(
        PrepareError, match=r"in\.jsonl, byte 14: SourceError: no file system for 'driveronly://"
    ):
        prepare(f"driveronly://{path}", tmp_path / "out")
    assert os.listdir(tmp_path) == ["in.jsonl"]


def test_what_failed_is_the_last_exception_of_a_ray_error():
    def fail(batch):
        raise KeyError("the cause")

    with pytest.raises(ray.exceptions.RayError) as caught:
        ray.data.range(1).map_batches(fail).take()
    assert what_failed(caught.value) == "KeyError: 'the cause'"
    assert what_failed(ray.exceptions.RaySystemError("the node\nis gone")) == "System error: the node is gone"


def test_an_existing_target_is_refused_before_the_input_is_looked_at(tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(SourceError, match="exists already"):
        prepare(tmp_path / "nowhere", tmp_path / "out")
    assert os.listdir(tmp_path / "out") == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_length": 3, "oversize": "chop"}, "oversize must be one of"),
        ({"tokenizer": "nowhere"}, "is no file"),
        ({"text_field": ""}, "text_field"),
        ({"max_length": 3}, r"line 2: the document has 4 tokens, more than max_length 3"),
    ],
)
def test_wrong_arguments_leave_nothing(tmp_path, arguments, message):
    path = write_lines(tmp_path / "in.jsonl", ["abc", "abcd"])
    with pytest.raises(PrepareError, match=message):
        prepare(path, tmp_path / "out", **arguments)
    assert os.listdir(tmp_path) == ["in.jsonl"]


def test_how_it_was_prepared_is_in_the_manifest_and_in_what_changed(tmp_path):
    path = write_lines(tmp_path / "in.jsonl", ["abcde", "ab", ""])
    cut = prepare(path, tmp_path / "cut", max_length=3, oversize="split")
    assert dict(cut.manifest.prepared) == {
        "tokenizer": "bytes",
        "tokenizer_digest": None,
        "vocabulary": 256,
        "special_tokens": "none",
        "text_field": "text",
        "max_length": 3,
        "oversize": "split",
    }
    assert {k: v for k, v in cut.manifest.counts.items() if v} == {
        "bytes": path.stat().st_size,
        "documents": 3,
        "empty": 1,
        "split": 1,
        "pieces": 2,
        "examples": 3,
        "tokens": 7,
    }
    dropped = prepare(path, tmp_path / "dropped", max_length=3, oversize="drop")
    text = describe_change(cut.summary(), dropped)
    assert "oversize: 'split' -> 'drop'" in text
    assert "number of examples: 3 -> 1" in text


def test_a_remote_like_target_is_written_by_the_workers_themselves(tmp_path, monkeypatch, texts):
    monkeypatch.setenv("RAYPACK_CACHE_DIR", str(tmp_path / "cache"))
    write_lines(tmp_path / "in.jsonl", texts)
    uri = f"fsspec+file://{tmp_path}/out"
    source = prepare(f"fsspec+file://{tmp_path}/in.jsonl", uri, chunk_bytes=800)
    assert texts_of(source) == [text for text in texts if text]
    assert open_source(tmp_path / "out").fingerprint == source.fingerprint


def test_nothing_of_the_users_ray_is_changed(tmp_path, caplog):
    path = write_lines(tmp_path / "in.jsonl", ["a"])
    context = DataContext.get_current()
    before = repr(context)
    filters = {name: list(logging.getLogger(name).filters) for name in list(logging.root.manager.loggerDict)}
    with caplog.at_level(logging.INFO):
        prepare(path, tmp_path / "out")
    assert ray.is_initialized()
    assert repr(context) == before
    assert not context.execution_options.preserve_order
    assert {name: list(logging.getLogger(name).filters) for name in filters} == filters
    assert not [record for record in caplog.records if "raypack" in record.getMessage()]


def test_two_jobs_may_run_at_once(tmp_path):
    path = write_lines(tmp_path / "in.jsonl", ["a", "b", "c"])
    sources = {}
    threads = [
        threading.Thread(target=lambda name=name: sources.update({name: prepare(path, tmp_path / name)}))
        for name in ("one", "two")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sources["one"].fingerprint == sources["two"].fingerprint


CHATS = [
    [{"role": "user", "content": f"Say {i}"}, {"role": "assistant", "content": f"Paris {i}" * (i % 7 + 1)}]
    for i in range(80)
]


def test_chats_are_prepared_in_parallel_into_a_source_with_labels(tmp_path):
    pytest.importorskip("transformers")
    folder = chat_folder(tmp_path / "tokenizer")
    path = write_rows(tmp_path / "in.jsonl", [{"messages": chat} for chat in [*CHATS, CHATS[0][:1]]])
    options = {"rows": "chat", "tokenizer": f"hf:{folder}", "unsupervised": "drop"}
    wide = prepare(path, tmp_path / "wide", chunk_bytes=900, **options)
    assert len(wide.manifest.shards) > 5
    assert len(wide) == len(CHATS)
    assert wide.has_labels
    assert wide.manifest.counts["unsupervised"] == 1
    labels = [wide[i]["labels"] for i in range(len(wide))]
    assert wide.supervised.tolist() == [int((row[1:] != -100).sum()) for row in labels]
    assert wide.manifest.prepared["special_tokens"] == "the chat template's"

    # The same rows as Parquet, in one task, give the same examples.
    table = pa.Table.from_pylist([{"messages": chat} for chat in CHATS])
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=9)
    narrow = prepare(tmp_path / "*.parquet", tmp_path / "narrow", **options)
    assert narrow.take(range(80)).equals(wide.take(range(80)))
    every = prepare(path, tmp_path / "every", **{**options, "train_on": "all"})
    assert "train on: 'answers' -> 'all'" in describe_change(wide.summary(), every)


def test_a_bad_chat_ends_the_job_and_leaves_nothing(tmp_path):
    pytest.importorskip("transformers")
    folder = chat_folder(tmp_path / "tokenizer")
    path = write_rows(tmp_path / "in.jsonl", [{"messages": CHATS[0]}, {"chosen": 1, "rejected": 2}])
    with pytest.raises(PrepareError, match=r"in\.jsonl, line 2: .*DPOTrainer"):
        prepare(path, tmp_path / "out", rows="chat", tokenizer=f"hf:{folder}")
    assert sorted(os.listdir(tmp_path)) == ["in.jsonl", "tokenizer"]
