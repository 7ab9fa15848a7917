"""The version of raypack, alone in its file so that a build reads it without importing anything."""

__version__ = "0.1.0"
