"""A rank's directory, and those of processes that are no more."""

import os
import subprocess
import sys
import tempfile

import pytest

from raypack.train import sending
from raypack.train.sending import RankDirectory


@pytest.fixture(autouse=True)
def own_temp(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    sending._remove_those_of_the_dead.cache_clear()


def test_directories_of_killed_processes_are_removed_and_those_of_living_ones_stay(tmp_path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    living = f"raypack-report-{os.getppid()}-x"
    for name in (f"raypack-report-{dead.pid}-x", living, "raypack-report-other", "unrelated"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    with RankDirectory() as directory:
        made = directory.make().name
        assert {path.name for path in tmp_path.iterdir()} == {
            living,
            "raypack-report-other",
            "unrelated",
            made,
        }
        assert made.startswith(f"raypack-report-{os.getpid()}-")
    assert made not in {path.name for path in tmp_path.iterdir()}


def test_a_directory_that_was_handed_over_stays_until_it_is_removed(tmp_path):
    with RankDirectory() as directory:
        path = directory.make()
        directory.hand_over()
    assert path.exists()
    directory.remove()
    directory.remove()
    assert not path.exists()
