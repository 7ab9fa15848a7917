"""The example job on a real head: a worker killed, stopped, submitted again, audited; the refusals."""

import json as documents
import time
import zipfile
from pathlib import Path

import pytest
from ray._private.runtime_env.packaging import create_package

import raypack
from tests.support.head import ROOT, finish, running_head
from tests.support.killing import has_checkpoint, kill_a_worker

EPOCHS, REPORT_EVERY = 8, 4


@pytest.fixture(scope="module")
def head():
    with running_head(num_cpus=4) as running:
        yield running


@pytest.mark.ray
@pytest.mark.slow
def test_a_job_that_lost_a_worker_and_was_stopped_goes_on_under_its_run_name_and_is_proven(head, tmp_path):
    run = tmp_path / "runs" / "job"
    flags = ["--source", tmp_path / "source", "--storage", tmp_path / "runs", "--epochs", EPOCHS]
    flags += ["--report-every", REPORT_EVERY, "--documents", *Path(documents.__file__).parent.glob("*.py")]

    first = head.submit(*flags, "--workers", 1, 1, name="first")
    wait_for(lambda: has_checkpoint(run), first)
    assert kill_a_worker(head.pid)
    wait_for(lambda: len(raypack.verify(run).attempts) == 2, first)
    code, output = finish(head.job("stop", "first"))
    assert code == 0, output
    code, output = finish(first)
    assert code == 0, output  # to Ray's client, a job that was stopped has not failed
    assert "Job 'first' was stopped" in output, output
    stopped = raypack.verify(run)
    assert stopped.verdict == "consistent so far", stopped.findings
    assert sum(epoch.complete for epoch in stopped.epochs) < EPOCHS

    code, output = finish(head.submit(*flags, "--workers", 1, 2, name="second"))
    assert code == 0, output
    assert f"audit: {EPOCHS} of {EPOCHS} epochs complete, proven" in output
    audit = raypack.verify(run)
    assert audit.ok, audit.findings
    assert [attempt.world_size for attempt in audit.attempts] == [1, 1, 2]
    assert [epoch.trained for epoch in audit.epochs] == [audit.epochs[0].examples] * EPOCHS
    assert audit.attempts[2].first_step == sum(attempt.steps for attempt in audit.attempts[:2]) > 0


def wait_for(come, job):
    ends = time.monotonic() + 120
    while not come():
        assert job.poll() is None, job.stdout.read()
        assert time.monotonic() < ends, "it did not come"
        time.sleep(0.1)


@pytest.mark.ray
def test_a_source_in_the_jobs_own_folder_is_refused_with_the_remedy(head, tmp_path):
    flags = ["--source", "corpus", "--storage", tmp_path / "runs"]
    code, output = finish(head.submit(*flags, name="inside"))
    assert code == 1, output
    assert "lies in the working directory of a Ray job" in output, output
    assert "give an absolute path on a file system that every node mounts" in output
    assert not (tmp_path / "runs").exists()


@pytest.mark.ray
def test_a_client_without_the_token_is_refused(head):
    code, output = finish(head.job("list", RAY_AUTH_MODE="disabled"))
    assert code != 0, output
    assert "token" in output, output


def test_a_run_that_is_not_proven_to_its_last_epoch_is_no_success(example, tmp_path, capsys):
    assert not example.proven(str(tmp_path / "nowhere"), epochs=1)
    assert "FAULT: " in (printed := capsys.readouterr().out)
    assert "audit: 0 of 1 epochs complete, NOT proven" in printed


def test_the_program_alone_is_sent_to_the_cluster(tmp_path):
    (tmp_path / "job").mkdir()
    for file in (ROOT / "examples/job").iterdir():
        if file.is_file():
            (tmp_path / "job" / file.name).write_bytes(file.read_bytes())
    for stray in ("corpus/shard_00000.arrow", "runs/model.pt", "__pycache__/train.pyc", "out.log"):
        (tmp_path / "job" / stray).parent.mkdir(exist_ok=True)
        (tmp_path / "job" / stray).write_bytes(b"0")
    create_package(str(tmp_path / "job"), tmp_path / "package.zip", include_gitignore=True)
    with zipfile.ZipFile(tmp_path / "package.zip") as package:
        files = {name for name in package.namelist() if not name.endswith("/")}
    assert files == {"train.py", ".rayignore"}
