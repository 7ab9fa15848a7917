"""What was really trained, in three numbers that need no order and no list.

The hash is a sum modulo 2^64 of keyed hashes of the indices: it is the same whoever trained an
example and when, parts of it add up over ranks, and a missing or doubled example changes it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raypack.arguments import integer
from raypack.arrays import read_only

_WRAP = 2**64
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_STRIDE = np.uint64(0x9E3779B97F4A7C15)


def receipt_key(source_id: str, epoch: int) -> int:
    """Return the 64-bit key of an epoch's receipts."""
    digest = hashlib.blake2b(f"raypack receipt 1\n{epoch}\n{source_id}".encode(), digest_size=8)
    return int.from_bytes(digest.digest(), "little")


def index_hashes(key: int, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """Return the keyed hash of each index, uint64, the shape of ``indices``.

    The mixing is the finaliser of SplitMix64 (Steele, Lea, Flood 2014), a bijection of 64 bits, so
    two indices never share a hash.
    """
    mixed = np.asarray(indices).astype(np.uint64)
    mixed = mixed * _STRIDE + np.uint64(key)
    mixed ^= mixed >> np.uint64(30)
    mixed *= _FIRST
    mixed ^= mixed >> np.uint64(27)
    mixed *= _SECOND
    mixed ^= mixed >> np.uint64(31)
    return mixed


@dataclass(frozen=True, slots=True)
class Receipt:
    """Count, tokens and order-free hash of trained examples."""

    examples: int = 0
    """Examples trained; one that was trained twice counts twice."""
    tokens: int = 0
    """Their tokens."""
    hash: int = 0
    """Sum modulo 2^64 of the keyed hashes of their indices."""

    def __post_init__(self) -> None:
        for name, maximum in (("examples", 2**63), ("tokens", 2**63), ("hash", _WRAP - 1)):
            value = integer(f"receipt.{name}", getattr(self, name), minimum=0, maximum=maximum)
            object.__setattr__(self, name, value)

    @classmethod
    def of(cls, key: int, indices: npt.NDArray[np.int64], tokens: int) -> Receipt:
        """Return the receipt of some examples, each trained once."""
        from raypack.sampling.kernels.receipt import hash_sum

        return cls(len(indices), tokens, int(hash_sum(np.uint64(key), read_only(indices, np.int64))))

    def __add__(self, other: Receipt) -> Receipt:
        return Receipt(
            self.examples + other.examples, self.tokens + other.tokens, (self.hash + other.hash) % _WRAP
        )
