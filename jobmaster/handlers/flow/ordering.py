"""How a handler declares the ordering key of its jobs: those of one key run one at a time, in the order of their submits.

A template is evaluated over the arguments as they are sent. So programs without the handler's code, SQL and Spark get the
same key from what agents publish. A function is known to programs with the handler's code alone.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from jobmaster.codec import decode_json
from jobmaster.handlers.names import check_name
from jobmaster.handlers.signature import readable
from jobmaster.model.errors import InputError, InvalidArguments

KEY_CHARS_MAX = 200

Ordering = str | Callable[[dict[str, Any]], object]


class PublishedOrdering(msgspec.Struct, frozen=True, omit_defaults=True):
    """The ordering key of a handler, as agents publish it."""

    template: str | None = None
    """``None``: a function of the handler's program computes the key."""
    defaults: dict[str, str | int | bool] = {}
    """Values of the arguments of the template that need not be sent."""

    def key(self, args: bytes) -> str:
        """The key of a job with these arguments (a JSON object).

        Raises:
            InvalidArguments: an argument of the template is none that a key can have, or the key is not valid.
            InputError: a function computes the key.
        """
        if self.template is None:
            raise InputError(
                "its ordering key is computed by a function, which this program does not have",
                hint="submit it with the handler's code, or give ordering_key=",
            )
        given = {**self.defaults, **_object(args)}
        return valid_key("".join(text + _text(given, field) for text, field in _parts(self.template)))


def ordering_key_text(value: object) -> str:
    """An ordering key that was given; ``InputError`` when it cannot be one."""
    key = check_name(value, "ordering_key", KEY_CHARS_MAX)
    if '"' in key or "\\" in key:
        raise InputError("ordering_key has a quote or a backslash", hint="leave them out")
    return key


def valid_key(value: object) -> str:
    """A computed key; ``InvalidArguments`` when it cannot be one."""
    try:
        return ordering_key_text(value)
    except InputError as error:
        raise InvalidArguments(f"the ordering key that these arguments give cannot be used: {error.message}") from None


def key_of_function(function: Callable[[dict[str, Any]], object], arguments: dict[str, Any]) -> str:
    """What a function makes of arguments, defaults included; ``InvalidArguments`` when it fails or gives no key."""
    try:
        found = function(arguments)
    except Exception as error:
        text = f"{type(error).__name__}: {readable(error)}"
        raise InvalidArguments(f"the ordering key cannot be computed: {text}") from None
    return valid_key(found)


def checked_ordering(value: object) -> Ordering | None:
    """The option ``ordering_key`` of a handler; ``ValueError`` when it is none."""
    if value is None or callable(value):
        return value
    if not isinstance(value, str) or not value:
        raise ValueError(f"ordering_key must be a template or a function, not {value!r:.200}")
    try:
        parts = _parts(value)
    except ValueError as error:
        raise ValueError(f"ordering_key {value!r:.200} is no template: {error}") from None
    for text, field in parts:
        if text:
            ordering_key_text(text)
        if field is not None and not field.isidentifier():
            raise ValueError(
                f'ordering_key {value!r:.200} may only name arguments: "order:{{order}}"; else give a function'
            )
    return value


def published(
    ordering: Ordering | None, parameters: Sequence[str], defaults: Mapping[str, object]
) -> PublishedOrdering | None:
    """What agents publish of it.

    Args:
        parameters: of the handler.
        defaults: values of those that need not be sent.

    Raises:
        ValueError: the template names an argument that the handler does not have, or one whose default cannot be in a key.
    """
    if ordering is None:
        return None
    if not isinstance(ordering, str):
        return PublishedOrdering()
    used: dict[str, str | int | bool] = {}
    for _, field in _parts(ordering):
        if field is None:
            continue
        if field not in parameters:
            raise ValueError(
                f"ordering_key {ordering!r} names {field!r}, and the handler takes ({', '.join(parameters)})"
            )
        if field in defaults:
            default = defaults[field]
            if not isinstance(default, str | int):
                raise ValueError(
                    f"ordering_key {ordering!r} names {field!r}, whose default {default!r:.80} cannot be in a key; "
                    "give it a text or a whole number, or a function as ordering_key"
                )
            used[field] = default
    return PublishedOrdering(ordering, used)


def _parts(template: str) -> list[tuple[str, str | None]]:
    """Texts, each with the argument that follows it."""
    found = []
    for text, field, form, conversion in string.Formatter().parse(template):
        if form or conversion:
            raise ValueError("an argument has no format")
        found.append((text, field))
    return found


def _text(given: Mapping[str, object], field: str | None) -> str:
    if field is None:
        return ""
    value = given.get(field)
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str | int):
        raise InvalidArguments(
            f"argument {field!r} is in the ordering key, and must be text, a whole number or a boolean, not {value!r:.80}"
        )
    return str(value)


def _object(args: bytes) -> dict[str, object]:
    try:
        found = decode_json(args)
    except msgspec.DecodeError:
        return {}  # the check of the arguments refuses it
    return found if isinstance(found, dict) else {}
