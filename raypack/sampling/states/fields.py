"""The fields that a rank's record and a consolidated one share, and their checks."""

from __future__ import annotations

import functools
from dataclasses import fields
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from raypack.arguments import choice, integer, optional_integer, shown, text, type_name
from raypack.choices import SHUFFLES
from raypack.errors import SamplerError
from raypack.sampling.orders.epoch_order import SEED_LIMIT, EpochOrder
from raypack.sampling.orders.explicit_order import ExplicitOrder
from raypack.sampling.orders.permutation import MAXIMUM_SIZE
from raypack.sampling.shard import TAILS
from raypack.sampling.states.encoding import decode_increasing, encode_increasing
from raypack.sampling.states.records import build, read_fields, read_integer

Order = EpochOrder | ExplicitOrder

_Record = TypeVar("_Record", bound="OrderRecord")


class OrderRecord:
    """Base of the frozen records: what they all say of the source and the order, checked and saved alike."""

    __slots__ = ()

    RECORD: ClassVar[str]
    """What the record is called in messages."""

    source_id: str
    source_length: int
    epoch: int
    seed: int | None
    tail: str
    shuffle: str
    order: ExplicitOrder | None
    order_digest: str
    epoch_size: int
    head: NDArray[np.int64]

    def check_source(self) -> None:
        """Check the fields one by one and bring them to Python's own types."""
        put = functools.partial(object.__setattr__, self)
        text("source_id", self.source_id)
        put("source_length", integer("source_length", self.source_length, minimum=0, maximum=MAXIMUM_SIZE))
        put("epoch", integer("epoch", self.epoch, minimum=0, maximum=SEED_LIMIT - 1))
        put("seed", optional_integer("seed", self.seed, minimum=0, maximum=SEED_LIMIT - 1))
        choice("tail", self.tail, TAILS)
        choice("shuffle", self.shuffle, SHUFFLES)
        put("epoch_size", integer("epoch_size", self.epoch_size, minimum=0, maximum=self.source_length))
        if self.tail == "uneven" and self.epoch_size != self.source_length:
            raise SamplerError(
                f"epoch_size must be the source's length {self.source_length} under tail 'uneven', "
                f"got {self.epoch_size}"
            )

    def check_order(self) -> None:
        """Compute the order's digest at its fixed positions and compare it with the recorded one."""
        text("order_digest", self.order_digest)
        found = self.epoch_order().digest()
        if found != self.order_digest:
            raise SamplerError(
                f"order_digest must be {found} for this seed, epoch and length, got "
                f"{shown(self.order_digest)}; the record is damaged or another algorithm made its order"
            )

    def epoch_order(self) -> Order:
        """Return the order that the record names."""
        return make_order(self.source_length, self.seed, self.epoch, self.shuffle, self.order)

    def to_dict(self) -> dict[str, Any]:
        """Return the record as a JSON-safe dict."""
        record = {name: getattr(self, name) for name in self._names()}
        record["head"] = encode_increasing(self.head)
        record["order"] = None if self.order is None else self.order.to_dict()
        return record

    @classmethod
    def from_dict(cls: type[_Record], value: object) -> _Record:
        """Read what `to_dict` gave.

        Raises:
            SamplerError: ``value`` is anything else.
        """
        record = read_fields(cls.RECORD, value, cls._names())
        length = read_integer(cls.RECORD, "source_length", record["source_length"], MAXIMUM_SIZE)
        record["head"] = decode_increasing("head", record["head"], length)
        if record["order"] is not None:
            record["order"] = ExplicitOrder.from_dict(record["order"], length)
        return build(cls.RECORD, cls, record)

    def __eq__(self, other: object) -> bool:
        """Compare by value."""
        if not isinstance(other, OrderRecord) or type(other) is not type(self):
            return NotImplemented
        return self._values() == other._values()

    def __hash__(self) -> int:
        """Hash by value."""
        return hash(self._values())

    @classmethod
    def _names(cls) -> tuple[str, ...]:
        return tuple(field.name for field in fields(cls))  # type: ignore[arg-type]

    def _values(self) -> tuple[Any, ...]:
        values = tuple(getattr(self, name) for name in self._names() if name != "head")
        return (*values, self.head.tobytes())


def make_order(
    length: int, seed: int | None, epoch: int, shuffle: str, explicit: ExplicitOrder | None
) -> Order:
    """Return the explicit order where there is one, else the computed one.

    Raises:
        SamplerError: the explicit order has another length, or a seed beside it.
    """
    if explicit is None:
        return EpochOrder(length, seed=seed, epoch=epoch, shuffle=shuffle)
    if not isinstance(explicit, ExplicitOrder):
        raise TypeError(f"order must be an ExplicitOrder, got {type_name(explicit)}")
    if seed is not None:
        raise SamplerError(f"order excludes a seed, got seed {seed}; give one of the two")
    if explicit.length != length:
        raise SamplerError(
            f"order must have one index per example of the source, {length}, got {explicit.length}"
        )
    return explicit


def check_head(head: object, size: int, tail_start: int) -> NDArray[np.int64]:
    """Return a head as a read-only array of its own.

    Args:
        head: (size,) integers, strictly increasing, in [0, tail_start).
        size: How many there must be.
        tail_start: Where the tail begins.

    Raises:
        TypeError: ``head`` holds no integers.
        SamplerError: its size, order or range is wrong.
    """
    array = np.asarray(head)
    if array.dtype.kind not in "iu" and array.size:
        raise TypeError(f"head must hold integers, got dtype {array.dtype}")
    if array.shape != (size,):
        raise SamplerError(f"head must have {size} positions, got shape {array.shape}")
    own = np.array(array, dtype=np.int64)
    if size and (int(own[0]) < 0 or int(own[-1]) >= tail_start or not (own[1:] > own[:-1]).all()):
        raise SamplerError(f"head must increase strictly within [0, {tail_start}), got {shown(own)}")
    own.flags.writeable = False
    return own
