"""The search of jobs: one line of text with qualifiers, such as ``state:failed handler:images.resize since:2h``."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from jobmaster.model.errors import InputError
from jobmaster.model.suggestion import did_you_mean
from jobmaster.units import UnitError, parse_duration

QUERY_CHARS_MAX = 1000
QUALIFIERS: Mapping[str, str] = {
    "state": "state:failed,cancelled",
    "handler": "handler:images.resize",
    "lane": "lane:mail",
    "priority": "priority:high",
    "tag": "tag:eu",
    "since": "since:2h",
    "until": "until:2030-01-31T12:00:00Z",
    "due-after": "due-after:10m",
    "due-before": "due-before:1h",
    "schedule": "schedule:reports.nightly",
    "batch": "batch:ID",
    "workflow": "workflow:ID",
    "tenant": "tenant:acme",
    "error": "error:ValueError",
    "meta.NAME": "meta.customer:42",
}
"""Qualifier -> an example."""
VIEWS: Mapping[str, str] = {
    "failed, last hour": "state:failed since:1h",
    "failed, last day": "state:failed since:1d",
    "running": "state:processing",
    "5 minutes late": "state:held due-before:-5m",
    "due within an hour": "state:held due-before:1h",
}
"""Searches that the page offers, by name. A browser keeps others (``static/views.js``)."""
METADATA = "meta."
ID_DIGITS_MIN = 4
_TIMES = frozenset({"since", "until", "due-after", "due-before"})


class JobSearch(NamedTuple):
    """What was searched for."""

    filters: dict[str, Any]
    """As the parameters of ``Cluster.jobs``."""
    job: str | None
    """Hexadecimal digits of an id, or of its beginning."""
    words: list[str]
    """Its words, without their quotes."""


def parsed_search(text: str) -> JobSearch:
    """The filters of a search.

    Raises:
        InputError: a qualifier that there is not, given twice, or with a value that cannot be meant.
    """
    if len(text) > QUERY_CHARS_MAX:
        raise InputError(f"a search has at most {QUERY_CHARS_MAX} characters, this one has {len(text)}")
    try:
        words = shlex.split(text, posix=True)
    except ValueError:
        raise InputError("a quote in the search is not closed", hint="put both quotes, or none") from None
    filters: dict[str, Any] = {}
    job = None
    for word in words:
        name, colon, value = word.partition(":")
        if not colon:
            job = _id_digits(word)
            continue
        metadata = name.removeprefix(METADATA) if name.startswith(METADATA) else None
        if metadata == "" or name == "meta.NAME" or (metadata is None and name not in QUALIFIERS):
            near = did_you_mean(name, QUALIFIERS)
            known = f"there are {', '.join(QUALIFIERS)}; for example {QUALIFIERS['meta.NAME']}"
            raise InputError(f"there is no qualifier {name!r:.60}", hint=near or known)
        if name.replace("-", "_") in filters or metadata in filters.get("metadata", {}):
            raise InputError(f"{name!r} is given twice in the search")
        if not value:
            raise InputError(f"{name!r} has no value", hint=f"for example {QUALIFIERS.get(name, 'meta.customer:42')}")
        if metadata is not None:
            filters.setdefault("metadata", {})[metadata] = value
        elif name in _TIMES:
            filters[name.replace("-", "_")] = _time(name, value)
        else:
            filters[name] = value.split(",") if name == "state" else value
    if job is not None and filters:
        raise InputError("an id needs no qualifier", hint="search for the id alone")
    return JobSearch(filters, job, words)


def searches_without(words: Sequence[str]) -> list[tuple[str, str]]:
    """Each word of a search, and the search without it."""
    return [(word, shlex.join([*words[:at], *words[at + 1 :]])) for at, word in enumerate(words)]


def _id_digits(word: str) -> str:
    digits = word.replace("-", "").lower()
    if len(digits) < ID_DIGITS_MIN or len(digits) > 32 or set(digits) - set("0123456789abcdef"):
        near = [f"{name}:{word}" for name in ("handler", "tag")] if len(word) <= 60 else []
        raise InputError(
            f"{word!r:.60} is no beginning of a job's id",
            hint=f"{' or '.join(near) or 'handler:NAME'} searches for a name; an id needs {ID_DIGITS_MIN} digits or more",
        )
    return digits


def _time(name: str, value: str) -> datetime | timedelta:
    """``2h`` is so long ago, of a due time so far ahead (and with a minus so long ago); otherwise a time with its zone."""
    behind = name.startswith("due-") and value.startswith("-")
    found = span_or_time(value[behind:])
    if found is None or (behind and isinstance(found, datetime)):
        raise InputError(
            f"{name}:{value!r:.60} is neither a duration nor a time with its zone",
            hint=f"{name}:30m, {name}:7d or {name}:2030-01-31T12:00:00Z",
        )
    return -found if behind and isinstance(found, timedelta) else found


def span_or_time(text: str) -> datetime | timedelta | None:
    """A duration such as ``2h``, or a time with its zone; ``None``: the text is neither."""
    try:
        return timedelta(seconds=parse_duration(text))
    except (UnitError, OverflowError):
        pass
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at if at.tzinfo is not None else None
