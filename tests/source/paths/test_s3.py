"""A source on S3: written, opened and read by the environment's keys or those of the URI."""

import os

import pytest

from raypack.errors import SourceError
from raypack.source import open_source, write_source
from tests.conftest import documents_table, long_tailed

pytest.importorskip("moto")
from tests.support.s3_server import query, s3_server


@pytest.fixture(scope="module")
def environment():
    with s3_server() as values:
        yield values


@pytest.fixture
def s3(environment, monkeypatch, tmp_path):
    monkeypatch.setenv("RAYPACK_CACHE_DIR", str(tmp_path / "cache"))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://bucket/{tmp_path.name}"


def test_a_source_on_s3_is_that_on_a_disk(s3, tmp_path, make_source):
    local = make_source(long_tailed(300), labels=True)
    table = documents_table(long_tailed(300), labels=True)
    written = write_source(s3, [table], shard_tokens=1000)
    source = open_source(s3)
    assert source.fingerprint == written.fingerprint
    assert len(source.manifest.shards) > 3
    indices = [299, 0, 17, 17]
    assert source.take(indices).equals(local.take(indices))
    assert source.lengths.array.tolist() == local.lengths.array.tolist()
    assert source.lengths.digest == local.lengths.digest
    cached = sorted(os.listdir(tmp_path / "cache/sources" / source.fingerprint))
    assert "lengths.i32" in cached
    assert "supervised.i32" not in cached  # what is not asked for is not fetched
    assert len([name for name in cached if name.endswith(".arrow")]) == 2
    source.verify_contents()
    with pytest.raises(SourceError, match="exists already"):
        write_source(s3, [table])


def test_keys_and_endpoint_may_stand_in_the_uri_and_are_not_shown(environment, monkeypatch, tmp_path):
    monkeypatch.setenv("RAYPACK_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    uri = f"s3://test:topsecret@bucket/by-uri{query(environment)}"
    source = write_source(uri, [documents_table([3, 4, 5])])
    assert open_source(uri).take([2]).num_rows == 1
    assert "topsecret" not in repr(source)
    with pytest.raises(SourceError) as caught:
        open_source(uri.replace("by-uri", "nowhere"))
    assert str(caught.value).startswith("s3://bucket/nowhere does not exist")


def test_a_write_that_fails_leaves_nothing(s3):
    def tables():
        yield documents_table([5] * 50)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_source(s3, tables(), shard_tokens=20)
    with pytest.raises(SourceError, match="does not exist"):
        open_source(s3)
