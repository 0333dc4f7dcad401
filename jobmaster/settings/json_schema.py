"""The configuration as JSON Schema (draft-07, which is what YAML editors understand).

It has the rules of the loader that a schema can express: keys, types, words, patterns and bounds of numbers. It lacks
bounds of durations and sizes with units, and relations between keys; the loader checks these.
"""

from __future__ import annotations

import json

from jobmaster.settings.rendering import Tree, tree_of
from jobmaster.settings.schema import Block, Key, Leaf, LeafKind, Series, Shape, Table, settings_shape
from jobmaster.units import DURATION_PATTERN, SIZE_PATTERN

_DRAFT = "http://json-schema.org/draft-07/schema#"
_REFERENCE: dict[str, Tree] = {"$ref": "#/definitions/reference"}


def json_schema() -> dict[str, Tree]:
    """The schema as plain data."""
    definitions: dict[str, Tree] = {
        "reference": {
            "type": "string",
            "pattern": r"\$\{[^{}]+\}",
            "description": "Text with ${NAME}, ${NAME:-default} or ${file:/path} in it.",
        }
    }
    root = settings_shape()
    body = _block_body(root, definitions)
    return {"$schema": _DRAFT, "title": "JobMaster cluster", **body, "definitions": definitions}


def json_schema_text() -> str:
    """The schema as a file."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def _block_body(block: Block, definitions: dict[str, Tree]) -> dict[str, Tree]:
    properties: dict[str, Tree] = {name: _key(key, definitions) for name, key in block.keys.items()}
    return {
        "description": _prose(block.description.partition("\n\n")[0]),
        # The name of a section without keys is a section of defaults: it remains when its lines are commented out.
        "type": ["object", "null"],
        "additionalProperties": False,
        "properties": properties,
    }


def _key(key: Key, definitions: dict[str, Tree]) -> Tree:
    body = _schema(key.shape, definitions)
    if key.description:
        # In draft-07 keys beside a $ref are ignored, so a described reference needs a wrapper.
        body = {"allOf": [body]} if "$ref" in body else body
        body = {"description": _prose(key.description), **body}
    if isinstance(key.shape, Leaf | Series):
        body = {**body, "default": tree_of(key.shape, key.make_default())}
    return body


def _schema(shape: Shape, definitions: dict[str, Tree]) -> dict[str, Tree]:
    match shape:
        case Block():
            name = shape.struct.__name__
            if name not in definitions:
                definitions[name] = {}
                definitions[name] = _block_body(shape, definitions)
            return {"$ref": f"#/definitions/{name}"}
        case Table():
            names: dict[str, Tree] = {"pattern": shape.key.pattern} if shape.key.pattern else {}
            return {
                "type": ["object", "null"],
                "propertyNames": names,
                "additionalProperties": _schema(shape.value, definitions),
            }
        case Series():
            return {"type": "array", "items": _leaf(shape.item)}
        case Leaf():
            return _leaf(shape)


def _leaf(leaf: Leaf) -> dict[str, Tree]:
    forms: list[Tree] = [*_forms(leaf), _REFERENCE]
    if leaf.optional:
        forms.append({"type": "null"})
    return {"anyOf": forms}


def _forms(leaf: Leaf) -> list[dict[str, Tree]]:
    match leaf.kind:
        case LeafKind.TEXT:
            rule: dict[str, Tree] = {"pattern": leaf.pattern} if leaf.pattern else {"minLength": 1}
            return [{"type": "string", **rule}]
        case LeafKind.CHOICE:
            return [{"enum": list(leaf.choices)}]
        case LeafKind.BOOLEAN:
            return [{"type": "boolean"}]
        case LeafKind.INTEGER:
            return [{"type": "integer", **_bounds(leaf)}]
        case LeafKind.NUMBER:
            return [{"type": "number", **_bounds(leaf)}]
        case LeafKind.DURATION:
            return [{"type": "number", "minimum": 0, **_bounds(leaf)}, {"type": "string", "pattern": DURATION_PATTERN}]
        case LeafKind.SIZE:
            return [{"type": "integer", "minimum": 0, **_bounds(leaf)}, {"type": "string", "pattern": SIZE_PATTERN}]


def _bounds(leaf: Leaf) -> dict[str, Tree]:
    bounds: dict[str, float | None] = {
        "minimum": leaf.ge,
        "exclusiveMinimum": leaf.gt,
        "maximum": leaf.le,
        "exclusiveMaximum": leaf.lt,
    }
    # Whole numbers without a fraction: 0 and 0.0 are one value to ``typing``, which keeps the one that came first.
    return {word: int(bound) if bound == int(bound) else bound for word, bound in bounds.items() if bound is not None}


def _prose(text: str) -> str:
    return " ".join(text.replace("``", "`").split())
