"""The bins that are open in a best fit, in order of the room that is left in them."""

from __future__ import annotations

from bisect import bisect_left, insort

_BLOCK = 1_024
BIN_BITS = 32
_BIN_MASK = (1 << BIN_BITS) - 1


class Rooms:
    """A sorted multiset of (room, bin), kept in short sorted lists.

    Each operation moves a thousand entries at most, so that filling n bins never costs n².
    """

    __slots__ = ("_blocks", "_lasts")

    def __init__(self, rooms: list[int]) -> None:
        """Begin with bins 0, 1, … and the room in each, tokens."""
        keys = sorted(room << BIN_BITS | number for number, room in enumerate(rooms))
        self._blocks = [keys[first : first + _BLOCK] for first in range(0, len(keys), _BLOCK)]
        self._lasts = [block[-1] for block in self._blocks]

    def take(self, needed: int) -> tuple[int, int] | None:
        """Take out the bin with the least room that is ``needed`` or more; of equal ones the lowest.

        Returns:
            Its room and its number, or None where no bin has as much.
        """
        least = needed << BIN_BITS
        at = bisect_left(self._lasts, least)
        if at == len(self._lasts):
            return None
        block = self._blocks[at]
        key = block.pop(bisect_left(block, least))
        if not block:
            del self._blocks[at], self._lasts[at]
        elif key > block[-1]:
            self._lasts[at] = block[-1]
        return key >> BIN_BITS, key & _BIN_MASK

    def put(self, room: int, number: int) -> None:
        """Add a bin with its room."""
        key = room << BIN_BITS | number
        if not self._blocks:
            self._blocks, self._lasts = [[key]], [key]
            return
        at = min(bisect_left(self._lasts, key), len(self._lasts) - 1)
        block = self._blocks[at]
        insort(block, key)
        self._lasts[at] = block[-1]
        if len(block) > 2 * _BLOCK:
            self._blocks.insert(at, block[:_BLOCK])
            self._lasts.insert(at, block[_BLOCK - 1])
            del block[:_BLOCK]
