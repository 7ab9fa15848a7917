"""Arrow IPC as an original: record batches of a file or a stream, memory-mapped where they lie here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from raypack.errors import SourceError
from raypack.source.index.original import Original, unreadable
from raypack.source.paths.location import Location


class IpcOriginal(Original):
    """What the two forms of Arrow IPC share: memory-mapped where they lie on this machine."""

    def __init__(self, place: Location, columns: Sequence[str]) -> None:
        super().__init__(place, columns)
        self.is_mapped = place.is_local
        self._source = (
            pa.memory_map(place.path) if place.is_local else place.filesystem.open_input_file(place.path)
        )
        self._first_byte, self._size = 0, self._source.size()
        if place.is_local and self._size:
            self._first_byte = self._source.read_buffer(self._size).address
            self._source.seek(0)

    def _select(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, bool]:
        chosen = batch.select(self._columns)
        buffers = [buffer for column in chosen.columns for buffer in column.buffers() if buffer is not None]
        end = self._first_byte + self._size
        # A compressed batch is unpacked into memory, whatever the file.
        is_mapped = self._first_byte > 0 and all(
            self._first_byte <= buffer.address < end for buffer in buffers if buffer.size
        )
        for column in chosen.columns:
            column.validate()
        return chosen, is_mapped


class IpcFileOriginal(IpcOriginal):
    """An Arrow IPC file (Feather 2); its parts are its record batches."""

    def __init__(self, place: Location, columns: Sequence[str]) -> None:
        super().__init__(place, columns)
        self._reader = pa.ipc.open_file(self._source)

    def column_names(self) -> list[str]:
        """Return the names of all columns."""
        return list(self._reader.schema.names)

    def parts(self) -> Iterator[int]:
        """Yield the numbers of the record batches."""
        yield from range(self._reader.num_record_batches)

    def read(self, part: int) -> tuple[pa.RecordBatch, bool]:
        """Return the columns of a record batch."""
        try:
            with self._lock:
                return self._select(self._reader.get_batch(part))
        except (pa.ArrowException, OSError, LookupError, ValueError) as error:
            raise unreadable(self.name, error) from error


class IpcStreamOriginal(IpcOriginal):
    """An Arrow IPC stream, as Hugging Face datasets write it; a part is a message, found by its byte."""

    def __init__(self, place: Location, columns: Sequence[str]) -> None:
        super().__init__(place, columns)
        self._schema = pa.ipc.read_schema(self._source)
        self._first_message = self._source.tell()

    def column_names(self) -> list[str]:
        """Return the names of all columns."""
        return list(self._schema.names)

    def parts(self) -> Iterator[int]:
        """Yield the byte of each record batch's message."""
        at = self._first_message
        while True:
            with self._lock:
                self._source.seek(at)
                message = self._message()
                after = self._source.tell()
            if message is None:
                if at == self._size:
                    raise unreadable(self.name, "it has no end mark, so its writing did not end")
                return
            if message.type == "dictionary":
                raise SourceError(
                    f"{self.name} is a stream with a dictionary, which cannot be read in parts; write it as "
                    "an Arrow IPC file or as Parquet"
                )
            yield at
            at = after

    def read(self, part: int) -> tuple[pa.RecordBatch, bool]:
        """Return the columns of a record batch."""
        with self._lock:
            if part >= self._size:
                raise unreadable(self.name, f"it has no byte {part}")
            self._source.seek(part)
            message = self._message()
        try:
            if message is None or message.type != "record batch":
                raise unreadable(self.name, f"it has no record batch at byte {part}")
            return self._select(pa.ipc.read_record_batch(message, self._schema))
        except (pa.ArrowException, OSError, LookupError) as error:
            raise unreadable(self.name, error) from error

    def _message(self) -> Any:
        try:
            return pa.ipc.read_message(self._source)
        except EOFError:
            return None
        except (pa.ArrowException, OSError) as error:
            raise unreadable(self.name, error) from error
