"""What the processes of a local Ray have logged: searched for what should not be there.

Train functions, actors and Ray Train's controller log to files of the session; with ``log_to_driver=False``
nobody reads them, and a failure that raypack survives shows nowhere else.
"""

import json
import re
from pathlib import Path

import ray._private.worker
import ray.train.v2

import raypack


def _loggers():
    """Return the names of raypack's files, but for those that Ray Train has too and logs errors from."""
    own = {path.name for path in Path(raypack.__file__).parent.rglob("*.py")}
    rays = Path(ray.train.v2.__file__).parent.rglob("*.py")
    return own - {p.name for p in rays if re.search(r"logger\.(error|exception)\(", p.read_text())}


SUSPECT = re.compile(
    r"Traceback \(most recent call last\)"
    r"|raypack's callback failed|cannot be resumed from"
    r"|^Exception ignored in|^Exception in thread"
    rf"|^(?:ERROR|CRITICAL) (?:{'|'.join(map(re.escape, sorted(_loggers())))}): ",
    re.MULTILINE,
)
BESIDE_THE_RUN = re.compile(r"raylet|gcs_server|dashboard|monitor|ray_client|runtime_env|python-core|\.gz$")
"""Files of Ray itself; what raypack does there is nothing."""
RAYS_OWN = ("PlacementGroupCleanerMonitor", "Failed to send resource request")
"""Ray Train's cleaner thread ends with an error where several clusters run on one machine; its request to
the autoscaler, which comes again, times out where the machine is busy."""


class SessionLogs:
    """The logs of the running session from now on."""

    def __init__(self):
        self._folder = Path(ray._private.worker._global_node.get_logs_dir_path())
        self._began = {path: path.stat().st_size for path in self._files()}

    def _files(self):
        for path in self._folder.rglob("*"):
            if path.is_file() and not BESIDE_THE_RUN.search(str(path.relative_to(self._folder))):
                yield path

    def entries(self):
        """Yield each new entry, a line with the lines of its traceback, and the file that it is in."""
        for path in sorted(self._files()):
            with open(path, "rb") as file:
                file.seek(self._began.get(path, 0))
                text = file.read().decode(errors="replace")
            for entry in entries_of(text):
                yield path.name, entry

    def text(self):
        """Return all new entries."""
        return "\n".join(entry for _, entry in self.entries())

    def unexpected(self, expected=()):
        """Return suspect entries that match none of some regular expressions, each with its file."""
        known = re.compile("|".join((*RAYS_OWN, *expected)))
        return [
            f"{name}: {entry}"
            for name, entry in self.entries()
            if SUSPECT.search(entry) and not known.search(entry)
        ]

    def check(self, expected=()):
        """Fail where something was logged that is suspect and not expected."""
        found = self.unexpected(expected)
        assert not found, "the logs of the run hold what should not be there:\n" + "\n".join(found)


def entries_of(text):
    """Return the entries of a file: a traceback belongs to the line before it, as far as its last line.

    Files of JSON hold an entry a line; those of plain text hold tracebacks as lines.
    """
    entries, block = [], []
    for line in text.splitlines():
        entry = _of_json(line)
        if entry is not None:
            entries += ["\n".join(block), entry] if block else [entry]
            block = []
        elif _goes_on(line, block):
            block.append(line)
        else:
            if block:
                entries.append("\n".join(block))
            block = [line]
    return [*entries, "\n".join(block)] if block else entries


def _of_json(line):
    if not line.startswith("{"):
        return None
    try:
        record = json.loads(line)
    except ValueError:
        return None
    if not isinstance(record, dict) or "message" not in record:
        return None
    payloads = f"{record.get('levelname')} {record.get('filename')}: {record['message']}"
    return "\n".join(filter(None, (payloads, record.get("exc_text"))))


def _goes_on(line, block):
    if not block:
        return False
    traced = any("Traceback (most recent call last)" in before for before in block)
    if (
        "Traceback (most recent call last)" in line
        or not line
        or line.startswith((" ", "The above", "During"))
    ):
        return True
    return traced and (block[-1].startswith(" ") or block[-1] == "")
