"""Train functions that the runs of the tests share; shipped to the workers by value."""

import json
import os
import signal
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import ray
import ray.train
import ray.train.torch
import torch

from raypack.collate import build_attention_mask
from raypack.errors import LoaderError
from raypack.train import get_evaluation, get_loader, report

VOCABULARY = 97


class TinyTransformer(torch.nn.Module):
    """One attention layer in float64: small, and every token depends on those before it."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.tokens = torch.nn.Embedding(VOCABULARY, 8, dtype=torch.float64)
        self.qkv = torch.nn.Linear(8, 24, dtype=torch.float64)
        self.head = torch.nn.Linear(8, VOCABULARY, dtype=torch.float64)

    def forward(self, batch):
        x = self.tokens(batch.input_ids)
        mask = build_attention_mask(segment_ids=batch.segment_ids, dtype=torch.bool, pad_rows="self")
        q, k, v = self.qkv(x).unsqueeze(1).chunk(3, dim=-1)
        x = x + torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).squeeze(1)
        return self.head(x)


def die_once(marker):
    """Kill this very process, as a vanished spot node would; the second time do nothing.

    The controller first gets the time to register the last report, so that the lineage is known.
    """
    if not os.path.exists(marker):
        Path(marker).touch()
        time.sleep(2)
        os.kill(os.getpid(), signal.SIGKILL)


def train(config):
    """Train TinyTransformer with SGD; reports every 4 steps; may be killed and stopped.

    Steps in ``retry_at`` are begun again after a first try, those in ``skip_at`` are not trained.
    """
    model = TinyTransformer()
    checkpoint = ray.train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as directory:
            model.load_state_dict(torch.load(Path(directory) / "model.pt"))
    if ray.train.get_context().get_world_size() > 1:
        model = torch.nn.parallel.DistributedDataParallel(model)
    plain = getattr(model, "module", model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with get_loader(config["recipe"], may_change=config.get("may_change", ())) as loader:
        rank = loader.worker.rank

        def save(directory):
            if rank == 1 and index == config.get("die_in_report"):
                die_once(config["scratch"] + "/died-in-report")
            if rank == 0:
                torch.save(plain.state_dict(), Path(directory) / "model.pt")

        index = -1
        for step in loader:
            index = step.index
            backward(model, step)
            if index in config.get("retry_at", ()):
                optimizer.zero_grad()
                step.retry()
                backward(model, step)
            if index in config.get("skip_at", ()):
                step.skip()
            else:
                optimizer.step()
                step.commit()
            optimizer.zero_grad()
            if rank == 1 and index == config.get("die_after"):
                die_once(config["scratch"] + "/died-between-steps")
            if rank == 1 and index == config.get("kill_planner_after"):
                kill_planner(loader)
            if index % 4 == 3:
                report({"step": index}, loader, save=save)
            if index == config.get("stop_after"):
                return
        evaluated = evaluate(plain, config["evaluation"]) if "evaluation" in config else None
        last = {"step": index, "done": True, "progress": loader.progress, "evaluated": evaluated}
        report(last, loader, save=save)


def backward(model, step):
    """Add up the gradients of a step's micro-batches."""
    for batch in step:
        with step.sync(model, batch):
            step.loss(model(batch), batch).backward()


def evaluate(model, recipe):
    """Return the mean loss of a source over all ranks."""
    evaluation = get_evaluation(recipe)
    with torch.no_grad():
        return evaluation.mean(sum(evaluation.loss(model(batch), batch) for batch in evaluation))


def misuse(config):
    """Break the rules of the loop one after another and write down what is said."""
    out = Path(config["scratch"])
    with get_loader(config["recipe"]) as loader:
        rank = loader.worker.rank

        def attempt(name, action):
            try:
                action()
            except Exception as error:
                (out / f"{name}-{rank}").write_text(f"{type(error).__name__}: {error}")
            else:
                (out / f"{name}-{rank}").write_text("nothing")

        step = next(iter(loader))
        attempt("report-before-commit", lambda: report({}, loader))
        attempt("commit-too-early", step.commit)
        for _ in step:
            pass
        attempt("forgotten-commit", lambda: next(iter(loader)))
        step.commit()
        attempt("metrics", lambda: report({"loss": torch.zeros(1)}, loader))
        attempt("metrics-kind", lambda: report([], loader))
        attempt("save-kind", lambda: report({}, loader, save=str(out)))
        attempt("same-file", lambda: report({}, loader, save=_write_model))
        report({"fine": 1}, loader)
        attempt("open-already", lambda: get_loader(config["recipe"]))
        if rank == 0:
            attempt("alone", lambda: report({}, loader, timeout_s=3))
    attempt("closed", lambda: next(iter(loader)))
    opened_thrice(config)


