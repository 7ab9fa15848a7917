"""Fine-tuning of a Hugging Face model: stopped on one worker, resumed on two, proven, and loadable."""

import os
import re
import subprocess
import sys

import pytest

from tests.support.head import ROOT

pytest.importorskip("transformers")

STEPS = re.compile(
    r"^(\d+) workers: attention (\w+), steps (\d+), loss ([\d.]+), held_out_loss ([\d.]+)", re.M
)


def finetune(*flags):
    return subprocess.run(
        [sys.executable, "examples/finetune_hf.py", *map(str, flags)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.ray
@pytest.mark.slow
def test_a_model_fine_tuned_on_1_then_2_workers_learns_is_proven_and_is_what_the_checkpoint_holds(tmp_path):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    import raypack

    done = finetune("--out", tmp_path, "--epochs", 1, "--workers", 1, 2, "--kill-after", 5)
    assert done.returncode == 0, done.stdout + done.stderr
    (one, two) = STEPS.findall(done.stdout)
    assert [one[:2], two[:2]] == [("1", "sdpa"), ("2", "sdpa")]
    assert 0 < int(one[2]) < int(two[2])

    audit = raypack.verify(tmp_path / "runs/run")
    assert audit.ok, audit.findings
    assert (tmp_path / "killed").exists()
    *before, last = [attempt.world_size for attempt in audit.attempts]
    assert (set(before), last) == ({1}, 2)
    assert audit.attempts[-1].first_step == int(one[2])
    assert audit.epochs[0].complete
    assert audit.epochs[0].trained == audit.epochs[0].examples == 400

    def held_out_loss(folder):
        """Return the loss of the answers, each chat alone, through transformers' own loss."""
        model = AutoModelForCausalLM.from_pretrained(folder).double()
        source, total = raypack.open_source(tmp_path / "held_out"), 0.0
        for row in source.take(range(len(source))).to_pylist():
            ids, labels = torch.tensor([row["input_ids"]]), torch.tensor([row["labels"]])
            with torch.no_grad():
                total += model(input_ids=ids, labels=labels, num_items_in_batch=1).loss.item()
        return total / int(source.supervised.sum())

    before, after = held_out_loss(tmp_path / "model"), held_out_loss(audit.checkpoint)
    assert after == pytest.approx(float(two[4]), rel=1e-3)
    assert before > 5  # as good as chance among 258 tokens
    assert before > 2 * float(one[4]) > 2 * after

    tokenizer = AutoTokenizer.from_pretrained(audit.checkpoint)
    labels = raypack.open_source(tmp_path / "source")[0]["labels"]
    assert re.fullmatch(
        r"(\d and \d is \d+\.<\|end\|>)+", tokenizer.decode([label for label in labels if label >= 0])
    )
