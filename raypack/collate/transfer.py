"""Prefetches batches to the device, one batch ahead of the one being trained.

On CUDA a batch is copied, widened and counted on a stream of its own, out of pinned memory, while the
device still trains the batch before; the train loop's stream waits for it there, the host never does.
Elsewhere a batch is made when it is asked for, and no thread is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Generic, Protocol, TypeVar

import torch

from raypack.collate.batch import PackedBatch

Row = TypeVar("Row")
Made = TypeVar("Made")


class Streams(Protocol):
    """A side stream of a device, in addition to the caller's current stream."""

    def side(self) -> AbstractContextManager[Any]:
        """Return a context whose device work is queued on the side stream."""

    def mark(self) -> Any:
        """Return a mark after the work queued on the side stream so far."""

    def join(self, mark: Any, tensors: list[torch.Tensor]) -> None:
        """Let the caller's stream wait for a mark, and own tensors that were made on the side.

        Their memory must not be used again before the work that the caller's stream does with them is
        done, whenever they are freed.
        """


class CudaStreams:
    """Streams of a CUDA device.

    Args:
        device: the device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._side = torch.cuda.Stream(device)

    def side(self) -> AbstractContextManager[Any]:
        """Return a context whose device work is queued on the side stream."""
        return torch.cuda.stream(self._side)

    def mark(self) -> torch.cuda.Event:
        """Return an event after the work queued on the side stream so far."""
        event = torch.cuda.Event()
        event.record(self._side)
        return event

    def join(self, mark: torch.cuda.Event, tensors: list[torch.Tensor]) -> None:
        """Let the current stream wait for an event, without blocking the host."""
        current = torch.cuda.current_stream(self._device)
        current.wait_event(mark)
        for tensor in tensors:
            tensor.record_stream(current)


def streams_of(device: torch.device) -> Streams | None:
    """Return a device's streams, or None where work is not queued."""
    return CudaStreams(device) if device.type == "cuda" else None


class DevicePrefetcher(Generic[Row, Made]):
    """Makes device batches of rows, the next one while the current one is being trained.

    Args:
        make: from a row to a `PackedBatch`, or to a batch and the masks or arguments made of it (a
            tuple, list or mapping). It must not wait for the device.
        streams: of the device; None: `make` is called when a row is taken.
    """

    def __init__(self, make: Callable[[Row], Made], streams: Streams | None) -> None:
        self._make = make
        self._streams = streams
        self._started: tuple[Row, Made, Any] | None = None

    @property
    def looks_ahead(self) -> bool:
        """Whether `start` prefetches."""
        return self._streams is not None

    def start(self, row: Row) -> None:
        """Prefetch a row that will be taken soon; one at a time, and one that is never taken is dropped."""
        if self._streams is not None and (self._started is None or self._started[0] is not row):
            self._started = self._begin(self._streams, row)

    def take(self, row: Row) -> Made:
        """Return the batch of a row; work that the caller queues from here on sees it complete."""
        if self._streams is None:
            return self._make(row)
        if self._started is not None and self._started[0] is row:
            (_, made, mark), self._started = self._started, None
        else:  # what was started stays so: a row may be taken in between, as empty ones are
            _, made, mark = self._begin(self._streams, row)
        self._streams.join(mark, list(device_tensors(made)))
        return made

    def _begin(self, streams: Streams, row: Row) -> tuple[Row, Made, Any]:
        with streams.side():
            made = self._make(row)
        return row, made, streams.mark()


def device_tensors(made: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of a batch, of a mask or of collections of these.

    Raises:
        TypeError: something may hold tensors that are not known here.
    """
    if isinstance(made, torch.Tensor):
        yield made
    elif isinstance(made, PackedBatch):
        yield from (made.input_ids, made.labels, made.position_ids, made.segment_ids, made.cu_seqlens)
    elif isinstance(made, Mapping):
        for value in made.values():
            yield from device_tensors(value)
    elif isinstance(made, (tuple, list)):
        for value in made:
            yield from device_tensors(value)
    elif hasattr(made, "mask_mod"):  # a BlockMask, whose rule closes over segment ids
        cells = (cell.cell_contents for cell in made.mask_mod.__closure__ or ())
        yield from (value for value in (*made.as_tuple(), *cells) if isinstance(value, torch.Tensor))
    elif not isinstance(made, (bool, int, float, str, type(None))):
        raise TypeError(f"a prefetched row must become batches, masks and numbers, got {type(made).__name__}")
