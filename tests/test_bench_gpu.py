"""The GPU script: every part runs on a CPU at tiny sizes; what fails is told, and stops no other part."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from raypack.collate import build_attention_mask

BENCH = Path(__file__).parents[1] / "bench"


def run(script, report, *arguments):
    """Run the script; return its exit code and its report."""
    command = [sys.executable, str(script), "--tiny", "--json", str(report), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert report.exists(), done.stderr
    return done.returncode, json.loads(report.read_text()), done.stdout


@pytest.mark.ray
def test_every_part_runs_on_a_cpu_and_says_what_it_skips_and_why(tmp_path):
    code, report, shown = run(BENCH / "gpu.py", tmp_path / "gpu.json")
    assert {name: part["failed"] for name, part in report.items()} == dict.fromkeys(
        ("masks", "isolation", "transfer", "wait", "model")
    )
    assert code == 0
    assert "5 of 5 parts done" in shown
    rows = {name: part["rows"] for name, part in report.items()}
    isolated = {row["case"] for row in rows["isolation"] if "isolated" in row.get("outcome", "")}
    assert {"for_hf_sdpa float32", "for_hf_eager bfloat16", "for_flex float32"} <= isolated
    assert {row["steps"] for row in rows["wait"]} == {12}
    assert rows["model"][-1]["of padded"].endswith("x")
    if not torch.cuda.is_available():
        skipped = {row["case"]: row["skipped"] for part in rows.values() for row in part if "skipped" in row}
        assert skipped["for_torch_varlen bfloat16"] == "varlen_attn needs CUDA, the device is cpu"
        assert "only CUDA has streams" in skipped["3 batches"]


PARTS = """
import os, time

def masks(tiny):
    yield {"case": "one", "ms": 1}
    raise AssertionError("wrong cells")

def isolation(tiny):
    yield {"case": "two"}
    os._exit(3)

def transfer(tiny):
    yield {"case": "three"}
    time.sleep(1000)
"""


def test_a_part_that_fails_ends_or_hangs_is_told_and_the_others_go_on(tmp_path):
    shutil.copy(BENCH / "gpu.py", tmp_path)
    (tmp_path / "gpu_kernels.py").write_text(PARTS)
    (tmp_path / "gpu_training.py").write_text("def wait(tiny):\n    yield {'case': 'four'}\n")
    parts = ("--parts", "masks", "isolation", "wait", "transfer", "model", "--minutes", "0.3")
    code, report, shown = run(tmp_path / "gpu.py", tmp_path / "gpu.json", *parts)
    assert code == 1
    assert [part["rows"][0]["case"] for part in list(report.values())[:4]] == ["one", "two", "four", "three"]
    assert "AssertionError: wrong cells" in report["masks"]["failed"]
    assert report["isolation"]["failed"] == "its process ended with exit code 3"
    assert report["wait"]["failed"] is None
    assert report["transfer"]["failed"].startswith("not done after")
    assert report["model"]["failed"] == "no time left of 0.3 minutes"
    assert "1 of 5 parts done; failed: masks, isolation, transfer, model" in shown


def event(kind, name, start, duration, stream):
    return {"ph": "X", "cat": kind, "name": name, "ts": start, "dur": duration, "args": {"stream": stream}}


def test_the_overlap_is_that_of_copies_aside_with_kernels_of_the_busy_stream(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    from gpu_kernels import overlap_of

    trace = [
        event("kernel", "gemm", 100, 50, 7),
        event("kernel", "widen", 100, 9, 20),  # the side stream's own
        event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 90, 20, 20),  # 10 of it beside gemm
        event("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 140, 4, 20),
        event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 110, 5, 7),  # in the way of gemm's stream
        event("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 110, 5, 20),
        {"ph": "M", "name": "process_name"},
    ]
    assert overlap_of(trace) == {
        "copies": 3,
        "copies aside": 2,
        "pageable": 1,
        "copied us": 24,
        "overlapped us": 14.0,
    }
    assert overlap_of([])["overlapped us"] == 0


def test_a_mask_with_one_wrong_cell_at_an_edge_of_a_document_fails_its_part(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    from gpu_kernels import _check_rows

    offsets = torch.tensor([0, 300, 700, 1000], dtype=torch.int32)
    mask = build_attention_mask(offsets, 1000, torch.float32)[0, 0]
    _check_rows(mask, offsets, torch.float32)
    mask[300, 299] = 0.0  # a document's first token sees the one before
    with pytest.raises(AssertionError, match="1 cells are wrong, the first of row 300"):
        _check_rows(mask, offsets, torch.float32)


@pytest.mark.parametrize("tokens", [64, 1000, 20_000])
def test_documents_fill_their_tokens_exactly(monkeypatch, tokens):
    monkeypatch.syspath_prepend(str(BENCH))
    from gpu_measures import documents

    lengths = documents(tokens, 40)
    assert lengths.dtype == np.int32
    assert (lengths.sum(), lengths.min() >= 1) == (tokens, True)
