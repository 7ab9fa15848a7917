"""The command line: counts on success, one clear line and exit code 2 where the input is at fault."""

import os
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from raypack.cli import main
from raypack.source import open_source


def run(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_help_imports_neither_ray_nor_pyarrow():
    code = (
        "import sys; from click.testing import CliRunner; from raypack.cli import main\n"
        "done = CliRunner().invoke(main, ['prepare', '--help']); assert '--oversize' in done.output\n"
        "sys.exit(any(name in sys.modules for name in ('ray', 'pyarrow', 'torch', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_version_is_shown():
    done = run("--version")
    assert done.exit_code == 0
    assert "raypack, version" in done.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Missing argument 'INPUT...'"),
        (("in.txt",), "Missing option '--out'"),
        (("in.txt", "--out", "o", "--max-length", "0"), "Invalid value for '--max-length'"),
        (("in.txt", "--out", "o", "--max-length", "2.5"), "Invalid value for '--max-length'"),
        (("in.txt", "--out", "o", "--oversize", "chop"), "Invalid value for '--oversize'"),
        (("in.txt", "--out", "o", "--shards", "2"), "No such option"),
        (("nowhere", "--out", "o"), "nowhere does not exist"),
        (("in.txt", "--out", "."), "exists already"),
        (("in.txt", "--out", ""), "path must be a non-empty str"),
        (("in.txt", "--out", "zzz://o"), "no file system for 'zzz://o'"),
        (("in.txt", "--out", "o", "--tokenizer", "gpt2"), "'gpt2' is no file"),
        (("in.txt", "--out", "o", "--text-field", ""), "text_field must be a non-empty str"),
        (("in.txt", "--out", "o", "--oversize", "split"), "oversize 'split' needs max_length"),
        (("x.csv", "--out", "o"), "x.csv is a .csv file, which is not read"),
        (("in.txt", "in.txt", "--out", "o"), "comes twice"),
    ],
)
def test_bad_usage_and_bad_input_end_with_one_line_and_code_2(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.txt").write_text("x")
    (tmp_path / "x.csv").write_text("x")
    done = run("prepare", *arguments)
    assert done.exit_code == 2
    assert isinstance(done.exception, SystemExit)
    error = done.output.strip().splitlines()[-1]
    assert error.startswith("Error: ")
    assert message in done.output
    assert sorted(os.listdir(tmp_path)) == ["in.txt", "x.csv"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--rows", "pairs"), "Invalid value for '--rows'"),
        (("--rows", "prompt"), "in.txt is one text, and rows 'prompt' are read from"),
        (("--field", "prompt"), "--field must be ROLE=COLUMN, each role once; got 'prompt'"),
        (("--field", "text=a"), "fields of rows 'text' must be none: use text_field; got 'text'"),
        (("--eos", "yes"), "tokenizer 'bytes' does not say which token is its EOS"),
        (("--eos", "</s>"), "eos must be a token of the vocabulary, got '</s>'"),
        (("--chat-template", "nowhere"), "chat_template must be a readable file"),
        (("--train-on", "all"), "train_on is for rows 'prompt' and 'chat'"),
    ],
)
def test_options_of_rows_that_do_not_fit_are_named(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.txt").write_text("x")
    done = run("prepare", "in.txt", "--out", "o", *arguments)
    assert done.exit_code == 2
    assert message in " ".join(done.output.split())
    assert os.listdir(tmp_path) == ["in.txt"]


def test_the_command_indexes_files_without_ray_and_prints_the_counts(tmp_path):
    rows = pa.table({"ids": [[1, 2, 3], [], [4]], "labels": [[-100, 2, 3], [], [4]]})
    pq.write_table(rows, tmp_path / "x.parquet")
    options = ("--column", "ids", "--labels-column", "labels", "--max-length", "2", "--oversize", "split")
    done = run("index", tmp_path / "*.parquet", "--out", tmp_path / "out", *options)
    assert done.exit_code == 0, done.output
    source = open_source(tmp_path / "out")
    assert source.take([1, 0, 2])["input_ids"].to_pylist() == [[3], [1, 2], [4]]
    for line in ("files │ 1", "rows │ 3", "empty, left out │ 1", "pieces of these │ 2", "examples │ 3"):
        label, value = line.split(" │ ")
        assert any(label in row and row.rstrip("│ ").endswith(value) for row in done.output.splitlines())
    assert source.fingerprint in done.output
    assert "block by default" in done.output
    done = run("index", tmp_path / "x.parquet", "--out", tmp_path / "more")
    assert done.exit_code == 2
    assert "has no column 'input_ids', there are ['ids', 'labels']" in " ".join(done.output.split())
    assert sorted(os.listdir(tmp_path)) == ["out", "x.parquet"]


def test_verify_of_what_is_no_run_says_so_and_no_more(tmp_path):
    folder = tmp_path / "[bold]a"
    done = run("verify", folder)
    assert done.exit_code == 2
    (line,) = done.output.splitlines()
    assert line.startswith(f"Error: {folder} must be the directory of a run")


@pytest.mark.ray
def test_the_command_prepares_a_source_and_prints_the_counts(tmp_path):
    (tmp_path / "in.jsonl").write_text('{"body": "abcdef"}\n{"body": ""}\n{"body": "xy"}\n')
    command = [
        os.path.join(os.path.dirname(sys.executable), "raypack"),
        "prepare",
        "in.jsonl",
        "--out",
        "out",
    ]
    command += ["--text-field", "body", "--max-length", "4", "--oversize", "truncate"]
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, env=environment, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    source = open_source(tmp_path / "out")
    assert source.take([1, 0])["input_ids"].to_pylist() == [[120, 121], [97, 98, 99, 100]]
    counts = dict(
        line.strip("│ ").split("│", 1)[0:2] for line in done.stdout.splitlines() if line.startswith("│")
    )
    counts = {name.strip(): int(value.strip("│ ").replace(",", "")) for name, value in counts.items()}
    assert counts == {
        "bytes read": 47,
        "documents read": 3,
        "empty, left out": 1,
        "too long, split": 0,
        "pieces of these": 0,
        "too long, truncated": 1,
        "too long, dropped": 0,
        "prompts tokenised separately": 0,
        "nothing to train on, dropped": 0,
        "examples written": 2,
        "tokens written": 6,
        "longest example, tokens": 4,
    }
    assert source.fingerprint in done.stdout
    assert str(tmp_path / "out") in done.stdout
