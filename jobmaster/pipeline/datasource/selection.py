"""The rows and columns that a read selects by its options. Every option becomes a parameter of the statement."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from jobmaster.model.errors import InputError
from jobmaster.model.job import Priority
from jobmaster.pipeline.datasource.tables import FilterOption, Partitioning, Table, table_of

LOWEST, HIGHEST = UUID(int=0), UUID(int=(1 << 128) - 1)
EARLIEST, _LATEST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


class Selection(NamedTuple):
    """The rows and columns of one read."""

    table: str
    columns: tuple[str, ...]
    low: UUID = LOWEST
    high: UUID = HIGHEST
    """Bounds of job ids; ``high`` is exclusive."""
    since: datetime = EARLIEST
    until: datetime = _LATEST
    filters: Mapping[FilterOption, tuple[str, ...]] = {}
    counted: bool = False
    """Only the number of rows is needed: the columns may hold null."""

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
    milliseconds = -((EARLIEST - moment) // _MILLISECOND)
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
