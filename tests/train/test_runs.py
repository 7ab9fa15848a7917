"""Whole runs on a real Ray: killed, resumed on other worlds, audited, compared with one process."""

import json
import re
from dataclasses import replace

import pytest
import ray
import torch
from ray.train import CheckpointConfig, ControllerError, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

from raypack.audit import verify
from raypack.batching.options import TokenBatchOptions
from raypack.batching.steps.planner import StepPlanner
from raypack.checkpoint.locate import last_checkpoint, open_path
from raypack.errors import CheckpointError, ResourceError, StreamError
from raypack.source import write_source
from raypack.train import PackedDataConfig, get_loader
from raypack.train.elastic import start
from tests.conftest import documents_table, long_tailed
from tests.support import train_functions
from tests.support.local_ray import local_ray
from tests.support.local_run import Nobody, worker_of
from tests.support.one_process import loss_of, planner_of, train_step
from tests.support.running import BUDGET, CPUS, fit, recipe_of
from tests.support.session_logs import SessionLogs

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module", autouse=True)
def cluster():
    with local_ray(train_functions, cpus=CPUS):
        yield


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def source(place):
    lengths = long_tailed(1501, seed=5)
    return write_source(str(place / "source"), [documents_table(lengths, labels=True)])


# -- the chain: killed between two steps and in a report, then 2 -> 5 -> 3 -> 1 workers -----------
# From step 24 on under another budget, from step 32 on in other steps: both in mid-window.

SKIPPED = (13, 29)
CHANGES = {24: {"maximum_tokens": 96}, 32: {"batches_per_step": 6}}


@pytest.fixture(scope="module")
def chain(place, source):
    recipe = recipe_of(source, window=256)
    refuses = {"retry_at": (6, 27), "skip_at": SKIPPED}
    deaths = {"failures": 3, "die_after": 5, "die_in_report": 11}
    fit(train_functions.train, place, recipe, 2, name="chain", stop_after=17, **deaths, **refuses)
    fit(train_functions.train, place, recipe, 5, name="chain", stop_after=25, **refuses)
    recipe = replace(recipe, **CHANGES[24])
    change = {"may_change": ("maximum_tokens", "batches_per_step")}
    fit(train_functions.train, place, recipe, 3, name="chain", stop_after=33, **change, **refuses)
    recipe = replace(recipe, **CHANGES[32])
    return fit(train_functions.train, place, recipe, 1, name="chain", **change, evaluation=recipe_of(source))


@pytest.fixture(scope="module")
def one_process(source):
    """A model trained by this process on what the chain must have trained."""
    model = train_functions.TinyTransformer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    planner = planner_of(source, window=256)
    skipped = 0
    while not planner.finished:
        change = dict(CHANGES.get(planner.cursor.steps, {}))
        if "maximum_tokens" in change:
            change["options"] = TokenBatchOptions(change.pop("maximum_tokens"))
        planner.change(**change)
        (step,) = planner.steps(0, 1)
        planner.commit(1)
        if step.index in SKIPPED:
            skipped += step.examples
            continue
        train_step(model, optimizer, source, step.batches)
    assert len(step.batches) < 6  # the last step is a partial one
    return model, skipped


def test_a_run_that_was_killed_twice_and_resized_thrice_passes_the_audit(chain, one_process, place):
    assert (place / "died-between-steps").exists()
    assert (place / "died-in-report").exists()
    audit = verify(place / "storage/chain")
    assert audit.consistent, audit.findings
    assert audit.verdict == "consistent so far"  # steps were skipped
    assert audit.allowing(skipped=True) == "complete"
    (epoch,) = audit.epochs
    _, skipped = one_process
    assert epoch.complete
    assert epoch.trained + skipped == 1501
    assert (epoch.refused.numbers, epoch.refused.receipt.examples) == (SKIPPED, skipped)
    assert epoch.refused.retries == 2
    worlds = [a.world_size for a in audit.attempts]
    assert worlds[-3:] == [5, 3, 1]
    assert worlds[:-3] in ([2, 2, 2], [2, 2])  # an attempt whose report came too late leaves no trace
    assert [a.first_step for a in audit.attempts[-3:]] == [16, 24, 32]
    assert [a.options.maximum_tokens for a in audit.attempts[-3:]] == [64, 96, 96]
    assert [a.batches_per_step for a in audit.attempts[-3:]] == [7, 7, 6]


def test_its_parameters_are_those_of_one_process_on_the_same_examples(chain, one_process, place):
    filesystem, path = open_path(place / "storage/chain")
    trained = torch.load(last_checkpoint(filesystem, path) + "/model.pt")
    model, _ = one_process
    for name, value in model.state_dict().items():
        assert torch.allclose(value, trained[name], rtol=0, atol=1e-9), name


