"""Shards in use: all that are memory-mapped, and the last few that had to be decoded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock

from raypack.source.store.shards import Shard

DECODED_BYTES = 256 << 20
"""Bytes of decoded shards that are kept; one larger shard is kept alone."""


class ShardCache:
    """Loads each shard when it is first asked for; safe to use from several threads.

    Attributes:
        mapped: The memory-mapped shards that were loaded, by number; None where one was not, or had to be
            decoded.
    """

    def __init__(self, load: Callable[[int], Shard], count: int) -> None:
        self._load = load
        self._decoded: OrderedDict[int, Shard] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()
        self.mapped: list[Shard | None] = [None] * count

    def get(self, number: int) -> Shard:
        """Return a shard."""
        shard = self.mapped[number]
        if shard is not None:
            return shard
        with self._lock:
            if number in self._decoded:
                self._decoded.move_to_end(number)
                return self._decoded[number]
        # Two threads may both load it; either one serves.
        shard = self._load(number)
        if shard.is_mapped:
            self.mapped[number] = shard
        else:
            self._keep(number, shard)
        return shard

    def _keep(self, number: int, shard: Shard) -> None:
        with self._lock:
            if number in self._decoded:
                return
            self._decoded[number] = shard
            self._bytes += _size(shard)
            while self._bytes > DECODED_BYTES and len(self._decoded) > 1:
                self._bytes -= _size(self._decoded.popitem(last=False)[1])


def _size(shard: Shard) -> int:
    labels = 0 if shard.labels is None else shard.labels.nbytes
    return shard.input_ids.nbytes + labels + shard.starts.nbytes + shard.ends.nbytes
