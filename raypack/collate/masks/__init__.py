"""Attention masks on any device, computed from the boundaries of documents."""
