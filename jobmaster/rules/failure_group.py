"""Which failures are of one kind. The master decides likewise (``error_line``, ``error_fingerprint``).

Source of the idea: error trackers group by the place, the type and the message without what differs from case to case.
"""

from __future__ import annotations

import hashlib
import re

from jobmaster.model.job import SEALED_TEXT_PREFIX

LINE_CHARS_MAX = 200
FINGERPRINT_CHARS = 12
SEALED_LINE = SEALED_TEXT_PREFIX.removesuffix(":")
"""Line of every sealed message: each is sealed for its job alone, and no two are alike."""
_VARIES = re.compile(
    r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|0x[0-9a-fA-F]+"
    r"|\b(?=[0-9a-fA-F]*[0-9])[0-9a-fA-F]{7,}\b|[0-9]+"
)


def error_line(message: str) -> str:
    """What the messages of one kind of failure have in common: the first line, with ``#`` in the place of ids and numbers.
    Sealed messages have ``SEALED_LINE``."""
    if message.startswith(SEALED_TEXT_PREFIX):
        return SEALED_LINE
    return _VARIES.sub("#", message.split("\n", 1)[0][:LINE_CHARS_MAX])


def error_fingerprint(handler: str, error_type: str, message: str) -> str:
    """Short hash of the handler, the type of the error and that line; twelve hexadecimal digits."""
    text = "\n".join((handler, error_type, error_line(message)))
    return hashlib.sha256(text.encode()).hexdigest()[:FINGERPRINT_CHARS]
