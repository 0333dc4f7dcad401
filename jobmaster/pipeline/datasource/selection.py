"""The rows and columns that a read selects: from the options, and from the filters that Spark pushes down.

Every option becomes a parameter of the statement. A filter of Spark only reduces what is read: it is also returned to Spark,
which applies it again, so a difference between two engines' notions of equality has no effect. A filter without an equivalent
option reduces nothing, so no row is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

from jobmaster.model.errors import InputError
from jobmaster.model.job import Priority
from jobmaster.pipeline.datasource.tables import FilterOption, Partitioning, Table, table_of

LOWEST, HIGHEST = UUID(int=0), UUID(int=(1 << 128) - 1)
_EARLIEST, _LATEST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_OPTION_OF_COLUMN = {
    "state": FilterOption.STATES,
    "handler": FilterOption.HANDLERS,
    "lane": FilterOption.LANES,
    "priority": FilterOption.PRIORITIES,
    "bucket_id": FilterOption.BUCKETS,
}
_BUCKET_IDS = {"buckets": "id"}
_JOB_IDS = {"jobs": "id", "ledger": "job_id", "attempts": "job_id"}


class Selection(NamedTuple):
    """The rows and columns of one read."""

    table: str
    columns: tuple[str, ...]
    low: UUID = LOWEST
    high: UUID = HIGHEST
    """Bounds of job ids; ``high`` is exclusive."""
    since: datetime = _EARLIEST
    until: datetime = _LATEST
    filters: Mapping[FilterOption, tuple[str, ...]] = {}

    def values(self, low: UUID, high: UUID) -> list[Any]:
        """Parameters of the table's statement for one range of job ids."""
        table = table_of(self.table)
        bounds: dict[Partitioning, list[Any]] = {
            Partitioning.JOB_ID: [low, high],
            Partitioning.TIME: [self.since, self.until],
            Partitioning.WHOLE: [],
        }
        return bounds[table.partitioning] + [self._value(option) for option in table.filters]

    def _value(self, option: FilterOption) -> list[Any] | None:
        words = self.filters.get(option)
        if words is None:
            return None
        return [UUID(word) for word in words] if option is FilterOption.BUCKETS else list(words)

    def narrowed(self, option: FilterOption, words: tuple[str, ...]) -> Selection:
        """The selection with one more filter: only values in ``words``."""
        before = self.filters.get(option)
        both = words if before is None else tuple(word for word in before if word in words)
        return self._replace(filters={**self.filters, option: both})

    def within(self, low: UUID | None = None, high: UUID | None = None) -> Selection:
        """The selection with ids from ``low`` (inclusive) to ``high`` (exclusive) only."""
        return self._replace(low=max(self.low, low or LOWEST), high=min(self.high, high or HIGHEST))


def selection_of(table: Table, columns: tuple[str, ...], options: Mapping[str, str]) -> Selection:
    """The selection of the options.

    Raises:
        InputError: an option that the table does not support, or an invalid value.
    """
    selection = Selection(table.name, columns)
    for option in FilterOption:
        text = options.get(option.value)
        if text is None:
            continue
        if option not in table.supported_filters:
            words = ", ".join(sorted(table.supported_filters)) or "none"
            raise InputError(
                f"table {table.name!r} cannot be chosen from by {option.value!r}", hint=f"it can by {words}"
            )
        if option is FilterOption.SINCE:
            moment = parse_time(option.value, text)
            selection = selection._replace(since=moment).within(low=floor_id(moment))
        elif option is FilterOption.UNTIL:
            moment = parse_time(option.value, text)
            selection = selection._replace(until=moment).within(high=floor_id(moment))
        else:
            selection = selection.narrowed(option, _words(option, text))
    return selection


