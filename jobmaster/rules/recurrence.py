"""When a schedule fires: cron expressions, intervals, time zones and daylight saving time. Pure: no clock is read.

Cron fields are parsed and searched by ``cronsim``, always in wall-clock time without a zone; what a change of the zone's
offset means is decided here:

* *Fixed times* (neither the minute nor the hour begins with ``*``, such as ``30 2 * * *``): a wall-clock time that the zone
  skips fires at the first moment after the gap; a wall-clock time that occurs twice fires at its first occurrence only.
* *Repetitions* (minute or hour begins with ``*``, such as ``*/15 * * * *``): every moment fires whose wall-clock time
  matches. So times that are skipped do not fire, and times that occur twice fire twice.
* *Intervals* count elapsed time and know no zone.

Nominal times are whole seconds for cron expressions. Two fires of a schedule never have the same nominal time.
"""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from cronsim import CronSim, CronSimError

from jobmaster.model.errors import InputError
from jobmaster.model.schedule import Schedule
from jobmaster.model.suggestion import did_you_mean

EXPRESSION_CHARS_MAX = 200
INTERVAL_SECONDS_MIN = 1
INTERVAL_SECONDS_MAX = 10 * 366 * 86_400
JITTER_SECONDS_MAX = 86_400
ZONE_DEFAULT = "UTC"

_FOREVER_US = 1 << 62
_SECOND_US = 1_000_000
_DAY_SECONDS = 86_400
_FIELDS = ("minute", "hour", "day of month", "month", "day of week")
_SIX_FIELDS = ("second", *_FIELDS)
_RANGES = ("0-59", "0-59", "0-23", "1-31, L or LW", "1-12 or jan-dec", "0-7 or sun-sat (0 and 7: Sunday)")
"""What each field of a cron expression takes, in the order of ``_SIX_FIELDS``."""
_CRONSIM_FIELDS = {
    "Bad second": 0,
    "Bad minute": 1,
    "Bad hour": 2,
    "Bad day-of-month": 3,
    "Bad month": 4,
    "Bad day-of-week": 5,
}
_DAY_OF_MONTH, _MONTH = 3, 4
_WORDS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_INTERVAL = re.compile(r"([0-9]{1,12})(?:\.([0-9]{1,6}))?s")
_MACHINE_ZONES = ("localtime", "posixrules", "Factory")
"""Names in the time zone database that are another zone on each machine, or none."""