def test_its_evaluation_beside_the_training_is_that_of_one_process(chain, one_process, source):
    model, _ = one_process
    planner = StepPlanner("s", source.lengths, TokenBatchOptions(BUDGET), batches_per_step=1)
    with torch.no_grad():
        total = sum(float(loss_of(model, source, step.batches[0])) for step in planner.steps(0, 10**6))
    expected = total / int(source.supervised.sum())
    assert chain.metrics["evaluated"] == pytest.approx(expected, abs=1e-9)


def test_a_finished_run_that_is_started_again_trains_nothing_and_stays_proven(chain, place, source):
    recipe = replace(recipe_of(source, window=256), maximum_tokens=96, batches_per_step=6)
    result = fit(train_functions.train, place, recipe, 2, name="chain", evaluation=recipe_of(source))
    assert result.metrics["done"]
    assert result.metrics["progress"] == 1.0
    assert result.metrics["evaluated"] == pytest.approx(chain.metrics["evaluated"], abs=1e-9)
    audit = verify(place / "storage/chain")
    assert audit.consistent, audit.findings
    assert audit.verdict == "consistent so far"  # steps were skipped
    assert audit.allowing(skipped=True) == "complete"
    assert audit.attempts[-1].world_size == 1


def test_a_start_that_cannot_go_on_from_a_checkpoint_says_why_on_every_rank(chain, place, source):
    other = write_source(str(place / "other"), [documents_table(long_tailed(1400, seed=5))])
    recipe = replace(recipe_of(source, window=256), maximum_tokens=96, batches_per_step=6)
    fit(train_functions.refused_starts, place, recipe, 2, name="chain", other=other.path)
    expected = {
        "another-budget": r"CheckpointError: maximum_tokens must stay 96, .*got 192: .*may_change",
        "another-seed": r"CheckpointError: seed must stay 3, .*got 4: give the run another name",
        "seed-by-rank": r"LoaderError: rank 1 has another seed than rank 0: 1, not 0",
        "another-source": r"SourceError: .*not the one that this run began with.*1400",
        "one-rank-lacks-it": r"SourceError: .*memory://one-process cannot be opened on node .* \(rank 1\)",
        "damaged": r"CheckpointError: .*state\.json: must have \d+ bytes, has 400",
    }
    for name, message in expected.items():
        for rank in (0, 1):
            told = (place / f"{name}-{rank}").read_text()
            assert re.match(message, told), (name, rank, told)


# -- rules of the loop ----------------------------------------------------------------------------


def test_each_misuse_of_the_loop_is_a_named_error_on_every_rank_and_a_loader_is_opened_again(
    place, source, tmp_path
):
    result = fit(train_functions.misuse, tmp_path, recipe_of(source, backend="direct"), 2, name="misuse")
    expected = {
        "report-before-commit": "LoaderError: step 0 is not committed, but report was called",
        "commit-too-early": "LoaderError: step 0 has 4 micro-batches on this rank, but only 0 were taken",
        "forgotten-commit": "LoaderError: step 0 is not committed, but the next step was asked for",
        "metrics": "LoaderError: metrics['loss'] must be a JSON value, got Tensor",
        "metrics-kind": "TypeError: metrics must be a dict, got list",
        "save-kind": "TypeError: save must be a function of a directory, got str",
        "same-file": "LoaderError: ranks 0 and 1 both saved 'model.pt'",
        "closed": "LoaderError: the loader is closed and cannot be iterated",
        "open-already": "LoaderError: the loader is open already, on rank 0, 1: leave its 'with' block",
    }
    for name, message in expected.items():
        for rank in (0, 1):
            assert (tmp_path / f"{name}-{rank}").read_text().startswith(message), name
    alone = (tmp_path / "alone-0").read_text()
    assert alone.startswith("LoaderError: rank 0 waited 3 s in report for rank 1: report must be called")
    assert result.metrics == {"starts": [1, 10, 14], "done": 1.0}
    check_opened_again(result, [0, 1, 10, 14])


def check_opened_again(result, firsts):
    audit = verify(result.checkpoint.path)
    assert audit.ok, audit.findings
    assert [(epoch.complete, epoch.trained) for epoch in audit.epochs] == [(True, 1501)]
    assert [attempt.first_step for attempt in audit.attempts] == firsts


