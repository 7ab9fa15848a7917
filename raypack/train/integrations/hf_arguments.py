"""Checks the arguments of a transformers Trainer: which options cannot be used with raypack's data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raypack.arguments import shown, type_name
from raypack.errors import LoaderError
from raypack.train.elastic.worker_context import WorkerContext

# Argument, the values that change nothing here, and why others are refused.
_RULES: tuple[tuple[str, tuple[Any, ...], str], ...] = (
    ("gradient_accumulation_steps", (1,), "PackedData(batches_per_step=...) says what a step holds"),
    ("max_steps", (-1,), "PackedData(max_steps=...) ends a run early"),
    ("fp16", (False,), "a step that overflows is not trained, and Trainer counts it; use bf16"),
    ("auto_find_batch_size", (False,), "PackedData(maximum_tokens=...) bounds a batch"),
    ("dataloader_drop_last", (False,), "no example may be dropped"),
    ("train_sampling_strategy", ("random",), "raypack orders the examples; PackedData(shuffle=...)"),
    ("group_by_length", (False,), "raypack orders the examples and packs them by length"),
    ("label_smoothing_factor", (0.0, 0), "the loss is step.loss, which smooths nothing"),
    ("load_best_model_at_end", (False,), "checkpoints are Ray Train's; its Result knows the best"),
    ("save_total_limit", (None,), "RunConfig(checkpoint_config=CheckpointConfig(num_to_keep=...)) keeps few"),
    ("save_only_model", (False,), "nothing resumes without the optimizer"),
    ("save_on_each_node", (False,), "the files of all ranks join one checkpoint, and names would clash"),
    ("push_to_hub", (False,), "push the finished run's checkpoint"),
    ("deepspeed", (None,), "its steps and losses are its own"),
    ("fsdp", (None, "", [], False), "its checkpoints fit one number of workers; use the plain loop"),
    ("parallelism_config", (None,), "data ranks alone are known here"),
)
_OPTIONS = (
    ("train_dataset", "the loader is the data"),
    ("data_collator", "the loader collates"),
    ("compute_loss_func", "the loss is step.loss"),
    ("model_init", "load the model before; a checkpoint's weights are put into it"),
)


def check_arguments(args: Any, options: Mapping[str, Any], worker: WorkerContext) -> None:
    """Refuse what would train otherwise than raypack's ledger says.

    Args:
        args: TrainingArguments.
        options: The other arguments of the Trainer.
        worker: Where the loader stands.

    Raises:
        TypeError: ``args`` are no TrainingArguments.
        LoaderError: A value is refused; the message says what to do instead.
    """
    if not hasattr(args, "gradient_accumulation_steps"):
        raise TypeError(f"args must be TrainingArguments, got {type_name(args)}")
    for name, fine, why in _RULES:
        value = getattr(args, name, fine[0])
        if value not in fine:
            raise LoaderError(
                f"args.{name} must be {fine[0]!r} with raypack's data, got {shown(value)}: {why}"
            )
    for name, why in _OPTIONS:
        if options.get(name) is not None:
            raise LoaderError(f"{name} must be left out with raypack's data: {why}")
    if args.world_size != worker.world_size or args.n_gpu > 1:
        raise LoaderError(
            f"args are of {args.world_size} ranks with {args.n_gpu} GPUs each, the loader of "
            f"{worker.world_size} with one at most: make TrainingArguments in the train function of a "
            "TorchTrainer"
        )
    if worker.data_ranks is not None:
        raise LoaderError(
            "the loader must have a data rank for each process, since Trainer takes its processes for "
            f"that; got {worker.data_world_size} data ranks on {worker.world_size} processes: write the loop "
            "yourself, or open the loader without a mesh"
        )


def check_trainer(kind: type) -> None:
    """Refuse trainers that make their own data.

    Raises:
        LoaderError: It is one of TRL's.
    """
    for one in kind.__mro__:
        if one.__module__.split(".")[0] == "trl":
            raise LoaderError(
                f"{kind.__name__} must not be one of TRL's trainers, and is a {one.__name__}: these tokenise "
                "and pack a data set of their own, and compute a loss of their own. For supervised "
                "fine-tuning use PackedTrainer on a source of raypack.prepare(rows='chat') or (rows='prompt')"
            )


def check_model(model: Any) -> None:
    """Refuse a model whose loss is more than that of its logits.

    Raises:
        LoaderError: It asks for an auxiliary loss.
    """
    if getattr(model.config, "output_router_logits", False):
        raise LoaderError(
            "model.config.output_router_logits must be False, got True: the routers' auxiliary loss is no "
            "part of step.loss; write the loop yourself, and add it there"
        )
