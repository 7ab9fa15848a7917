"""The Trainer of transformers over packed data: the plain loop's parameters, through a resize; refusals."""

import json
import math

import pytest

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

import torch
from transformers import TrainingArguments

from raypack.audit import verify
from raypack.errors import LoaderError
from raypack.train import PackedData
from raypack.train.integrations.hf_arguments import check_arguments
from raypack.train.integrations.hf_trainer import PackedTrainer, PackedTraining
from tests.conftest import long_tailed
from tests.support import trainer_functions
from tests.support.local_ray import local_ray
from tests.support.local_run import Attempt, patch, worker_of
from tests.support.models import tiny_model
from tests.support.running import fit


@pytest.fixture
def cluster():
    with local_ray(trainer_functions, cpus=4):
        yield


def recipe_of(source, **more):
    # 5 batches: 3 micro-batches on each of 2 ranks, one of them empty.
    fixed = {"source": source.path, "maximum_tokens": 64, "batches_per_step": 5, "backend": "direct"}
    return PackedData(**fixed, epochs=2, **more)


def plain_loop(recipe, source):
    """Return the parameters and the losses of one process that never stops."""
    model = tiny_model(dtype=torch.float64).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=trainer_functions.RATE, weight_decay=0.0)
    total, losses = recipe.count_steps(), []
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: 1 - done / total)
    with Attempt(recipe, source, 1) as attempt:
        for step in attempt.loaders[0]:
            parts = [step.loss(model(**batch.for_hf_sdpa()).logits, batch) for batch in step]
            sum(parts).backward()
            losses.append(sum(parts).item())
            torch.nn.utils.clip_grad_norm_(model.parameters(), trainer_functions.CLIP)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            step.commit()
    assert len(losses) == total
    return model.state_dict(), losses


@pytest.mark.ray
@pytest.mark.slow
def test_a_run_through_trainer_stopped_on_2_and_resumed_on_1_trains_as_a_plain_loop_on_1(
    cluster, tmp_path, make_source, monkeypatch
):
    source = make_source(long_tailed(150, seed=5, low=2), labels=True, vocabulary=32)
    recipe = recipe_of(source)
    total, stop = recipe.count_steps(), 5
    assert stop < total // 2
    assert recipe.count_steps(1) % 5 != 0  # the last step of an epoch is shorter
    fit(trainer_functions.through_trainer, tmp_path, recipe, 2, name="run", stop_after=stop)
    last = fit(trainer_functions.through_trainer, tmp_path, recipe, 1, name="run", stop_after=-1)

    audit = verify(tmp_path / "storage/run")
    assert audit.ok, audit.findings
    assert [(a.world_size, a.steps) for a in audit.attempts] == [(2, stop), (1, total - stop)]
    assert [epoch.trained for epoch in audit.epochs] == [150, 150]
    assert all(epoch.complete for epoch in audit.epochs)

    with monkeypatch.context() as alone:
        patch(alone)
        expected, losses = plain_loop(recipe, source)
    trained = torch.load(tmp_path / "model.pt")
    assert trained.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(trained[name], value, rtol=0, atol=1e-5)
    logged = json.loads((tmp_path / "log.json").read_text())
    assert [number for number, _ in logged] == list(range(1, total + 1))
    assert [loss for _, loss in logged] == pytest.approx(losses, rel=1e-4)
    assert last.metrics["epoch"] == 2.0
    assert last.metrics["step"] == total
    assert math.isfinite(last.metrics["loss"])


@pytest.fixture
def loader(tmp_path, make_source, monkeypatch):
    """The loader of one rank in this process."""
    patch(monkeypatch)
    source = make_source([8, 9, 10], labels=True, vocabulary=32)
    with Attempt(recipe_of(source), source, 1) as attempt:
        yield attempt.loaders[0]