class Recurrence:
    """The nominal times of a schedule. All times are microseconds since 1970.

    Args:
        expression: a cron expression with 5 fields, or 6 with the second first; a word such as ``@daily``; or an interval in
            seconds, as ``interval_text`` gives it.
        zone: IANA name of the time zone of a cron expression.
        start_us: no fire before this time. It is the first fire of an interval; without it the fires of an interval are
            multiples of the interval since 1970-01-01 00:00 UTC, whatever process counts them.
        end_us: no fire after this time.

    Raises:
        InputError: the expression, the zone or the interval is none, or no time between start and end fits.
    """

    __slots__ = ("_cron", "_end_us", "_every_us", "_fixed", "_start_us", "_zone")

    def __init__(
        self, expression: str, zone: str = ZONE_DEFAULT, *, start_us: int | None = None, end_us: int | None = None
    ) -> None:
        self._every_us = interval_us(expression)
        self._cron = "" if self._every_us else checked_cron(expression)
        minute, hour = self._cron.split()[-5:-3] if self._cron else ("", "")
        self._fixed = not minute.startswith("*") and not hour.startswith("*")
        self._zone = zone_of(zone)
        self._start_us = start_us
        self._end_us = end_us
        if start_us is None or end_us is None:
            return
        if end_us < start_us:
            raise InputError("the schedule ends before it starts", hint="give an 'end' after 'start'")
        if self.next_us(start_us - 1) is None:
            raise InputError(
                f"{expression!r} never fires between {_iso(start_us)} and {_iso(end_us)}",
                hint="give a later 'end', or leave it out",
            )

    def next_us(self, after_us: int) -> int | None:
        """The first nominal time after ``after_us``; ``None``: there is none, the schedule has ended."""
        if self._start_us is not None and after_us < self._start_us:
            after_us = self._start_us - 1
        if self._every_us:
            anchor_us = self._start_us or 0
            nominal_us: int | None = anchor_us + ((after_us - anchor_us) // self._every_us + 1) * self._every_us
        else:
            after = after_us // _SECOND_US
            found = self._next_fixed(after) if self._fixed else self._next_repeated(after)
            nominal_us = None if found is None else found * _SECOND_US
        if nominal_us is None or (self._end_us is not None and nominal_us > self._end_us):
            return None
        return nominal_us

    def between_us(self, after_us: int, until_us: int, limit: int) -> list[int]:
        """The first ``limit`` nominal times after ``after_us`` and not after ``until_us``, in order."""
        found: list[int] = []
        while len(found) < limit and (next_us := self.next_us(after_us)) is not None and next_us <= until_us:
            found.append(next_us)
            after_us = next_us
        return found

    # ------------------------------------------------------------ cron, in seconds since 1970

    def _next_fixed(self, after: int) -> int | None:
        wall = after + self._offset(after)
        while (found := self._next_wall(wall)) is not None:
            moment = self._first_moment(found)
            if moment > after:
                return moment
            wall = found
        return None

    def _next_repeated(self, after: int) -> int | None:
        at, offset = after, self._offset(after)
        wall = at + offset
        while (found := self._next_wall(wall)) is not None:
            moment = found - offset
            reach = min(moment, at + _DAY_SECONDS)
            if self._offset(reach) != offset:
                # Up to the change nothing matches; the moment of the change itself may.
                at = self._change(at, reach)
                offset = self._offset(at)
                wall = at + offset - 1
            elif reach == moment:
                return moment
            else:
                # No wall-clock time before `found` matches. An hour that occurs twice is at most a day long, so nothing
                # up to two days before `found` matches either, however often the offset changes until then.
                at = max(reach, moment - 2 * _DAY_SECONDS)
                offset = self._offset(at)
                wall = at + offset
        return None

    def _next_wall(self, wall: int) -> int | None:
        """The first wall-clock time after ``wall`` that matches, both counted as if the zone were UTC."""
        try:
            return int(next(CronSim(self._cron, datetime.fromtimestamp(wall, UTC))).timestamp())
        except (StopIteration, OverflowError, ValueError):  # the latter two: later than the year 9999
            return None

    def _offset(self, at: int) -> int:
        """Seconds that the zone is ahead of UTC at a moment."""
        ahead = datetime.fromtimestamp(at, self._zone).utcoffset()
        return 0 if ahead is None else ahead.days * _DAY_SECONDS + ahead.seconds

    def _change(self, low: int, high: int) -> int:
        """The first second after ``low`` with another offset than ``low`` has; ``high`` has another one."""
        before = self._offset(low)
        while high - low > 1:
            middle = (low + high) // 2
            if self._offset(middle) == before:
                low = middle
            else:
                high = middle
        return high

    def _first_moment(self, wall: int) -> int:
        """The first moment with this wall-clock time, or the first one after the gap that skips it."""
        moment = int(datetime.fromtimestamp(wall, UTC).replace(tzinfo=self._zone, fold=0).timestamp())
        if moment + self._offset(moment) == wall:
            return moment
        return self._change(moment - 2 * _DAY_SECONDS, moment)


@lru_cache(maxsize=4096)
def recurrence_of(expression: str, zone: str, start_us: int | None, end_us: int | None) -> Recurrence:
    """The same ``Recurrence`` for the same definition."""
    return Recurrence(expression, zone, start_us=start_us, end_us=end_us)


def next_fire_us(schedule: Schedule, after_us: int) -> int | None:
    """The first nominal time of a definition after a moment; ``None``: there is none, it has ended."""
    return recurrence_of(schedule.expression, schedule.zone, schedule.start_us, schedule.end_us).next_us(after_us)


def upcoming_us(schedule: Schedule, after_us: int, count: int) -> list[int]:
    """The next ``count`` nominal times of a definition after a moment; fewer when it ends before."""
    recurrence = recurrence_of(schedule.expression, schedule.zone, schedule.start_us, schedule.end_us)
    return recurrence.between_us(after_us, _FOREVER_US, count)


def jitter_us(name: str, nominal_us: int, jitter_seconds: float) -> int:
    """Microseconds from the nominal time of a fire to its due time: up to ``jitter_seconds``, the same in each process."""
    if jitter_seconds <= 0:
        return 0
    digest = hashlib.blake2b(f"{name}\n{nominal_us}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") * int(jitter_seconds * _SECOND_US) >> 64


# ------------------------------------------------------------ reading a definition


def interval_text(seconds: float) -> str:
    """A checked interval as an expression: ``300s``.

    Raises:
        InputError: it is not between one second and ten years.
    """
    if not INTERVAL_SECONDS_MIN <= seconds <= INTERVAL_SECONDS_MAX:
        raise InputError(
            f"an interval must be between {INTERVAL_SECONDS_MIN} second and {INTERVAL_SECONDS_MAX // _DAY_SECONDS} days, "
            f"and this one has {seconds:g} seconds",
            hint="work that is due more often than once a second belongs into one job that loops"
            if 0 <= seconds < INTERVAL_SECONDS_MIN
            else "an interval cannot be negative"
            if seconds < 0
            else "a cron expression names a date of each year",
        )
    whole, rest = divmod(round(seconds * _SECOND_US), _SECOND_US)
    return f"{whole}.{rest:06d}".rstrip("0") + "s" if rest else f"{whole}s"


def interval_us(expression: str) -> int:
    """Microseconds of an interval; 0 for an expression that is no interval."""
    match = _INTERVAL.fullmatch(expression)
    if match is None:
        return 0
    every_us = int(match[1]) * _SECOND_US + int((match[2] or "").ljust(6, "0"))
    interval_text(every_us / _SECOND_US)
    return every_us


def checked_cron(expression: str) -> str:
    """A cron expression with single spaces and its word, such as ``@daily``, written out.

    Raises:
        InputError: it is none, or names a date that does not exist.
    """
    if len(expression) > EXPRESSION_CHARS_MAX:
        raise InputError(f"the expression has {len(expression)} characters, the limit is {EXPRESSION_CHARS_MAX}")
    given = expression.strip()
    fields = _WORDS.get(given.lower(), given).upper().split()
    if given.startswith("@") and given.lower() not in _WORDS:
        near = did_you_mean(given, _WORDS)
        raise InputError(f"{given!r} is no word for a time", hint=near or f"valid are {', '.join(_WORDS)}")
    if len(fields) not in (len(_FIELDS), len(_SIX_FIELDS)):
        raise InputError(
            f"cron expression {expression!r} has {len(fields)} fields, and it must have 5 or 6",
            hint="minute hour day-of-month month day-of-week, with the second before them if there are six; "
            "an interval is written as 5m or 1h30m",
        )
    cron = " ".join(fields)
    _refuse_unparsable(cron, expression)
    try:
        next(CronSim(cron, datetime(2000, 1, 1, tzinfo=UTC)))
    except StopIteration:
        raise InputError(f"cron expression {expression!r} never fires: there is no such date") from None
    return cron


def _refuse_unparsable(cron: str, expression: str) -> None:
    try:
        CronSim(cron, datetime(2000, 1, 1, tzinfo=UTC))
        return
    except CronSimError as error:
        at = _CRONSIM_FIELDS.get(str(error))
    fields = ["0", *cron.split()][-len(_SIX_FIELDS) :]
    if at is None:
        raise InputError(f"cron expression {expression!r} cannot be read")
    if at == _DAY_OF_MONTH and _is_parsable([*fields[:_MONTH], "*", fields[-1]]):
        raise InputError(
            f"cron expression {expression!r} never fires: no month {fields[_MONTH]} has a day {fields[_DAY_OF_MONTH]}",
            hint="L is the last day of each month",
        )
    raise InputError(
        f"cron expression {expression!r}: {fields[at]!r} cannot be the {_SIX_FIELDS[at]}", hint=f"valid: {_RANGES[at]}"
    )


def _is_parsable(fields: list[str]) -> bool:
    try:
        CronSim(" ".join(fields), datetime(2000, 1, 1, tzinfo=UTC))
    except CronSimError:
        return False
    return True


def zone_of(name: str) -> ZoneInfo:
    """The time zone of an IANA name.

    Raises:
        InputError: there is no such zone, or it is another one on each machine.
    """
    try:
        if name in _MACHINE_ZONES:
            raise ValueError(name)
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        near = did_you_mean(name, (zone for zone in available_timezones() if "/" in zone or zone == ZONE_DEFAULT))
        raise InputError(
            f"there is no time zone {name!r}", hint=near or "give an IANA name such as Europe/Berlin, or UTC"
        ) from None


def _iso(us: int) -> str:
    return datetime.fromtimestamp(us // _SECOND_US, UTC).isoformat()
