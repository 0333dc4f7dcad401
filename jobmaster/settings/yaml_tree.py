"""The tree of a configuration as written: scalars, sequences and mappings, each with its place; and the reader of YAML.

The file becomes such a tree, environment and command line are put over it, and only then it is read by type. Plain scalars
are classified by the YAML 1.2 core rules. A text on which YAML 1.1 and 1.2 (or two readers) disagree is a *surprise*; the
file must not contain one unquoted.

The reader is built on PyYAML's *events*, not on its composer: it counts the depth while it reads the text, so nesting is
refused before a recursive composer can exhaust the stack, and an alias is refused where it stands, before anything is
expanded. Only a syntax error ends the reading; every other problem is collected.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum, auto
from typing import Protocol

import yaml

from jobmaster.settings.masking import show_value
from jobmaster.settings.problems import Origin, OriginKind, Problem

# ---------------------------------------------------------------- the tree


class Style(StrEnum):
    """How a scalar was written."""

    PLAIN = auto()
    """Unquoted in YAML: its type follows from its text."""
    QUOTED = auto()
    """In quotes, or a ``|``/``>`` block: always text."""
    RAW = auto()
    """From the environment, the command line or an interpolation: read by the type of the key."""
    BROKEN = auto()
    """Reported already; no further problem is reported for it."""


@dataclass(frozen=True, slots=True)
class ScalarNode:
    """One scalar. Errors quote ``shown``: for an interpolated scalar the text with ``${...}``, not the text behind it."""

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
    """One key of a mapping with its value; ``origin`` is that of the key."""

    origin: Origin
    value: Node


@dataclass(frozen=True, slots=True)
class MappingNode:
    """A mapping; keys are text."""

    entries: dict[str, Entry] = field(default_factory=dict)
    origin: Origin = field(kw_only=True)


Node = ScalarNode | SequenceNode | MappingNode


class PlainKind(StrEnum):
    """Type of an unquoted scalar."""

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
    """Why readers disagree about an unquoted scalar, and how to write it instead; ``None`` when they agree."""
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
    """``agents`` + ``payroll`` -> ``agents.payroll``. A key with other characters is quoted."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    if not _BARE_PATH.fullmatch(key):
        key = show_value(key)
    return f"{path}.{key}" if path else key


# ---------------------------------------------------------------- reading

DEPTH_MAX = 16
NODES_MAX = 20_000

_UNREADABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufffe\uffff]")
_HINTS = (
    ("mapping values are not allowed", 'check the indentation, and quote a value that contains ": "'),
    ("found character '\\t'", "a tab stands where YAML wants spaces; indent with spaces"),
    ("found character '@'", "quote a value that starts with @"),
    ("found character '`'", "quote a value that starts with `"),
    ("found character '%'", "quote a value that starts with %"),
    ("could not find expected ':'", "a colon is missing after a key, or the lines of a value are not indented"),
    ("expected <block end>", "the indentation differs from the lines above"),
    ("while scanning a quoted scalar", "a closing quote is missing"),
    ("expected ',' or", "a bracket or brace is not closed; quote ${...} inside brackets and braces"),
    ("expected alphabetic or numeric character", "quote a value that starts with * or &"),
)


class _Mark(Protocol):
    """A place of PyYAML, counted from 0."""

    @property
    def line(self) -> int: ...

    @property
    def column(self) -> int: ...


class _Stop(Exception):
    """Reading cannot go on; the reason is in ``problems``."""


def parse_yaml(text: str, source: Origin) -> tuple[Node | None, list[Problem]]:
    """Node tree of one document (``None`` for an empty one or after a syntax error) and its problems.

    Args:
        text: decoded YAML.
        source: origin that places are derived from; only files get lines and columns.
    """
    reader = _Reader(source)
    try:
        root = reader.read(text)
    except _Stop:
        root = None
    return root, reader.problems


