"""Which example comes next: the order of an epoch, dealt to ranks, resumed at any world size."""

from raypack.sampling.order import EpochOrder

__all__ = ["EpochOrder"]
