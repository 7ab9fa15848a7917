"""A node-local copy of a remote source's files, filled as they are needed."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from raypack.errors import SourceError
from raypack.source.paths.location import Location

CACHE_VARIABLE = "RAYPACK_CACHE_DIR"
_COPY_BYTES = 8 << 20


def cache_root() -> Path:
    """Return the folder of all cached files: ``$RAYPACK_CACHE_DIR``, the user's cache, or a temporary one."""
    if chosen := os.environ.get(CACHE_VARIABLE):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    home = Path(base) if base else Path(os.path.expanduser("~")) / ".cache"
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError:
        # A container's user often has no home to write to.
        return Path(tempfile.gettempdir()) / f"raypack-{os.getuid()}"
    if os.access(home, os.W_OK):
        return home / "raypack"
    return Path(tempfile.gettempdir()) / f"raypack-{os.getuid()}"


class NodeCache:
    """Local copies of one source's files, in a folder named after its fingerprint.

    Any number of processes may ask for the same file at once: one copies, the others wait, and what a
    killed process left is never taken for a file.
    """

    def __init__(self, folder: Location, fingerprint: str) -> None:
        self._folder = folder
        self._root = cache_root() / "sources" / fingerprint

    def fetch(self, name: str, size: int, check: Callable[[str], None]) -> str:
        """Return the local path of a file, copied now if it is not there yet.

        Args:
            name: The file's name in the source.
            size: Its exact size in bytes.
            check: Called once with the path of a new copy; raises where the copy is not what it must be.

        Raises:
            SourceError: the remote file has another size, or ``check`` says so.
        """
        target = self._root / name
        if _has_size(target, size):
            return str(target)
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(self._root / f"{name}.lock"):
            if not _has_size(target, size):
                self._copy(name, size, check, target)
        return str(target)

    def _copy(self, name: str, size: int, check: Callable[[str], None], target: Path) -> None:
        handle, partial = tempfile.mkstemp(prefix=f".{name}.", dir=self._root)
        try:
            with os.fdopen(handle, "wb") as sink:
                with self._folder.filesystem.open_input_stream(self._folder.child(name)) as stream:
                    shutil.copyfileobj(stream, sink, _COPY_BYTES)
                copied = sink.tell()
            if copied != size:
                raise SourceError(
                    f"{self._folder.label}/{name} must have {size} bytes, got {copied}; restore the source"
                )
            check(partial)
            os.replace(partial, target)
        except BaseException:
            os.unlink(partial)
            raise


def _has_size(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except FileNotFoundError:
        return False


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock that the system frees when its process dies."""
    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
