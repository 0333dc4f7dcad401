"""Masks secrets: a text that may be a password in a DSN or URL becomes ``***`` in every output of the loader.

When in doubt, the text is masked. A password may hold ``/``, ``:``, ``@`` or ``#`` unescaped, so everything from the first
colon after the scheme to the *last* ``@`` is replaced (a regular expression for user:password stopped at the first ``@`` and
showed the rest).
"""

from __future__ import annotations

import json
import re

MASK = "***"
SHOWN_CHARS_MAX = 80

_SCHEME = re.compile(r"[A-Za-z0-9+.-]{1,32}\Z")
# No expression here may backtrack over the text it has read: a wrong value can be as long as a whole file.
_KEYED = re.compile(
    r"(?i)((?:password|passwd|passphrase|pwd|secret|token)\s*[=:]\s*)('(?:[^'\\]|\\.)*'?|\"(?:[^\"\\]|\\.)*\"?|(?:[^\s&\\]|\\.)+)"
)
_TOKEN_SCHEMES = (
    "redis",
    "rediss",
    "redis+sentinel",
    "rediss+sentinel",
    "redis+cluster",
    "rediss+cluster",
    "unix",
    "valkey",
    "valkeys",
)


def mask_secrets(text: str) -> str:
    """The same text with every password of a URL or of ``password=...`` replaced by ``***``."""
    scheme = _scheme_of(text)
    start = text.find("://") + 3 if scheme else 0
    last_at = text.rfind("@")
    if last_at >= start:
        colon = text.find(":", start, last_at)
        if colon >= 0:
            text = f"{text[: colon + 1]}{MASK}{text[last_at:]}"
        elif scheme in _TOKEN_SCHEMES:
            # A single word before the @ of a Redis URL is more often a pasted password than a user.
            text = f"{text[:start]}{MASK}{text[last_at:]}"
    return _KEYED.sub(rf"\1{MASK}", text)


def _scheme_of(text: str) -> str:
    """Text before the first ``://``, in lower case; empty when there is none."""
    end = text.find("://")
    match = _SCHEME.search(text[max(end - 32, 0) : end]) if end > 0 else None
    return match.group().lower() if match else ""


def one_line(text: str) -> str:
    """The same text without line ends and control characters, which could forge lines of a log: they are escaped."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else json.dumps(character)[1:-1] for character in text)


def show_value(text: str) -> str:
    """A value as an error may quote it: masked, cut to one line of bounded length, control characters escaped."""
    masked = mask_secrets(text)
    if len(masked) > SHOWN_CHARS_MAX:
        masked = f"{masked[:SHOWN_CHARS_MAX]}..."
    return json.dumps(masked, ensure_ascii=not masked.isprintable())
