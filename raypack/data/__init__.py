"""Ray Data: the prepare job, the stream of plans to the train loop, collation of datasets of one's own."""

from raypack.data.device_collate import DeviceCollate
from raypack.data.ingest.job import prepare
from raypack.tokenizers import TextTokenizer, TiktokenTokenizer

__all__ = ["DeviceCollate", "TextTokenizer", "TiktokenTokenizer", "prepare"]
