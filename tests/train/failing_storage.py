"""A real file system for ``RunConfig(storage_filesystem=...)`` that fails and takes notes when told to.

Orders lie in a folder that all processes see, so that they can be given and withdrawn at any time.
"""

import os
from pathlib import Path

from fsspec.implementations.local import LocalFileSystem
from pyarrow.fs import FSSpecHandler, PyFileSystem


class FailingFiles(LocalFileSystem):
    """Local files; a write whose file is named in an order raises the order's errno, as often as it says."""

    protocol = ("failing",)
    cachable = False

    def __init__(self, orders, **options):
        super().__init__(**options)
        self.orders = Path(orders)

    def _open(self, path, mode="rb", **options):
        name = os.path.basename(path)
        if "r" in mode:
            with open(self.orders / "opened", "a") as log:
                log.write(f"{path}\n")
            return super()._open(path, mode, **options)
        order = self.orders / name
        if order.exists():
            code, times = map(int, order.read_text().split())
            if times > 0:
                order.write_text(f"{code} {times - 1}")
                raise OSError(code, os.strerror(code) if code else "SlowDown: reduce your request rate")
        return super()._open(path, mode, **options)


def failing_storage(orders):
    """Return a pyarrow file system that obeys the orders in a folder."""
    os.makedirs(orders, exist_ok=True)
    return PyFileSystem(FSSpecHandler(FailingFiles(str(orders))))


def order(orders, file, code, times=10**6):
    """Let the next writes of a file fail with an errno; 0 stands for a throttled store."""
    (Path(orders) / file).write_text(f"{code} {times}")


def opened(orders):
    """Return the paths that were opened for reading."""
    log = Path(orders) / "opened"
    return log.read_text().split() if log.exists() else []
