"""Check arguments against the JSON Schema that agents publish, for producers without the handler's code.

It accepts what the agent accepts, and nothing else, for every type that a signature can name; a property test holds both to
each other. A keyword that it does not know accepts everything: the agent checks again before it runs the job.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

from jobmaster.model.suggestion import did_you_mean

Schema = dict[str, Any]
PROBLEMS_MAX = 5
FORMATS: dict[str, type] = {
    "date-time": datetime, "date": date, "time": time, "duration": timedelta, "uuid": UUID, "decimal": Decimal,
}  # fmt: skip
"""``format`` of a text -> what the agent reads it as."""
_KEYS: dict[str, type] = {"integer": int, "number": float}

_TYPES: dict[str, Callable[[object], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}


def problems(schema: Schema, value: object) -> list[str]:
    """At most ``PROBLEMS_MAX`` sentences, each naming the argument; empty when the value fits."""
    found = []
    for problem in _check(schema, value, "", schema.get("$defs", {})):
        found.append(problem)
        if len(found) == PROBLEMS_MAX:
            break
    return found


def whole_numbers(schema: Schema, value: Any, defs: Schema | None = None) -> Any:
    """The value with ``3.0`` turned into ``3`` wherever the schema requires an integer and takes no other number: a column of
    integers that has a gap holds floats (pandas, and JSON written by many programs)."""
    defs = schema.get("$defs", {}) if defs is None else defs
    if reference := schema.get("$ref"):
        schema = defs.get(str(reference).rpartition("/")[2], {})
    choices = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    if choices:
        if _fits_any(choices, value, defs):
            return value
        tried = (whole_numbers(choice, value, defs) for choice in choices)
        return next((one for one in tried if _fits_any(choices, one, defs)), value)
    if isinstance(value, float) and schema.get("type") == "integer" and value.is_integer() and abs(value) <= 2**53:
        return int(value)
    if isinstance(value, dict):
        properties: Schema = schema.get("properties", {})
        extra = schema.get("additionalProperties")
        other: Schema = extra if isinstance(extra, dict) else {}
        return {name: whole_numbers(properties.get(name, other), inner, defs) for name, inner in value.items()}
    if isinstance(value, list):
        prefix = schema.get("prefixItems", [])
        items = schema.get("items")
        rest: Schema = items if isinstance(items, dict) else {}
        kinds = [*prefix, *[rest] * max(len(value) - len(prefix), 0)]
        return [whole_numbers(kind, inner, defs) for kind, inner in zip(kinds, value, strict=False)]
    return value


def _fits_any(choices: list[Schema], value: object, defs: Schema) -> bool:
    return any(next(_check(choice, value, "", defs), None) is None for choice in choices)


def _check(schema: Schema, value: object, place: str, defs: Schema) -> Iterator[str]:
    if reference := schema.get("$ref"):
        schema = defs.get(str(reference).rpartition("/")[2], {})
    for keyword in ("anyOf", "oneOf"):
        if keyword in schema:
            yield from _any_of(schema[keyword], value, place, defs)
    kind = schema.get("type")
    kinds = kind if isinstance(kind, list) else [kind] if kind else []
    if kinds and not any(_TYPES.get(str(name), _anything)(value) for name in kinds):
        yield f"{_name(place)}: expected {' or '.join(map(str, kinds))}, got {_kind(value)}"
        return
    # Of one type, too: to Python 1, 1.0 and True are equal.
    if "enum" in schema and not any(_same(value, one) for one in schema["enum"]):
        yield f"{_name(place)}: {value!r} is none of {', '.join(map(repr, schema['enum']))}"
    if "const" in schema and not _same(value, schema["const"]):
        yield f"{_name(place)}: expected {schema['const']!r}, got {value!r}"
    if isinstance(value, dict):
        yield from _check_object(schema, value, place, defs)
    elif isinstance(value, list):
        yield from _check_array(schema, value, place, defs)
    elif isinstance(value, str):
        yield from _check_text(schema, value, place)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield from _check_number(schema, value, place)


def _any_of(choices: list[Schema], value: object, place: str, defs: Schema) -> Iterator[str]:
    first: list[str] | None = None
    for choice in choices:
        wrong = list(_check(choice, value, place, defs))
        if not wrong:
            return
        # Of several alternatives, the one whose type fits gives the best message.
        if first is None or first[0].startswith(f"{_name(place)}: expected"):
            first = wrong
    yield from (first or [])[:1]


def _check_object(schema: Schema, value: dict[str, Any], place: str, defs: Schema) -> Iterator[str]:
    properties: Schema = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            yield f"missing argument {name!r}" if not place else f"{_name(place)}: missing field {name!r}"
    extra = schema.get("additionalProperties", True)
    if key_type := _KEYS.get(schema.get("propertyNames", {}).get("type")):
        for name in value:
            if not _converts(name, key_type, strict=False):
                yield f"{_name(place)}: the key {name!r} is no {schema['propertyNames']['type']}"
    elif key_type := FORMATS.get(schema.get("propertyNames", {}).get("format")):
        for name in value:
            if not _converts(name, key_type):
                yield f"{_name(place)}: the key {name!r} is no {schema['propertyNames']['format']}"
    for name, inner in value.items():
        if name in properties:
            yield from _check(properties[name], inner, f"{place}.{name}", defs)
        elif extra is False:
            near = did_you_mean(name, properties)
            mean = f" ({near})" if near else ""
            yield f"unknown argument {name!r}{mean}" if not place else f"{_name(place)}: unknown field {name!r}{mean}"
        elif isinstance(extra, dict):
            yield from _check(extra, inner, f"{place}.{name}", defs)


def _check_array(schema: Schema, value: list[Any], place: str, defs: Schema) -> Iterator[str]:
    if len(value) < schema.get("minItems", 0):
        yield f"{_name(place)}: {len(value)} items, at least {schema['minItems']} are needed"
    if len(value) > schema.get("maxItems", len(value)):
        yield f"{_name(place)}: {len(value)} items, at most {schema['maxItems']} are allowed"
    prefix = schema.get("prefixItems", [])
    for index, (inner_schema, inner) in enumerate(zip(prefix, value, strict=False)):
        yield from _check(inner_schema, inner, f"{place}[{index}]", defs)
    items = schema.get("items")
    if isinstance(items, dict) and items:
        for index, inner in enumerate(value[len(prefix) :], len(prefix)):
            yield from _check(items, inner, f"{place}[{index}]", defs)


def _check_text(schema: Schema, value: str, place: str) -> Iterator[str]:
    if len(value) < schema.get("minLength", 0):
        yield f"{_name(place)}: {len(value)} characters, at least {schema['minLength']} are needed"
    if len(value) > schema.get("maxLength", len(value)):
        yield f"{_name(place)}: {len(value)} characters, at most {schema['maxLength']} are allowed"
    kind = FORMATS.get(schema.get("format", "")) or (bytes if schema.get("contentEncoding") == "base64" else None)
    if kind is not None and not _converts(value, kind):
        yield f"{_name(place)}: {value[:80]!r} is no {schema.get('format', 'base64')}"
    if "pattern" in schema and not _matches(schema["pattern"], value):
        yield f"{_name(place)}: {value!r} does not match {schema['pattern']!r}"


def _matches(pattern: str, value: str) -> bool:
    try:
        return re.search(pattern, value) is not None
    except re.error:  # in the syntax of another engine: pydantic's is Rust's
        return True


def _check_number(schema: Schema, value: float, place: str) -> Iterator[str]:
    if "multipleOf" in schema and value % schema["multipleOf"]:
        yield f"{_name(place)}: {value} is no multiple of {schema['multipleOf']}"
    if "minimum" in schema and value < schema["minimum"]:
        yield f"{_name(place)}: {value} is less than {schema['minimum']}"
    if "maximum" in schema and value > schema["maximum"]:
        yield f"{_name(place)}: {value} is more than {schema['maximum']}"
    if "exclusiveMinimum" in schema and value <= schema["exclusiveMinimum"]:
        yield f"{_name(place)}: {value} is not more than {schema['exclusiveMinimum']}"
    if "exclusiveMaximum" in schema and value >= schema["exclusiveMaximum"]:
        yield f"{_name(place)}: {value} is not less than {schema['exclusiveMaximum']}"


def _same(value: object, other: object) -> bool:
    return type(value) is type(other) and value == other


def _converts(value: object, kind: type, *, strict: bool = True) -> bool:
    try:
        msgspec.convert(value, kind, strict=strict)
    except (msgspec.ValidationError, OverflowError, ValueError):
        return False
    return True


def _name(place: str) -> str:
    if not place:
        return "the arguments"
    head, *rest = re.split(r"(?=[.\[])", place.lstrip("."), maxsplit=1)
    return f"argument {head!r}{rest[0] if rest else ''}"


def _kind(value: object) -> str:
    return next((name for name, fits in _TYPES.items() if fits(value)), type(value).__name__)


def _anything(value: object) -> bool:
    return True
