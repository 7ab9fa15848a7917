"""`raypack state`: what a checkpoint holds, and what other numbers of workers would get of it."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import fsspec
import numpy as np
import pyarrow.fs as pafs
import pytest
from click.testing import CliRunner

from raypack.audit import verify
from raypack.audit.state.reshard import reshard
from raypack.audit.state.reshard_proof import prove
from raypack.audit.state.show import show
from raypack.batching.rank.sampler import StatefulTokenBatchSampler
from raypack.checkpoint.ledger import Refused
from raypack.checkpoint.reading import read_state
from raypack.cli import main
from raypack.sampling.sampler import StatefulShardSampler
from tests.conftest import long_tailed
from tests.support.rank_states import remaining_of, train, write_ranks
from tests.support.state_factory import name_of, trained, write

LOCAL = pafs.LocalFileSystem()


def run(*arguments):
    return CliRunner().invoke(main, ["state", *map(str, arguments)], env={"COLUMNS": "200"})


@pytest.fixture
def source(make_source):
    return make_source(long_tailed(150, seed=9))


@pytest.fixture
def checkpoint(tmp_path, source):
    state = trained(source, steps=5)
    write(tmp_path / name_of(state), state)
    return tmp_path / name_of(state)


@pytest.fixture
def ranks(tmp_path, source):
    samplers, receipt = train(source)
    return write_ranks(tmp_path / "ranks", source, samplers, receipt), samplers


# -- show -----------------------------------------------------------------------------------------


def test_a_checkpoint_is_shown_as_it_is(checkpoint, source):
    done = run("show", checkpoint)
    assert done.exit_code == 0, done.output
    for text in ("global", "a" * 32, source.fingerprint, "readable, and the same", "best_fit", "state.json"):
        assert text in done.output
    (view,) = show(checkpoint)
    left = view.to_dict()["left"]
    assert left["examples"] == 150 - view.state.ledger.epochs[0].receipt.examples
    assert left["tokens"] == source.manifest.tokens - view.state.ledger.epochs[0].receipt.tokens
    whole = trained(source).step
    assert left["steps"] == whole - 5
    assert dict(view.files)["state.json"] == (checkpoint / "raypack/state.json").stat().st_size


def test_json_holds_all_of_it(checkpoint, source):
    (checkpoint / "model.pt").write_bytes(b"x" * 1000)
    (values,) = json.loads(run("show", checkpoint, "--json").output)
    assert values["source"]["path"] == source.path
    assert values["other_files"] == {"count": 1, "bytes": 1000}
    assert values["cursor"]["steps"] == values["step"] == 5
    assert values["plan"]["maximum_tokens"] == 64
    assert values["attempts"][0]["world_size"] == values["world_size"] == 2
    assert values["epochs"][0]["refused"]["retries"] == 0


def test_retries_and_skips_are_told(tmp_path, source):
    state = trained(source, steps=5)
    (entry,) = state.ledger.epochs
    entry = replace(entry, refused=Refused(retries=3, steps=1, numbers=(2,)))
    state = replace(state, ledger=replace(state.ledger, epochs=(entry,)))
    write(tmp_path / "c", state)
    output = run("show", tmp_path / "c").output
    assert "epoch 0: steps were begun again 3 times" in output
    assert "epoch 0: 1 steps skipped" in output


def test_a_source_that_is_gone_or_another_is_said_and_the_rest_is_shown(checkpoint, make_source, tmp_path):
    other = make_source(long_tailed(151), name="other")
    (view,) = show(checkpoint, source=other.path)
    assert "is not the one that the run trained" in view.source_fault
    assert "151" in view.source_fault
    (tmp_path / "source").rename(tmp_path / "moved")
    (view,) = show(checkpoint)
    assert "not readable at" in view.source_fault
    assert view.left.examples == 150 - view.state.ledger.epochs[0].receipt.examples
    assert view.left.steps is None
    assert "not readable at" in run("show", checkpoint).output
    assert show(checkpoint, source=tmp_path / "moved")[0].left.steps > 0


@pytest.mark.parametrize("scheme", ["s3", "zzz"])
def test_secrets_of_the_sources_uri_are_not_shown(tmp_path, source, scheme):
    state = trained(source, steps=1)
    secret = f"{scheme}://key:topsecret@no-bucket/x?secret_key=topsecret&region=%"
    write(tmp_path / "c", replace(state, source_path=secret))
    for arguments in (("show",), ("show", "--json")):
        done = run(*arguments, tmp_path / "c")
        assert done.exit_code == 0
        assert "topsecret" not in done.output
        assert f"{scheme}://no-bucket/x" in done.output


@pytest.mark.parametrize("scheme", ["s3", "zzz"])
def test_secrets_of_the_runs_uri_are_not_shown(scheme):
    done = run("show", f"{scheme}://key:topsecret@bucket/x?secret_key=topsecret&region=%")
    assert done.exit_code == 1
    assert "the run must be a path or a URI" in done.stderr
    assert "topsecret" not in done.output


def test_a_checkpoint_may_lie_on_any_file_system_of_fsspec(checkpoint):
    memory = fsspec.filesystem("memory")
    memory.put(str(checkpoint), f"/{checkpoint.name}", recursive=True)
    (view,) = show(f"memory://{checkpoint.name}")
    assert view.state == show(checkpoint)[0].state
    memory.rm(f"/{checkpoint.name}", recursive=True)


def test_several_loaders_are_listed_and_one_is_shown_by_its_name(tmp_path, source):
    write(tmp_path / "c", trained(source, steps=2), "train")
    (view,) = show(tmp_path / "c")
    assert view.name == "train"
    write(tmp_path / "c", trained(source, steps=3), "extra")
    listed = run("show", tmp_path / "c")
    assert listed.exit_code == 0
    assert "loaders" in listed.output
    assert [view.state.step for view in show(tmp_path / "c")] == [3, 2]
    assert "loader 'train'" in run("show", tmp_path / "c", "--name", "train").output
    done = run("reshard", tmp_path / "c", "--world-size", 2)
    assert done.exit_code == 1
    assert "holds the loaders 'extra', 'train'; give the name of one" in done.output


def test_the_rank_deal_is_shown_with_a_file_of_each_rank(ranks, source):
    checkpoint, samplers = ranks
    (view,) = show(checkpoint)
    assert view.left.examples == len(remaining_of(samplers))
    assert view.left.tokens == int(source.lengths.array[remaining_of(samplers)].sum())
    assert view.left.steps == max(sampler.remaining_batches() for sampler in samplers)
    assert [name for name, _ in view.files if name.startswith("rank")] == [
        f"rank_{r:05d}.json" for r in range(3)
    ]
    assert "steps on 3 data ranks" in run("show", checkpoint).output


@pytest.mark.parametrize("command", [("show",), ("reshard", "--world-size", "2")])
def test_faults_are_one_line_on_stderr_and_code_1(checkpoint, tmp_path, command):
    (checkpoint / "raypack/state.json").write_text("{")
    for place, message in (
        (checkpoint, "state.json: must have"),
        (tmp_path / "none", "must be the directory"),
    ):
        done = run(*command, place)
        assert done.exit_code == 1
        assert isinstance(done.exception, SystemExit)
        assert done.stdout == ""
        (line,) = done.stderr.splitlines()
        assert line.startswith("Error: ")
        assert message in line


# -- reshard --------------------------------------------------------------------------------------


@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 200])
def test_what_is_left_is_dealt_to_any_number_of_workers_each_example_once(ranks, source, world_size):
    checkpoint, samplers = ranks
    result = reshard(checkpoint, world_size)
    assert result.ok
    assert result.proof.left.examples == len(remaining_of(samplers)) == sum(s.examples for s in result.shares)
    assert sum(s.tokens for s in result.shares) == int(source.lengths.array[remaining_of(samplers)].sum())
    assert max(s.examples for s in result.shares) - min(s.examples for s in result.shares) <= 1


def test_the_proof_sees_what_is_lost_doubled_or_foreign(ranks, source):
    _, samplers = ranks
    old = [sampler.sampler.state() for sampler in samplers]
    assert prove(old, old).ok
    assert prove(old, old[:2]).missing == samplers[2].sampler.remaining
    assert prove(old, [*old, old[0]]).doubled == samplers[0].sampler.remaining
    rewound = StatefulShardSampler(source.fingerprint, 150, rank=1, world_size=3, seed=4).state()
    proof = prove(old, [old[0], rewound, old[2]])
    assert not proof.ok
    assert proof.foreign == samplers[1].sampler.committed


def test_without_the_source_there_is_the_proof_but_no_batches(ranks, tmp_path):
    (tmp_path / "source").rename(tmp_path / "moved")
    result = reshard(ranks[0], 2)
    assert result.ok
    assert result.steps is None
    assert [share.batches for share in result.shares] == [None, None]
    done = run("reshard", ranks[0], "--world-size", 2)
    assert done.exit_code == 0
    assert "each example left to exactly one rank" in done.output
    assert "not readable at" in done.output


@pytest.mark.parametrize("name", [None, "train"])
@pytest.mark.parametrize("world_size", [1, 2, 5, 7])
def test_a_state_that_was_written_is_accepted_and_goes_on_with_what_was_left(
    tmp_path, source, name, world_size
):
    samplers, receipt = train(source)
    checkpoint = write_ranks(tmp_path / "c", source, samplers, receipt, name=name)
    done = run("reshard", checkpoint, "--world-size", world_size, "--out", tmp_path / "new")
    assert done.exit_code == 0, done.output
    assert "written" in done.output
    state = read_state(LOCAL, str(tmp_path / "new"), name)
    assert state.world_size == world_size
    assert state.report_id != "d" * 32
    audit = verify(tmp_path / "new", name=name)
    assert audit.consistent, audit.findings
    left = state.plan.consolidated
    again = [StatefulTokenBatchSampler.reshard(left, rank, 4, source.lengths) for rank in range(4)]
    indices = np.concatenate([plan.indices for sampler in again for plan in sampler.plans(0, 1000)])
    assert sorted(indices.tolist()) == remaining_of(samplers)
    assert sorted(os.listdir(tmp_path)) == ["c", "new", "source"]


def test_nothing_is_overwritten_and_nothing_is_left_half_written(ranks, tmp_path):
    checkpoint, _ = ranks
    done = run("reshard", checkpoint, "--world-size", 2, "--out", checkpoint)
    assert done.exit_code == 1
    assert "out must hold no state yet" in done.stderr
    file = tmp_path / "file"
    file.write_text("x")
    for out in (file, "s3://bucket/x", "", tmp_path / "step_00000004_w2_a0_dddddddddddd"):
        done = run("reshard", checkpoint, "--world-size", 2, "--out", out)
        assert done.exit_code == 1
        assert "out must" in done.stderr
    before = sorted(os.listdir(tmp_path))
    command = "from raypack.cli import main; import resource as r, sys; "
    command += "r.setrlimit(r.RLIMIT_FSIZE, (1000, 1000)); main(sys.argv[1:])"
    arguments = ["state", "reshard", str(checkpoint), "--world-size", "2", "--out", str(tmp_path / "new")]
    done = subprocess.run(
        [sys.executable, "-c", command, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(os.listdir(tmp_path)) == before


def test_the_global_deal_needs_no_rewriting_and_tells_how_steps_divide(checkpoint, tmp_path):
    done = run("reshard", checkpoint, "--world-size", 3, "--out", tmp_path / "new")
    assert done.exit_code == 0
    assert "nothing needs rewriting" in done.output
    assert not (tmp_path / "new").exists()
    values = json.loads(run("reshard", checkpoint, "--world-size", 3, "--json").output)
    deals = values["deals"]
    assert (deals["micro_batches"], deals["next_good"]) == (2, 6)
    assert deals["idle"] == pytest.approx(1 / 3)
    assert len(deals["imbalance"]) > 1
    assert all(value >= 1.0 for value in deals["imbalance"])
