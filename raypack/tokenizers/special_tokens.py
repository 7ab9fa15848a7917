"""Which special tokens stand before and after a text, and who puts them there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from raypack.arguments import type_name
from raypack.errors import PrepareError
from raypack.tokenizers import TextTokenizer
from raypack.tokenizers.base import Encoded

_PROBES = ("a", "b", "7 c")

Choice = bool | str | None
"""None: as the tokenizer does by itself; True or a token's text: that one token; False: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialTokens:
    """The rule for one job, the same for every text.

    Attributes:
        own: Whether the tokenizer does it by itself; then ``before`` and ``after`` are not used.
        before: Ids put before each text.
        after: Ids put after it.
    """

    own: bool
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    @property
    def record(self) -> str:
        """The rule as the manifest says it."""
        if self.own:
            return "the tokenizer's own"
        parts = [("before", self.before), ("after", self.after)]
        chosen = [f"{', '.join(map(str, ids))} {side}" for side, ids in parts if ids]
        return "; ".join(chosen) or "none"


def check_choice(name: str, value: Choice) -> None:
    """Raise TypeError or PrepareError where ``value`` is no choice of ``bos`` or ``eos``."""
    if value is not None and not isinstance(value, (bool, str)):
        raise TypeError(f"{name} must be a bool, the text of a token, or None, got {type_name(value)}")
    if value == "":
        raise PrepareError(f"{name} must be True, False or the text of a token, got ''")


def choose_special_tokens(
    tokenizer: TextTokenizer, bos: Choice, eos: Choice, *, answers: bool
) -> SpecialTokens:
    """Settle the rule.

    Args:
        tokenizer: Who knows the tokens.
        bos: What stands before a text.
        eos: What stands after it.
        answers: Whether texts end with an answer, which a model must learn to end: then EOS is added where
            ``eos`` is None and the tokenizer adds nothing by itself.

    Raises:
        PrepareError: a chosen token is not known, or the tokenizer's own ones cannot be told from a text.
    """
    if bos is None and eos is None and not answers:
        return SpecialTokens(own=tokenizer.special_tokens)
    needs_own = tokenizer.special_tokens and (bos is None or eos is None)
    before, after = _own(tokenizer) if needs_own else ((), ())
    if eos is None and answers and not after:
        eos = True
    return SpecialTokens(
        own=False,
        before=_chosen(tokenizer, "bos", bos, tokenizer.bos_id, before),
        after=_chosen(tokenizer, "eos", eos, tokenizer.eos_id, after),
    )


def _own(tokenizer: TextTokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return what the tokenizer puts before and after a text by itself."""
    # A probe may look like what stands around it, but not all of them do in the same way.
    splits = set.intersection(*(_splits(tokenizer, probe) for probe in _PROBES))
    if len(splits) != 1:
        raise PrepareError(
            f"the special tokens of tokenizer {tokenizer.kind!r} cannot be told from the text; "
            "choose both bos and eos"
        )
    return splits.pop()


def _splits(tokenizer: TextTokenizer, probe: str) -> set[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return every pair of what may stand before and after a probe's own tokens."""
    whole, plain = tokenizer.encode([probe])[1].tolist(), tokenizer.encode_plain([probe])[1].tolist()
    size = len(plain)
    return {
        (tuple(whole[:start]), tuple(whole[start + size :]))
        for start in range(len(whole) - size + 1)
        if plain and whole[start : start + size] == plain
    }


def _chosen(
    tokenizer: TextTokenizer, name: str, value: Choice, known: int | None, own: tuple[int, ...]
) -> tuple[int, ...]:
    if value is None:
        return own
    if value is False:
        return ()
    if value is True:
        if known is None:
            raise PrepareError(
                f"tokenizer {tokenizer.kind!r} does not say which token is its {name.upper()}; give {name} "
                f"the text of a token of its vocabulary, or {name}=False for none"
            )
        return (known,)
    number = tokenizer.token_id(value)
    if number is None:
        raise PrepareError(f"{name} must be a token of the vocabulary, got {value!r}, which it does not have")
    return (number,)


def surround(encoded: Encoded, special: SpecialTokens) -> Encoded:
    """Put the special tokens around each text that has a token of its own.

    Args:
        encoded: Lengths (n,) and ids (t,) of plain texts.
        special: The rule.
    """
    lengths, ids = encoded
    extra = len(special.before) + len(special.after)
    if special.own or not extra:
        return encoded
    kept = lengths > 0
    wider = np.where(kept, lengths + extra, 0)
    out = np.empty(int(wider.sum()), np.int32)
    # Where each text with tokens begins and ends in the wider array.
    ends = np.cumsum(wider)[kept]
    starts = ends - wider[kept]
    is_text = np.ones(len(out), bool)
    _put(out, is_text, starts, special.before)
    _put(out, is_text, ends - len(special.after), special.after)
    out[is_text] = ids
    return wider, out


def _put(
    out: NDArray[np.int32], is_text: NDArray[np.bool_], starts: NDArray[np.int64], tokens: tuple[int, ...]
) -> None:
    for offset, token in enumerate(tokens):
        out[starts + offset] = token
        is_text[starts + offset] = False
