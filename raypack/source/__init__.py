"""What there is: the Arrow store of examples, its manifest and its fingerprint."""

from raypack.source.change import describe_change
from raypack.source.index.build import index_source
from raypack.source.manifest.record import SourceManifest
from raypack.source.store.arrow_source import ArrowSource, open_source
from raypack.source.store.writer import write_source

__all__ = ["ArrowSource", "SourceManifest", "describe_change", "index_source", "open_source", "write_source"]
