"""Secret arguments of a job in what people see: ``***`` in their place, and their values cut out of texts.

Source of the idea: filters of parameters in web frameworks, and maskers of the logs of build systems.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from urllib.parse import quote

import msgspec

MASK = "***"
CHARS_MIN = 4
"""Texts and numbers that are shorter are not looked for: they stand in any text."""


def masked_arguments(arguments_json: bytes, secret: Sequence[str]) -> bytes:
    """A JSON object of arguments with ``***`` as the value of each secret one."""
    if not secret:
        return arguments_json
    arguments: dict[str, object] = msgspec.json.decode(arguments_json, type=dict[str, object])
    return msgspec.json.encode({name: MASK if name in secret else value for name, value in arguments.items()})


class SecretTexts:
    """The values of the secret arguments of one job, as they may stand in a text."""

    def __init__(self, arguments_json: bytes, secret: Sequence[str]) -> None:
        try:
            arguments = msgspec.json.decode(arguments_json, type=dict[str, object])
        except msgspec.DecodeError:
            arguments = {}
        values = {value for name in secret for value in _leaves(arguments.get(name))}
        forms = {form for value in values if len(value) >= CHARS_MIN for form in _forms(value)}
        self._forms = sorted(forms, key=len, reverse=True)
        """The longest first: one may contain another."""

    def cut(self, text: str) -> str:
        """The same text without them."""
        for form in self._forms:
            text = text.replace(form, MASK)
        return text


def _leaves(value: object) -> Iterator[str]:
    """Texts and numbers inside a value. Keys of objects are names, and common words."""
    todo = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, dict):
            todo.extend(item.values())
        elif isinstance(item, list):
            todo.extend(item)
        elif isinstance(item, str):
            yield item
        elif isinstance(item, int | float) and not isinstance(item, bool):
            yield repr(item)


def _forms(value: str) -> Iterator[str]:
    """A text as it is, as Python, JSON and URLs write it, and its lines."""
    yield value
    yield repr(value)[1:-1]
    yield json.dumps(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]
    yield quote(value, safe="")
    yield from (line for line in value.splitlines() if len(line) >= CHARS_MIN)
