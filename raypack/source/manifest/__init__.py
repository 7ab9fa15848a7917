"""The manifest: the one file that makes a folder a source."""
