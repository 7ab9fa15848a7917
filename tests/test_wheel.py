"""The wheel holds what the tree does, and works away from it."""

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
USER = """
import raypack

recipe = raypack.PackedData("/shared/corpus", 4096)
reveal_type(recipe.maximum_tokens)
reveal_type(raypack.get_loader)
"""


def run(*command, **options):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build the wheel of a copy of the tracked files, so that no build folder is left in the tree."""
    folder = tmp_path_factory.mktemp("wheel")
    tracked = run("git", "ls-files", "raypack", "pyproject.toml", "README.md", cwd=ROOT).split()
    for name in tracked:
        (folder / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "tree" / name).write_bytes((ROOT / name).read_bytes())
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, folder / "tree")
    [built] = folder.glob("*.whl")
    return built


def test_the_wheel_holds_every_module_and_the_marker_of_its_types(wheel):
    held = set(zipfile.ZipFile(wheel).namelist())
    modules = {str(file.relative_to(ROOT)) for file in (ROOT / "raypack").rglob("*.py")}
    assert modules <= held
    assert "raypack/py.typed" in held


def test_the_installed_wheel_gives_the_front_door_and_its_types_away_from_the_tree(wheel, tmp_path):
    site = tmp_path / "site"
    run(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", site, wheel)
    away = {**os.environ, "PYTHONPATH": str(site), "MYPYPATH": str(site)}
    code = "import raypack; print(raypack.__file__); [getattr(raypack, name) for name in raypack.__all__]"
    assert str(site) in run(sys.executable, "-c", code, cwd=tmp_path, env=away)
    (tmp_path / "user.py").write_text(USER)
    quick = (
        "--no-site-packages",
        "--ignore-missing-imports",
        "--follow-imports=silent",
    )  # others' types take half a minute
    types = run(sys.executable, "-m", "mypy", *quick, "user.py", cwd=tmp_path, env=away)
    assert 'Revealed type is "int"' in types or 'Revealed type is "builtins.int"' in types
    assert "PackedLoader" in types


@pytest.mark.slow
def test_the_quickstart_passes_in_a_clean_environment_without_extras(wheel, tmp_path):
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env/bin/python"
    run(python, "-m", "pip", "install", "-q", "-c", ROOT / ".ci/constraints.txt", wheel)
    (tmp_path / "quickstart.py").write_bytes((ROOT / "examples/quickstart.py").read_bytes())
    assert "exactly once" in run(python, "quickstart.py", cwd=tmp_path)
