"""Ray Data: the prepare job, and the stream of plans to the train loop."""

from raypack.data.prepare_job import prepare
from raypack.data.tokenizers import TextTokenizer, TiktokenTokenizer

__all__ = ["TextTokenizer", "TiktokenTokenizer", "prepare"]
