"""The axis of time of the report: its unit by the length of the history, and round places for labels in a time zone.

Times are seconds since 1970, UTC. Units up to an hour are cut in UTC; days and weeks (from Monday on) begin at midnight of
the zone. Zones whose offset is no whole hour have hours that begin at a quarter or half of theirs.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, time, timedelta, tzinfo
from typing import NamedTuple

MINUTE_SECONDS, HOUR_SECONDS, DAY_SECONDS = 60, 3600, 86_400
_EPOCH = date(1970, 1, 1)
_UNITS_MAX = 200
"""Maximum of units in a plot; a longer history gets the next unit."""


class Unit(NamedTuple):
    """The length of time that one bar or point stands for."""

    name: str
    seconds: int
    """Of a day or week with a change of the clock: an hour more or less."""

    def start(self, number: int, zone: tzinfo) -> float:
        """Beginning of a unit.

        Args:
            number: units since 1970; of days and weeks local ones.
        """
        if self.seconds < DAY_SECONDS:
            return float(number * self.seconds)
        days = number if self is DAY else number * 7 - 3
        return datetime.combine(_EPOCH + timedelta(days=days), time(), zone).timestamp()

    def number(self, seconds: float, zone: tzinfo) -> int:
        """The unit that a time lies in."""
        if self.seconds < DAY_SECONDS:
            return int(seconds // self.seconds)
        days = (datetime.fromtimestamp(seconds, zone).date() - _EPOCH).days
        return days if self is DAY else (days + 3) // 7

    def sql(self, column: str, zone: str) -> str:
        """The same number as an expression of Spark over a timestamp."""
        if self.seconds < DAY_SECONDS:
            return f"unix_seconds({column}) DIV {self.seconds}"
        days = f"unix_seconds(from_utc_timestamp({column}, '{zone}')) DIV {DAY_SECONDS}"
        return days if self is DAY else f"({days} + 3) DIV 7"


MINUTE, HOUR = Unit("minute", MINUTE_SECONDS), Unit("hour", HOUR_SECONDS)
DAY, WEEK = Unit("day", DAY_SECONDS), Unit("week", 7 * DAY_SECONDS)
UNITS = (MINUTE, Unit("5 minutes", 300), Unit("15 minutes", 900), HOUR, DAY, WEEK)


def unit_for(first: float, last: float, *, by_minutes: bool) -> Unit:
    """The smallest unit with which a history is not too long for a plot.

    Args:
        by_minutes: there are figures by the minute for all of it.
    """
    usable = [unit for unit in UNITS if by_minutes or unit.seconds >= HOUR_SECONDS]
    return next((unit for unit in usable if (last - first) / unit.seconds <= _UNITS_MAX), WEEK)


def labels(low: float, high: float, zone: tzinfo, count: int) -> list[tuple[float, str]]:
    """Round times in a range with their texts, ``count`` of them at most, at least one.

    The first one, and every one of another day than the one before it, bears its date.
    """
    found: list[datetime] = []
    for step in _STEPS:
        if (high - low) / step[0] <= 4 * count:
            found = list(_moments(low, high, zone, step))
            if len(found) <= count:
                break
    if not found:
        found = [datetime.fromtimestamp(low, zone)]
    by_day = all((one.hour, one.minute) == (0, 0) for one in found)
    by_month = by_day and len(found) > 1 and all(one.day == 1 for one in found)
    texts = []
    for before, one in zip([None, *found], found, strict=False):
        if by_month:
            text = one.strftime("%b %Y" if before is None or before.year != one.year else "%b")
        elif by_day:
            text = f"{one.day} {one:%b}"
        else:
            text = f"{one:%H:%M}" if before is not None and before.date() == one.date() else f"{one.day} {one:%b %H:%M}"
        texts.append((one.timestamp(), text))
    return texts


def moment_text(seconds: float, unit: Unit, zone: tzinfo) -> str:
    """A time for people, as exact as the unit."""
    local = datetime.fromtimestamp(seconds, zone)
    if unit.seconds < DAY_SECONDS:
        return f"{local.day} {local:%b %Y %H:%M}"
    return f"{local.day} {local:%b %Y}" if unit is DAY else f"week of {local.day} {local:%b %Y}"


_Step = tuple[float, str, int]
_STEPS: tuple[_Step, ...] = (
    *((60.0 * size, "minutes", size) for size in (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720)),
    *((86_400.0 * size, "days", size) for size in (1, 2, 7, 14)),
    *((86_400.0 * 30.4 * size, "months", size) for size in (1, 2, 3, 6, 12, 24, 60, 120)),
)
"""Distances of labels: about how many seconds, and what to count."""


def _moments(low: float, high: float, zone: tzinfo, step: _Step) -> Iterator[datetime]:
    """The local times in a range that are multiples of a step."""
    _, what, size = step
    midnight = datetime.combine(datetime.fromtimestamp(low, zone).date(), time(), zone)
    if what == "months":
        month = midnight.year * 12 + midnight.month - 1
        month -= month % size
        while (moment := datetime(month // 12, month % 12 + 1, 1, tzinfo=zone)).timestamp() <= high:
            if moment.timestamp() >= low:
                yield moment
            month += size
        return
    day = midnight.date()
    if what == "days":
        # Steps of weeks fall on Mondays; day 0 of the proleptic calendar was a Monday.
        day -= timedelta(days=(day.toordinal() - 1) % size)
    inner = range(0, 24 * 60, size) if what == "minutes" else (0,)
    while datetime.combine(day, time(), zone).timestamp() <= high:
        for minute in inner:
            moment = datetime.combine(day, time(minute // 60, minute % 60), zone)
            if low <= moment.timestamp() <= high:
                yield moment
        day += timedelta(days=size if what == "days" else 1)
