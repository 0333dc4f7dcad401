"""The JSON Schema accepts and refuses the same as the loader, as far as a schema can express it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jobmaster.settings.json_schema import json_schema
from jobmaster.settings.loader import LoadedSettings
from jobmaster.settings.problems import InvalidSettings, Origin, OriginKind
from jobmaster.settings.schema import Block, Leaf, Series, Shape, Table, settings_shape
from jobmaster.settings.yaml_tree import MappingNode, Node, PlainKind, ScalarNode, Style, classify_plain, parse_yaml

Load = Callable[..., LoadedSettings]

SCHEMA: dict[str, Any] = json_schema()
KNOWN_WORDS = {
    "$schema", "$ref", "title", "description", "default", "definitions", "type", "enum", "pattern", "minLength",
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "anyOf", "allOf", "items", "properties",
    "additionalProperties", "propertyNames",
}  # fmt: skip
TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: isinstance(value, int | float) and not isinstance(value, bool) and value == int(value),
}


def violations(value: Any, schema: dict[str, Any], path: str = "$") -> Iterator[str]:
    """What a draft-07 validator finds, for the words that the schema uses (beside a $ref nothing else counts)."""
    assert set(schema) <= KNOWN_WORDS, schema
    if "$ref" in schema:
        yield from violations(value, SCHEMA["definitions"][schema["$ref"].removeprefix("#/definitions/")], path)
        return
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(TYPES[kind](value) for kind in kinds):
        yield f"{path}: not of type {kinds}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{path}: not in {schema['enum']}"
    if "anyOf" in schema and all(list(violations(value, option, path)) for option in schema["anyOf"]):
        yield f"{path}: fits no option"
    for option in schema.get("allOf", []):
        yield from violations(value, option, path)
    if isinstance(value, str):
        if "pattern" in schema and not re.search(schema["pattern"], value):
            yield f"{path}: pattern"
        if len(value) < schema.get("minLength", 0):
            yield f"{path}: too short"
    if TYPES["number"](value):
        yield from (
            f"{path}: {word}" for word, holds in BOUNDS.items() if word in schema and not holds(value, schema[word])
        )
    if isinstance(value, list):
        for at, item in enumerate(value):
            yield from violations(item, schema.get("items", {}), f"{path}[{at}]")
    if isinstance(value, dict):
        yield from _mapping_violations(value, schema, path)


BOUNDS: dict[str, Callable[[float, float], bool]] = {
    "minimum": lambda value, bound: value >= bound,
    "maximum": lambda value, bound: value <= bound,
    "exclusiveMinimum": lambda value, bound: value > bound,
    "exclusiveMaximum": lambda value, bound: value < bound,
}


def _mapping_violations(value: dict[str, Any], schema: dict[str, Any], path: str) -> Iterator[str]:
    for key, inner in value.items():
        if "propertyNames" in schema:
            yield from violations(key, schema["propertyNames"], f"{path}.{key}")
        rest = schema.get("additionalProperties", {})
        if key in schema.get("properties", {}):
            yield from violations(inner, schema["properties"][key], f"{path}.{key}")
        elif rest is False:
            yield f"{path}.{key}: unknown"
        else:
            yield from violations(inner, rest, f"{path}.{key}")


def as_data(node: Node | None) -> Any:
    """What a YAML 1.2 reader makes of a node."""
    if node is None:
        return None
    if isinstance(node, MappingNode):
        return {key: as_data(entry.value) for key, entry in node.entries.items()}
    if isinstance(node, ScalarNode):
        kind = PlainKind.TEXT if node.style is Style.QUOTED else classify_plain(node.text)
        match kind:
            case PlainKind.NULL:
                return None
            case PlainKind.BOOLEAN:
                return node.text.lower() == "true"
            case PlainKind.INTEGER:
                return int(node.text)
            case PlainKind.NUMBER:
                return float(node.text)
            case PlainKind.TEXT:
                return node.text
    return [as_data(item) for item in node.items]


def schema_accepts(text: str) -> bool:
    root, problems = parse_yaml(text, Origin(OriginKind.FILE, "x"))
    assert not problems
    return not list(violations(as_data(root), SCHEMA))


BOTH_ACCEPT = [
    "",
    "leases:",
    "cluster: prod",
    'cluster: "12"',
    "leases: {lease: 15, renew: 0.5s, grace: 0, tombstone: 3.5e2, bucket_map: .5}",
    "leases: {lease: 1m, renew: 1s500ms}",
    'leases: {lease: "15", renew: "2"}',
    "limits: {args: 512, result: 1.5KiB, headers: 0, error: '16384'}",
    "master: {dsn: null, schema: null, pool_size: 4}",
    "master: {dsn: 'postgresql://a:b@c/d', schema: jobs}",
    "master: {dsn: '${DSN}', pool_size: '${N}'}",
    "stores: {default: {url: 'redis://h'}, b: {url: 'unix:///x'}, c:}",
    "agents: {a: {mode: drain, lanes: {x: {high: 0}, z:}}}",
    "handlers: [a, a.b, 'a.b:c', '${HANDLER}']",
    "jobs: {durability: store_fsync, priority: very_low, backoff_factor: 1, backoff_jitter: 0.5}",
    "observability: {metrics_port: null}",
    "partitions: {span: month, ahead_days: 1}",
]
BOTH_REFUSE = [
    "[]",
    "text",
    "clutser: prod",
    "cluster: Prod",
    "cluster: 12",
    "cluster: null",
    "cluster: true",
    "data_dir: ''",
    "leases: 5",
    "leases: {lease: -1}",
    "leases: {lease: 0.1}",
    "leases: {lease: 700}",
    "leases: {lease: ten}",
    "leases: {lease: 5min}",
    "leases: {lease: 1m1h}",
    "leases: {lease: true}",
    "leases: {lease: [1]}",
    "leases: {lease:}",
    "leases: {lease_seconds: 3}",
    "limits: {args: -1}",
    "limits: {args: 1.5}",
    "limits: {args: 128K}",
    "master: {pool_size: 0}",
    "master: {pool_size: '4'}",
    "master: {pool_size: 1.5}",
    "master: {connect_timeout: 0}",
    "master: {dsn: 'mysql://x'}",
    "stores: {Bad: {}, default: {}}",
    "stores: {default: {url: 'http://x'}}",
    "agents: {a: {mode: half}}",
    "agents: {a: {buckets: {hihg: 1}}}",
    "agents: {a: {lanes: {'a b': {}}}}",
    "handlers: a",
    "handlers: {a: b}",
    "handlers: [a b]",
    "handlers: [1]",
    "jobs: {durability: disk}",
    "jobs: {priority: 3}",
    "jobs: {backoff_jitter: 2}",
    "jobs: {backoff_factor: '2'}",
    "observability: {metrics_port: 65536}",
    "partitions: {span: year}",
]
ONLY_THE_LOADER_KNOWS = [
    "leases: {lease: 20m}",
    "leases: {lease: 1s, renew: 1s}",
    "limits: {args: 0.3KiB}",
    "agents: {a: {store: nowhere}}",
    "agents: {a: {buckets: {high: 2}, lanes: {default: {}}}}",
    "cluster: '${GONE}'",
]
ENV = {"DSN": "postgresql://x", "N": "3", "HANDLER": "acme"}


def loader_accepts(load: Load, text: str) -> bool:
    try:
        load(text, ENV)
    except InvalidSettings:
        return False
    return True


@pytest.mark.parametrize("text", BOTH_ACCEPT)
def test_schema_and_loader_accept_the_same(load: Load, text: str) -> None:
    assert (schema_accepts(text), loader_accepts(load, text)) == (True, True)


@pytest.mark.parametrize("text", BOTH_REFUSE)
def test_schema_and_loader_refuse_the_same(load: Load, text: str) -> None:
    assert (schema_accepts(text), loader_accepts(load, text)) == (False, False)


@pytest.mark.parametrize("text", ONLY_THE_LOADER_KNOWS)
def test_the_loader_refuses_what_a_schema_cannot_express(load: Load, text: str) -> None:
    assert (schema_accepts(text), loader_accepts(load, text)) == (True, False)


def leaves(shape: Shape, path: str = "") -> Iterator[tuple[str, Leaf]]:
    """Every leaf that can be written, with a path that leads to it."""
    match shape:
        case Leaf():
            yield path, shape
        case Series():
            yield f"{path}[]", shape.item
        case Table():
            yield from leaves(shape.value, f"{path}.default")
        case Block():
            for name, key in shape.keys.items():
                yield from leaves(key.shape, f"{path}.{name}".removeprefix("."))


ALL_LEAVES = dict(leaves(settings_shape()))
SAMPLES = ["3", "0", "-1", "1.5", "'3'", "true", "null", "text", "10s", "128KiB", "[a]", "{a: 1}", "'${N}'", "9999999"]


@pytest.mark.parametrize("path", ALL_LEAVES)
def test_schema_and_loader_agree_on_every_key(load: Load, path: str) -> None:
    for sample in SAMPLES:
        text = f"[{sample}]" if path.endswith("[]") else sample
        for key in reversed(path.removesuffix("[]").split(".")):
            text = f"{{{key}: {text}}}"
        problems: tuple[str, ...] = ()
        try:
            load(text, ENV)
        except InvalidSettings as error:
            # Relations between keys are beyond a schema.
            problems = tuple(problem for problem in error.problems if "expected" in problem or "missing" in problem)
        if sample == "'${N}'":
            assert schema_accepts(text), text  # what a reference leads to is beyond a schema
        else:
            assert schema_accepts(text) == (not problems), (text, problems)


def test_the_schema_is_draft_07_and_explains_every_key() -> None:
    assert SCHEMA["$schema"] == "http://json-schema.org/draft-07/schema#"
    blocks = [SCHEMA, *(body for name, body in SCHEMA["definitions"].items() if "properties" in body)]
    for block in blocks:
        assert block["additionalProperties"] is False
        assert block["description"]
    for name, body in SCHEMA["definitions"].items():
        for key, rule in body.get("properties", {}).items():
            assert rule.get("description") or name == "BucketCounts", f"{name}.{key} is not explained"


def test_every_default_of_the_schema_is_valid() -> None:
    def walk(schema: Any) -> Iterator[dict[str, Any]]:
        if isinstance(schema, dict):
            yield schema
            for inner in schema.values():
                yield from walk(inner)
        elif isinstance(schema, list):
            for inner in schema:
                yield from walk(inner)

    with_default = [schema for schema in walk(SCHEMA) if "default" in schema and "anyOf" in schema]
    assert len(with_default) > 40
    for schema in with_default:
        assert not list(violations(schema["default"], schema)), schema
