"""Compiled kernels: whatever the state of the disk, a first call is right and says nothing."""

import ast
import ctypes
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import raypack

PACKAGE = Path(raypack.__file__).parent
KERNELS = sorted(path for path in PACKAGE.rglob("kernels/*.py") if path.name != "__init__.py")

KERNEL = """
from raypack.compiled import compiled

@compiled
def total(values):
    result = 0
    for value in values:
        result += value
    return result
"""
CALL = """
import numpy as np
from kernel import total
print(total(np.arange(5)), sum(total.stats.cache_hits.values()))
"""


class Install:
    """A kernel in a folder of its own, called in fresh processes."""

    def __init__(self, folder):
        self.folder = folder / "install"
        self.cache = self.folder / "__pycache__"
        self.folder.mkdir()
        (self.folder / "kernel.py").write_text(KERNEL)

    def start(self, code=CALL, preexec=None, **environment):
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("NUMBA_", "XDG_"))}
        environment = {**kept, "PYTHONDONTWRITEBYTECODE": "1", **environment}
        return subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=self.folder,
            env={**environment, "PYTHONPATH": f"{self.folder}:{PACKAGE.parent}"},
            preexec_fn=preexec,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def call(self, **options):
        """Return what a fresh process prints, the result and how often the cache was of use."""
        return answer_of(self.start(**options))

    def files(self):
        return sorted(path for path in self.cache.glob("*") if path.suffix != ".pyc")


def answer_of(process):
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "")
    return out.strip()


@pytest.fixture
def install(tmp_path):
    return Install(tmp_path)


def obey_permissions():
    """Take from root the right to write what is read-only."""
    if os.geteuid() == 0:
        assert ctypes.CDLL(None).prctl(24, 1, 0, 0, 0) == 0  # drop CAP_DAC_OVERRIDE at exec


def test_the_second_process_loads_what_the_first_has_compiled(install):
    assert install.call() == "10 0"
    (file,) = install.files()
    assert file.suffix == ".nbc"
    assert install.call() == "10 1"


@pytest.mark.parametrize(
    "damage",
    [
        lambda body: b"",
        lambda body: body[:20],
        lambda body: body[: len(body) // 2],
        lambda body: body[:-1],
        lambda body: b"garbage" * 1000,
        lambda body: body[: len(body) // 2] + bytes([body[len(body) // 2] ^ 1]) + body[len(body) // 2 + 1 :],
        lambda body: None,
    ],
    ids=["empty", "cut early", "cut in the middle", "cut late", "garbage", "one bit", "a folder"],
)
def test_a_damaged_file_is_compiled_again(install, damage):
    assert install.call() == "10 0"
    (file,) = install.files()
    body = damage(file.read_bytes())
    file.unlink()
    if body is None:
        file.mkdir()
    else:
        file.write_bytes(body)
    assert install.call() == "10 0"
    assert install.call() == ("10 0" if body is None else "10 1")
    assert install.files() == [file]


def test_changed_source_is_compiled_again(install):
    assert install.call() == "10 0"
    (install.folder / "kernel.py").write_text(KERNEL.replace("result = 0", "result = 7"))
    assert install.call() == "17 0"
    assert install.call() == "17 1"
    assert len(install.files()) == 1


@pytest.mark.parametrize("home", ["/dev/null/nobody", "~"], ids=["no home", "a home that has no name"])
def test_a_read_only_install_without_a_home_compiles_in_memory(install, home):
    install.folder.chmod(0o555)
    assert install.call(preexec=obey_permissions, HOME=home) == "10 0"
    assert os.listdir(install.folder) == ["kernel.py"]


def test_a_read_only_install_with_a_home_keeps_kernels_there(install, tmp_path):
    install.folder.chmod(0o555)
    assert install.call(preexec=obey_permissions, HOME=str(tmp_path)) == "10 0"
    assert install.call(preexec=obey_permissions, HOME=str(tmp_path)) == "10 1"
    assert os.listdir(install.folder) == ["kernel.py"]


def test_a_file_that_cannot_grow_leaves_nothing_behind(install):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    assert install.call(preexec=limit) == "10 0"
    assert install.files() == []


def test_a_full_disk_is_no_error(install, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", disk]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system takes root")
    try:
        (disk / "filler").write_bytes(bytes(4096))
        assert install.call(NUMBA_CACHE_DIR=str(disk)) == "10 0"
        assert [path for path in disk.rglob("*") if path.is_file()] == [disk / "filler"]
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_missing_locator_or_a_compiler_that_is_off_changes_no_result(install):
    assert install.call(NUMBA_CACHE_LOCATOR_CLASSES="no.such.Locator") == "10 0"
    code = CALL.replace("sum(total.stats.cache_hits.values())", "type(total).__name__")
    assert install.call(code=code, NUMBA_DISABLE_JIT="1") == "10 function"


def test_processes_that_compile_at_the_same_time_do_not_mix_up_their_files(install):
    read_only = CALL.replace("total(np.arange(5))", "total(np.broadcast_to(np.arange(5), 5))")
    codes = (CALL, read_only, CALL.replace("arange(5)", "arange(5.0)"))
    expected = ("10 0", "10 0", "10.0 0")
    assert tuple(map(answer_of, [install.start(code=code) for code in codes])) == expected
    assert len(install.files()) == 3
    for code, answer in zip(codes, expected, strict=True):
        assert install.call(code=code) == answer[:-1] + "1"


def test_importing_raypack_and_all_its_layers_imports_no_numba():
    code = (
        "import sys; sys.modules['numba'] = None\n"
        "import importlib, pkgutil, raypack\n"
        "for module in pkgutil.walk_packages(raypack.__path__, 'raypack.'):\n"
        "    if not {'__main__', 'compiled', 'kernels'} & set(module.name.split('.')):\n"
        "        try: importlib.import_module(module.name)\n"
        "        except ImportError as error:  # an optional dependency may be absent\n"
        "            if error.name.startswith(('numba', 'raypack')): raise\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_kernel_calls_kernels_of_its_own_file_alone(path):
    tree = ast.parse(path.read_text())
    modules = set()
    for node in ast.walk(tree):
        assert not isinstance(node, ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda)
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules.add(node.module)
        elif isinstance(node, ast.FunctionDef):
            assert [ast.unparse(decorator) for decorator in node.decorator_list] == ["compiled"]
    assert modules <= {"__future__", "typing", "numpy", "numpy.typing", "raypack.compiled"}
