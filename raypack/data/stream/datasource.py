"""A rank's reader as a Ray Data pipeline: one generator task on the rank's own node."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
import ray.data
from ray.data.block import BlockMetadata
from ray.data.collate_fn import ArrowBatchCollateFn
from ray.data.datasource import Datasource, ReadTask
from ray.util.debug import log_once

from raypack.data.stream.blocks import StreamRow, decode_block, encode_block
from raypack.data.stream.iteration import closing_batches
from raypack.data.stream.reader import ReadSpec, read_blocks

READER_CPUS = 0.25
"""CPUs that a reader reserves: a stream of a million tokens a second costs less than a tenth of a core."""

_NAME = "raypack"


class PlanDatasource(Datasource):
    """One read task that yields a rank's blocks as long as the run lasts."""

    def __init__(self, spec: ReadSpec) -> None:
        super().__init__()
        self._spec = spec

    def get_name(self) -> str:
        """Return the name in Ray Data's plans and logs."""
        return _NAME

    def estimate_inmemory_data_size(self) -> int | None:
        """Return None: the stream has no size in advance."""
        return None

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """Return the one task, whatever the parallelism: the order of blocks is the plan's."""
        metadata = BlockMetadata(num_rows=None, size_bytes=None, input_files=None, exec_stats=None)
        return [ReadTask(_reader(self._spec), metadata)]


def _reader(spec: ReadSpec) -> Callable[[], Iterable[pa.Table]]:
    return lambda: read_blocks(spec, encode_block)


class BlockCollate(ArrowBatchCollateFn):
    """Turns a block into its micro-batches: boundaries and views of its memory, never masks."""

    def __call__(self, batch: pa.Table) -> list[StreamRow]:
        """Return the block's rows; stateless, since Ray Data calls it from several threads."""
        return decode_block(batch)


def dataset_blocks(spec: ReadSpec, node_id: str) -> Iterator[list[StreamRow]]:
    """Run the reader through Ray Data and yield its blocks in order.

    Args:
        spec: What to read.
        node_id: The node of the rank, where the reader runs if it can.
    """
    _quiet()
    dataset = ray.data.read_datasource(
        PlanDatasource(spec),
        override_num_blocks=1,
        concurrency=1,
        num_cpus=READER_CPUS,
        label_selector={"ray.io/node-id": node_id},
        fallback_strategy=[{"label_selector": {}}],
    )
    dataset.set_name(_NAME)
    context = dataset.context  # this dataset's own copy
    context.execution_options.preserve_order = True
    context.target_max_block_size = 1  # each table of one row is a block of its own
    context.enable_progress_bars = False
    batches = dataset.iter_torch_batches(
        batch_size=None,
        collate_fn=BlockCollate(),
        prefetch_batches=0,  # with more, a block is held back until the next is there: that needs credit
        device="cpu",
    )
    yield from closing_batches(batches)


class _OwnLines(logging.Filter):
    """Drops the lines at INFO that Ray Data logs of raypack's own datasets."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno > logging.INFO or _NAME not in record.getMessage()


def _quiet() -> None:
    log_once("ray_data_progress_manager_disabled")  # its advice to turn the bars on again
    for name in (
        "ray.data._internal.execution.streaming_executor",
        "ray.data._internal.logging",
        "ray.data._internal.execution.streaming_executor_state",
    ):
        logger = logging.getLogger(name)
        if not any(isinstance(kept, _OwnLines) for kept in logger.filters):
            logger.addFilter(_OwnLines())
