"""What changed between the source of a checkpoint and the one at hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raypack.arguments import shown
from raypack.errors import SourceError
from raypack.source.store.arrow_source import ArrowSource

_COUNTS = {"examples": "number of examples", "tokens": "number of tokens"}
_DIGESTS = {"contents": "tokens", "lengths": "lengths", "supervised": "label tokens per example"}


def describe_change(old: Mapping[str, Any], new: ArrowSource) -> str:
    """Say how a source differs from the one that a summary was taken of.

    Args:
        old: What `ArrowSource.summary` returned then.
        new: The source at hand.

    Returns:
        The differences as one line, such as ``tokenizer: 'bytes' -> 'file'; number of examples: 9 -> 8``;
        empty where there is none.

    Raises:
        SourceError: ``old`` is no summary.
    """
    now = new.summary()
    for name, value in now.items():
        if not isinstance(old, Mapping) or type(old.get(name)) is not type(value):
            raise SourceError(f"summary must have a field {name!r} of a source's summary, got {shown(old)}")
    if old["fingerprint"] == now["fingerprint"]:
        return ""
    lines = _differences(old["prepared"], now["prepared"])
    lines += _differences(old["schema"], now["schema"])
    lines += [
        f"{text}: {old[name]} -> {now[name]}" for name, text in _COUNTS.items() if old[name] != now[name]
    ]
    changed = [text for name, text in _DIGESTS.items() if old[name] != now[name]]
    if changed:
        lines.append(f"contents: other {', '.join(changed)}")
    return "; ".join(lines) or "made in another format of the store"


def _differences(old: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    names = [*now, *(name for name in old if name not in now)]
    return [
        f"{name.replace('_', ' ')}: {shown(old.get(name))} -> {shown(now.get(name))}"
        for name in names
        if old.get(name) != now.get(name)
    ]
