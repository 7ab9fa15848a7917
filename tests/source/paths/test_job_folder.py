"""A source in the working directory of a Ray job is refused with the remedy, before any work."""

import os
from pathlib import Path

import pytest
from ray._private import ray_constants
from ray._private.runtime_env.packaging import get_local_dir_from_uri

import raypack
from raypack.errors import SourceError
from raypack.source import write_source
from raypack.source.paths.job_folder import refuse_job_folder
from raypack.train import PackedData
from tests.conftest import documents_table

REFUSED = r"lies in the working directory of a Ray job .*_ray_pkg_0a1b\).*every node mounts.*s3://"


@pytest.fixture
def unpacked(tmp_path):
    """A folder where Ray itself says that it unpacks a package."""
    resources = tmp_path / "session" / ray_constants.DEFAULT_RUNTIME_ENV_DIR_NAME
    folder = get_local_dir_from_uri("gcs://_ray_pkg_0a1b.zip", str(resources / "working_dir_files"))
    Path(folder).mkdir(parents=True)
    return Path(folder)


@pytest.fixture
def stray(unpacked):
    """A finished source that came to lie there all the same."""
    write_source(unpacked.parents[2] / "made", [documents_table([3, 4])])
    (unpacked.parents[2] / "made").rename(unpacked / "made")
    return unpacked / "made"


def test_a_source_is_not_written_there_and_nothing_is_left(unpacked):
    with pytest.raises(SourceError, match=REFUSED):
        write_source(unpacked / "deep" / "source", [documents_table([3, 4])])
    assert list(unpacked.iterdir()) == []


def test_prepare_refuses_it_before_ray_is_started(unpacked):
    with pytest.raises(SourceError, match=REFUSED):
        raypack.prepare(__file__, unpacked / "source")
    assert list(unpacked.iterdir()) == []


def test_a_recipe_refuses_it_where_it_is_made_also_by_a_relative_path(unpacked, monkeypatch):
    monkeypatch.chdir(unpacked)
    with pytest.raises(SourceError, match=REFUSED):
        PackedData(source="source", maximum_tokens=16)


def test_it_is_not_opened_there_not_even_as_a_file_uri(stray):
    for path in (stray, stray.as_uri()):
        with pytest.raises(SourceError, match=REFUSED):
            raypack.open_source(path)


def test_a_link_that_leads_there_is_refused_as_one_that_lies_there(stray, tmp_path):
    (tmp_path / "link").symlink_to(stray)
    with pytest.raises(SourceError, match=REFUSED):
        raypack.open_source(tmp_path / "link")
    (tmp_path / "shared").mkdir()
    (stray.parent / "out").symlink_to(tmp_path / "shared")
    with pytest.raises(SourceError, match=REFUSED):
        write_source(stray.parent / "out" / "source", [documents_table([3])])


@pytest.mark.parametrize(
    "path",
    [
        "/shared/source",
        "/runtime_resources/working_dir_files",
        "/shared/working_dir_files/source",
        "/shared/not_runtime_resources/working_dir_files/package/source",
        "s3://bucket/runtime_resources/working_dir_files/package/source",
    ],
)
def test_other_places_are_left_alone(path):
    refuse_job_folder(path)


def test_a_path_that_climbs_out_of_it_is_left_alone(unpacked):
    out = os.path.join(unpacked, "..", "..", "..", "source")
    assert len(write_source(out, [documents_table([3, 4])])) == 2
