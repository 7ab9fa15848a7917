"""How kernels are compiled: plain loops over arrays, translated by numba and kept on disk between processes.

A kernel is a pure function of arrays and numbers in a ``kernels/`` folder. It releases the GIL, never
runs in parallel (numba's threads abort a process that calls from several of its own) and keeps exact
arithmetic, so its results are the same on every machine. Only those folders import this module, and
only the functions that need a kernel import it: ``import raypack`` loads no numba.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import pickle
import tempfile
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import numba
from numba.core import caching
from numpy.typing import NDArray

from raypack.guards import guard

Array: TypeAlias = NDArray[Any]
"""An array of whatever type a kernel's docstring says."""

Function = TypeVar("Function", bound=Callable[..., Any])

logger = logging.getLogger(__name__)

_DIGEST_BYTES = 32
_IN_MEMORY = "the kernel %s cannot be loaded from disk or kept there; it is compiled in memory"


def compiled(function: Function) -> Function:
    """Return a kernel that is compiled for the types of its first call, or loaded where it was before.

    Machine code is kept beside the source or, where that cannot be written, in the user's cache folder
    (``NUMBA_CACHE_DIR`` overrides both). Where neither can be written, or a file cannot be read, the
    kernel is compiled in memory and works the same.

    Args:
        function: Loops over numpy arrays and numbers; calls kernels of its own file alone, because a
            change in another file would not be noticed by the cache.
    """
    kernel: Any = numba.njit(nogil=True, no_cfunc_wrapper=True)(function)
    if hasattr(kernel, "_cache"):  # it is the plain function where NUMBA_DISABLE_JIT is set
        # numba raises RuntimeError where there is no folder for it.
        with guard(logger, _IN_MEMORY, function.__name__), contextlib.suppress(OSError, RuntimeError):
            kernel._cache = _DiskCache(function)
    return kernel


class _UserFolder(caching.UserWideCacheLocator):
    """The user's cache folder; without a home its path is relative, and then there is none."""

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> Any:
        """Return a locator, or None where the folder is not to be used."""
        has_home = os.path.isabs(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~")))
        return super().from_function(py_func, py_file) if has_home else None


class _Functions(caching.CompileResultCacheImpl):
    """Numba's way to turn a compiled function into bytes, with the folders that raypack uses."""

    _locator_classes = [caching.UserProvidedCacheLocator, caching.InTreeCacheLocator, _UserFolder]  # noqa: RUF012


class _DiskCache(caching.FunctionCache):
    """Numba's function cache, for which no state of the disk is an error."""

    _impl_class = _Functions

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        self._name = function.__name__
        locator = self._impl.locator
        base = os.path.join(self.cache_path, self._impl.filename_base)
        self._cache_file = _Files(base, (numba.__version__, locator.get_source_stamp()))

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the function compiled for a signature; None for whatever cannot be loaded."""
        with guard(logger, _IN_MEMORY, self._name), contextlib.suppress(OSError):
            return super().load_overload(sig, target_context)
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep a compiled function where that is possible."""
        with guard(logger, _IN_MEMORY, self._name), contextlib.suppress(OSError):
            super().save_overload(sig, data)


class _Files:
    """Compiled functions on disk: a file for each signature and processor, which begins with its hash.

    In place of numba's index and data files, whose entries two processes may mix up when they
    compile at the same time, and whose damage is not noticed.
    """

    def __init__(self, base: str, stamp: tuple[Any, ...]) -> None:
        self._base = base
        self._stamp = repr(stamp)

    def load(self, key: Any) -> Any:
        """Return what was saved under a key; None where the file is damaged or of other source."""
        with open(self._path(key), "rb") as file:
            digest, body = file.read(_DIGEST_BYTES), file.read()
        if digest != _digest(body):
            return None
        stamp, saved_key, data = pickle.loads(body)
        return data if (stamp, saved_key) == (self._stamp, repr(key)) else None

    def save(self, key: Any, data: Any) -> None:
        """Save data under a key, whole or not at all."""
        body = caching.dumps((self._stamp, repr(key), data))
        path = self._path(key)
        descriptor, unfinished = tempfile.mkstemp(dir=os.path.dirname(path), suffix=".tmp")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(_digest(body) + body)
            os.replace(unfinished, path)
        except BaseException:
            os.unlink(unfinished)
            raise

    def flush(self) -> None:
        """Do nothing: a file that is out of date is not used, and is overwritten."""

    def _path(self, key: Any) -> str:
        signature, processor, _ = key
        name = hashlib.blake2b(repr((signature, processor)).encode(), digest_size=8).hexdigest()
        return f"{self._base}.{name}.nbc"


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest()
