"""Patterns of file names, the same for every file system."""

from __future__ import annotations

import re
from collections.abc import Iterable

_URI = re.compile(r"^[A-Za-z][A-Za-z0-9+.\-]*(://|::)")


def split_pattern(text: str) -> tuple[str, str] | None:
    """Split an input at the first folder with a pattern in its name.

    Args:
        text: A path or URI. In a URI, ``?`` begins the options, so it is no pattern there.

    Returns:
        The folder that holds all matches, with the options of a URI, and the pattern inside it; None where
        there is no pattern.
    """
    options = ""
    magic = r"[*?\[]"
    if _URI.match(text):
        text, mark, tail = text.partition("?")
        options = mark + tail
        magic = r"[*\[]"
    found = re.search(magic, text)
    if found is None:
        return None
    cut = text.rfind("/", 0, found.start()) + 1
    folder = text[:cut] or "."
    return folder + options, text[cut:]


def match_paths(paths: Iterable[str], pattern: str) -> list[str]:
    """Return the paths that match: ``*`` and ``?`` stay within a name, ``**`` goes through folders.

    Raises:
        ValueError: ``pattern`` is none, such as ``[z-a]``.
    """
    try:
        rule = re.compile(_expression(pattern))
    except re.error as error:
        raise ValueError(f"{pattern!r} is no pattern of file names: {error}") from error
    return [path for path in paths if rule.fullmatch(path)]


def _expression(pattern: str) -> str:
    parts = []
    at = 0
    while at < len(pattern):
        if pattern.startswith("**/", at):
            parts.append("(?:.*/)?")
            at += 3
        elif pattern.startswith("**", at):
            parts.append(".*")
            at += 2
        else:
            piece, at = _one(pattern, at)
            parts.append(piece)
    return "".join(parts)


def _one(pattern: str, at: int) -> tuple[str, int]:
    """Return the expression of one sign of a pattern and where the next begins."""
    sign = pattern[at]
    if sign == "*":
        return "[^/]*", at + 1
    if sign == "?":
        return "[^/]", at + 1
    # A bracket right after the opening one, or after its "!", is a member.
    end = pattern.find("]", at + 2 + (pattern[at + 1 : at + 2] == "!")) if sign == "[" else -1
    if end < 0:
        return re.escape(sign), at + 1
    members = pattern[at + 1 : end].replace("\\", "\\\\").replace("^", "\\^").replace("[", "\\[")
    negated = members.startswith("!")
    return f"(?!/)[{'^' if negated else ''}{members[negated:].replace(']', chr(92) + ']')}]", end + 1
