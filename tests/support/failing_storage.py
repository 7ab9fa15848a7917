"""A real file system for ``RunConfig(storage_filesystem=...)`` that fails and takes notes when told to.

Orders lie in a folder that all processes see, so that they can be given and withdrawn at any time.
"""

import os
from pathlib import Path

from fsspec.implementations.local import LocalFileSystem
from pyarrow.fs import FSSpecHandler, PyFileSystem


class FailingFiles(FSSpecHandler):
    """Local files; a write whose file is named in an order raises the order's errno, as often as it says."""

    def __init__(self, orders):
        super().__init__(LocalFileSystem())
        self.orders = Path(orders)

    def open_input_stream(self, path):
        """Write down what is read."""
        self._note(path)
        return super().open_input_stream(path)

    def open_input_file(self, path):
        """Write down what is read."""
        self._note(path)
        return super().open_input_file(path)

    def open_output_stream(self, path, metadata):
        """Fail where it is ordered."""
        order = self.orders / os.path.basename(path)
        if order.exists():
            code, times, after = map(int, order.read_text().split())
            if after > 0:
                order.write_text(f"{code} {times} {after - 1}")
            elif times > 0:
                order.write_text(f"{code} {times - 1} 0")
                raise OSError(code, os.strerror(code) if code else "SlowDown: reduce your request rate")
        return super().open_output_stream(path, metadata)

    def _note(self, path):
        damage = self.orders / f"damage-{os.path.basename(path)}"
        if damage.exists():
            damage.unlink()
            os.truncate(path, os.path.getsize(path) - 7)
        with open(self.orders / "opened", "a") as log:
            log.write(f"{path}\n")


def failing_storage(orders):
    """Return a pyarrow file system that obeys the orders in a folder."""
    os.makedirs(orders, exist_ok=True)
    return PyFileSystem(FailingFiles(orders))


def order(orders, file, code, times=10**6, after=0):
    """Let writes of a file fail with an errno, after some that are fine; 0 stands for a throttled store."""
    (Path(orders) / file).write_text(f"{code} {times} {after}")


def damage(orders, file):
    """Let the next file of a name lose its end where it lies, just before somebody reads it."""
    (Path(orders) / f"damage-{file}").touch()


def opened(orders):
    """Return the paths that were opened for reading."""
    log = Path(orders) / "opened"
    return log.read_text().split() if log.exists() else []