def parse_time(name: str, text: str) -> datetime:
    """A time with its zone; UTC where the text has none.

    Raises:
        InputError: the text is no time.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InputError(
            f"option {name} is no time: {text!r}", hint="such as 2030-01-31 or 2030-01-31T12:00:00Z"
        ) from None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def floor_id(moment: datetime) -> UUID:
    """Lowest id of a job created at that moment or later (ids count milliseconds)."""
    milliseconds = -((_EARLIEST - moment) // _MILLISECOND)
    return UUID(int=min(max(milliseconds, 0), (1 << 48) - 1) << 80)


def _words(option: FilterOption, text: str) -> tuple[str, ...]:
    words = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    if not words:
        raise InputError(
            f"option {option.value} is empty", hint="give values with commas between them, or leave it out"
        )
    if option is FilterOption.STATES:
        return tuple(word.upper() for word in words)
    if option is FilterOption.PRIORITIES:
        labels = {level.label for level in Priority}
        wrong = [word for word in words if word not in labels]
        if wrong:
            raise InputError(f"option priorities: {wrong[0]!r} is none", hint=f"they are {', '.join(labels)}")
    if option is FilterOption.BUCKETS:
        for word in words:
            try:
                UUID(word)
            except ValueError:
                raise InputError(f"option buckets: {word!r} is not the id of a bucket") from None
    return words


# ---------------------------------------------------------------- push-down of Spark's filters


def push_down(selection: Selection, one: Filter) -> Selection:
    """The selection without rows that the filter excludes for certain."""
    attribute: tuple[str, ...] = getattr(one, "attribute", ())
    if len(attribute) != 1:
        return selection
    column = attribute[0]
    table = table_of(selection.table)
    if table.partitioning is Partitioning.JOB_ID and column == _JOB_IDS.get(table.name):
        return _by_id(selection, one)
    if column == "created_at" and table.name == "jobs":
        return _by_creation(selection, one)
    option = FilterOption.BUCKETS if column == _BUCKET_IDS.get(table.name) else _OPTION_OF_COLUMN.get(column)
    if option is None or option not in table.filters:
        return selection
    return _by_choice(selection, one, option)


def _by_choice(selection: Selection, one: Filter, option: FilterOption) -> Selection:
    if isinstance(one, EqualTo):
        words = (one.value,)
    elif isinstance(one, In):
        words = tuple(one.value)
    else:
        return selection
    if not all(isinstance(word, str) for word in words):
        return selection
    if option is FilterOption.BUCKETS:
        # Ids are written in lower case with dashes: any other text equals no id.
        words = tuple(word for word in words if _id(word) is not None and str(_id(word)) == word)
    return selection.narrowed(option, words)


def _by_id(selection: Selection, one: Filter) -> Selection:
    found = _id(getattr(one, "value", None))
    if found is None or str(found) != one.value:
        return selection
    after = UUID(int=found.int + 1) if found < HIGHEST else HIGHEST
    if isinstance(one, EqualTo):
        return selection.within(found, after)
    if isinstance(one, GreaterThan | GreaterThanOrEqual):
        return selection.within(low=found)
    if isinstance(one, LessThan | LessThanOrEqual):
        return selection.within(high=after)
    return selection


def _by_creation(selection: Selection, one: Filter) -> Selection:
    moment = getattr(one, "value", None)
    if not isinstance(moment, datetime):
        return selection
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    next_one = floor_id(moment + timedelta(milliseconds=1))
    # Ids have milliseconds. The lower bound is rounded down and the upper one up; Spark filters exactly.
    low = floor_id(moment - timedelta(milliseconds=1))
    if isinstance(one, EqualTo):
        return selection.within(low, next_one)
    if isinstance(one, GreaterThan | GreaterThanOrEqual):
        return selection.within(low=low)
    if isinstance(one, LessThan | LessThanOrEqual):
        return selection.within(high=next_one)
    return selection


def _id(value: object) -> UUID | None:
    try:
        return UUID(value) if isinstance(value, str) else None
    except ValueError:
        return None
