"""What all tests share: quiet settings, small sources."""

import os

import hypothesis
import numpy as np
import pytest

os.environ.setdefault("RAY_DATA_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("RAY_TRAIN_METRICS_ENABLED", "0")
os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.5")
os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
os.environ["RAYPACK_STRICT"] = "1"  # Ray's processes inherit it

hypothesis.settings.register_profile("raypack", deadline=None, max_examples=60)
hypothesis.settings.load_profile("raypack")


def documents_table(lengths, seed=0, labels=False, vocabulary=97):
    """Documents of given lengths: the first token of each is its number modulo the vocabulary."""
    import pyarrow as pa

    rng = np.random.default_rng(seed)
    lengths = np.asarray(lengths, np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    ids = rng.integers(0, vocabulary, offsets[-1]).astype(np.int32)
    ids[offsets[:-1]] = np.arange(len(lengths)) % vocabulary
    columns = {"input_ids": pa.LargeListArray.from_arrays(offsets, ids)}
    if labels:
        masked = np.where(rng.random(len(ids)) < 0.3, -100, ids).astype(np.int32)
        columns["labels"] = pa.LargeListArray.from_arrays(offsets, masked)
    return pa.table(columns)


@pytest.fixture
def lenient(monkeypatch):
    """Let this process go on where it would for users: failures that a run survives are logged."""
    monkeypatch.setenv("RAYPACK_STRICT", "0")


@pytest.fixture
def make_source(tmp_path):
    """Write a source with documents of given lengths and return it."""
    from raypack.source import write_source

    def make(lengths, name="source", **options):
        return write_source(str(tmp_path / name), [documents_table(lengths, **options)])

    return make


def long_tailed(count, seed=0, low=1, high=64, median=12.0):
    """Lengths with a long tail, int64, shape (count,)."""
    rng = np.random.default_rng(seed)
    return np.clip(rng.lognormal(np.log(median), 0.8, count).astype(np.int64), low, high)