class _Reader:
    """Turns the event stream of one document into nodes."""

    def __init__(self, source: Origin) -> None:
        self.source = source
        self.problems: list[Problem] = []
        self.nodes = 0
        self.mark: _Mark | None = None

    def read(self, text: str) -> Node | None:
        """The one document of ``text``."""
        found = _UNREADABLE.search(text)
        if found:
            before = text[: found.start()]
            place = self._at(before.count("\n"), found.start() - (before.rfind("\n") + 1))
            name = "NUL" if found[0] == "\0" else f"U+{ord(found[0]):04X}"
            self._report(place, "", f"the character {name} is not allowed", "remove it; this must be a plain text file")
            raise _Stop
        events = self._events(text)
        root: Node | None = None
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                if root is not None:
                    self._report(
                        self._place(event.start_mark), "", "a second document starts here", "keep one document a file"
                    )
                    raise _Stop
                root = self._node(next(events), events, "", 0)
        return None if isinstance(root, ScalarNode) and self._is_null(root) else root

    @staticmethod
    def _is_null(node: ScalarNode) -> bool:
        return node.style is Style.PLAIN and classify_plain(node.text) is PlainKind.NULL

    def _events(self, text: str) -> Iterator[yaml.Event]:
        """PyYAML's events; its errors become problems. It lets ``"\\UFFFFFFFF"`` escape as a bare ValueError."""
        try:
            for event in yaml.parse(text, Loader=yaml.SafeLoader):
                self.mark = event.end_mark
                yield event
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark or self.mark
            self._syntax(mark, " ".join(part for part in (error.context, error.problem) if part))
        except (yaml.YAMLError, ValueError, OverflowError) as error:
            self._syntax(self.mark, f"a character or escape is invalid ({type(error).__name__})")

    def _syntax(self, mark: _Mark | None, text: str) -> None:
        hint = next((hint for part, hint in _HINTS if part in text), None)
        self._report(self._place(mark), "", f"this is not valid YAML: {text}", hint)
        raise _Stop

    def _at(self, line: int, column: int) -> Origin:
        if self.source.kind is not OriginKind.FILE:
            return self.source
        return replace(self.source, line=line + 1, column=column + 1)

    def _place(self, mark: _Mark | None) -> Origin:
        return self._at(mark.line, mark.column) if mark else self._at(0, 0)

    def _report(self, place: Origin, path: str, message: str, hint: str | None = None) -> None:
        self.problems.append(Problem(place, path, message, hint))

    def _node(self, event: yaml.Event, events: Iterator[yaml.Event], path: str, depth: int) -> Node:
        """The node that starts with ``event``."""
        place = self._place(event.start_mark)
        self.nodes += 1
        if depth > DEPTH_MAX:
            self._report(place, path, f"blocks are nested more than {DEPTH_MAX} deep")
            raise _Stop
        if self.nodes > NODES_MAX:
            self._report(place, path, f"more than {NODES_MAX} keys and values")
            raise _Stop
        if isinstance(event, yaml.AliasEvent):
            self._report(place, path, "aliases (*name) are not allowed", "write the value out, or quote it")
            return ScalarNode("", Style.BROKEN, place, "")
        sound = self._check_properties(event, place, path)
        match event:
            case yaml.MappingStartEvent():
                return self._mapping(events, place, path, depth)
            case yaml.SequenceStartEvent():
                return self._sequence(events, place, path, depth)
            case yaml.ScalarEvent():
                node = self._scalar(event, place, path)
                return node if sound else replace(node, style=Style.BROKEN)
        raise AssertionError(event)

    def _check_properties(self, event: yaml.Event, place: Origin, path: str) -> bool:
        """No anchors and no tags."""
        anchor, tag = getattr(event, "anchor", None), getattr(event, "tag", None)
        if anchor is not None:
            self._report(place, path, "anchors (&name) are not allowed", "write the value out, or quote it")
        if tag is not None:
            self._report(
                place,
                path,
                "tags (!name) are not allowed",
                "the type follows from the key; remove the tag, or quote the value",
            )
        return anchor is None and tag is None

    def _sequence(self, events: Iterator[yaml.Event], place: Origin, path: str, depth: int) -> SequenceNode:
        node = SequenceNode([], place)
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            node.items.append(self._node(event, events, join_path(path, len(node.items)), depth + 1))
        return node

    def _mapping(self, events: Iterator[yaml.Event], place: Origin, path: str, depth: int) -> MappingNode:
        node = MappingNode(origin=place)
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            key = self._key(event, events, path, depth)
            key_place = self._place(event.start_mark)
            inner = join_path(path, "?" if key is None else key)
            value = self._node(next(events), events, inner, depth + 1)
            if key is None:
                continue
            if key in node.entries:
                first = node.entries[key].origin.position
                self._report(key_place, inner, f"duplicate key {show_value(key)}", f"first given at {first}; keep one")
                continue
            node.entries[key] = Entry(key_place, value)
        return node

    def _key(self, event: yaml.Event, events: Iterator[yaml.Event], path: str, depth: int) -> str | None:
        """Text of a key; ``None`` if it cannot be one."""
        reported = len(self.problems)
        if isinstance(event, yaml.ScalarEvent) and not event.style and event.value == "<<":
            self._report(self._place(event.start_mark), path, "merge keys (<<) are not allowed", "write the keys out")
            return None
        node = self._node(event, events, path, depth + 1)
        if len(self.problems) > reported:
            return None
        if not isinstance(node, ScalarNode):
            self._report(node.origin, path, "a key must be text, not a list or a mapping")
            return None
        kind = classify_plain(node.text)
        if node.style is Style.PLAIN and kind is not PlainKind.TEXT:
            shown = show_value(node.text)
            self._report(
                node.origin, path, f"a key must be text, {shown} is {kind}", "quote it if it is meant as a name"
            )
            return None
        return node.text

    def _scalar(self, event: yaml.ScalarEvent, place: Origin, path: str) -> ScalarNode:
        text = event.value
        if _UNREADABLE.search(text):
            self._report(place, path, "an escape stands for a control character or for half a character")
            return ScalarNode("", Style.BROKEN, place, "")
        if event.style:
            return ScalarNode(text, Style.QUOTED, place, text)
        surprise = find_surprise(text)
        if surprise:
            meaning, hint = surprise
            self._report(place, path, f"unquoted {text[:40]} is ambiguous: {meaning}", hint)
            return ScalarNode("", Style.BROKEN, place, "")
        return ScalarNode(text, Style.PLAIN, place, text)
