"""``did you mean X?``: the known word that is nearest to a misspelt one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

WORD_CHARS_MAX = 64
"""Longer words get no suggestion: the comparison costs more than a suggestion helps."""


def did_you_mean(word: str, known: Iterable[str], *, quote: str = "'") -> str | None:
    """``did you mean 'X'?`` for the nearest known word, whatever its case; ``None`` when no word is near."""
    if len(word) > WORD_CHARS_MAX:
        return None
    candidates = {_fold(candidate): candidate for candidate in known}
    close = difflib.get_close_matches(_fold(word), candidates, n=1)
    return f"did you mean {quote}{candidates[close[0]]}{quote}?" if close else None


def _fold(word: str) -> str:
    return word.lower().replace("-", "_")
