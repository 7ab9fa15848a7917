"""The house's one rule: data flows one way and so do imports."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import raypack

PACKAGE = Path(raypack.__file__).parent
BASE = ("errors", "choices", "guards", "arguments", "arrays", "compiled", "version")
LAYERS = (
    *BASE,
    "sampling",
    "packing",
    "batching",
    "tokenizers",
    "source",
    "checkpoint",
    "collate",
    "audit",
    "actors",
    "data",
    "telemetry",
    "train",
    "cli",
)
NUMPY_ONLY = ("sampling", "batching", "packing")


def layer_of(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_layers(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [node.module]
            if node.module == "raypack":
                names = [f"raypack.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "raypack" and len(parts) > 1:
                yield parts[1]


FILES = sorted(p for p in PACKAGE.rglob("*.py") if p != PACKAGE / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_no_file_imports_a_layer_to_its_right(path):
    own = LAYERS.index(layer_of(path))
    for other in imported_layers(path):
        assert LAYERS.index(other) <= own, f"{path.name} ({layer_of(path)}) imports {other}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_no_file_is_longer_than_300_lines(path):
    assert len(path.read_text().splitlines()) <= 300


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_importing_raypack_imports_neither_ray_nor_torch():
    done = run("import raypack, sys; sys.exit(any(m in sys.modules for m in ('ray', 'torch', 'pyarrow')))")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("layer", NUMPY_ONLY)
def test_the_core_imports_with_ray_torch_and_pyarrow_absent(layer):
    code = (
        "import sys\n"
        "for name in ('ray', 'torch', 'pyarrow'): sys.modules[name] = None\n"
        f"import pkgutil, importlib, raypack.{layer} as layer\n"
        "for module in pkgutil.walk_packages(layer.__path__, layer.__name__ + '.'):\n"
        "    importlib.import_module(module.name)\n"
    )
    done = run(code)
    assert done.returncode == 0, done.stderr


def test_every_public_name_can_be_imported():
    for name in raypack.__all__:
        assert getattr(raypack, name) is not None
