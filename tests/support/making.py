"""Sources of every kind with the same examples: a store, and indexes of files of each format."""

import json

import pyarrow as pa
import pyarrow.parquet as pq

from raypack.source import index_source, write_source

PART_ROWS = 2


def parquet(path, rows):
    """Write rows as a Parquet file of small row groups."""
    pq.write_table(rows, path, row_group_size=PART_ROWS)


def ipc_file(path, rows, compression=None):
    """Write rows as an Arrow IPC file of small batches."""
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, rows.schema, options=options) as writer:
        for batch in rows.to_batches(max_chunksize=PART_ROWS):
            writer.write_batch(batch)


def ipc_stream(path, rows):
    """Write rows as an Arrow IPC stream of small batches."""
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, rows.schema) as writer:
        for batch in rows.to_batches(max_chunksize=PART_ROWS):
            writer.write_batch(batch)


def packed_file(path, rows):
    """Write rows as a compressed Arrow IPC file."""
    ipc_file(path, rows, "zstd")


FORMATS = {"parquet": parquet, "ipc_file": ipc_file, "ipc_stream": ipc_stream, "packed_file": packed_file}
KINDS = ("store", *FORMATS)


def write_files(folder, kind, tables):
    """Write each table as a file; streams as Hugging Face datasets save them."""
    folder.mkdir(parents=True)
    suffix = "parquet" if kind == "parquet" else "arrow"
    names = [f"data-{number:05d}-of-{len(tables):05d}.{suffix}" for number in range(len(tables))]
    for name, rows in zip(names, tables, strict=True):
        FORMATS[kind](folder / name, rows)
    if kind == "ipc_stream":
        state = {"_data_files": [{"filename": name} for name in names], "_split": None}
        (folder / "state.json").write_text(json.dumps(state))
        (folder / "dataset_info.json").write_text("{}")
    return folder


def make_source(path, kind, tables, **options):
    """Make a source of tables at ``path``; the files of an index lie beside it."""
    if kind == "store":
        return write_source(path, tables, **options)
    folder = write_files(path.parent / f"{path.name}-files", kind, tables)
    labels = "labels" if "labels" in tables[0].schema.names else None
    return index_source(folder, labels_column=labels, out=path)
