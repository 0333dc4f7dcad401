"""What may be written where: the structs of ``model`` as a tree of blocks, tables, lists and leaves; and reading one leaf.

A struct field ``lease_seconds`` (float) is the key ``lease`` and takes durations; ``args_bytes`` (int) is ``args`` and
takes sizes; every other field is its own key. Loader, JSON Schema, examples and reference all walk this one tree. A scalar is
read by the kind and the bounds of its leaf; ``LeafError`` has the sentence for everything that does not fit.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec
import msgspec.inspect as mi

from jobmaster.model.errors import CodeError
from jobmaster.model.suggestion import did_you_mean
from jobmaster.settings.masking import MASK, show_value
from jobmaster.settings.model import ClusterSettings
from jobmaster.settings.yaml_tree import PlainKind, ScalarNode, Style, classify_plain
from jobmaster.units import (
    DURATION_SECONDS_MAX,
    UnitError,
    format_duration,
    format_size,
    parse_duration,
    parse_size,
)

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
    secret: bool = False
    """No output and no message shows the value."""


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
    """The key of a field: without the unit where the text of the leaf has one (durations, sizes)."""
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
    """Shape of one annotation.

    Raises:
        CodeError: no rule covers this type.
    """
    match info:
        case mi.Metadata():
            extra = info.extra_json_schema or {}
            shape = _shape(info.type, extra.get("description", expected))
            if extra.get("secret"):
                assert isinstance(shape, Leaf)
                return replace(shape, secret=True)
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
    raise CodeError(f"the configuration cannot read fields of type {info!r}; teach schema._shape")


def _narrowed(shape: Shape, words: list[str]) -> Shape:
    """A choice of which the configuration accepts some values only."""
    assert isinstance(shape, Leaf)
    return replace(shape, choices=MappingProxyType({word: shape.choices[word] for word in words}))


def _text(pattern: str | None, expected: str | None) -> Leaf:
    """A leaf for text. The pattern ``^(a|b)$`` makes a choice of it."""
    words = _CHOICES.fullmatch(pattern or "")
    if words:
        return Leaf(LeafKind.CHOICE, choices=MappingProxyType({word: word for word in words[1].split("|")}))
    return Leaf(LeafKind.TEXT, pattern=pattern, expected=expected)


def field_docs(struct: type) -> dict[str, str]:
    """Attribute docstrings of a class: the string literals below its fields, which Python does not keep."""
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


# ---------------------------------------------------------------- one leaf

INTEGER_DIGITS_MAX = 18
_UNPRINTABLE = re.compile(r"[\x00\ud800-\udfff]")


class LeafError(ValueError):
    """A scalar that does not fit its leaf: expected and actual value, and the remedy."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


def suggest(word: str, known: Iterable[str]) -> str | None:
    """``did you mean "X"?`` for the nearest known word."""
    return did_you_mean(word, known, quote='"')


def read_leaf(leaf: Leaf, scalar: ScalarNode) -> object:
    """Value of the field; ``LeafError`` otherwise."""
    kind = classify_plain(scalar.text) if scalar.style is not Style.QUOTED else PlainKind.TEXT
    if kind is PlainKind.NULL:
        if leaf.optional:
            return None
        if scalar.style is Style.PLAIN or leaf.kind is not LeafKind.TEXT:
            raise _missing(leaf)
    if _UNPRINTABLE.search(scalar.text):
        raise LeafError("the value holds a character that is no text (NUL or a byte that is not UTF-8)")
    match leaf.kind:
        case LeafKind.TEXT:
            return _read_text(leaf, scalar, kind)
        case LeafKind.CHOICE:
            return _read_choice(leaf, scalar)
        case LeafKind.BOOLEAN:
            return _read_boolean(leaf, scalar, kind)
        case LeafKind.DURATION | LeafKind.SIZE:
            return _in_bounds(leaf, scalar, _read_measure(leaf, scalar, kind))
        case LeafKind.INTEGER | LeafKind.NUMBER:
            return _in_bounds(leaf, scalar, _read_number(leaf, scalar, kind))


def expected_of(leaf: Leaf) -> str:
    """What a leaf takes, in words."""
    match leaf.kind:
        case LeafKind.TEXT:
            return leaf.expected or "text"
        case LeafKind.CHOICE:
            return f"one of {', '.join(leaf.choices)}"
        case LeafKind.BOOLEAN:
            return "true or false"
        case LeafKind.DURATION:
            noun = "a duration such as 30s, 5m or 1h30m"
        case LeafKind.SIZE:
            noun = "a size such as 512, 128KiB or 1MB"
        case LeafKind.INTEGER:
            noun = "a whole number"
        case LeafKind.NUMBER:
            noun = "a number"
    bounds = describe_bounds(leaf)
    return f"{noun} {bounds}" if bounds else noun


