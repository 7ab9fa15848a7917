"""The stream of one rank: micro-batches in order, from Ray Data or straight from the reader.

A feeder thread pulls blocks so that the train loop can wait with a time limit: while it waits it
tells the planner again what is committed (the planner may have been restarted), and it names what
is wrong where nothing comes. The queue between them has no bound of its own: the planner's credit is
the one bound of what is read ahead.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import TracebackType

from raypack.batching.warm import in_background, warm_receipts
from raypack.data.stream.blocks import StreamRow, load_block
from raypack.data.stream.datasource import dataset_blocks
from raypack.data.stream.reader import ReadSpec, read_blocks
from raypack.errors import StreamError

_WAIT_S = 1.0


class Stream:
    """Iterates over the micro-batches of one rank.

    Args:
        spec: What to read.
        backend: ``ray_data`` or ``direct`` (a thread in this process).
        node_id: The node of this process.
        on_wait: Called about once a second while no block comes, with the seconds waited so far;
            raises to end the wait.
    """

    def __init__(
        self, spec: ReadSpec, *, backend: str, node_id: str, on_wait: Callable[[float], None]
    ) -> None:
        self._on_wait = on_wait
        self._spec = spec
        self._blocks: queue.SimpleQueue[list[StreamRow] | BaseException | None] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._next = 0
        self._rows_left = 0
        in_background(warm_receipts)
        source = read_blocks(spec, load_block) if backend == "direct" else dataset_blocks(spec, node_id)
        self._feeder = threading.Thread(
            target=self._feed, args=(source,), name=f"raypack-stream-{spec.rank}", daemon=True
        )
        self._feeder.start()

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[StreamRow]:
        while (rows := self._take()) is not None:
            for number, row in enumerate(rows, start=1):
                if row.address != self._next:
                    raise StreamError(
                        f"micro-batch {self._next} must come next, got {row.address}: the order of blocks "
                        "was broken on the way"
                    )
                self._next += 1
                self._rows_left = len(rows) - number
                yield row

    def has_row(self) -> bool:
        """Whether the block of the last row holds another, so that the next row comes at once."""
        return self._rows_left > 0

    def close(self) -> None:
        """End the reader and the feeder; what was read ahead is dropped. May be called twice.

        The planner answers the rank's reader with the end of the run from here on, so that the
        pipeline drains by itself and no task is left waiting for credit.
        """
        if not self._closed.is_set():
            self._closed.set()
            self._spec.planner.leave.remote(self._spec.rank)
        while not self._blocks.empty():
            self._blocks.get_nowait()

    def _take(self) -> list[StreamRow] | None:
        began = time.monotonic()
        while True:
            with suppress(queue.Empty):
                item = self._blocks.get(timeout=_WAIT_S)
                break
            self._on_wait(time.monotonic() - began)
        if isinstance(item, BaseException):
            raise item
        return item

    def _feed(self, source: Iterator[list[StreamRow]]) -> None:
        try:
            for rows in source:
                if self._closed.is_set():
                    return
                self._blocks.put(rows)
            self._blocks.put(None)
        except BaseException as error:  # handed to the train loop, which raises it
            self._blocks.put(error)
        finally:
            source.close()  # type: ignore[attr-defined]
