"""The fires that schedules have in a range of time, for tests: computed, not waited for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from jobmaster.codec import decode_json
from jobmaster.handlers import Handlers
from jobmaster.model.errors import InputError
from jobmaster.model.suggestion import did_you_mean
from jobmaster.rules.recurrence import recurrence_of
from jobmaster.settings.model import ClusterSettings
from jobmaster.settings.schedules import declared_schedules

FIRES_MAX = 10_000
"""Fires of one range; a test that looks at more has another range in mind."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class DueFire(NamedTuple):
    """One fire of a schedule."""

    at: datetime
    """Nominal time (UTC)."""
    schedule: str
    handler: str
    arguments: dict[str, Any]


def fires_between(
    settings: ClusterSettings, handlers: Handlers, start: datetime, end: datetime, name: str | None = None
) -> list[DueFire]:
    """The fires after ``start`` and up to ``end`` of the schedules that are declared; see ``Jobs.fires_between``."""
    after_us, until_us = _us(start, "start"), _us(end, "end")
    declared = [one.schedule for one in declared_schedules(settings, handlers)]
    chosen = [one for one in declared if name in (None, one.name)]
    if name is not None and not chosen:
        raise InputError(f"no schedule {name!r} is declared", hint=did_you_mean(name, [one.name for one in declared]))
    found: list[DueFire] = []
    for one in chosen:
        recurrence = recurrence_of(one.expression, one.zone, one.start_us, one.end_us)
        arguments: Any = decode_json(one.args)
        for us in recurrence.between_us(after_us, until_us, FIRES_MAX + 1):
            found.append(DueFire(_EPOCH + timedelta(microseconds=us), one.name, one.handler, dict(arguments)))
        if len(found) > FIRES_MAX:
            raise InputError(
                f"there are more than {FIRES_MAX} fires between {start} and {end}", hint="ask for less time"
            )
    return sorted(found, key=lambda fire: (fire.at, fire.schedule))


def _us(moment: datetime, what: str) -> int:
    if moment.utcoffset() is None:
        raise InputError(
            f"{what!r} is a naive datetime: its time zone is unknown", hint="such as datetime(..., tzinfo=UTC)"
        )
    return (moment - _EPOCH) // timedelta(microseconds=1)
