"""A configuration as written: scalars, sequences and mappings, each knowing where it stands.

The file becomes such a tree; environment and command line are put over it; only then is it read by type. Plain scalars
are classified by the YAML 1.2 core rules, and every text on which YAML 1.1 and 1.2 (or two readers) disagree is a
*surprise* that the file must not contain unquoted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum, auto

from jobmaster.settings.masking import show_value
from jobmaster.settings.origins import Origin


class Style(StrEnum):
    """How a scalar was written."""

    PLAIN = auto()
    """Unquoted in YAML: its type follows from its text."""
    QUOTED = auto()
    """In quotes, or a ``|``/``>`` block: always text."""
    RAW = auto()
    """From the environment, the command line or an interpolation: whatever the key needs."""
    BROKEN = auto()
    """Reported already; no further problem is reported for it."""


@dataclass(frozen=True, slots=True)
class ScalarNode:
    """``shown`` is what an error may quote: for an interpolated scalar the text with ``${...}``, not what it held."""

    text: str
    style: Style
    origin: Origin
    shown: str


@dataclass(frozen=True, slots=True)
class SequenceNode:
    """A list."""

    items: list[Node]
    origin: Origin


@dataclass(frozen=True, slots=True)
class Entry:
    """One key of a mapping with its value; ``origin`` is the place of the key."""

    origin: Origin
    value: Node


@dataclass(frozen=True, slots=True)
class MappingNode:
    """A mapping; keys are text."""

    entries: dict[str, Entry] = field(default_factory=dict)
    origin: Origin = field(kw_only=True)


Node = ScalarNode | SequenceNode | MappingNode


class PlainKind(StrEnum):
    """What an unquoted scalar is."""

    NULL = "nothing"
    BOOLEAN = "a boolean"
    INTEGER = "a number"
    NUMBER = "a number with a fraction"
    TEXT = "text"


_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_NUMBER = re.compile(r"[-+]?(?:(?:0|[1-9][0-9]*)\.[0-9]*|\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?[eE][-+]?[0-9]+)")
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLEANS = frozenset({"true", "True", "TRUE", "false", "False", "FALSE"})

_OLD_BOOLEAN = re.compile(r"(?i)y|yes|n|no|on|off")
_SURPRISES = (
    (
        re.compile(r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?"),
        "YAML 1.1 reads it as a number to base 60",
        "write a duration such as 90s or 1h30m, or quote it",
    ),
    (
        re.compile(r"[-+]?0[0-9_]+"),
        "YAML 1.1 reads it as an octal number",
        "write the number without leading zeros, or quote it",
    ),
    (
        re.compile(r"[-+]?0(?:x[0-9A-Fa-f_]+|o[0-7_]+|b[01_]+)"),
        "not every reader of YAML takes it for a number",
        "write the number in decimal digits, or quote it",
    ),
    (
        re.compile(r"[-+]?[0-9][0-9_]*_[0-9_]*(?:\.[0-9_]*)?"),
        "YAML 1.1 drops the underscores",
        "write the number without underscores, or quote it",
    ),
    (
        re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:[Tt ].*)?", re.DOTALL),
        "YAML 1.1 reads it as a date",
        "quote it",
    ),
    (re.compile(r"(?i)[-+]?\.(?:inf|nan)"), "it is no finite number", "write a number"),
    (re.compile(r"="), "YAML 1.1 reads it as a value tag", "quote it"),
)


def classify_plain(text: str) -> PlainKind:
    """Type of an unquoted scalar by the YAML 1.2 core rules (without the surprises below)."""
    if text in _NULLS:
        return PlainKind.NULL
    if text in _BOOLEANS:
        return PlainKind.BOOLEAN
    if _INTEGER.fullmatch(text):
        return PlainKind.INTEGER
    if _NUMBER.fullmatch(text):
        return PlainKind.NUMBER
    return PlainKind.TEXT


def find_surprise(text: str) -> tuple[str, str] | None:
    """What is surprising about an unquoted scalar and how to write it instead; ``None`` for the unsurprising."""
    if _OLD_BOOLEAN.fullmatch(text):
        word = "true" if text.lower() in {"y", "yes", "on"} else "false"
        return "YAML 1.1 reads it as a boolean", f'write {word}, or "{text}" in quotes if the text is meant'
    for pattern, meaning, hint in _SURPRISES:
        if pattern.fullmatch(text):
            return meaning, hint
    return None


def is_null(node: Node) -> bool:
    """True for a key without a value."""
    return isinstance(node, ScalarNode) and node.style is Style.PLAIN and classify_plain(node.text) is PlainKind.NULL


_BARE_PATH = re.compile(r"[A-Za-z0-9_-]+")


def join_path(path: str, key: str | int) -> str:
    """``agents`` + ``payroll`` -> ``agents.payroll``; a key that would blur the path is put in quotes."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    if not _BARE_PATH.fullmatch(key):
        key = show_value(key)
    return f"{path}.{key}" if path else key
