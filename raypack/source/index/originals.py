"""The original files of an index: opened by their kind, and checked for a change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
from pyarrow.fs import FileType

from raypack.errors import SourceError
from raypack.source.index.ipc import IpcFileOriginal, IpcStreamOriginal
from raypack.source.index.original import Original, unreadable
from raypack.source.index.parquet import ParquetOriginal
from raypack.source.manifest.record import OriginalFile
from raypack.source.paths.listing import modified_of
from raypack.source.paths.location import Location, locate

_QUESTIONS = 32
_KINDS: dict[str, type[Original]] = {
    "parquet": ParquetOriginal,
    "ipc_file": IpcFileOriginal,
    "ipc_stream": IpcStreamOriginal,
}


def open_original(entry: OriginalFile, columns: Sequence[str]) -> Original:
    """Open a file.

    Args:
        entry: The file.
        columns: The columns to read.

    Raises:
        SourceError: it is no file of its kind.
    """
    place = locate(entry.uri)
    try:
        return _KINDS[entry.kind](place, columns)
    except (pa.ArrowException, OSError) as error:
        raise unreadable(place.label, error) from error


def kind_of(place: Location, base_name: str) -> str | None:
    """Tell the kind of a file by its name and its first bytes; None where it is none.

    Args:
        place: The file.
        base_name: Its own name.
    """
    if base_name.endswith((".parquet", ".pq")):
        return "parquet"
    if not base_name.endswith((".arrow", ".ipc", ".feather")):
        return None
    with place.filesystem.open_input_file(place.path) as file:
        return "ipc_file" if file.read(6) == b"ARROW1" else "ipc_stream"


def check_unchanged(originals: Iterable[OriginalFile]) -> None:
    """Compare size and date of each file with what they were when it was indexed.

    Raises:
        SourceError: naming the first file that is missing or changed.
    """
    # Far away a question takes long, so that many are asked at once; here none is worth a thread.
    entries = list(originals)
    if all(locate(entry.uri).is_local for entry in entries):
        for entry in entries:
            _check_unchanged(entry)
        return
    with ThreadPoolExecutor(_QUESTIONS) as pool:
        # In order, so that the first is named.
        list(pool.map(_check_unchanged, entries))


def _check_unchanged(entry: OriginalFile) -> None:
    place = locate(entry.uri)
    info = place.filesystem.get_file_info(place.path)
    if info.type != FileType.File:
        raise SourceError(
            f"{place.label} is missing, and an index holds no tokens of its own; restore the file"
        )
    if info.size != entry.bytes:
        raise SourceError(
            f"{place.label} had {entry.bytes} bytes when it was indexed and has {info.size} now; "
            "restore the file, or index it again"
        )
    if modified_of(info) != entry.modified:
        raise SourceError(
            f"{place.label} was written again since it was indexed; index it again (where it holds the "
            "same, the fingerprint stays)"
        )
