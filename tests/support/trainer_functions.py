"""Train functions around the Trainer of transformers; shipped to the workers by value."""

import json
from pathlib import Path

RATE, CLIP = 1e-3, 1.0


def through_trainer(config):
    """Train a tiny Llama in float64 with AdamW, a linear schedule and clipping; stop where told."""
    import torch
    from transformers import TrainerCallback, TrainingArguments

    from raypack.train import get_loader
    from raypack.train.integrations.hf_trainer import PackedTrainer
    from tests.support.models import tiny_model

    model = tiny_model(dtype=torch.float64)

    class Stop(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            if state.global_step == config["stop_after"]:
                control.should_training_stop = control.should_save = True

    args = TrainingArguments(
        output_dir=config["scratch"] + "/unused",
        use_cpu=True,
        learning_rate=RATE,
        max_grad_norm=CLIP,
        weight_decay=0.0,
        logging_steps=1,
        save_steps=4,
        disable_tqdm=True,
        report_to="none",
    )
    with get_loader(config["recipe"]) as loader:
        trainer = PackedTrainer(model=model, args=args, loader=loader, callbacks=[Stop()])
        trainer.train()
        if loader.worker.rank == 0:
            out = Path(config["scratch"])
            log = [[row["step"], row["loss"]] for row in trainer.state.log_history if "loss" in row]
            (out / "log.json").write_text(json.dumps(log))
            torch.save(model.state_dict(), out / "model.pt")
