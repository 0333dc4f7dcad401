"""Which fires of a schedule are decided now, and how. Pure: the time is an argument.

Between two looks of the leader any number of nominal times may have passed: the master was away, no agent led, or fires wait
for the end of an earlier job. What is decided here is proposed to the master, which compares it with the schedule's row and,
under ``Overlap.SKIP``, ``QUEUE`` and ``CANCEL_PREVIOUS``, with the rows of earlier jobs.
"""

from __future__ import annotations

from typing import NamedTuple

from jobmaster.model.schedule import (
    FIRE_LINES_MAX,
    MISFIRE_SECONDS,
    FireOutcome,
    Misfire,
    Overlap,
    Schedule,
)
from jobmaster.rules.recurrence import Recurrence, jitter_us, next_fire_us, recurrence_of

_MISFIRE_US = int(MISFIRE_SECONDS * 1e6)
_RECENT_MAX = 100
"""More than the fires of ``MISFIRE_SECONDS``, or of a lead: two fires are a second apart or more."""


class ProposedFire(NamedTuple):
    """One line of a decision."""

    nominal_us: int
    outcome: FireOutcome
    due_us: int
    """Due time of the job, jitter included."""
    through_us: int = 0
    """The line stands for all fires from ``nominal_us`` up to this time, without it; 0: for one."""


class FireDecision(NamedTuple):
    """What becomes of the fires of a schedule up to ``next_us``."""

    fires: list[ProposedFire]
    """In the order of their nominal times."""
    next_us: int | None
    """The fire that is decided next; ``None``: the schedule ends."""


def decide_fires(schedule: Schedule, next_us: int, now_us: int, lead_us: int, *, queued: bool) -> FireDecision:
    """The fires from ``next_us`` up to the lead before now.

    A schedule with an overlap rule gets one job a decision: the next one depends on the end of this one.

    Args:
        next_us: the nominal time that was not decided yet.
        now_us: the master's clock.
        lead_us: fires up to so much later are decided, too.
        queued: the fire waited for the end of an earlier job, and not for a leader.
    """
    recurrence = recurrence_of(schedule.expression, schedule.zone, schedule.start_us, schedule.end_us)
    kept, given_up = _past(schedule, recurrence, next_us, now_us, queued=queued)
    given_up = _former(next_us, now_us, kept, given_up) + given_up
    ahead = recurrence.between_us(max(now_us, next_us - 1), now_us + lead_us, _RECENT_MAX)
    wanted = kept + ahead
    chosen = wanted if schedule.overlap is Overlap.PARALLEL else wanted[:1]
    fires = given_up + [_job(schedule, nominal_us) for nominal_us in chosen]
    if len(wanted) > len(chosen):
        return FireDecision(fires, wanted[len(chosen)])
    if not fires:  # looked at too early, or the rules of the zone have changed since
        return FireDecision([], next_fire_us(schedule, next_us - 1))
    decided_us = max(fires[-1].nominal_us, fires[-1].through_us - 1, now_us if given_up and not chosen else 0)
    return FireDecision(fires, recurrence.next_us(decided_us))


def _past(
    schedule: Schedule, recurrence: Recurrence, next_us: int, now_us: int, *, queued: bool
) -> tuple[list[int], list[ProposedFire]]:
    """The nominal times up to now that get a job, and lines for those that get none."""
    if next_us > now_us:
        return [], []
    waits = queued and schedule.overlap is Overlap.QUEUE
    if not waits and now_us - next_us <= _MISFIRE_US:
        return recurrence.between_us(next_us - 1, now_us, _RECENT_MAX), []
    if waits or schedule.misfire is Misfire.ALL:
        kept = newest_us(recurrence, next_us - 1, now_us, schedule.misfire_max)
    elif schedule.misfire is Misfire.LAST:
        kept = newest_us(recurrence, next_us - 1, now_us, 1)
    else:
        kept = recurrence.between_us(now_us - _MISFIRE_US, now_us, _RECENT_MAX)
    outcome = FireOutcome.SKIPPED if waits else FireOutcome.MISSED
    return kept, _given_up(recurrence, next_us, kept[0] - 1 if kept else now_us, outcome)


def _former(next_us: int, now_us: int, kept: list[int], given_up: list[ProposedFire]) -> list[ProposedFire]:
    """A line for a fire of a former definition that was overdue when the schedule was changed, and is none of this one."""
    times = [line.nominal_us for line in given_up] + kept
    if next_us > now_us or next_us in times:
        return []
    through_us = min(times, default=now_us)
    return [ProposedFire(next_us, FireOutcome.MISSED, next_us, through_us if through_us > next_us else 0)]


def _given_up(recurrence: Recurrence, next_us: int, until_us: int, outcome: FireOutcome) -> list[ProposedFire]:
    """A line for each when few were given up; otherwise one line for all: of a long outage none is searched for."""
    each = recurrence.between_us(next_us - 1, until_us, FIRE_LINES_MAX + 1)
    if len(each) <= FIRE_LINES_MAX:
        return [ProposedFire(nominal_us, outcome, nominal_us) for nominal_us in each]
    return [ProposedFire(next_us, outcome, next_us, recurrence.next_us(until_us) or until_us + 1)]


def newest_us(recurrence: Recurrence, after_us: int, until_us: int, count: int) -> list[int]:
    """The last ``count`` nominal times after ``after_us`` and not after ``until_us``, in order.

    The number of steps grows with ``count`` and with the logarithm of the time, not with the number of fires in it.
    """
    first = recurrence.between_us(after_us, until_us, 2)
    if len(first) < 2:
        return first
    most = 2 * count + 2
    low_us = high_us = until_us  # after `high_us` lie less than `count`
    span_us = (first[1] - first[0]) * count
    while True:  # backwards, twice as far each time
        low_us = max(low_us - span_us, after_us)
        found = recurrence.between_us(low_us, until_us, most)
        if len(found) >= count or low_us == after_us:
            break
        high_us, span_us = low_us, 2 * span_us
    while len(found) == most:  # more than are wanted: halfway to where there are fewer
        middle_us = (low_us + high_us) // 2
        half = recurrence.between_us(middle_us, until_us, most)
        if len(half) < count:
            high_us = middle_us
        else:
            low_us, found = middle_us, half
    return found[-count:]


def _job(schedule: Schedule, nominal_us: int) -> ProposedFire:
    due_us = nominal_us + jitter_us(schedule.name, nominal_us, schedule.jitter_seconds)
    return ProposedFire(nominal_us, FireOutcome.FIRED, due_us)
