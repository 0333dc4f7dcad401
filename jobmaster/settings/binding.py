"""Nodes to structs: walks a configuration as written along the schema of the settings and collects every problem.

The result is always a complete value: a key that cannot be read has its default, so that later checks see a whole
configuration and report their own findings in the same run. The value must not be used when there are problems.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import msgspec

from jobmaster.settings.masking import show_value
from jobmaster.settings.problems import DEFAULT_ORIGIN, Origin, Problem
from jobmaster.settings.schema import (
    Block,
    Leaf,
    LeafError,
    Series,
    Shape,
    Table,
    expected_of,
    read_leaf,
    settings_shape,
    suggest,
)
from jobmaster.settings.yaml_tree import (
    Entry,
    MappingNode,
    Node,
    ScalarNode,
    SequenceNode,
    Style,
    is_null,
    join_path,
)


@dataclass(slots=True)
class Binder:
    """One reading of one tree."""

    problems: list[Problem] = field(default_factory=list)
    origins: dict[str, Origin] = field(default_factory=dict)
    """Path of every leaf that was written -> origin of its value."""
    places: dict[str, Origin] = field(default_factory=dict)
    """The same with blocks and tables (origin of the key), for problems that are found afterwards."""

    def bind_block(self, block: Block, node: Node, path: str) -> msgspec.Struct:
        """The struct of a block; unknown keys are reported with the nearest known one."""
        fields: dict[str, object] = {}
        before = len(self.problems)
        for name, entry, inner in self._entries(node, path):
            key = block.keys.get(name)
            if key is None:
                self._report(entry.origin, inner, f"unknown key {show_value(name)}", _hint_for(name, block))
            elif not (isinstance(key.shape, Block | Table) and is_null(entry.value)):
                # An empty section means "all defaults": it remains when every line of the section is commented out.
                value = self._bind(key.shape, entry.value, inner)
                if value is not UNREADABLE:
                    fields[key.attribute] = value
        return self._construct(block, fields, path, sound=len(self.problems) == before)

    def place_of(self, *paths: str) -> Origin:
        """Origin of the first of ``paths`` that was written, else of the nearest written section above."""
        for path in paths:
            if path in self.places:
                return self.places[path]
        for path in paths:
            while path:
                path = path.rpartition(".")[0]
                if path in self.places:
                    return self.places[path]
        return DEFAULT_ORIGIN

    def _report(self, origin: Origin, path: str, message: str, hint: str | None = None) -> None:
        self.problems.append(Problem(origin, path, message, hint))

    def _bind(self, shape: Shape, node: Node, path: str) -> object:
        match shape:
            case Block():
                return shape.struct() if is_null(node) else self.bind_block(shape, node, path)
            case Table():
                return self._bind_table(shape, node, path)
            case Series():
                return self._bind_series(shape, node, path)
            case Leaf():
                return self._bind_leaf(shape, node, path)

    def _entries(self, node: Node, path: str) -> Iterator[tuple[str, Entry, str]]:
        """Key, entry and path of each entry of a mapping. A node of another kind is reported."""
        if isinstance(node, MappingNode):
            self.places.setdefault(path, node.origin)
            for name, entry in node.entries.items():
                inner = join_path(path, name)
                self.places[inner] = entry.value.origin if isinstance(entry.value, ScalarNode) else entry.origin
                yield name, entry, inner
        elif not _is_broken(node):
            self._report(node.origin, path, f"expected a mapping (key: value), got {_describe(node)}")

    def _bind_table(self, table: Table, node: Node, path: str) -> dict[str, object]:
        values: dict[str, object] = {}
        for name, entry, inner in self._entries(node, path):
            try:
                read_leaf(table.key, ScalarNode(name, Style.QUOTED, entry.origin, name))
            except LeafError as error:
                self._report(entry.origin, inner, f"this name does not fit: {error.message}", error.hint)
            values[name] = self._bind(table.value, entry.value, inner)
        return values

    def _bind_series(self, series: Series, node: Node, path: str) -> object:
        self.origins[path] = node.origin
        if isinstance(node, SequenceNode):
            items = [self._bind_leaf(series.item, item, join_path(path, at)) for at, item in enumerate(node.items)]
            return [item for item in items if item is not UNREADABLE]
        if not _is_broken(node):
            self._report(
                node.origin, path, f"expected a list, got {_describe(node)}", "write [one, two] or - one a line"
            )
        return UNREADABLE

    def _bind_leaf(self, leaf: Leaf, node: Node, path: str) -> object:
        """Value of a leaf, or ``UNREADABLE`` (and a problem)."""
        self.origins[path] = self.places[path] = node.origin
        if not isinstance(node, ScalarNode):
            self._report(node.origin, path, f"expected {expected_of(leaf)}, got {_describe(node)}")
        elif not _is_broken(node):
            try:
                return read_leaf(leaf, node)
            except LeafError as error:
                self._report(node.origin, path, error.message, error.hint)
        return UNREADABLE

    def _construct(self, block: Block, fields: dict[str, object], path: str, *, sound: bool) -> msgspec.Struct:
        """The struct. A relation between its numbers that does not hold is reported at the numbers.

        No relation is reported while one of the numbers could not be read: its default is not what the author meant.
        """
        try:
            return block.struct(**fields)
        except ValueError as error:
            for message in error.args if sound else ():
                named = _NAMED_KEY.findall(str(message))
                self._report(self.place_of(*named, path), path, str(message))
            return block.struct()


class _Unreadable:
    """Type of ``UNREADABLE``, the value of a leaf that could not be read."""


UNREADABLE: Final = _Unreadable()

_NAMED_KEY = re.compile(r"[a-z_]+(?:\.[a-z0-9_]+)+")


def _is_broken(node: Node) -> bool:
    return isinstance(node, ScalarNode) and node.style is Style.BROKEN


def _describe(node: Node) -> str:
    match node:
        case MappingNode():
            return "a mapping"
        case SequenceNode():
            return "a list"
        case ScalarNode():
            return "nothing" if is_null(node) else show_value(node.shown)


def _hint_for(name: str, block: Block) -> str:
    """Nearest key of this block, else the section that has the key, else all keys."""
    for key in block.keys.values():
        if name == key.attribute:
            return f'write "{key.name}", the unit belongs to the value'
    near = suggest(name, block.keys)
    if near:
        return near
    for section, key in settings_shape().keys.items():
        if isinstance(key.shape, Block) and key.shape is not block and name in key.shape.keys:
            return f'"{name}" is a key of {section}'
    return f"known here: {', '.join(block.keys)}"