def arguments(tmp_path, **more):
    return TrainingArguments(**{"output_dir": str(tmp_path), "use_cpu": True, "report_to": "none", **more})


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            {"gradient_accumulation_steps": 2},
            r"must be 1 with raypack's data, got 2: PackedData\(batches_per_step",
        ),
        ({"max_steps": 7}, r"args.max_steps must be -1 with raypack's data, got 7: PackedData\(max_steps"),
        ({"fp16": True}, "args.fp16 must be False .* a step that overflows is not trained"),
        ({"dataloader_drop_last": True}, "no example may be dropped"),
        ({"train_sampling_strategy": "group_by_length"}, "raypack orders the examples"),
        ({"label_smoothing_factor": 0.1}, "which smooths nothing"),
        ({"save_total_limit": 2}, "num_to_keep"),
    ],
)
def test_arguments_that_would_not_be_exact_are_refused_with_the_remedy(tmp_path, asked, message):
    args = arguments(tmp_path)
    for name, value in asked.items():
        setattr(args, name, value)
    with pytest.raises(LoaderError, match=message):
        check_arguments(args, {}, worker_of(0, 1))


def test_arguments_of_another_world_and_a_data_set_beside_the_loader_are_refused(tmp_path):
    with pytest.raises(
        LoaderError, match=r"args are of 1 ranks .* make TrainingArguments in the train function"
    ):
        check_arguments(arguments(tmp_path), {}, worker_of(0, 2))
    with pytest.raises(LoaderError, match=r"train_dataset must be left out .* the loader is the data"):
        check_arguments(arguments(tmp_path), {"train_dataset": [1]}, worker_of(0, 1))
    with pytest.raises(TypeError, match="args must be TrainingArguments, got dict"):
        check_arguments({}, {}, worker_of(0, 1))


def test_a_loader_whose_processes_share_data_ranks_is_refused(tmp_path, monkeypatch):
    args = arguments(tmp_path)
    monkeypatch.setattr(TrainingArguments, "world_size", 2)
    with pytest.raises(LoaderError, match="got 1 data ranks on 2 processes: write the loop"):
        check_arguments(args, {}, worker_of(0, 2, (0, 0)))


def test_a_model_that_attends_otherwise_than_its_batches_are_exported_is_refused(tmp_path, loader):
    with pytest.raises(LoaderError, match=r"attends by 'eager', the best .* here is 'sdpa': load it with"):
        PackedTrainer(model=tiny_model(attention="eager"), args=arguments(tmp_path), loader=loader)
    with pytest.raises(TypeError, match="loader must be a PackedLoader, from get_loader, got list"):
        PackedTrainer(model=tiny_model(), args=arguments(tmp_path), loader=[])


def test_a_step_is_taken_whole_filled_up_and_has_the_steps_own_loss(tmp_path, loader):
    model = tiny_model()
    trainer = PackedTrainer(model=model, args=arguments(tmp_path), loader=loader)
    assert (
        (trainer.args.max_steps, trainer.args.gradient_accumulation_steps)
        == (loader.count_steps(), 5)
        == (2, 5)
    )
    inputs, items = trainer.get_batch_samples(iter(trainer.get_train_dataloader()), 5, torch.device("cpu"))
    assert len(inputs) == 5
    losses = [trainer.compute_loss(model, one) for one in inputs]
    labels = torch.cat([one["labels"][:, 1:].flatten() for one in inputs])
    assert items == (labels != -100).sum() > 0
    one = inputs[0]["raypack_batch"]
    expected = model(**one.for_hf_sdpa(), **one.for_hf_loss(items)).loss
    assert losses[0].item() == pytest.approx(expected.item(), rel=1e-4)
    assert [loss.item() for loss in losses[1:]] == [0.0] * 4
    sum(losses).backward()
    trainer._open().commit()
    (entry,) = loader.report_payload()["epochs"]
    assert (entry.observed, entry.batches) == (1, 1)
    with pytest.raises(LoaderError, match="resume_from_checkpoint must be left out, got True"):
        trainer.train(resume_from_checkpoint=True)


def test_a_trainer_of_trl_is_refused_for_it_makes_its_own_data(tmp_path, loader):
    trl = pytest.importorskip("trl")
    mixed = type("Mixed", (PackedTraining, trl.SFTTrainer), {})
    with pytest.raises(LoaderError, match=r"Mixed must not be one of TRL's .* use PackedTrainer on a source"):
        mixed(model=tiny_model(), args=arguments(tmp_path), loader=loader)


def test_a_model_with_a_loss_beside_that_of_its_logits_is_refused(tmp_path, loader):
    model = tiny_model("Mixtral", num_local_experts=2, output_router_logits=True)
    with pytest.raises(LoaderError, match="auxiliary loss is no part"):
        PackedTrainer(model=model, args=arguments(tmp_path), loader=loader)
