"""The Trainer of transformers over a packed loader: steps are raypack's, checkpoints Ray Train's.

Trainer counts steps by counting micro-batches and finds its place again by skipping data. Here the loader
does both: each of Trainer's optimizer steps takes one step of the loader, which is committed after the
optimizer, and Trainer's own files join the data's state in one Ray Train checkpoint. In a train function:

    with get_loader(recipe) as loader:
        PackedTrainer(model=model, args=TrainingArguments(...), loader=loader).train()
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray.train
import torch

from raypack.arguments import shown, type_name
from raypack.collate import PackedBatch, pick_attention
from raypack.collate.loss import next_token_loss_sum
from raypack.errors import LoaderError
from raypack.train.integrations.hf_arguments import check_arguments, check_model, check_trainer
from raypack.train.loader import PackedLoader
from raypack.train.reporting.reports import report
from raypack.train.step import Step

try:
    from transformers import Trainer, TrainerCallback
except ImportError as error:
    raise ImportError(
        "raypack.train.integrations.hf_trainer needs transformers and accelerate: pip install 'raypack[hf]'"
    ) from error

if TYPE_CHECKING:
    from transformers import Trainer as _Base
else:
    _Base = object

Export = Callable[[PackedBatch, Any], dict[str, Any]]
_BATCH = "raypack_batch"


class PackedTraining(_Base):
    """What makes a Trainer one of packed data; mixed in before it, ``class Mine(PackedTraining, Trainer)``.

    The loss is ``step.loss`` of the logits, so Trainer's own ways to compute one are refused. At another
    world size dropout draws other numbers.

    Args:
        loader: The opened loader, with ``deal="global"``.
        args: TrainingArguments, by name. ``gradient_accumulation_steps`` and ``max_steps`` are set here, from
            the loader; ``per_device_train_batch_size`` and ``num_train_epochs`` play no part.
        export: Makes the model's arguments of a batch and the model; None is `pick_attention`'s choice, which
            the model must have been loaded with.
        options: All other arguments of the Trainer, by name. No ``train_dataset``.

    Raises:
        LoaderError: An argument asks for what would not be exact, or the model attends otherwise.
        SamplerError: The loader deals by rank, so that its steps cannot be counted.
    """

    loss_is_scaled_for_ga = True

    def __init__(
        self, *, loader: PackedLoader, args: Any, export: Export | None = None, **options: Any
    ) -> None:
        if not isinstance(loader, PackedLoader):
            raise TypeError(f"loader must be a PackedLoader, from get_loader, got {type_name(loader)}")
        check_trainer(type(self))
        check_arguments(args, options, loader.worker)
        args = copy.copy(args)
        args.max_steps = loader.count_steps()
        args.gradient_accumulation_steps = -(-loader.batches_per_step // loader.worker.world_size)
        args.ignore_data_skip = True  # the loader is where it was; what is skipped here would be lost
        self._loader = loader
        self._step: Step | None = None
        self._folder: str | None = None
        self._logs: dict[str, float] = {}
        super().__init__(args=args, **options)
        check_model(self.model)
        self.model_accepts_loss_kwargs = True  # earlier versions tell by it that the loss is scaled
        self._export = _export_of(self.model, args) if export is None else export
        self.add_callback(_Commits(self))

    # -- data and loss ---------------------------------------------------------------------------

    def get_train_dataloader(self) -> Any:
        """Return the loader, as it is: accelerate neither shards nor dispatches it."""
        return self._loader

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[dict[str, Any]], int | None]:
        """Return this rank's micro-batches of the next optimizer step, filled up with empty ones.

        Raises:
            LoaderError: The data ended before Trainer's steps.
        """
        step = self._step = next(epoch_iterator, None)
        if step is None:
            if self._loader.steps_done < self.args.max_steps:
                raise LoaderError(
                    f"the data ended after {self._loader.steps_done} steps, Trainer counts on "
                    f"{self.args.max_steps}: a run whose steps were changed on the way is not for Trainer"
                )
            return [], None
        batches = list(step)
        batches += [PackedBatch.from_documents([], device=device) for _ in range(num_batches - len(batches))]
        inputs = [{"input_ids": batch.input_ids, "labels": batch.labels, _BATCH: batch} for batch in batches]
        return inputs, step.supervised_tokens

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
        **more: Any,
    ) -> Any:
        """Return ``step.loss``: the mean over the step's supervised tokens of all ranks, under DDP's mean.

        What does not come from the loader, as in an evaluation, has Trainer's own loss.
        """
        batch = inputs.get(_BATCH)
        if batch is None:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch, **more)
        outputs = model(**self._export(batch, self.model))
        if batch.num_documents:
            loss = self._open().loss(outputs.logits, batch)
        else:  # it may be none of the step's own
            loss = next_token_loss_sum(outputs.logits, batch.labels)
        return (loss, outputs) if return_outputs else loss

    def _open(self) -> Step:
        assert self._step is not None, "Trainer asks for batches before it computes a loss"
        return self._step

    # -- commit, save and resume -----------------------------------------------------------------

    def committed(self) -> None:
        """Commit the step that the optimizer has taken; called by Trainer's callback.

        Raises:
            LoaderError: The optimizer refused the step, or Trainer and the data disagree.
        """
        step, loader, state = self._open(), self._loader, self.state
        if self.accelerator.optimizer_step_was_skipped:
            raise LoaderError(
                f"the optimizer refused step {step.index}, and Trainer counts it as trained: train in "
                "bfloat16, or write the loop yourself, with step.retry()"
            )
        step.commit()
        state.epoch = loader.tokens_done / max(1, loader.source.manifest.tokens)
        self.check_place()
        if state.global_step == state.max_steps and loader.progress < 1.0:
            raise LoaderError(
                f"Trainer's {state.max_steps} steps are done, but {loader.progress:.1%} of the data: a run "
                "whose steps were changed on the way is not for Trainer"
            )

    def check_place(self) -> None:
        """Raise LoaderError where Trainer's state and the data's are of different steps."""
        if self.state.global_step != self._loader.steps_done:
            raise LoaderError(
                f"Trainer's state is of step {self.state.global_step}, the data's of step "
                f"{self._loader.steps_done}: resume by trainer.train() alone, from this trainer's checkpoint"
            )

    def train(self, resume_from_checkpoint: Any = None, **options: Any) -> Any:
        """Train, from this worker's Ray Train checkpoint where there is one.

        Raises:
            LoaderError: Another checkpoint is asked for, or the run's was not written by this trainer.
        """
        if resume_from_checkpoint:
            raise LoaderError(
                f"resume_from_checkpoint must be left out, got {shown(resume_from_checkpoint)}: model and "
                "data resume together, from the checkpoint that Ray Train gives the run"
            )
        checkpoint = ray.train.get_checkpoint()
        if checkpoint is None:
            return super().train(**options)
        with checkpoint.as_directory() as directory:
            folder = Path(directory) / f"checkpoint-{self._loader.steps_done}"
            if not (folder / "trainer_state.json").is_file():
                raise LoaderError(f"{checkpoint.path} holds no {folder.name}/: Trainer did not write it")
            return super().train(resume_from_checkpoint=str(folder), **options)

    def log(self, logs: dict[str, float], *more: Any, **options: Any) -> None:
        """Log as Trainer does, and keep it for the next report."""
        self._logs = {name: value for name, value in logs.items() if isinstance(value, (int, float))}
        super().log(logs, *more, **options)

    def _get_output_dir(self, trial: Any) -> str:
        return super()._get_output_dir(trial) if self._folder is None else self._folder

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Write Trainer's checkpoint into a report's, with the data's state."""

        def save(directory: str) -> None:
            self._folder = directory
            try:
                super(PackedTraining, self)._save_checkpoint(model, trial)
            finally:
                self._folder = None

        metrics = {**self._logs, "step": self.state.global_step, "epoch": self.state.epoch}
        report(metrics, self._loader, save=save)


class PackedTrainer(PackedTraining, Trainer):
    """A Trainer whose data is a `PackedLoader`; see `PackedTraining`."""


class _Commits(TrainerCallback):
    """Notifies the trainer when its optimizer has taken a step."""

    def __init__(self, trainer: PackedTraining) -> None:
        self._trainer = trainer

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._trainer.check_place()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._trainer.committed()


def _export_of(model: Any, args: Any) -> Export:
    dtype = torch.bfloat16 if args.bf16 else None
    attention = pick_attention(model, args.device, dtype=dtype)
    loaded = model.config._attn_implementation
    if loaded != attention.implementation:
        raise LoaderError(
            f"the model attends by {loaded!r}, the best for packed batches here is "
            f"{attention.implementation!r}: load it with attn_implementation={attention.implementation!r}, "
            "or pass an export=lambda batch, model: ... that fits it, such as batch.for_hf_sdpa(model)"
        )
    return attention.export
