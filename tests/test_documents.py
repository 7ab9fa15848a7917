"""Every code block of the documents, run as a reader would copy it."""

import ast
import gzip
import importlib
import json
import re
import shlex
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from raypack.cli import main
from tests.conftest import documents_table
from tests.support.local_ray import local_ray
from tests.support.preparing import chat_folder

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    str(page.relative_to(ROOT))
    for page in [ROOT / "README.md", *(ROOT / "raypack").rglob("README.md"), *ROOT.glob("[be]*/README.md")]
)
BLOCK = re.compile(
    r"^(?:<!-- (?P<marker>[\w-]+) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S
)


def blocks_of(page):
    """Return (language, text) of each block to run; CI runs those under a marker."""
    found = BLOCK.finditer((ROOT / page).read_text())
    return [
        (m["language"], m["text"]) for m in found if not m["marker"] and m["language"] in ("python", "bash")
    ]


def furnish(folder):
    """Make what the documents take for granted: a corpus, a tokenizer, chats, prompts, tokens."""
    (folder / "corpus").mkdir()
    for number in range(40):
        (folder / f"corpus/{number}.txt").write_text(
            "Paris is a city in France, and so on. " * (1 + number % 7)
        )
    (folder / "more.jsonl.gz").write_bytes(gzip.compress(b'{"text": "More of it."}\n'))
    chat_folder(folder / "m")
    (folder / "tokenizer.json").write_bytes((folder / "m/tokenizer.json").read_bytes())
    turns = [{"role": "user", "content": "Capital?"}, {"role": "assistant", "content": "Paris."}]
    (folder / "chats").mkdir()
    (folder / "chats/a.jsonl").write_text(json.dumps({"messages": turns}) + "\n")
    pq.write_table(pa.table({"question": ["Capital?"], "answer": [" Paris."]}), folder / "qa.parquet")
    (folder / "saved_dataset").mkdir()
    pq.write_table(documents_table([5, 3, 9], labels=True), folder / "saved_dataset/part.parquet")
    (folder / "shared").mkdir()


def here(text, folder):
    """Return a block's text with its paths in a folder of the test."""
    for path, own in (("/shared/", "shared/"), ("/models/", ""), ("/data/", "")):
        text = text.replace(path, f"{folder}/{own}")
    return text


def run_python(text):
    """Run a script, and return its names."""
    names = {"__name__": "__main__"}
    exec(compile(text, "block", "exec"), names)
    return names


def run_commands(text):
    """Run the lines that call raypack, each in this process."""
    lines = text.replace("\\\n", " ").splitlines()
    for line in filter(None, lines):
        name, *arguments = shlex.split(line)
        assert name == "raypack", f"{line!r} cannot be run here: mark its block as text"
        done = CliRunner().invoke(main, arguments)
        assert done.exit_code == 0, f"{line}\n{done.output}"


def train_in_this_process(train, folder):
    """Run a train function of the documents in Ray Train's local mode."""
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    import raypack

    source = raypack.write_source(folder / "shared/loop", [documents_table([5, 3, 9, 4, 8, 2] * 5)])
    TorchTrainer(
        train,
        train_loop_config={"recipe": raypack.PackedData(source.path, 32, batches_per_step=2)},
        scaling_config=ScalingConfig(num_workers=0),
        run_config=RunConfig(name="run", storage_path=str(folder / "shared/runs")),
    ).fit()


@pytest.fixture(scope="module")
def cluster():
    with local_ray(cpus=4):
        yield


@pytest.mark.ray
@pytest.mark.parametrize("page", [page for page in PAGES if blocks_of(page)])
def test_every_code_block_of_a_page_runs_as_it_stands(page, cluster, tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    furnish(tmp_path)
    monkeypatch.chdir(tmp_path)
    for language, text in blocks_of(page):
        if language == "bash":
            run_commands(here(text, tmp_path))
            continue
        names = run_python(here(text, tmp_path))
        if "train" in names and "TorchTrainer" not in names:
            train_in_this_process(names["train"], tmp_path)


@pytest.mark.parametrize("page", PAGES)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", (ROOT / page).read_text()):
        path, _, heading = target.partition("#")
        linked = (ROOT / page).parent / path if path else ROOT / page
        assert linked.exists(), f"{page} links to {target}"
        if heading:
            headings = re.findall(r"^#+ (.*)$", linked.read_text(), re.M)
            slugs = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in headings}
            assert heading in slugs, f"{page} links to {target}"


def test_the_first_page_is_read_in_five_minutes():
    assert len((ROOT / "README.md").read_text().split()) <= 900


def messages_of_the_code():
    """Return the text of all string constants of the package."""
    for file in (ROOT / "raypack").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def test_every_message_that_a_page_explains_is_one_of_the_code():
    rows = re.findall(r"^\| `([^`]+)` \|", (ROOT / "raypack/train/README.md").read_text(), re.M)
    code = "\n".join(messages_of_the_code())
    assert len(rows) > 15
    assert [row for row in rows if row not in code] == []


def test_every_file_that_a_page_names_is_there():
    for page in PAGES:
        folder = (ROOT / page).parent
        named = re.findall(r"`((?:[\w.-]+/)*[\w-]+(?:\.py|/))`", (ROOT / page).read_text())
        named += re.findall(r"((?:tests|bench|examples)/[\w/]+\.py)", (ROOT / page).read_text())
        missing = [n for n in named if not (any(folder.rglob(n)) or (ROOT / n).exists())]
        assert missing == [], f"{page} names {missing}"


def test_every_dotted_name_that_a_page_gives_is_there():
    for page in PAGES:
        for name in set(re.findall(r"\b(raypack(?:\.[a-zA-Z_]\w*)+)", (ROOT / page).read_text())):
            assert named(name), f"{page} gives {name}"


def named(dotted):
    """Return whether a dotted name leads somewhere, by imports and attributes."""
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False
