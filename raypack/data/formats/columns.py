"""The kinds of rows, the columns that each needs, and the remedy where one is missing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from raypack.arguments import choice, shown, type_name
from raypack.arguments import text as text_argument
from raypack.errors import PrepareError

# What each kind of row must have, and what it may have.
_ROLES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "text": (("text",), ()),
    "prompt": (("prompt", "completion"), ()),
    "chat": (("messages",), ("tools",)),
    "tokens": (("input_ids",), ("labels", "attention_mask")),
}
ROWS = tuple(_ROLES)
"""Kinds of rows: plain text, a prompt and its completion, a chat, tokens made before."""

_PREFERENCE = {"chosen", "rejected"}


@dataclass(frozen=True, slots=True)
class RowColumns:
    """Where the values of a row are found.

    Attributes:
        rows: The kind of row, one of `ROWS`.
        names: The column of each role, required ones first.
        required: The roles that every row must have.
    """

    rows: str
    names: Mapping[str, str]
    required: tuple[str, ...]

    @property
    def optional(self) -> tuple[str, ...]:
        """The roles that a row may lack."""
        return tuple(role for role in self.names if role not in self.required)

    def missing(self, there: Collection[str]) -> str | None:
        """Say which required column is not there, and what to do.

        Args:
            there: Names of the columns that there are.
        """
        role = next((role for role in self.required if self.names[role] not in there), None)
        if role is None:
            return None
        listed = shown(sorted(there))
        return f"field {self.names[role]!r} is missing (there are {listed}); {self._remedy(role, set(there))}"

    def _remedy(self, role: str, there: set[str]) -> str:
        if there >= _PREFERENCE:
            return (
                "preference pairs are not trained on one answer at a time: use a preference trainer for them "
                "(DPOTrainer of the trl package, say), or write the chosen answers as prompt and completion"
            )
        if self.rows == "text":
            named = "name the one with the text by text_field"
        else:
            named = f"name the one with the {role} by fields={{{role!r}: ...}}"
        fitting = [kind for kind in ROWS if kind != self.rows and there >= set(_ROLES[kind][0])]
        return f"{named}, or choose rows {fitting[0]!r}" if fitting else named


def row_columns(rows: str, text_field: str, fields: Mapping[str, str] | None) -> RowColumns:
    """Settle the columns of a job.

    Args:
        rows: The kind of row.
        text_field: The column of the role ``text``.
        fields: The column of each other role that is not named like its role.

    Raises:
        TypeError: an argument has a wrong type.
        PrepareError: ``rows`` is no kind, or a role is none of this kind's.
    """
    required, optional = _ROLES[choice("rows", rows, ROWS, error=PrepareError)]
    names = {role: role for role in (*required, *optional)}
    text_argument("text_field", text_field, error=PrepareError)
    if rows == "text":
        names["text"] = text_field
    given = {} if fields is None else fields
    if not isinstance(given, Mapping):
        raise TypeError(f"fields must map str to str, got {type_name(fields)}")
    for role, name in given.items():
        if role not in names or rows == "text":
            known = "none: use text_field" if rows == "text" else ", ".join(map(repr, names))
            raise PrepareError(f"fields of rows {rows!r} must be {known}; got {shown(role)}")
        names[role] = text_argument(f"fields[{role!r}]", name, error=PrepareError)
    # Who names an optional column wants it.
    asked = (*required, *(role for role in optional if role in given))
    return RowColumns(rows, names, asked)
