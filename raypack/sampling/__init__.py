"""Which example comes next: the order of an epoch, dealt to ranks, resumed at any world size."""

from raypack.sampling.consolidated import ConsolidatedSamplerState
from raypack.sampling.explicit import ExplicitOrder
from raypack.sampling.order import EpochOrder
from raypack.sampling.sampler import StatefulShardSampler
from raypack.sampling.state import SamplerState

__all__ = ["ConsolidatedSamplerState", "EpochOrder", "ExplicitOrder", "SamplerState", "StatefulShardSampler"]
