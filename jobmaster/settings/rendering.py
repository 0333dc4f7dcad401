"""Settings as text again: the same keys, units and words as in a file, with secrets masked.

A tree of plain ``dict``/``list``/scalars is the intermediate form, as a YAML 1.2 reader would return it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from jobmaster.model.errors import CodeError
from jobmaster.settings.masking import MASK, mask_secrets
from jobmaster.settings.model import ClusterSettings
from jobmaster.settings.schema import Block, Leaf, LeafKind, Series, Shape, Table, format_leaf, settings_shape
from jobmaster.settings.yaml_tree import PlainKind, classify_plain, find_surprise, join_path

Plain = str | int | float | bool | None
Tree = Plain | list["Tree"] | dict[str, "Tree"]


def settings_tree(settings: ClusterSettings) -> Tree:
    """The whole configuration in file form."""
    return tree_of(settings_shape(), settings)


def tree_of(shape: Shape, value: object) -> Tree:
    """One value in file form: durations and sizes as text with units, enums by their word."""
    match shape:
        case Block():
            return {name: tree_of(key.shape, getattr(value, key.attribute)) for name, key in shape.keys.items()}
        case Table() if isinstance(value, dict):
            return {name: tree_of(shape.value, inner) for name, inner in value.items()}
        case Series() if isinstance(value, list):
            return [_plain(shape.item, inner) for inner in value]
        case Leaf():
            return _plain(shape, value)
    raise CodeError(f"{value!r} is no value of {shape!r}")


def _plain(leaf: Leaf, value: object) -> Plain:
    if value is None or (isinstance(value, bool | int | float) and leaf.kind in _AS_NUMBERS):
        return value
    return MASK if leaf.secret else mask_secrets(format_leaf(leaf, value))


_AS_NUMBERS = {LeafKind.INTEGER, LeafKind.NUMBER, LeafKind.BOOLEAN}


def leaf_rows(tree: Tree, path: str = "") -> Iterator[tuple[str, Tree]]:
    """Path and value of every leaf; an empty list or mapping is a leaf too."""
    match tree:
        case dict() if tree:
            for key, inner in tree.items():
                yield from leaf_rows(inner, join_path(path, key))
        case list() if tree:
            for at, inner in enumerate(tree):
                yield from leaf_rows(inner, join_path(path, at))
        case _:
            yield path, tree


def scalar_text(value: Plain) -> str:
    """A scalar in the form that every YAML reader reads as the same value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return format_leaf(Leaf(LeafKind.NUMBER), value)
    bare = (
        _BARE.fullmatch(value)
        and classify_plain(value) is PlainKind.TEXT
        and find_surprise(value) is None
        and not value.endswith(":")
    )
    return value if bare else _quote(value)


def _quote(text: str) -> str:
    # JSON's escapes are wrong here: YAML reads the two halves of an escaped surrogate pair as two characters.
    return '"' + "".join(_escape(character) for character in text) + '"'


def _escape(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    if character.isprintable():
        return character
    return f"\\u{ord(character):04x}" if ord(character) < 0x10000 else f"\\U{ord(character):08x}"


_BARE = re.compile(r"[A-Za-z0-9_/.~][A-Za-z0-9_/.:@*+~?=&%-]*")


def leaf_text(value: Tree) -> str:
    """A leaf of ``leaf_rows`` as it is written in a file."""
    match value:
        case dict():
            return "{}"
        case list():
            return "[]"
        case _:
            return scalar_text(value)


def yaml_lines(tree: Tree, note: Callable[[str], str] | None = None) -> list[str]:
    """Block-style YAML of a tree; ``note`` gives the end-of-line comment of a leaf's path."""
    lines: list[str] = []

    def write(value: Tree, path: str, indent: str, start: str) -> None:
        comment = f"  # {note(path)}" if note else ""
        match value:
            case dict() if value:
                if start:
                    lines.append(start.rstrip())
                for key, inner in value.items():
                    write(inner, join_path(path, key), indent + "  ", f"{indent}{scalar_text(key)}: ")
            case list() if value:
                lines.append(start.rstrip())
                for at, inner in enumerate(value):
                    write(inner, join_path(path, at), indent + "  ", f"{indent}- ")
            case _:
                lines.append(f"{start}{leaf_text(value)}{comment}")

    write(tree, "", "", "")
    return lines
