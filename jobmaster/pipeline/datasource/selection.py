"""Which rows and columns of a table are wanted: what the options say, and what Spark's own filters narrow it to.

Every choice becomes part of the statement. A filter of Spark is only used to read less: it is handed back as well, so that
Spark applies it again and no difference between two engines' ideas of equality can show.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from jobmaster.model.errors import InputError
from jobmaster.model.job import Priority
from jobmaster.pipeline.datasource.tables import Choice, Cut, Table, table_of

LOWEST, HIGHEST = UUID(int=0), UUID(int=(1 << 128) - 1)
_EARLIEST, _LATEST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


class Selection(NamedTuple):
    """What to read."""

    table: str
    columns: tuple[str, ...]
    low: UUID = LOWEST
    high: UUID = HIGHEST
    """Bounds of job ids, the higher one outside."""
    since: datetime = _EARLIEST
    until: datetime = _LATEST
    chosen: Mapping[Choice, tuple[str, ...]] = {}

    def values(self, low: UUID, high: UUID) -> list[Any]:
        """Parameters of the table's statement for one range of job ids."""
        table = table_of(self.table)
        bounds: dict[Cut, list[Any]] = {
            Cut.JOB_ID: [low, high],
            Cut.TIME: [self.since, self.until],
            Cut.WHOLE: [],
        }
        return bounds[table.cut] + [self._value(choice) for choice in table.choices]

    def _value(self, choice: Choice) -> list[Any] | None:
        words = self.chosen.get(choice)
        if words is None:
            return None
        return [UUID(word) for word in words] if choice is Choice.BUCKETS else list(words)

    def narrowed(self, choice: Choice, words: tuple[str, ...]) -> Selection:
        """Only what is in ``words``, too."""
        before = self.chosen.get(choice)
        both = words if before is None else tuple(word for word in before if word in words)
        return self._replace(chosen={**self.chosen, choice: both})

    def within(self, low: UUID | None = None, high: UUID | None = None) -> Selection:
        """Only ids from ``low`` and below ``high``, too."""
        return self._replace(low=max(self.low, low or LOWEST), high=min(self.high, high or HIGHEST))


def selection_of(table: Table, columns: tuple[str, ...], options: Mapping[str, str]) -> Selection:
    """What the options choose.

    Raises:
        InputError: a choice that the table does not understand, or a value that is none.
    """
    selection = Selection(table.name, columns)
    for choice in Choice:
        text = options.get(choice.value)
        if text is None:
            continue
        if choice not in table.understands:
            words = ", ".join(sorted(table.understands)) or "none"
            raise InputError(
                f"table {table.name!r} cannot be chosen from by {choice.value!r}", hint=f"it can by {words}"
            )
        if choice is Choice.SINCE:
            moment = moment_of(choice.value, text)
            selection = selection._replace(since=moment).within(low=floor_id(moment))
        elif choice is Choice.UNTIL:
            moment = moment_of(choice.value, text)
            selection = selection._replace(until=moment).within(high=floor_id(moment))
        else:
            selection = selection.narrowed(choice, _words(choice, text))
    return selection


def moment_of(name: str, text: str) -> datetime:
    """A time with its zone; a bare one is UTC.

    Raises:
        InputError: it is none.
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


def _words(choice: Choice, text: str) -> tuple[str, ...]:
    words = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    if not words:
        raise InputError(
            f"option {choice.value} is empty", hint="give values with commas between them, or leave it out"
        )
    if choice is Choice.STATES:
        return tuple(word.upper() for word in words)
    if choice is Choice.PRIORITIES:
        labels = {level.label for level in Priority}
        wrong = [word for word in words if word not in labels]
        if wrong:
            raise InputError(f"option priorities: {wrong[0]!r} is none", hint=f"they are {', '.join(labels)}")
    if choice is Choice.BUCKETS:
        for word in words:
            try:
                UUID(word)
            except ValueError:
                raise InputError(f"option buckets: {word!r} is not the id of a bucket") from None
    return words
