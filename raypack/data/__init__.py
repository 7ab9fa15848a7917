"""Ray Data: the prepare job, and the stream of plans to the train loop."""

from raypack.data.prepare_job import prepare
from raypack.data.tokenizers import TextTokenizer

__all__ = ["TextTokenizer", "prepare"]
