"""Exporters for each attention backend, the choice of a backend, and the test that it isolates."""
