"""JSON files that contain their own digest."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from raypack.arguments import shown
from raypack.checkpoint.untrusted_json import parse
from raypack.errors import CheckpointError


def canonical(values: Any) -> str:
    """Return JSON text that is the same for equal values."""
    return json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest_of(values: Any) -> str:
    """Return the hex digest of JSON values, 128 bits."""
    return hashlib.blake2b(canonical(values).encode(), digest_size=16).hexdigest()


def sealed(values: dict[str, Any]) -> bytes:
    """Return values as a JSON file that carries a digest of itself."""
    return (json.dumps({**values, "digest": digest_of(values)}, indent=1, allow_nan=False) + "\n").encode()


def unsealed(data: bytes) -> dict[str, Any]:
    """Return the values of a file that `sealed` wrote.

    Raises:
        CheckpointError: It is cut short, no JSON, beyond every bound of a state, or was changed
            afterwards.
    """
    values = parse(data)
    if not isinstance(values, dict) or "digest" not in values:
        raise CheckpointError("carries no digest of itself")
    digest = values.pop("digest")
    if digest != digest_of(values):
        raise CheckpointError(f"was changed after it was written: its digest says {shown(digest)}")
    return values
