"""Ray Train: the recipe, the loader in the train function, evaluation, reports and the callback."""

from raypack.train.callback import RaypackCallback
from raypack.train.driver.fitting import wrap_trainers
from raypack.train.elastic.restoring import get_good_checkpoint
from raypack.train.elastic.start import get_loader
from raypack.train.evaluation import Evaluation, get_evaluation
from raypack.train.integrations.data_config import PackedDataConfig, PackedShard
from raypack.train.loader import PackedLoader
from raypack.train.recipe import PackedData
from raypack.train.reporting.reports import report
from raypack.train.step import Step

__all__ = [
    "Evaluation",
    "PackedData",
    "PackedDataConfig",
    "PackedLoader",
    "PackedShard",
    "RaypackCallback",
    "Step",
    "get_evaluation",
    "get_good_checkpoint",
    "get_loader",
    "report",
]

wrap_trainers()
