"""Ray Data: the prepare job, and the stream of plans to the train loop."""

from raypack.data.prepare_job import prepare

__all__ = ["prepare"]