def describe_bounds(leaf: Leaf) -> str:
    """``from 1 to 5000``, ``of at least 1``, ``above 0s``, or nothing."""
    low, high = leaf.ge, leaf.le
    if low is not None and high is not None:
        return f"from {format_leaf(leaf, low)} to {format_leaf(leaf, high)}"
    words = []
    for bound, word in ((low, "of at least"), (leaf.gt, "above"), (high, "of at most"), (leaf.lt, "below")):
        if bound is not None:
            words.append(f"{word} {format_leaf(leaf, bound)}")
    return " and ".join(words)


def format_leaf(leaf: Leaf, value: object) -> str:
    """Text of a value as it is written in the file (without quotes)."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if leaf.kind is LeafKind.DURATION and isinstance(value, int | float):
        return format_duration(value)
    if leaf.kind is LeafKind.SIZE and isinstance(value, int | float):
        return format_size(int(value))
    if leaf.kind is LeafKind.CHOICE:
        return next((text for text, member in leaf.choices.items() if member == value), str(value))
    return f"{value:g}" if isinstance(value, float) and value == int(value) and abs(value) < 1e6 else str(value)


def _missing(leaf: Leaf) -> LeafError:
    hint = "write null for none" if leaf.optional else "leave the key out to get its default"
    return LeafError(f"a value is missing, expected {expected_of(leaf)}", hint)


def _unfit(leaf: Leaf, scalar: ScalarNode, hint: str | None = None) -> LeafError:
    shown = MASK if leaf.secret else show_value(scalar.shown)
    return LeafError(f"expected {expected_of(leaf)}, got {shown}", hint)


def _read_text(leaf: Leaf, scalar: ScalarNode, kind: PlainKind) -> str:
    if scalar.style is Style.PLAIN and kind is not PlainKind.TEXT:
        raise LeafError(f"expected text, got {scalar.text[:40]}, which is {kind}", "quote it if the text is meant")
    if not scalar.text:
        raise _missing(leaf)
    if leaf.pattern and not re.search(leaf.pattern, scalar.text):
        raise _unfit(leaf, scalar)
    return scalar.text


def _read_choice(leaf: Leaf, scalar: ScalarNode) -> object:
    if scalar.text not in leaf.choices:
        raise _unfit(leaf, scalar, suggest(scalar.text, leaf.choices) if scalar.shown == scalar.text else None)
    return leaf.choices[scalar.text]


def _read_boolean(leaf: Leaf, scalar: ScalarNode, kind: PlainKind) -> bool:
    if kind is not PlainKind.BOOLEAN:
        raise _unfit(leaf, scalar, _unquote_hint(scalar, PlainKind.BOOLEAN))
    return scalar.text.lower() == "true"


def _read_number(leaf: Leaf, scalar: ScalarNode, kind: PlainKind) -> float:
    if kind is PlainKind.INTEGER:
        if len(scalar.text) > INTEGER_DIGITS_MAX:
            raise _unfit(leaf, scalar)
        whole = int(scalar.text)
        return whole if leaf.kind is LeafKind.INTEGER else float(whole)
    if kind is PlainKind.NUMBER and leaf.kind is LeafKind.NUMBER and math.isfinite(number := float(scalar.text)):
        return number
    raise _unfit(leaf, scalar, _unquote_hint(scalar, PlainKind.INTEGER, PlainKind.NUMBER))


def _unquote_hint(scalar: ScalarNode, *kinds: PlainKind) -> str | None:
    if scalar.style is Style.QUOTED and classify_plain(scalar.text) in kinds:
        return f"write {scalar.text[:40]} without quotes"
    return None


def _read_measure(leaf: Leaf, scalar: ScalarNode, kind: PlainKind) -> float:
    text = scalar.text
    if kind is PlainKind.NUMBER and (leaf.kind is LeafKind.DURATION or float(text).is_integer()):
        # YAML allows numbers that the grammar of durations lacks: .5, 5., 1e3.
        seconds_or_bytes = float(text)
        if 0 <= seconds_or_bytes <= DURATION_SECONDS_MAX:
            return seconds_or_bytes if leaf.kind is LeafKind.DURATION else int(seconds_or_bytes)
    try:
        return parse_size(text) if leaf.kind is LeafKind.SIZE else parse_duration(text)
    except UnitError as error:
        suggestion = f'did you mean "{error.suggestion}"?' if error.suggestion and scalar.shown == text else None
        hint = suggestion or ("it cannot be negative" if text.startswith("-") else None)
        raise LeafError(f"{error}, got {show_value(scalar.shown)}", hint) from None


def _in_bounds(leaf: Leaf, scalar: ScalarNode, value: float) -> float:
    fits = (
        (leaf.ge is None or value >= leaf.ge)
        and (leaf.gt is None or value > leaf.gt)
        and (leaf.le is None or value <= leaf.le)
        and (leaf.lt is None or value < leaf.lt)
    )
    if not fits:
        raise _unfit(leaf, scalar)
    return value
