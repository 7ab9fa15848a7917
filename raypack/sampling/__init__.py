"""Which example comes next: the order of an epoch, dealt to ranks, resumed at any world size."""

from raypack.sampling.orders.epoch_order import EpochOrder
from raypack.sampling.orders.explicit_order import ExplicitOrder
from raypack.sampling.sampler import StatefulShardSampler
from raypack.sampling.states.consolidated import ConsolidatedSamplerState
from raypack.sampling.states.rank_state import SamplerState

__all__ = ["ConsolidatedSamplerState", "EpochOrder", "ExplicitOrder", "SamplerState", "StatefulShardSampler"]