def _write_model(directory):
    (Path(directory) / "model.pt").write_text("x")


def take_one(config):
    """Take a single batch."""
    with get_loader(config["recipe"]) as loader:
        next(iter(next(iter(loader))))


def kill_planner(loader):
    """Kill the process of this rank's planner actor, as an out-of-memory killer would."""
    os.kill(process_of(loader._node_planner), signal.SIGKILL)


def process_of(actor):
    """Return the number of an actor's process."""
    return ray.get(actor.__ray_call__.remote(lambda self: os.getpid()))


REPORT_EVERY = 20


def elastic(config):
    """Train without a model, at some pace; write down starts and steps; end soon once told to finish."""
    place = Path(config["scratch"])
    with get_loader(config["recipe"]) as loader:
        world = loader.worker.world_size

        def note(**event):
            if loader.worker.rank == 0:
                with open(place / "events.jsonl", "a") as file:
                    file.write(json.dumps({"world": world, **event}) + "\n")

        def save(directory):
            done = loader.steps_done
            note(event="saved", step=done, regular=done % REPORT_EVERY == 0)

        first = loader.steps_done
        note(event="start", step=first)
        for step in loader:
            for _ in step:
                pass
            together = torch.ones(1)
            if world > 1:
                torch.distributed.all_reduce(together)  # as gradients would be: ranks stay in step
            time.sleep(0.05)
            step.commit()
            note(step=step.index)
            if step.index % REPORT_EVERY == REPORT_EVERY - 1:
                report({"step": step.index}, loader, save=save)
            if world == 1 and (place / "finish").exists() and step.index >= first + 30:
                break
        report({"done": True}, loader)


def refused_starts(config):
    """Open loaders that must be refused, and write down what every rank is told."""
    import pyarrow as pa

    from raypack.source import write_source

    recipe, out = config["recipe"], Path(config["scratch"])
    rank = ray.train.get_context().get_world_rank()
    if rank == 0:  # a source in the memory of one process alone
        ids = pa.LargeListArray.from_arrays(pa.array([0, 2], pa.int64()), pa.array([1, 2], pa.int32()))
        write_source("memory://one-process", [pa.table({"input_ids": ids})])

    def attempt(name, **change):
        try:
            get_loader(replace(recipe, **change)).close()
        except Exception as error:
            (out / f"{name}-{rank}").write_text(f"{type(error).__name__}: {error}")
        else:
            (out / f"{name}-{rank}").write_text("nothing")

    attempt("another-budget", maximum_tokens=2 * recipe.maximum_tokens)
    attempt("another-seed", seed=4)
    attempt("seed-by-rank", seed=rank)
    attempt("another-source", source=config["other"])
    attempt("one-rank-lacks-it", source="memory://one-process")
    if rank == 0:
        os.truncate(Path(ray.train.get_checkpoint().path) / "raypack/state.json", 400)
    attempt("damaged")


def through_shards(config):
    """Train through a dataset shard, beside a dataset of Ray's own and under a loader with a name."""
    out = Path(config["scratch"])
    rank = ray.train.get_context().get_world_rank()
    shard, other = ray.train.get_dataset_shard("train"), ray.train.get_dataset_shard("other")
    try:
        shard.iter_torch_batches(batch_size=3)
    except LoaderError as error:
        (out / f"refused-{rank}").write_text(str(error))
    examples = 0
    with shard as loader:
        rows = iter(other.iter_rows())
        numbers = []
        for step in loader:
            examples += sum(len(batch.indices) for batch in step)
            step.commit()
            numbers += [row["id"] for row in [next(rows, None)] if row]
        numbers += [row["id"] for row in rows]
        report({"steps": loader.steps_done}, loader)
    (out / f"trained-{rank}").write_text(json.dumps([examples, numbers]))


def opened_thrice(config):
    """Train a part and report it, a second until an error that is caught, then the rest."""
    starts = []
    for stop in (9, 14, None):
        with suppress(MemoryError), get_loader(config["recipe"]) as loader:
            starts.append(loader.steps_done)
            for step in loader:
                for _ in step:
                    pass
                if step.index == 14 and stop == 14:
                    raise MemoryError
                step.commit()
                if step.index == stop:
                    break
            report({"starts": starts, "done": loader.progress}, loader)


def saved_by_others(config):
    """Report once as it should be, then twice with ray.train.report in its place."""
    directory = Path(config["scratch"]) / "weights"
    directory.mkdir(exist_ok=True)
    with get_loader(config["recipe"]) as loader:
        for step in loader:
            list(step)
            step.commit()
            if step.index == 0:
                report({"step": 0}, loader, save=_write_model)
            else:
                ray.train.report({"step": step.index}, checkpoint=ray.train.Checkpoint(str(directory)))
            if step.index == 2:
                break
