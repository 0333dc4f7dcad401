"""Comparisons of a query as options of the source, where options select the same rows or more.

The query applies its comparisons again to what was read. So a difference between two engines' notions of equality has no
effect, and a comparison without an equivalent option is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from enum import Enum
from typing import NamedTuple
from uuid import UUID

from jobmaster.model.job import Priority
from jobmaster.pipeline.datasource.selection import EARLIEST, parse_time
from jobmaster.pipeline.datasource.tables import HISTORY, FilterOption, Table

_OPTION_OF_COLUMN = {
    "state": FilterOption.STATES,
    "handler": FilterOption.HANDLERS,
    "lane": FilterOption.LANES,
    "priority": FilterOption.PRIORITIES,
    "bucket_id": FilterOption.BUCKETS,
}
_ID_OF_JOB = {"jobs": "id", HISTORY: "id", "ledger": "job_id", "attempts": "job_id"}
_TIME_OF_ROW = {"jobs": "created_at", HISTORY: "created_at", "events": "at", "operations": "at"}
"""The column that ``since`` and ``until`` compare."""
_MILLISECOND = timedelta(milliseconds=1)
_BITS_AFTER_TIME = 80
"""Of an id, whose first bits are the milliseconds since 1970."""


class Operator(Enum):
    """How a column is compared."""

    ONE_OF = "one of"
    FROM = "from"
    """Greater, with or without the value itself."""
    TO = "to"
    """Less, with or without the value itself."""


class Comparison(NamedTuple):
    """A condition that every row of a query's result meets."""

    column: str
    operator: Operator
    values: tuple[object, ...]
    """Of ``FROM`` and ``TO``: one."""


class _Period(NamedTuple):
    """Milliseconds since 1970, the last one inclusive."""

    first: int | None
    last: int | None


def narrowed(table: Table, options: Mapping[str, str], comparisons: Sequence[Comparison]) -> dict[str, str]:
    """The options, with those that leave out rows which a comparison excludes for certain."""
    found = dict(options)
    for one in comparisons:
        option = _option_of(table, one.column)
        if one.column in (_ID_OF_JOB.get(table.name), _TIME_OF_ROW.get(table.name)):
            _narrow_time(found, _period(one))
        elif option is not None and one.operator is Operator.ONE_OF:
            _narrow_choice(found, option, one.values)
    return found


def _option_of(table: Table, column: str) -> FilterOption | None:
    """The option that selects by a column."""
    if table.name == "buckets" and column == "id":
        return FilterOption.BUCKETS
    option = _OPTION_OF_COLUMN.get(column)
    return option if option in table.filters else None


def _narrow_choice(options: dict[str, str], option: FilterOption, values: Sequence[object]) -> None:
    if not values or not all(isinstance(value, str) and _is_word(option, value) for value in values):
        return
    words = [str(value) for value in values]
    given = options.get(option.value)
    if given is not None:
        chosen = [word.strip() for word in given.split(",")]
        if option is FilterOption.STATES:
            chosen = [word.upper() for word in chosen]
        words = [word for word in words if word in chosen]
    if words:
        options[option.value] = ",".join(words)


def _is_word(option: FilterOption, value: str) -> bool:
    """Whether the option takes the value for itself and no other one."""
    if not value or "," in value or value != value.strip():
        return False
    if option is FilterOption.STATES:
        return value == value.upper()
    if option is FilterOption.PRIORITIES:
        return value in {level.label for level in Priority}
    return option is not FilterOption.BUCKETS or _id(value) is not None


def _period(one: Comparison) -> _Period:
    found = [_milliseconds(value) for value in one.values]
    known = [value for value in found if value is not None]
    if not known or len(known) < len(found):
        return _Period(None, None)
    return _Period(
        min(known) if one.operator is not Operator.TO else None,
        max(known) if one.operator is not Operator.FROM else None,
    )


def _milliseconds(value: object) -> int | None:
    """The time of a moment or of the text of an id."""
    if isinstance(value, datetime):
        return (value - EARLIEST) // _MILLISECOND
    key = _id(value)
    return None if key is None else key.int >> _BITS_AFTER_TIME


def _narrow_time(options: dict[str, str], period: _Period) -> None:
    try:
        first = None if period.first is None else EARLIEST + period.first * _MILLISECOND
        after = None if period.last is None else EARLIEST + (period.last + 1) * _MILLISECOND
    except OverflowError:
        return
    for option, moment, best in ((FilterOption.SINCE, first, max), (FilterOption.UNTIL, after, min)):
        if moment is not None:
            given = options.get(option.value)
            both = [moment] if given is None else [moment, parse_time(option.value, given)]
            options[option.value] = best(both).isoformat()


def _id(value: object) -> UUID | None:
    """The id whose text is the value: in lower case with dashes. Any other text equals no id."""
    try:
        found = UUID(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return found if str(found) == value else None
