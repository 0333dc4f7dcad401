"""Rules for names of handlers, lanes, tags and resources."""

from __future__ import annotations

import re
from collections.abc import Sequence

from jobmaster.model.errors import InputError

NAME_CHARS_MAX = 200
LANE = re.compile(r"[a-z0-9][a-z0-9_-]{0,47}")
"""As in the configuration: 1 to 48 lower-case letters, digits, _ and -, the first a letter or digit."""


def check_lane(lane: object) -> str:
    """The lane; ``InputError`` when it is no name of one."""
    if not isinstance(lane, str) or not LANE.fullmatch(lane):
        raise InputError(
            f"{lane!r} is not the name of a lane",
            hint="1 to 48 lower-case letters, digits, _ and -, the first a letter or digit",
        )
    return lane


def check_name(value: object, what: str, chars_max: int = NAME_CHARS_MAX) -> str:
    """A name that is shown in lists: printable (no NUL, no line break, no surrogate), not empty, bounded.

    Raises:
        InputError: with ``what`` and the offending character.
    """
    if not isinstance(value, str):
        raise InputError(f"{what} must be text, not {type(value).__name__}")
    if not value:
        raise InputError(f"{what} is empty")
    if len(value) > chars_max:
        raise InputError(f"{what} has {len(value)} characters, the limit is {chars_max}")
    if not value.isprintable():
        bad = next(char for char in value if not char.isprintable())
        raise InputError(
            f"{what} contains the character U+{ord(bad):04X} at position {value.index(bad)}",
            hint="only printable characters are allowed in names",
        )
    return value


def check_tags(value: object, whose: str, count_max: int, chars_max: int) -> tuple[str, ...]:
    """Tags of a job or of a schedule; ``None`` is none.

    Raises:
        InputError: no list, too many, or one of them is no name.
    """
    if value is None:
        return ()
    if isinstance(value, str) or not isinstance(value, Sequence | set | frozenset):
        raise InputError(f"'tags' must be a list of texts, not {value!r}")
    if len(value) > count_max:
        raise InputError(f"a {whose} may have {count_max} tags, {len(value)} are given")
    return tuple(check_name(tag, f"tag {tag!r}", chars_max) for tag in value)
