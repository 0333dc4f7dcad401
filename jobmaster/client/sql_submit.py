"""A checked submit as a call of the SQL function ``submit``: for transactions of drivers other than asyncpg, and for
programs that run the statement themselves.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Literal, NamedTuple

import msgspec

from jobmaster.client.options import MEANINGLESS, SubmitOptions
from jobmaster.client.signals.wait import sql_wait
from jobmaster.handlers import CheckedUnique
from jobmaster.model import ids
from jobmaster.model.errors import InputError, InvalidArguments
from jobmaster.model.flow.uniqueness import OnConflict, UniqueRule, UniqueTerm

ParamStyle = Literal["format", "numeric", "named"]
"""``%s`` (psycopg, Django), ``$1`` (asyncpg), ``:handler`` (``sqlalchemy.text``)."""

NO_OPTIONS = (*MEANINGLESS, "connection", "unique")
"""Options of a submit that the function does not have, or has in another form."""
_PARAMETERS: dict[str, tuple[str, str, str]] = {
    "format": ("%s", "%s", "%s"),
    "numeric": ("$1", "$2", "$3"),
    "named": (":handler", ":args", ":options"),
}
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")


class SubmitCall(NamedTuple):
    """The values of one call of the function, as JSON texts."""

    handler: str
    args: str
    options: str


def styled(text: str, paramstyle: str) -> str:
    """The statement with the parameters of a driver; ``InputError`` for a style that is none."""
    marks = _PARAMETERS.get(paramstyle)
    if marks is None:
        raise InputError(
            f"{paramstyle!r} is not a parameter style",
            hint="'format' gives %s (psycopg, Django), 'numeric' gives $1 (asyncpg), 'named' gives :handler (SQLAlchemy)",
        )
    for number, mark in enumerate(marks, 1):
        text = text.replace(f"${number}", mark)
    return text


def submit_call(handler: str, args: bytes, options: SubmitOptions, known: Mapping[str, object]) -> SubmitCall:
    """The values of the function for checked options.

    Args:
        args: encoded arguments.
        known: options that were decided here, in the form of the function.

    Raises:
        InvalidArguments, InputError: arguments or metadata with text that ``jsonb`` cannot hold.
    """
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if _NUL.search(args):
        raise InvalidArguments(
            f"the arguments of handler {handler!r} contain the character U+0000, which a jsonb cannot hold",
            hint="remove it, or submit without connection= after the commit",
        )
    plain = {name: _plain(name, value) for name, value in given.items() if name not in NO_OPTIONS}
    encoded = msgspec.json.encode({**plain, **known})
    if _NUL.search(encoded):  # names are checked; only a text of the metadata can contain it
        raise InputError(
            f"the metadata of a job of handler {handler!r} contains the character U+0000, which a jsonb cannot hold",
            hint="remove it, or submit without connection= after the commit",
        )
    return SubmitCall(handler, args.decode(), encoded.decode())


def unique_option(unique: UniqueRule | CheckedUnique) -> dict[str, object]:
    """A uniqueness in the form of the function."""
    made: dict[str, object] = {} if unique.key is None else {"key": unique.key}
    if isinstance(unique, CheckedUnique) and unique.args is not None:
        made["args"] = list(unique.args)
    match unique.term:
        case UniqueTerm.WINDOW:
            made["throttle" if unique.aligned else "window"] = unique.span_us / 1e6
        case UniqueTerm.WAITING:
            made["debounce"] = unique.span_us / 1e6
    if unique.on_conflict is not OnConflict.DEBOUNCE:
        made["on_conflict"] = unique.on_conflict.value
    return made


def _plain(name: str, value: Any) -> object:
    """A value in the form of the function."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if name == "job_id":
        return ids.text(ids.parse(value))
    if name == "wait_for":
        return sql_wait(value)
    if name == "metadata":
        return dict(value) if isinstance(value, Mapping) else value
    if name == "tags":
        return list(value)
    if name == "allow_unregistered":
        return bool(value)
    return value
