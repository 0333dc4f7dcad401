"""Which ranges of ids of the master a roll-up has to read: those with changes, and those that touch the days of changes.

The server counts the rows that are written to each table. A range whose counters are those of the last roll-up is not
searched for changes, and of the others only the days of changes leave the server. Counters lag: writes of a transaction may
be missing from them for a minute after its end. So changes are searched from some time before the last roll-up on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from jobmaster.master.driver.connection import Row, rows_of
from jobmaster.master.history.export import open_scan

if TYPE_CHECKING:
    from jobmaster.pipeline.context import PipelineContext

LAG = timedelta(hours=1)
"""How long the server's counters may lack a change: a minute, and the length of its transaction."""
_EPOCH, _ORIGIN = date(1970, 1, 1), datetime(1970, 1, 1, tzinfo=UTC)
_DAY_US = 86_400_000_000


class LiveRange(NamedTuple):
    """A range of ids of the jobs that are in the master."""

    low_us: int | None
    """Lowest time of an id, microseconds since 1970; ``None``: from the lowest id on."""
    high_us: int
    """The time from which on ids are outside."""
    written: str | None
    """Another text when something was written; ``None``: unknown."""
    ended: frozenset[int] = frozenset()
    """Days since 1970 on which jobs of it have ended and attempts were recorded."""

    @property
    def key(self) -> str:
        """Its name in the state of the roll-up."""
        return "" if self.low_us is None else str(self.low_us)

    def touches(self, days: Iterable[int]) -> bool:
        """Whether a job of the range may have been created on one of some days, or has ended then."""
        low_us = self.low_us or 0
        return any(day in self.ended or (low_us < (day + 1) * _DAY_US and self.high_us > day * _DAY_US) for day in days)


class LiveChanges(NamedTuple):
    """The ranges of a moment, and what changed in them."""

    ranges: Sequence[LiveRange]
    days: frozenset[date]
    """Days to which changes belong."""
    changed: frozenset[str]
    """Keys of the ranges that may have changes."""

    def state(self) -> dict[str, dict[str, Any]]:
        """The ranges for the next roll-up."""
        return {
            one.key: {"high_us": one.high_us, "written": one.written, "ended": sorted(one.ended)} for one in self.ranges
        }

    def to_read(self, days: Iterable[date]) -> list[dict[str, str]]:
        """Options of the data source for the ids of jobs that may touch some days; ranges side by side become one."""
        numbers = [(day - _EPOCH).days for day in days]
        found: list[dict[str, str]] = []
        before = False
        for place, one in enumerate(self.ranges):
            wanted = one.key in self.changed or one.touches(numbers)
            if wanted and not before:
                found.append({} if one.low_us is None else {"since": _text(one.low_us)})
            if wanted:
                found[-1].pop("until", None)
                if place < len(self.ranges) - 1:
                    found[-1]["until"] = _text(one.high_us)
            before = wanted
        return found


def live_ranges(context: PipelineContext) -> tuple[list[LiveRange], datetime]:
    """The ranges, and the moment at which the counters were read.

    Read them before the history is opened: what is written in between changes the counters once more, so the next roll-up
    finds it.

    Raises:
        Unavailable: the master cannot be reached.
    """
    with _scan(context) as fetch:
        rows = fetch("export/live_ranges")
        read = _ORIGIN + timedelta(microseconds=rows[0]["read_us"])
        return [LiveRange(row["low_us"], row["high_us"], row["written"]) for row in rows], read


def find_changes(
    context: PipelineContext, ranges: Sequence[LiveRange], known: Mapping[str, Mapping[str, Any]], since: datetime
) -> LiveChanges:
    """What changed in the ranges since the last roll-up. Call it while the history is open, so that no range can leave.

    Args:
        known: ``LiveChanges.state`` of the last roll-up.
        since: its moment.
    """
    since_us = (since - LAG - _ORIGIN) // timedelta(microseconds=1)
    found: list[LiveRange] = []
    changed: set[str] = set()
    days: set[int] = set()
    with _scan(context) as fetch:
        for one in ranges:
            before = known.get(one.key)
            if before is not None and one.written is not None and (before["high_us"], before["written"]) == one[1:3]:
                found.append(one._replace(ended=frozenset(before["ended"])))
                continue
            rows = fetch("export/changed_days", one.low_us, one.high_us, since_us)
            found.append(one._replace(ended=frozenset(row["ended"] for row in rows if row["ended"] is not None)))
            changed.add(one.key)
            days |= {
                row[name] for row in rows if row["changed"] for name in ("created", "ended") if row[name] is not None
            }
    return LiveChanges(found, frozenset(_EPOCH + timedelta(days=day) for day in days), frozenset(changed))


@contextmanager
def _scan(context: PipelineContext) -> Iterator[Callable[..., list[Row]]]:
    """Statements on the server that is read, in one transaction."""
    run = context.connection.run
    connection = run(open_scan(context.connection.reading_factory))
    try:
        yield lambda name, *args: run(rows_of(connection, name, *args))
    finally:
        connection.terminate()


def _text(microseconds: int) -> str:
    return (_ORIGIN + timedelta(microseconds=microseconds)).isoformat()
