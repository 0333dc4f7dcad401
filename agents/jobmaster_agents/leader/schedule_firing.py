"""While this agent leads: the fires of schedules become jobs, each a lead before its nominal time.

The leader's tick returns when the first fire is to be decided, so schedules cost no statement while none is due. A fire is
decided by a compare-and-set in the master: two agents that both take themselves for the leader decide it once. Because it is
decided ``LEAD_SECONDS`` ahead, a change of the leader delays no job, and the job starts as exactly as every other one that
waits in the master.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

from jobmaster.clock import Clock, new_id
from jobmaster.codec import encode_fire_headers
from jobmaster.model.errors import JobMasterError
from jobmaster.model.schedule import LEAD_SECONDS, FireOutcome, Schedule
from jobmaster.model.trace_context import TraceContext
from jobmaster.ports import DueSchedule, FiredLine, FiringSchedules, NewFire, ScheduleMove
from jobmaster.rules.fire_decision import decide_fires
from jobmaster.telemetry import Telemetry
from jobmaster_agents.event_log import Event, EventLog
from jobmaster_agents.leader.due_notifier import DueNotifier
from jobmaster_agents.leader.maintenance_runner import MaintenanceTask

PAGE_SCHEDULES = 1000
"""Schedules that are read at once."""
STATEMENT_FIRES = 200
"""Schedules, or fires, that one statement decides. Its time grows with the square: our connections join without a hash, and
the parts of the statement have no index."""
IDLE_SECONDS = 3600.0
GRACE_SECONDS = 300.0
"""A schedule that no living agent has declared for this long is retired."""
RETIRE_EVERY_SECONDS = 60.0
UNREADABLE_SECONDS = 60.0
"""A schedule whose recurrence cannot be computed here is looked at again after this time: it stands before no other."""
_TURN = 10
"""Schedules that are decided between two turns of the event loop."""


class FireSpan(Protocol):
    """The span of a fire that is proposed. One that is not ended is not exported."""

    @property
    def context(self) -> TraceContext | None:
        """What the job of the fire carries."""
        ...

    def end(self) -> None:
        """The fire has become a job."""
        ...


SpanOfFire = Callable[[str, str, int], FireSpan]
"""Begins the span of a fire by handler, schedule and nominal time."""


class ScheduleFiring:
    """Periodic task that decides fires while this agent leads.

    Args:
        epoch: returns the epoch of the leader's lease, ``None`` while this agent does not lead.
    """

    name = "schedules"

    def __init__(
        self,
        schedules: FiringSchedules,
        due_notifier: DueNotifier,
        epoch: Callable[[], int | None],
        clock: Clock,
        telemetry: Telemetry,
        log: EventLog,
    ) -> None:
        self._schedules = schedules
        self._due_notifier = due_notifier
        self._epoch = epoch
        self._now = clock.boottime
        self._wall_us = clock.wall_us
        self._telemetry = telemetry
        self._log = log
        self._look_at: float | None = None
        self._unreadable: set[str] = set()
        self._spans: dict[tuple[str, int], FireSpan] = {}
        """Of fires that are proposed and not decided, by schedule and nominal time."""
        self.kicked = asyncio.Event()
        self.span_of_fire: SpanOfFire | None = None
        """Set where fires are traced."""

    def tasks(self) -> list[MaintenanceTask]:
        """The maintenance task that retires schedules."""
        return [MaintenanceTask("schedules", RETIRE_EVERY_SECONDS, self.retire)]

    def on_next_fire(self, seconds: float | None) -> None:
        """The first fire is to be decided in so many seconds; ``None``: there is none."""
        before, self._look_at = self._look_at, None if seconds is None else self._now() + seconds
        if self._look_at is not None and (before is None or self._look_at < before):
            self.kicked.set()

    async def tick(self) -> float:
        """Decide what is to be decided."""
        epoch = self._epoch()
        if epoch is None:
            self._look_at = None
        if epoch is None or self._look_at is None:
            return IDLE_SECONDS
        if (left := self._look_at - self._now()) > 0.0:
            return left
        self._look_at = None  # the leader's next tick returns it again
        while due := await self._schedules.due(PAGE_SCHEDULES):
            if not await self._decide(due, epoch) or self._epoch() != epoch:
                break
        return IDLE_SECONDS

    async def retire(self) -> bool | None:
        """Retire schedules that no living agent declares any more."""
        for name in await self._schedules.retire_undeclared(GRACE_SECONDS):
            self._log.warning(Event.SCHEDULE_RETIRED, {"schedule": name, "reason": "no living agent declares it"})
        return None

    async def _decide(self, due: Sequence[DueSchedule], epoch: int) -> bool:
        """One page; whether to look again at once: a schedule with an overlap rule gets one job a decision, so one that is
        behind is due again."""
        moves: list[ScheduleMove] = []
        fires: list[NewFire] = []
        decided, behind = 0, False
        for number, each in enumerate(due):
            try:
                move, proposed = _proposal(each, self._begin_span)
            except JobMasterError as error:  # another version of the recurrence, or of the zones, has accepted it
                self._note_unreadable(each, error)
                await self._look_later(each, epoch)
                continue
            behind = behind or 0 < move.next_us <= each.now_us + LEAD_SECONDS * 1e6
            moves.append(move)
            fires += proposed
            if max(len(fires), len(moves)) >= STATEMENT_FIRES:
                decided += await self._fire(moves, fires, epoch)
                moves, fires = [], []
            if number % _TURN == _TURN - 1:
                await asyncio.sleep(0)
        if moves:
            decided += await self._fire(moves, fires, epoch)
        return (decided > 0 and behind) or len(due) == PAGE_SCHEDULES

    async def _look_later(self, each: DueSchedule, epoch: int) -> None:
        """Move the next look at an unreadable schedule, and not its next fire."""
        ahead = (each.now_us - each.next_us) / 1e6 + UNREADABLE_SECONDS
        move = ScheduleMove(each.schedule.name, each.next_us, each.revision, each.next_us)
        await self._schedules.fire([move], [], -ahead, epoch)

    def _begin_span(self, schedule: Schedule, nominal_us: int) -> TraceContext | None:
        """What the job of a fire carries. The master decides whether there will be one, so the span is ended after that."""
        if self.span_of_fire is None:
            return None
        span = self.span_of_fire(schedule.handler, schedule.name, nominal_us)
        self._spans[schedule.name, nominal_us] = span
        return span.context

    async def _fire(self, moves: Sequence[ScheduleMove], fires: Sequence[NewFire], epoch: int) -> int:
        """The number of lines that were decided."""
        spans, self._spans = self._spans, {}
        lines = await self._schedules.fire(moves, fires, LEAD_SECONDS, epoch)
        fired = [line for line in lines if line.outcome == FireOutcome.FIRED]
        for line in fired if spans else ():
            if (span := spans.get((line.schedule, line.nominal_us))) is not None:
                span.end()
        if fired:
            await self._due_notifier.notify({(line.lane, line.priority) for line in fired})
        self._note(lines, fired)
        return len(lines)

    def _note(self, lines: Sequence[FiredLine], fired: Sequence[FiredLine]) -> None:
        now_us = self._wall_us()
        self._telemetry.fire_late_seconds.observe_batch_us([max(now_us - line.due_us, 0) for line in fired])
        for outcome, count in Counter(line.outcome for line in lines).items():
            self._telemetry.fires[outcome] += count
        for name, count in Counter(line.schedule for line in lines if line.outcome == FireOutcome.MISSED).items():
            self._log.warning(Event.FIRES_MISSED, {"schedule": name, "fires": count})
        for name, count in Counter(line.schedule for line in lines if line.outcome == FireOutcome.SKIPPED).items():
            self._log.warning(Event.FIRES_SKIPPED, {"schedule": name, "fires": count})

    def _note_unreadable(self, each: DueSchedule, error: JobMasterError) -> None:
        name = each.schedule.name
        if name not in self._unreadable:
            self._unreadable.add(name)
            self._log.error(Event.SCHEDULE_UNREADABLE, {"schedule": name, "reason": str(error)})


def _proposal(
    due: DueSchedule, begin_span: Callable[[Schedule, int], TraceContext | None] = lambda _schedule, _nominal_us: None
) -> tuple[ScheduleMove, list[NewFire]]:
    schedule = due.schedule

    def headers(nominal_us: int, due_us: int) -> bytes:
        return encode_fire_headers(schedule, nominal_us, due_us, begin_span(schedule, nominal_us))

    decision = decide_fires(
        schedule, due.next_us, due.now_us, int(LEAD_SECONDS * 1e6), queued=due.decide_us > due.next_us
    )
    move = ScheduleMove(schedule.name, due.next_us, due.revision, decision.next_us or 0)
    return move, [
        NewFire(
            schedule.name,
            fire.nominal_us,
            fire.outcome.value,
            fire.through_us,
            new_id(),
            fire.due_us,
            headers(fire.nominal_us, fire.due_us) if fire.outcome is FireOutcome.FIRED else b"",
        )
        for fire in decision.fires
    ]
