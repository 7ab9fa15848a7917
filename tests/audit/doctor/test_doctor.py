"""The doctor says which ways keep documents apart for an architecture, and refuses what it cannot read."""

import json
import sys

import pytest
import torch
from click.testing import CliRunner

from raypack.audit.doctor.diagnosis import CANNOT_RUN, ISOLATED, LEAKS, diagnose
from raypack.cli import main
from raypack.collate.architectures import ISOLATES
from raypack.errors import DoctorError

pytest.importorskip("transformers")

LLAMA = {
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}


def outcomes(diagnosis):
    return {trial.method: trial.outcome for trial in diagnosis.trials}


def doctor(*arguments):
    return CliRunner(env={"COLUMNS": "160"}).invoke(main, ["doctor", *map(str, arguments)])


@pytest.mark.parametrize("model", ["llama", "gemma3_text"])
def test_exporters_isolate_and_what_people_do_without_one_leaks(model):
    diagnosis = diagnose(model, "cpu")
    found = outcomes(diagnosis)
    assert diagnosis.ok
    assert diagnosis.picked.method == "for_hf_sdpa"
    assert all(
        found[method] == ISOLATED for method in ("for_hf_sdpa", "for_hf_eager", "for_hf_flex", "for_flex")
    )
    naive = [trial for trial in diagnosis.trials if not trial.exporter]
    assert len(naive) == 3
    assert {trial.outcome for trial in naive} == {LEAKS}
    assert all("0 into 1" in trial.detail for trial in naive)


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what a machine without CUDA lacks")
def test_what_cannot_run_here_is_told_with_its_reason():
    diagnosis = diagnose("llama")
    reasons = {trial.method: trial.detail for trial in diagnosis.trials if trial.outcome == CANNOT_RUN}
    assert reasons == {
        "for_hf_flash": "flash attention needs CUDA, the device is cpu",
        "for_torch_varlen": "varlen_attn needs CUDA, the device is cpu",
    }
    assert diagnosis.reasons[0] == "flash_attention_2: needs CUDA, the device is cpu"


def test_a_model_that_reads_no_boundaries_from_positions_is_found_out_and_another_way_is_picked():
    diagnosis = diagnose("opt", "cpu")
    assert outcomes(diagnosis)["for_hf_sdpa"] == LEAKS
    assert (diagnosis.picked.method, diagnosis.picked.outcome) == ("for_hf_eager", ISOLATED)
    assert diagnosis.proven == ("for_hf_flex", "for_hf_eager")
    assert "sdpa: opt makes its mask without positions, so that documents see each other" in diagnosis.reasons


def test_recurrent_layers_without_their_kernels_are_not_proven():
    diagnosis = diagnose("qwen3_next", "cpu")
    assert diagnosis.picked.outcome == CANNOT_RUN
    assert "causal_conv1d" in diagnosis.picked.detail
    assert not diagnosis.ok
    assert outcomes(diagnosis)["position_ids alone"] == LEAKS


def test_a_model_without_sdpa_is_tried_and_shown_on_eager_attention():
    diagnosis = diagnose("gpt_oss", "cpu")
    assert (diagnosis.picked.method, diagnosis.picked.outcome) == ("for_hf_eager", ISOLATED)
    assert {trial.implementation for trial in diagnosis.trials if not trial.exporter} == {"eager"}


@pytest.mark.parametrize("folder", [True, False])
def test_a_config_is_read_from_a_folder_or_a_file(tmp_path, folder):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    done = doctor(tmp_path if folder else tmp_path / "config.json", "--device", "cpu")
    assert done.exit_code == 0, done.output
    assert "a tiny llama on cpu" in done.output
    assert "for_hf_sdpa (picked)" in done.output
    assert "position_ids and a 2-D padding mask" in done.output
    assert "sdpa: nothing speaks against it" in done.output
    assert "attn_implementation='sdpa' keeps documents apart" in done.output


def test_the_command_ends_with_1_where_the_picked_way_leaks(monkeypatch):
    monkeypatch.setitem(ISOLATES, "opt", ("sdpa",))  # as a version of transformers might make it
    done = doctor("opt", "--device", "cpu")
    assert done.exit_code == 1
    assert "attn_implementation='sdpa' LEAKS; proven here: for_hf_flex, for_hf_eager" in done.output


def test_the_command_ends_with_1_where_nothing_is_picked():
    done = doctor("mamba2", "--device", "cpu")
    assert done.exit_code == 1
    assert "pick_attention knows no way" in done.output


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no JSON"),
        ("[1]", "must name its model_type"),
        ("{}", "must name its model_type"),
        ('{"model_type": "llama", "auto_map": {}}', "asks for code of its own"),
        ('{"model_type": "lama"}', "transformers cannot read this config"),
        ('{"model_type": "llama", "hidden_size": "wide"}', "transformers cannot read this config"),
    ],
)
def test_a_file_that_is_no_config_is_refused_in_one_line(tmp_path, text, message):
    (tmp_path / "config.json").write_text(text)
    done = doctor(tmp_path)
    assert done.exit_code == 2
    assert message in done.output
    assert done.output.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("lama",), "no model type that transformers knows; near are llama"),
        (("org/model",), "'org/model' is no folder or file here"),
        (("llama", "--device", "toaster"), "device must be one of this machine, got 'toaster'"),
    ],
)
def test_what_is_not_here_is_refused_with_what_to_give(arguments, message):
    done = doctor(*arguments)
    assert done.exit_code == 2
    assert message in done.output


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(DoctorError, match="must hold a config"):
        diagnose(str(tmp_path))


def test_an_architecture_that_makes_no_causal_model_says_so_for_each_way():
    diagnosis = diagnose("t5", "cpu")
    assert not diagnosis.ok
    assert outcomes(diagnosis)["for_hf_sdpa"] == CANNOT_RUN


def test_where_transformers_is_missing_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    done = doctor("llama")
    assert done.exit_code == 2
    assert "pip install 'raypack[hf]'" in done.output