@pytest.mark.parametrize(
    ("workers", "cpus", "message"),
    [
        (
            CPUS + 1,
            1,
            f"got num_workers={CPUS + 1} of .*{CPUS} CPUs on 1 node has room for {CPUS}. Take resources",
        ),
        (
            2,
            CPUS / 2,
            f"must leave 0.25 CPU each for their readers, got 2 workers that reserve {CPUS} of {CPUS}",
        ),
    ],
)
def test_a_run_that_the_cluster_can_never_hold_is_refused_before_anything_starts(
    source, tmp_path, workers, cpus, message
):
    recipe = recipe_of(source)
    with pytest.raises(ResourceError, match=message) as told:
        recipe.check(ScalingConfig(num_workers=workers, resources_per_worker={"CPU": cpus}))
    with pytest.raises(ControllerError) as ended:
        fit(train_functions.take_one, tmp_path, recipe, workers, name="refused", cpus=cpus)
    assert isinstance(ended.value.controller_failure, ResourceError)
    assert str(ended.value.controller_failure) == str(told.value)
    recipe.check(ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}))  # which fits


def test_a_loader_whose_readers_can_get_no_cpu_says_so_before_it_waits(source, monkeypatch):
    monkeypatch.setattr(start.WorkerContext, "current", lambda: replace(worker_of(0, 2), worker_cpus=CPUS))
    monkeypatch.setattr(start, "join_rendezvous", lambda *_, **__: Nobody())
    with pytest.raises(StreamError, match=r"rank 0's reader can get no CPU: .*2 train workers reserve 8"):
        get_loader(recipe_of(source), device="cpu")


def test_a_run_whose_cpus_others_hold_says_so(source, tmp_path):
    @ray.remote(num_cpus=CPUS - 1)
    class Other:
        def ready(self):
            return True

    other = Other.remote()
    assert ray.get(other.ready.remote())
    with pytest.raises(
        Exception,
        match=r"StreamError.*with 0 CPUs free.*the 2 train workers reserve 1.*Leave CPUs for Ray Data",
    ):
        fit(
            train_functions.take_one,
            tmp_path,
            recipe_of(source),
            2,
            name="starved",
            env={"RAYPACK_START_TIMEOUT_S": "8"},
        )
    ray.kill(other)


def test_a_shard_of_a_trainers_datasets_opens_the_loader_beside_other_datasets(source, tmp_path):
    recipe = recipe_of(source)
    config = PackedDataConfig({"train": recipe})
    datasets = {**config.datasets, "other": ray.data.range(20)}
    trainer = {"datasets": datasets, "dataset_config": config}
    fit(train_functions.through_shards, tmp_path, recipe, 2, name="shards", trainer=trainer, expected=())
    audit = verify(tmp_path / "storage/shards")
    assert audit.ok, audit.findings
    assert audit.epochs[0].complete
    parts = [json.loads((tmp_path / f"trained-{rank}").read_text()) for rank in (0, 1)]
    assert sum(examples for examples, _ in parts) == 1501
    assert sorted(n for _, numbers in parts for n in numbers) == list(range(20))
    assert "a packed shard gives optimizer steps" in (tmp_path / "refused-1").read_text()


def test_checkpoints_of_others_are_told_in_the_driver_and_refused_and_the_last_good_one_is_kept(
    source, tmp_path, caplog
):
    recipe = recipe_of(source, backend="direct")
    few = {"checkpoint_config": CheckpointConfig(num_to_keep=1)}
    logs = SessionLogs()
    expected = ["cannot be resumed from: the checkpoint .* was reported without raypack.train.report"]
    fit(train_functions.saved_by_others, tmp_path, recipe, 1, name="others", run=few, expected=expected)
    assert logs.text().count("reported without raypack.train.report and holds no state of the data") >= 2
    told = caplog.records[-1].getMessage()
    assert told.startswith("run 'others' has ended with 2 committed steps (1 to 2) in no checkpoint: call")
    run = tmp_path / "storage/others"
    good, last = sorted(path.name for path in run.iterdir() if path.is_dir())[::-1]
    assert good.startswith("step_00000001_")
    assert last_checkpoint(*open_path(run)) == f"{run}/{last}"
    config = RunConfig(name="others", storage_path=str(tmp_path / "storage"))
    with pytest.raises(CheckpointError, match=rf"{last} was reported without .* is {good}: ") as refused:
        TorchTrainer(
            train_functions.take_one,
            train_loop_config={"recipe": recipe},
            scaling_config=ScalingConfig(num_workers=0),
            run_config=config,
        ).fit()
    assert "raypack.train.get_good_checkpoint()" in str(refused.value)


@pytest.mark.parametrize("backend", ["direct", "ray_data"])
def test_in_local_mode_a_loader_goes_on_from_what_its_process_has_committed(source, backend, tmp_path):
    recipe = recipe_of(source, backend=backend)
    trainer = TorchTrainer(
        train_functions.opened_thrice,
        train_loop_config={"recipe": recipe},
        scaling_config=ScalingConfig(num_workers=0),
        run_config=RunConfig(name="thrice", storage_path=str(tmp_path)),
    )
    result = trainer.fit()
    assert result.metrics == {"starts": [0, 10, 14], "done": 1.0}
    check_opened_again(result, [0, 10, 14])
