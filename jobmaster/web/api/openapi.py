"""The OpenAPI document, generated from the operations and their types.

``jobmaster web openapi`` prints it. ``docs/openapi.json`` is a copy, which a test compares with the code.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from jobmaster.rules.access import Scope
from jobmaster.settings.schema import field_docs
from jobmaster.web.answers import ErrorAnswer
from jobmaster.web.api.operation import PREFIX, Nothing, Operation

VERSION = "1"
_REFERENCES = "#/components/schemas/{name}"
_STATUSES = {
    "400": "The request is malformed.",
    "401": "The token is missing or not known.",
    "403": "The caller has no scope for this, or nothing can be changed here.",
    "404": "There is no such thing.",
    "409": "The state of the cluster forbids it.",
    "422": "A value that cannot be meant.",
    "429": "Too many requests of a kind.",
    "503": "A server of the cluster does not answer; send it again later.",
}


def openapi_json(operations: Sequence[Operation]) -> bytes:
    """The document as JSON."""
    return json.dumps(_document(operations), indent=1, ensure_ascii=False).encode() + b"\n"


def _document(operations: Sequence[Operation]) -> dict[str, Any]:
    types = [ErrorAnswer]
    for operation in operations:
        types += [kind for kind in (operation.body, operation.answer) if kind is not None and _is_data(kind)]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REFERENCES)
    by_type = dict(zip(map(repr, types), schemas, strict=True))
    _describe(types, components)
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        path = PREFIX + re.sub(r":path\}", "}", operation.path)
        paths.setdefault(path, {})[operation.method.lower()] = _operation(operation, by_type, components)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "JobMaster",
            "version": VERSION,
            "description": "Jobs of a cluster over HTTP. Every request has a token: `Authorization: Bearer TOKEN`, or HTTP "
            "Basic with the name of the caller as the user and the token as the password.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"bearer": []}, {"basic": []}],
        "paths": paths,
        "components": {
            "schemas": dict(sorted(components.items())),
            "responses": {
                "Refused": {
                    "description": " ".join(f"{status}: {text}" for status, text in _STATUSES.items()),
                    "content": _json({"$ref": _REFERENCES.format(name="ErrorAnswer")}),
                }
            },
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "basic": {"type": "http", "scheme": "basic"},
            },
        },
    }


def _operation(operation: Operation, by_type: Mapping[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    summary, _, more = _prose(inspect.getdoc(operation.function) or "").partition(". ")
    scope = operation.scope
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": summary.rstrip("."),
        "description": f"{more} Needs the scope `{scope.value}`.".strip() if isinstance(scope, Scope) else more,
        "parameters": [*_path_parameters(operation, components), *_query_parameters(operation, components)],
        "responses": {
            str(operation.status): _success(operation, by_type),
            "default": {"$ref": "#/components/responses/Refused"},
        },
    }
    if operation.body is not None:
        described["requestBody"] = {"required": True, "content": _json(by_type[repr(operation.body)])}
    return described


def _success(operation: Operation, by_type: Mapping[str, Any]) -> dict[str, Any]:
    if not _is_data(operation.answer):
        return {"description": "Done.", "content": {"text/event-stream": {"schema": {"type": "string"}}}}
    return {"description": "Done.", "content": _json(by_type[repr(operation.answer)])}


def _path_parameters(operation: Operation, components: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": _schema(kind, components)}
        for name, kind in operation.parameters.items()
    ]


def _query_parameters(operation: Operation, components: dict[str, Any]) -> list[dict[str, Any]]:
    if operation.query is Nothing:
        return []
    docs = {name: text for kind in reversed(operation.query.__mro__) for name, text in _docs_of(kind).items()}
    found = []
    for field in msgspec.structs.fields(operation.query):
        parameter: dict[str, Any] = {"name": field.encode_name, "in": "query", "required": field.required}
        schema = _schema(field.type, components)
        if not field.required and field.default is not None:
            schema = {**schema, "default": msgspec.to_builtins(field.default)}
        found.append({**parameter, "schema": schema, **_description(docs.get(field.name))})
    return found


def _schema(kind: Any, components: dict[str, Any]) -> dict[str, Any]:
    (schema,), further = msgspec.json.schema_components([kind], ref_template=_REFERENCES)
    components.update(further)
    return schema


def _describe(types: Sequence[Any], components: dict[str, Any]) -> None:
    """Give the properties of structs the texts below their fields, which the generator does not read."""
    seen: dict[str, type] = {}

    def note(kind: Any) -> None:
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__name__ not in seen:
            seen[kind.__name__] = kind
            for field in msgspec.structs.fields(kind):
                note(field.type)
        for part in getattr(kind, "__args__", ()):
            note(part)

    for kind in types:
        note(kind)
    for name, kind in seen.items():
        docs = {field: text for each in reversed(kind.__mro__) for field, text in _docs_of(each).items()}
        for field, schema in components[name].get("properties", {}).items():
            if field in docs:
                components[name]["properties"][field] = {**schema, **_description(docs[field])}
    for component in components.values():
        if "description" in component:
            component["description"] = _prose(component["description"])


def _docs_of(kind: type) -> dict[str, str]:
    return field_docs(kind) if kind.__module__.startswith("jobmaster.") else {}


def _description(text: str | None) -> dict[str, str]:
    return {} if text is None else {"description": _prose(text)}


def _prose(text: str) -> str:
    return " ".join(text.replace("``", "`").split())


def _is_data(kind: Any) -> bool:
    return not (isinstance(kind, type) and kind.__module__.startswith("starlette."))


def _json(schema: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
