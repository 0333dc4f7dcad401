"""Checks arguments against the published signature of a handler, at a million rows a minute.

The published JSON Schema becomes a ``msgspec`` type where possible, which decodes and checks arguments in one pass in C.
Arguments that this refuses, and schemas without such a type, go through the full check, which writes the error texts. So the
fast check never rejects a row, and both checks agree.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, NamedTuple, Union

import msgspec

from jobmaster.client.published_schema import FORMATS, Schema, problems, whole_numbers
from jobmaster.codec import DEPTH_MAX, check_value, decode_json, encode_args
from jobmaster.model.agent import HandlerSpec
from jobmaster.model.errors import InvalidArguments

_PLAIN: dict[str, Any] = {"null": None, "boolean": bool, "integer": int, "number": float}
_CONSTRAINTS = {
    "minimum": "ge", "maximum": "le", "exclusiveMinimum": "gt", "exclusiveMaximum": "lt",
    "minLength": "min_length", "maxLength": "max_length", "minItems": "min_length", "maxItems": "max_length",
}  # fmt: skip
_NOT_FINITE = re.compile(rb"nan|inf", re.IGNORECASE)
"""Texts that become a float without a form in JSON; the encoder writes null for it."""
_IGNORED = {"title", "description", "default", "examples", "$defs", "discriminator"}


class _NotExpressible(Exception):
    """No ``msgspec`` type is equivalent to the schema."""


class CheckedArgs(NamedTuple):
    """Arguments, and the error text if they are invalid."""

    args: bytes
    problem: str | None


class ArgsChecker:
    """Checks the arguments of one handler.

    Args:
        lax: texts may represent numbers, booleans and null, as in CSV; the result has the values.
    """

    def __init__(self, spec: HandlerSpec | None, *, lax: bool, limit_bytes: int) -> None:
        self._schema: Schema | None = None if spec is None else spec.schema
        self._lax = lax
        self._limit = limit_bytes
        self._decode: Callable[[bytes], Any] = msgspec.json.Decoder(dict[str, Any]).decode
        self._exact = spec is None
        if self._schema is not None:
            try:
                assert spec is not None
                schema: Any = spec.schema
                kind = _object(schema, schema.get("$defs", {}))
                self._decode = msgspec.json.Decoder(kind, strict=not lax).decode
                self._exact = True
            except (_NotExpressible, TypeError, ValueError):
                pass

    def check_all(self, args: Sequence[bytes]) -> tuple[Sequence[bytes], dict[int, str]]:
        """``check`` of each: the arguments as they will be stored, and the first errors by number."""
        found = self._quickly(args)
        if found is not None:
            return found, {}
        checked = [self.check(one) for one in args]
        problems_by_number = {number: one.problem for number, one in enumerate(checked) if one.problem is not None}
        return [one.args for one in checked], problems_by_number

    def _quickly(self, args: Sequence[bytes]) -> Sequence[bytes] | None:
        """The arguments as they will be stored; ``None``: at least one needs a look of its own."""
        if not self._exact or max(map(len, args), default=0) > self._limit or any(map(_may_be_deep, args)):
            return None
        try:
            if self._lax and self._schema is not None:
                stored = list(map(msgspec.json.encode, map(self._decode, args)))
                return None if any(b"null" in one for one in stored) else stored
            deque(map(self._decode, args), maxlen=0)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return None
        return args

    def check(self, args: bytes) -> CheckedArgs:
        """The arguments as they will be stored, or the first errors."""
        if len(args) > self._limit:
            return CheckedArgs(args, f"the arguments have {len(args)} bytes, the limit is {self._limit}")
        try:
            value = self._decode(args)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return self._check_in_full(args)
        if not self._exact or _may_be_deep(args):
            return self._check_in_full(args)
        if self._lax and self._schema is not None:
            stored = msgspec.json.encode(value)
            if b"null" in stored and _NOT_FINITE.search(args):
                return self._check_in_full(args)
            return CheckedArgs(stored, None)
        return CheckedArgs(args, None)

    def _check_in_full(self, args: bytes) -> CheckedArgs:
        try:
            value: Any = decode_json(args)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            return CheckedArgs(args, f"the arguments are no JSON: {error}")
        if not isinstance(value, dict):
            return CheckedArgs(args, "the arguments are no JSON object")
        try:
            check_value(value, "the value")
        except InvalidArguments as error:
            return CheckedArgs(args, error.message)
        if self._schema is None:
            return CheckedArgs(args, None)
        fitted = whole_numbers(self._schema, coerced(self._schema, value) if self._lax else value)
        if wrong := problems(self._schema, fitted):
            return CheckedArgs(args, "; ".join(wrong))
        # Store what was checked: the agent accepts 3 for an int and refuses 3.0.
        try:
            return CheckedArgs(args if fitted is value or _same(fitted, value) else encode_args(fitted), None)
        except InvalidArguments as error:
            return CheckedArgs(args, error.message)


def _same(one: Any, other: Any) -> bool:
    """Equal, and of the same types: 3 and 3.0 are not."""
    return msgspec.json.encode(one) == msgspec.json.encode(other)


def _may_be_deep(args: bytes) -> bool:
    return len(args) > 2 * DEPTH_MAX and args.count(b"[") + args.count(b"{") > DEPTH_MAX


def coerced(schema: Schema, value: dict[str, Any]) -> dict[str, Any]:
    """Text arguments converted to the type of their argument, where possible."""
    properties: Schema = schema.get("properties", {})
    found = dict(value)
    for name, item in value.items():
        if isinstance(item, str) and name in properties:
            found[name] = _coerced_text(properties[name], item, schema.get("$defs", {}))
    return found


def _coerced_text(schema: Schema, text: str, defs: Schema) -> Any:
    try:
        kind = _type(schema, defs)
    except _NotExpressible:
        return text
    try:
        found = msgspec.convert(text, kind, strict=False)
    except msgspec.ValidationError:
        return text
    # A decimal number, a time or an id is a text in JSON.
    return found if found is None or isinstance(found, bool | int | float) else text


def _type(schema: Schema, defs: Schema) -> Any:
    """The equivalent type; ``_NotExpressible`` when there is none."""
    if reference := schema.get("$ref"):
        return _type(defs[str(reference).rpartition("/")[2]], defs)
    used = set(schema) - _IGNORED
    if not used:
        return Any
    for keyword in ("anyOf", "oneOf"):
        if keyword in used:
            if used != {keyword}:
                raise _NotExpressible
            return Union[tuple(_type(choice, defs) for choice in schema[keyword])]  # noqa: UP007  # made at run time
    if "enum" in used or "const" in used:
        values = schema.get("enum", [schema.get("const")])
        if not all(isinstance(value, str | int) and not isinstance(value, bool) for value in values):
            raise _NotExpressible
        return Literal[tuple(values)]
    kind = schema.get("type")
    if kind == "object":
        return _object(schema, defs)
    if kind == "array":
        if "prefixItems" in used or not isinstance(schema.get("items", {}), dict):
            raise _NotExpressible
        found: Any = list[_type(schema.get("items", {}), defs)]  # type: ignore[misc]  # made at run time
        used -= {"items"}
    elif kind == "string":
        found = _text(schema)
        used -= {"format", "contentEncoding"}
    elif isinstance(kind, str) and kind in _PLAIN:
        found = _PLAIN[kind]
    else:
        raise _NotExpressible
    used -= {"type"}
    if not used <= set(_CONSTRAINTS):
        raise _NotExpressible
    limits = {_CONSTRAINTS[name]: schema[name] for name in used}
    return Annotated[found, msgspec.Meta(**limits)] if limits else found


def _text(schema: Schema) -> Any:
    """The type as which the agent reads the text."""
    if not {"format", "contentEncoding"} & set(schema):
        return str
    found = bytes if schema.get("contentEncoding") == "base64" else FORMATS.get(schema.get("format", ""))
    if found is None:
        raise _NotExpressible
    return found


def _object(schema: Schema, defs: Schema) -> Any:
    used = set(schema) - _IGNORED - {"type", "properties", "required", "additionalProperties"}
    if used or schema.get("type") != "object":
        raise _NotExpressible
    extra = schema.get("additionalProperties", True)
    properties: Schema = schema.get("properties", {})
    if not properties and "additionalProperties" in schema and isinstance(extra, dict):
        return dict[str, _type(extra, defs)]  # type: ignore[misc]  # made at run time
    if extra is not False:
        raise _NotExpressible
    required = set(schema.get("required", ()))
    fields: list[Any] = []
    for name, inner in properties.items():
        if not name.isidentifier():
            raise _NotExpressible
        kind = _type(inner, defs)
        if name in required:
            fields.append((name, kind))
        else:
            fields.append((name, kind if kind is Any else Union[kind, msgspec.UnsetType], msgspec.UNSET))  # noqa: UP007
    return msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True, gc=False)
