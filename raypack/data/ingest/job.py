"""The prepare job: rows in, a source out, through Ray Data."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager

import ray
import ray.exceptions

from raypack.data.formats.inputs import find_inputs
from raypack.data.ingest.attempts import drain, start_tracker
from raypack.data.ingest.choose_reader import choose_reader, record_of
from raypack.data.ingest.chunk_task import ChunkResult
from raypack.data.ingest.chunks import Chunk, cut_chunks
from raypack.data.ingest.counts import PrepareCounts
from raypack.data.ingest.dataset import ChunkWork, run_chunks
from raypack.data.ingest.nodes import check_nodes
from raypack.data.ingest.options import PrepareOptions
from raypack.errors import PrepareError
from raypack.source import ArrowSource, open_source
from raypack.source.manifest.writer import ManifestWriter
from raypack.source.paths.location import locate
from raypack.source.paths.new_folder import new_folder, refuse_existing
from raypack.tokenizers import TextTokenizer
from raypack.tokenizers.special_tokens import Choice

_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(: .*)?$")

Progress = Callable[[PrepareCounts, int], None]
"""Called after each chunk with the counts so far and the bytes of the whole input."""


def prepare(
    inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    rows: str = "text",
    tokenizer: str | TextTokenizer = "bytes",
    text_field: str = "text",
    fields: Mapping[str, str] | None = None,
    train_on: str = "answers",
    unsupervised: str = "error",
    on_token_merge: str = "error",
    bos: Choice = None,
    eos: Choice = None,
    chat_template: str | os.PathLike[str] | None = None,
    max_length: int | None = None,
    oversize: str = "error",
    chunk_bytes: int | None = None,
    progress: Progress | None = None,
) -> ArrowSource:
    """Tokenise rows into a new source, in parallel, in the order of the input.

    A ``.jsonl`` or ``.ndjson`` file holds a row a line, a ``.parquet`` file its rows; any other file is one
    text, in UTF-8. Lines and texts may be compressed (``.gz``, ``.zst``, ``.bz2``, ``.xz``). Empty rows are
    left out. The result depends on the input and the arguments alone, not on the number of CPUs. A running
    Ray is used; otherwise a local one is started for the time of the job (or the cluster of ``RAY_ADDRESS``
    joined).

    Args:
        inputs: Files, folders and patterns, as paths or URIs; folders are walked, their files sorted.
        out: The folder to make; nothing may lie there.
        rows: What a row is. ``text``: a document. ``prompt``: ``prompt`` and ``completion``, one text.
            ``chat``: ``messages`` with ``role`` and ``content`` (and ``tools``, where there are any), which
            the chat template of a Hugging Face tokenizer renders. ``tokens``: ``input_ids`` made before, in
            Parquet, with ``labels`` and ``attention_mask`` where there are any. All but ``text`` give labels
            (``tokens`` where it has them): -100 where a token is not trained on.
        tokenizer: ``bytes`` (UTF-8 bytes as ids 0 to 255); the path of a ``tokenizers`` JSON file, of a
            ``.model`` file of sentencepiece or of a ``.tiktoken`` file; ``hf:`` and the path of a folder of
            transformers; ``tiktoken:`` and the name of an encoding; or a `TextTokenizer` of your own.
        text_field: The column that holds the text of rows ``text``.
        fields: The columns of other rows that are not named like what they are for:
            ``{"prompt": "question", "completion": "answer"}``.
        train_on: ``answers``: the completion; what an assistant says in a chat. ``last_answer``: the last
            thing it says. ``all``: every token.
        unsupervised: What happens to an example without a token to train on: ``error`` or ``drop``.
        on_token_merge: What happens where the last tokens of a prompt merge with its completion's first:
            ``error``, or ``separate``: such a row's two parts are tokenised one by one.
        bos: What stands before a text: None for what the tokenizer adds by itself, True for its BOS token,
            the text of a token for that one, False for nothing.
        eos: What stands after it, likewise. A prompt's completion ends with EOS unless this is False.
        chat_template: A file with a Jinja template, in place of the tokenizer's own.
        max_length: Tokens of an example at the most; None for no limit.
        oversize: What happens to a longer one: ``error``, ``split``, ``truncate`` or ``drop``; all but the
            first need ``max_length``.
        chunk_bytes: Bytes of input that one task reads, about; shards follow it. None takes 64 MiB, and
            8 MiB of prompts and chats. One task reads a whole compressed file.
        progress: Called after each chunk with the counts so far and the bytes of the whole input.

    Returns:
        The source, opened; its manifest holds the counts.

    Raises:
        TypeError: An argument has a wrong type.
        SourceError: ``out`` exists already.
        PrepareError: An input or the tokenizer cannot be read, a row is bad (the message names file and line
            of the first), or a worker died again and again. Nothing is left at ``out``.
    """
    refuse_existing(locate(out))
    options = PrepareOptions(
        rows=rows,
        text_field=text_field,
        fields=fields,
        train_on=train_on,
        unsupervised=unsupervised,
        on_token_merge=on_token_merge,
        bos=bos,
        eos=eos,
        chat_template=None if chat_template is None else _read_template(chat_template),
        max_length=max_length,
        oversize=oversize,
        chunk_bytes=chunk_bytes,
    )
    files = find_inputs(inputs)
    reader = choose_reader(files, tokenizer, options)
    chunks = cut_chunks(files, options.task_bytes)
    counts = PrepareCounts()
    with _ray_running(), new_folder(out) as folder, ManifestWriter(folder) as manifest:
        check_nodes([folder.uri, *dict.fromkeys(file.uri for file in files)])
        work = ChunkWork(chunks, folder.uri, reader, options)
        total = sum(chunk.bytes for chunk in chunks)
        # Closed here, so that no task is at work any more when a failure removes the folder.
        with closing(_run(work)) as results:
            for result in results:
                counts.add(result.counts)
                _add(manifest, result)
                if progress is not None:
                    progress(counts, total)
        manifest.finish(
            has_labels=reader.has_labels, prepared=record_of(reader, options), counts=counts.to_dict()
        )
        return open_source(out)


def _read_template(path: str | os.PathLike[str]) -> str:
    try:
        with open(os.path.expanduser(path), encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise PrepareError(f"chat_template must be a readable file in UTF-8: {error}") from error


def _add(manifest: ManifestWriter, result: ChunkResult) -> None:
    first = 0
    for shard in result.shards:
        rows = slice(first, first + shard.examples)
        manifest.add(shard, result.lengths[rows], result.supervised[rows])
        first += shard.examples


def _run(work: ChunkWork) -> Generator[ChunkResult, None, None]:
    """Yield the result of each chunk in order; the first fault ends the job."""
    tracker = start_tracker()
    done = 0
    try:
        with closing(run_chunks(work, tracker)) as results:
            for result in results:
                _check(result, work.chunks[done])
                done += 1
                yield result
    except ray.exceptions.RayError as error:
        raise PrepareError(f"the prepare job failed: {what_failed(error)}") from error
    finally:
        drain(tracker)
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
