"""The prepare job: text in, a source out, through Ray Data."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager

import ray
import ray.exceptions

from raypack.data.inputs import Chunk, cut_chunks, find_inputs
from raypack.data.prepare_chunk import ChunkResult
from raypack.data.prepare_dataset import ChunkWork, run_chunks
from raypack.data.prepare_gate import drain, open_gate
from raypack.data.prepare_nodes import check_nodes
from raypack.data.prepare_options import CHUNK_BYTES, PrepareCounts, PrepareOptions
from raypack.data.tokenizers import TextTokenizer, load_tokenizer
from raypack.errors import PrepareError
from raypack.source import ArrowSource, open_source
from raypack.source.location import locate
from raypack.source.target import new_folder, refuse_existing
from raypack.source.write import ManifestWriter

_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(: .*)?$")

Progress = Callable[[PrepareCounts, int], None]
"""Called after each chunk with the counts so far and the bytes of the whole input."""


def prepare(
    inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    tokenizer: str | TextTokenizer = "bytes",
    text_field: str = "text",
    max_length: int | None = None,
    oversize: str = "error",
    chunk_bytes: int = CHUNK_BYTES,
    progress: Progress | None = None,
) -> ArrowSource:
    """Tokenise text into a new source, in parallel, in the order of the input.

    A ``.jsonl`` or ``.ndjson`` file holds a document a line; any other file is one document, in UTF-8.
    Empty documents are left out. The result depends on the input and the arguments alone, not on the
    number of CPUs. A running Ray is used; otherwise a local one is started for the time of the job (or
    the cluster of ``RAY_ADDRESS`` joined).

    Args:
        inputs: Files and folders, as paths or URIs; folders are walked, their files sorted.
        out: The folder to make; nothing may lie there.
        tokenizer: ``bytes`` (UTF-8 bytes as ids 0 to 255), the path of a ``tokenizers`` JSON file, or
            ``hf:`` and the path of a Hugging Face folder; or a `TextTokenizer` of your own.
        text_field: The field of a JSON line that holds the text.
        max_length: Tokens of an example at the most; None for no limit.
        oversize: What happens to a longer document: ``error``, ``split``, ``truncate`` or ``drop``; all
            but the first need ``max_length``.
        chunk_bytes: Bytes of input that one task reads, about; shards follow it.
        progress: Called after each chunk with the counts so far and the bytes of the whole input.

    Returns:
        The source, opened; its manifest holds the counts.

    Raises:
        TypeError: An argument has a wrong type.
        SourceError: ``out`` exists already.
        PrepareError: An input or the tokenizer cannot be read, a document is bad (the message names file
            and line of the first), or a worker died again and again. Nothing is left at ``out``.
    """
    refuse_existing(locate(out))
    options = PrepareOptions(
        text_field=text_field, max_length=max_length, oversize=oversize, chunk_bytes=chunk_bytes
    )
    files = find_inputs(inputs)
    encoder = load_tokenizer(tokenizer)
    chunks = cut_chunks(files, options.chunk_bytes)
    counts = PrepareCounts()
    with _ray_running(), new_folder(out) as folder, ManifestWriter(folder) as manifest:
        check_nodes([folder.uri, *dict.fromkeys(file.uri for file in files)])
        work = ChunkWork(chunks, folder.uri, encoder, options)
        total = sum(chunk.bytes for chunk in chunks)
        # Closed here, so that no task is at work any more when a failure removes the folder.
        with closing(_run(work)) as results:
            for result in results:
                counts.add(result.counts)
                if result.shard is not None:
                    manifest.add(result.shard, result.lengths, result.lengths - 1)
                if progress is not None:
                    progress(counts, total)
        manifest.finish(has_labels=False, prepared=options.record(encoder), counts=counts.to_dict())
        return open_source(out)


def _run(work: ChunkWork) -> Generator[ChunkResult, None, None]:
    """Yield the result of each chunk in order; the first fault ends the job."""
    gate = open_gate()
    done = 0
    try:
        with closing(run_chunks(work, gate)) as results:
            for result in results:
                _check(result, work.chunks[done])
                done += 1
                yield result
    except ray.exceptions.RayError as error:
        raise PrepareError(f"the prepare job failed: {what_failed(error)}") from error
    finally:
        drain(gate)
    if done != len(work.chunks):
        raise PrepareError(f"Ray Data gave the results of {done} chunks of {len(work.chunks)}")


def _check(result: ChunkResult, chunk: Chunk) -> None:
    if result.number != chunk.number:
        raise PrepareError(
            f"chunk {chunk.number} must come next, got {result.number}: Ray Data broke the order"
        )
    if result.fault is not None:
        raise PrepareError(result.fault)


def what_failed(error: BaseException) -> str:
    """Return the line of a Ray error that says what failed: its traceback's last ``Error: message``."""
    lines = [line for line in str(error).split("\n") if _EXCEPTION.match(line)]
    # Ray Data's own word comes last and says nothing of the cause.
    lines = [line for line in lines if "UserCodeException" not in line] or lines
    return lines[-1] if lines else " ".join(str(error).split()) or type(error).__name__


@contextmanager
def _ray_running() -> Iterator[None]:
    """Use the Ray of this process, or have one for the time of a block."""
    if ray.is_initialized():
        yield
        return
    logger = logging.getLogger("ray")
    level = logger.level
    if os.environ.get("RAY_ADDRESS"):
        ray.init(log_to_driver=False, logging_level="ERROR")
    else:
        ray.init("local", include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        yield
    finally:
        ray.shutdown()
        logger.setLevel(level)
