"""A rank's directory, and those of processes that are no more."""

import os
import subprocess
import sys
import tempfile

import pytest

from raypack.train.reporting import sending
from raypack.train.reporting.sending import RankDirectory


@pytest.fixture(autouse=True)
def own_temp(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    sending._remove_stale_directories.cache_clear()


def test_directories_of_killed_processes_of_this_machine_alone_are_removed(tmp_path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    here = f"raypack-report-{sending._process_namespace()}"
    living, elsewhere = f"{here}-{os.getppid()}-x", f"raypack-report-{'0' * 12}-{dead.pid}-x"
    for name in (f"{here}-{dead.pid}-x", living, elsewhere, "unrelated"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    with RankDirectory() as directory:
        made = directory.make().name
        assert {path.name for path in tmp_path.iterdir()} == {living, elsewhere, "unrelated", made}
        assert made.startswith(f"{here}-{os.getpid()}-")
    assert made not in {path.name for path in tmp_path.iterdir()}


def test_a_directory_that_was_handed_over_stays_until_it_is_removed(tmp_path):
    with RankDirectory() as directory:
        path = directory.make()
        directory.hand_over()
    assert path.exists()
    directory.remove()
    directory.remove()
    assert not path.exists()
