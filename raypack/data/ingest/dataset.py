"""The chunks as a Ray Data pipeline: one read task a chunk, results in order."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import ray
import ray.data
import ray.exceptions
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask

from raypack.data.encoders.example_reader import ExampleReader
from raypack.data.ingest.attempts import ATTEMPTS
from raypack.data.ingest.chunk_task import ChunkResult, failed, prepare_chunk, read_results
from raypack.data.ingest.chunks import Chunk
from raypack.data.ingest.options import PrepareOptions
from raypack.data.ingest.quiet import quiet
from raypack.data.stream.iteration import closing_batches

_NAME = "raypack_prepare"


@dataclass(frozen=True, slots=True)
class ChunkWork:
    """All that tasks need to know.

    Attributes:
        chunks: The chunks, in order.
        out: The source's folder.
        reader: Makes examples of their rows; sent to each node once.
        options: What the user chose.
    """

    chunks: tuple[Chunk, ...]
    out: str
    reader: ExampleReader[Any]
    options: PrepareOptions


class _ChunkDatasource(Datasource):
    """One read task a chunk."""

    def __init__(self, work: ChunkWork, tracker: Any) -> None:
        super().__init__()
        self._work = work
        self._tracker = tracker
        self._reference = ray.put(work.reader)

    def get_name(self) -> str:
        """Return the name in Ray Data's plans and logs."""
        return _NAME

    def estimate_inmemory_data_size(self) -> int | None:
        """Return None: results are small."""
        return None

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """Return the tasks, whatever the parallelism: chunks are cut by the input alone."""
        return [ReadTask(self._reader(chunk), _metadata()) for chunk in self._work.chunks]

    def _reader(self, chunk: Chunk) -> Callable[[], Iterable[pa.Table]]:
        out, options = self._work.out, self._work.options
        tracker, reader = self._tracker, self._reference
        return lambda: [_attempt(chunk, out, reader, options, tracker).to_table()]


def _metadata() -> BlockMetadata:
    return BlockMetadata(num_rows=1, size_bytes=None, input_files=None, exec_stats=None)


def _attempt(chunk: Chunk, out: str, reader: Any, options: PrepareOptions, tracker: Any) -> ChunkResult:
    """Prepare a chunk in a worker, unless the job has ended or the chunk has killed too many workers.

    Ray Data retries a failed task forever, so the attempts are counted here.
    """
    try:
        # Inside the block: a cancelled task must leave, even if it was cancelled while it entered.
        attempt = ray.get(tracker.enter.remote(chunk.number))
        if not attempt:
            return failed(chunk.number, "the job has ended")
        if attempt > ATTEMPTS:
            return failed(chunk.number, _deaths(chunk))
        return prepare_chunk(chunk, out, ray.get(reader), options)
    except ray.exceptions.RaySystemError as error:
        # Ray's word for an object that cannot be unpickled; Ray Data would try again for ever.
        reason = str(error).split("\n")[0]
        return failed(chunk.number, f"the tokenizer cannot be loaded in a worker: {reason}")
    finally:
        tracker.leave.remote(chunk.number)


def _deaths(chunk: Chunk) -> str:
    return (
        f"{ATTEMPTS} workers died one after the other on {chunk}; most often memory ran out: give each "
        "worker more memory, run fewer at once, or lower chunk_bytes"
    )


def run_chunks(work: ChunkWork, tracker: Any) -> Generator[ChunkResult, None, None]:
    """Run the chunks in parallel and yield their results in order.

    Args:
        work: What to do.
        tracker: The tracker of attempts.
    """
    dataset = ray.data.read_datasource(
        _ChunkDatasource(work, tracker),
        override_num_blocks=len(work.chunks),
        num_cpus=1,
    )
    dataset.set_name(_NAME)
    context = dataset.context  # this dataset's own copy
    context.execution_options.preserve_order = True
    context.target_max_block_size = 1  # each table of one row is a block of its own
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    with quiet(_NAME):
        batches = dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=1)
        for table in closing_batches(batches):
            yield from read_results(table)
