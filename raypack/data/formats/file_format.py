"""The format of an input file, by its name.

A new format needs a kind here, a reader in `rows.py`, and a rule in `data/ingest/chunks.py` for where
its files are cut.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from raypack.errors import PrepareError

_JSONL = (".jsonl", ".ndjson")
_PARQUET = (".parquet", ".pq")
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".xz": "xz"}

_UNPACK = "unpack it first"
_CONVERT = "write its texts to a .jsonl or .parquet file first, one document a row"
_REFUSED = {
    **dict.fromkeys((".lz4", ".zip", ".tar", ".tgz", ".7z"), _UNPACK),
    **dict.fromkeys((".arrow", ".feather", ".orc", ".avro", ".tfrecord"), _CONVERT),
    **dict.fromkeys((".json", ".csv", ".tsv", ".xlsx", ".pdf", ".docx", ".epub"), _CONVERT),
    **dict.fromkeys((".bin", ".npy", ".npz", ".pt", ".pkl", ".safetensors"), "it holds no text"),
}


@dataclass(frozen=True, slots=True)
class FileFormat:
    """How to read a file.

    Attributes:
        kind: ``text`` (the whole file is one document), ``jsonl`` (one a line) or ``parquet`` (one a row).
        compression: ``gzip``, ``zstd``, ``bz2`` or ``xz``; None where the file is read as it is.
    """

    kind: str
    compression: str | None = None


def format_of(base_name: str, name: str) -> FileFormat:
    """Return a file's format, by its extensions.

    Args:
        base_name: The file's own name.
        name: The file as messages name it.

    Raises:
        PrepareError: it is of a kind that is not read.
    """
    stem, suffix = os.path.splitext(base_name.lower())
    compression = _COMPRESSIONS.get(suffix)
    if compression is not None:
        suffix = os.path.splitext(stem)[1]
    if suffix in _REFUSED:
        raise PrepareError(f"{name} is a {suffix} file, which is not read; {_REFUSED[suffix]}")
    if suffix in _PARQUET:
        if compression is not None:
            raise PrepareError(f"{name} is Parquet in {compression}, which is not read; {_UNPACK}")
        return FileFormat("parquet")
    return FileFormat("jsonl" if suffix in _JSONL else "text", compression)
