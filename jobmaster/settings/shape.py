"""What may be written where: the structs of ``model`` as a tree of blocks, tables, lists and leaves.

A struct field ``lease_seconds`` (float) is the key ``lease`` and takes durations; ``args_bytes`` (int) is ``args`` and
takes sizes; every other field is its own key. Loader, JSON Schema, examples and reference all walk this one tree.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec
import msgspec.inspect as mi

from jobmaster.model.errors import CodeError
from jobmaster.settings.model import ClusterSettings

_CHOICES = re.compile(r"\^\(([a-z0-9_]+(?:\|[a-z0-9_]+)*)\)\$")


class LeafKind(StrEnum):
    """What a leaf holds."""

    TEXT = "text"
    CHOICE = "choice"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    DURATION = "duration"
    SIZE = "size"


@dataclass(frozen=True, slots=True)
class Leaf:
    """One scalar: its kind and its bounds (in seconds or bytes for durations and sizes)."""

    kind: LeafKind
    optional: bool = False
    choices: MappingProxyType[str, object] = field(default_factory=lambda: MappingProxyType({}))
    """Text in the file -> value of the field, for ``CHOICE``."""
    pattern: str | None = None
    expected: str | None = None
    """What the pattern means, in words."""
    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """A list of leaves."""

    item: Leaf


@dataclass(frozen=True, slots=True)
class Table:
    """A mapping from names to values of one shape."""

    key: Leaf
    value: Shape


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a block."""

    name: str
    attribute: str
    shape: Shape
    description: str
    make_default: Callable[[], object]


@dataclass(frozen=True, slots=True)
class Block:
    """A mapping with a fixed set of keys: one struct."""

    struct: type[msgspec.Struct]
    description: str
    keys: MappingProxyType[str, Key]


Shape = Leaf | Series | Table | Block

_UNITS: Final = {"_seconds": (LeafKind.NUMBER, LeafKind.DURATION), "_bytes": (LeafKind.INTEGER, LeafKind.SIZE)}


@cache
def settings_shape() -> Block:
    """The shape of a whole configuration."""
    shape = _shape(mi.type_info(ClusterSettings))
    assert isinstance(shape, Block)
    return shape


def _block(info: mi.StructType) -> Block:
    docs = field_docs(info.cls)
    keys: dict[str, Key] = {}
    for entry in info.fields:
        name, shape = _named(entry.name, _shape(entry.type))
        if name in keys:
            raise CodeError(f"{info.cls.__name__}.{entry.name} and .{keys[name].attribute} share the key {name!r}")
        keys[name] = Key(name, entry.name, shape, docs.get(entry.name, ""), _default_maker(info.cls, entry))
    return Block(info.cls, inspect.cleandoc(info.cls.__doc__ or ""), MappingProxyType(keys))


def _named(attribute: str, shape: Shape) -> tuple[str, Shape]:
    """The key of a field: without its unit, when the text of the leaf bears the unit itself."""
    for suffix, (plain, measured) in _UNITS.items():
        if attribute.endswith(suffix) and isinstance(shape, Leaf) and shape.kind is plain:
            return attribute.removesuffix(suffix), replace(shape, kind=measured)
    return attribute, shape


def _default_maker(struct: type[msgspec.Struct], entry: mi.Field) -> Callable[[], object]:
    if entry.default_factory is not msgspec.NODEFAULT:
        factory: Callable[[], object] = entry.default_factory
        return factory
    if entry.default is msgspec.NODEFAULT:
        raise CodeError(f"{struct.__name__}.{entry.name} has no default; every key of the configuration needs one")
    return lambda: entry.default


def _shape(info: mi.Type, expected: str | None = None) -> Shape:
    """Shape of one annotation; a kind of type that no rule below knows is our own mistake."""
    match info:
        case mi.Metadata():
            extra = info.extra_json_schema or {}
            shape = _shape(info.type, extra.get("description", expected))
            return _narrowed(shape, extra["enum"]) if "enum" in extra else shape
        case mi.StructType():
            return _block(info)
        case mi.DictType():
            key, value = _shape(info.key_type), _shape(info.value_type)
            assert isinstance(key, Leaf)
            return Table(key, value)
        case mi.ListType():
            item = _shape(info.item_type)
            assert isinstance(item, Leaf)
            return Series(item)
        case mi.UnionType():
            solid = [member for member in info.types if not isinstance(member, mi.NoneType)]
            inner = _shape(solid[0], expected)
            if len(solid) == 1 and isinstance(inner, Leaf):
                return replace(inner, optional=True)
        case mi.EnumType():
            members = {str(getattr(member, "label", member.value)): member for member in info.cls}
            return Leaf(LeafKind.CHOICE, choices=MappingProxyType(members))
        case mi.BoolType():
            return Leaf(LeafKind.BOOLEAN)
        case mi.IntType():
            return Leaf(LeafKind.INTEGER, ge=info.ge, gt=info.gt, le=info.le, lt=info.lt)
        case mi.FloatType():
            return Leaf(LeafKind.NUMBER, ge=info.ge, gt=info.gt, le=info.le, lt=info.lt)
        case mi.StrType():
            return _text(info.pattern, expected)
    raise CodeError(f"the configuration cannot read fields of type {info!r}; teach shape._shape")


def _narrowed(shape: Shape, words: list[str]) -> Shape:
    """A choice of which the configuration takes only some values."""
    assert isinstance(shape, Leaf)
    return replace(shape, choices=MappingProxyType({word: shape.choices[word] for word in words}))


def _text(pattern: str | None, expected: str | None) -> Leaf:
    """``^(a|b)$`` is a choice; any other pattern stays one."""
    words = _CHOICES.fullmatch(pattern or "")
    if words:
        return Leaf(LeafKind.CHOICE, choices=MappingProxyType({word: word for word in words[1].split("|")}))
    return Leaf(LeafKind.TEXT, pattern=pattern, expected=expected)


def field_docs(struct: type) -> dict[str, str]:
    """Attribute docstrings of a class: the string literals under its fields, which Python itself throws away."""
    return _module_docs(inspect.getsourcefile(struct) or "").get(struct.__qualname__, {})


@cache
def _module_docs(source_path: str) -> dict[str, dict[str, str]]:
    tree = ast.parse(Path(source_path).read_text(encoding="utf-8"))
    return {node.name: _class_docs(node) for node in tree.body if isinstance(node, ast.ClassDef)}


def _class_docs(node: ast.ClassDef) -> dict[str, str]:
    docs = {}
    for statement, following in itertools.pairwise(node.body):
        match statement, following:
            case (
                ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                docs[name] = " ".join(inspect.cleandoc(text).split())
    return docs
