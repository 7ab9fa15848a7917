"""Making a packed batch on the host: the one piece of work that every token costs in the train process.

    python bench/bench_collate.py [--tokens 16384] [--median 400] [--repeats 15]

Times are microseconds a batch, the best and the median of the repeats; rates are of the best.
"""

import argparse
import timeit

import numpy as np
import pyarrow as pa

from raypack.collate import PackedBatch
from raypack.data.device_collate import DeviceCollate


def lengths_of(tokens, median, seed=0):
    """Lengths of a long-tailed mix that add up to ``tokens``."""
    rng = np.random.default_rng(seed)
    drawn = np.clip(rng.lognormal(np.log(median), 1.0, tokens), 1, tokens).astype(np.int64)
    ends = np.minimum(np.cumsum(drawn), tokens)
    edges = np.concatenate([[0], ends[: int(np.argmax(ends == tokens)) + 1]])
    return np.diff(edges).astype(np.int32)


def row(name, make, tokens, repeats):
    make()
    times = sorted(1e6 * each / 100 for each in timeit.repeat(make, number=100, repeat=repeats))
    best, median = times[0], times[len(times) // 2]
    print(f"{name:44}{best:9.1f}{median:9.1f}{tokens / best:12,.0f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--median", type=int, default=400, help="tokens of a document")
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    lengths = lengths_of(options.tokens, options.median)
    rng = np.random.default_rng(1)
    ids = rng.integers(0, 50_000, options.tokens, dtype=np.int32)
    labels = np.where(rng.random(options.tokens) < 0.3, -100, ids).astype(np.int32)
    indices = np.arange(len(lengths))
    spare = {"pad_to": options.tokens, "pad_documents_to": 2 * len(lengths)}
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int64())
    columns = {
        name: pa.LargeListArray.from_arrays(offsets, pa.array(values))
        for name, values in (("input_ids", ids), ("labels", labels))
    }
    table, collate = pa.table(columns), DeviceCollate(device="cpu")

    def flat(**more):
        return lambda: PackedBatch.from_flat(ids, lengths, indices=indices, device="cpu", **more)

    print(f"{options.tokens} tokens, {len(lengths)} documents, int32 ids")
    print(f"{'':44}{'best us':>9}{'median':>9}{'M tokens/s':>12}")
    for name, make in (
        ("from_flat", flat()),
        ("from_flat, labels", flat(labels=labels)),
        ("from_flat, fixed tokens and documents", flat(**spare)),
        ("from_flat, padded", flat(layout="padded")),
        ("DeviceCollate, large_list and labels", lambda: collate(table)),
    ):
        row(name, make, options.tokens, options.repeats)


if __name__ == "__main__":
    main()
