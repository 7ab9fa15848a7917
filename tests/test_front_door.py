"""What a user finds on `raypack` itself, without knowing its folders."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import raypack

PACKAGE = Path(raypack.__file__).parent


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_a_train_script_needs_no_import_but_raypack():
    names = ("PackedData", "get_loader", "report", "RaypackCallback", "train.get_loader", "audit.verify")
    done = run("import raypack\n" + "\n".join(f"assert callable(raypack.{name})" for name in names))
    assert done.returncode == 0, done.stderr


def test_a_public_function_stays_one_after_everything_is_imported():
    code = (
        "import importlib, pkgutil, raypack\n"
        "for module in pkgutil.iter_modules(raypack.__path__, 'raypack.'):\n"
        "    importlib.import_module(module.name)\n"
        "for name in raypack.__all__:\n"
        "    assert not hasattr(getattr(raypack, name), '__path__'), name\n"
    )
    done = run(code)
    assert done.returncode == 0, done.stderr


def test_no_folder_or_file_bears_the_name_of_what_is_exported_beside_it():
    for package in [PACKAGE, *(p for p in PACKAGE.iterdir() if (p / "__init__.py").is_file())]:
        dotted = ".".join(["raypack", *package.relative_to(PACKAGE).parts])
        exported = set(getattr(importlib.import_module(dotted), "__all__", ()))
        inside = {path.stem for path in package.iterdir() if path.suffix == ".py" or path.is_dir()}
        assert not exported & inside


@pytest.mark.parametrize(
    "module", ["audit", "checkpoint", "checkpoint.recipe", "audit.state.show", "audit.tables", "cli"]
)
def test_what_is_offline_imports_neither_ray_nor_torch(module):
    done = run(f"import raypack.{module}, sys; assert not {{'ray', 'torch'}} & set(sys.modules)")
    assert done.returncode == 0, done.stderr


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        raypack.nothing


def test_every_file_and_folder_that_the_architecture_page_names_is_there():
    named = re.findall(r"`([a-z_]+/[a-z_/]*(?:\.py)?)`", (PACKAGE / "README.md").read_text())
    assert len(named) > 20
    folders = [PACKAGE, *(p for p in PACKAGE.iterdir() if p.is_dir()), PACKAGE.parent]
    assert [name for name in named if not any((folder / name).exists() for folder in folders)] == []
