"""A schedule as a person, ``cluster.schedules`` or a list sees it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

import msgspec

from jobmaster.model.job import Headers, Priority
from jobmaster.model.job_view import EPOCH, moment
from jobmaster.model.redaction import masked_arguments
from jobmaster.model.schedule import Fire, FireOutcome, Misfire, Overlap, Schedule, ScheduleRow, ScheduleSource

_JSON = msgspec.json.Decoder()
_HEADERS = msgspec.json.Decoder(Headers)


class ScheduleState(StrEnum):
    """Whether a schedule fires."""

    ACTIVE = "active"
    """It fires at its next nominal time."""
    PAUSED = "paused"
    """By a person; nothing fires until it is resumed."""
    ENDED = "ended"
    """Its last nominal time is over."""
    RETIRED = "retired"
    """It was removed, or no living agent declares it any more."""


class ScheduleView(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as it was when it was read. Nothing in it changes afterwards."""

    definition: Schedule
    source: ScheduleSource
    """``code``: ``@handlers.every``; ``yaml``: the configuration; ``api``: ``cluster.schedules.put``."""
    state: ScheduleState
    next_at: datetime | None = None
    """The next nominal time, that of a job which is made ahead included; in the past while its fire waits for a decision.
    ``None``: nothing will fire."""
    declared_at: datetime | None = None
    paused_at: datetime | None = None
    paused_by: str = ""
    paused_reason: str = ""
    retired_at: datetime | None = None
    retired_reason: str = ""

    @property
    def name(self) -> str:
        """Its name in the cluster."""
        return self.definition.name

    @property
    def handler(self) -> str:
        """Name of the handler."""
        return self.definition.handler

    @property
    def expression(self) -> str:
        """A cron expression, or an interval in seconds such as ``300s``."""
        return self.definition.expression

    @property
    def zone(self) -> str:
        """IANA time zone of the cron expression."""
        return self.definition.zone

    @property
    def misfire(self) -> Misfire:
        """What becomes of fires that nothing could decide in time."""
        return self.definition.misfire

    @property
    def overlap(self) -> Overlap:
        """What becomes of a fire while a job of an earlier fire has not ended."""
        return self.definition.overlap

    def redacted(self, secret: Sequence[str]) -> ScheduleView:
        """The schedule as it may be shown: ``***`` in place of these arguments."""
        if not secret:
            return self
        definition = msgspec.structs.replace(self.definition, args=masked_arguments(self.definition.args, secret))
        return msgspec.structs.replace(self, definition=definition)

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of the handler as plain JSON values."""
        return dict(_JSON.decode(self.definition.args))

    @property
    def headers(self) -> Headers:
        """Tags and options of its jobs."""
        return _HEADERS.decode(self.definition.headers) if self.definition.headers else Headers()

    @property
    def priority(self) -> Priority:
        """Priority of its jobs."""
        return Priority(self.definition.priority)

    @property
    def lane(self) -> str:
        """Lane of its jobs."""
        return self.definition.lane

    @property
    def tenant(self) -> str | None:
        """For whom its jobs run."""
        named = self.headers.tenant
        return None if named is None else named[0]

    @property
    def tags(self) -> tuple[str, ...]:
        """Tags of the schedule."""
        return self.definition.tags

    @property
    def start_at(self) -> datetime | None:
        """No fire before this time."""
        return moment(self.definition.start_us)

    @property
    def end_at(self) -> datetime | None:
        """No fire after this time."""
        return moment(self.definition.end_us)


def view_of(row: ScheduleRow, next_us: int | None) -> ScheduleView:
    """The view of a row of the master.

    Args:
        next_us: the next nominal time, decided ahead or not, microseconds since 1970.
    """
    if row.retired_us is not None:
        state = ScheduleState.RETIRED
    elif row.paused_us is not None:
        state = ScheduleState.PAUSED
    else:
        state = ScheduleState.ENDED if next_us is None else ScheduleState.ACTIVE
    return ScheduleView(
        definition=row.schedule,
        source=row.source,
        state=state,
        next_at=moment(next_us) if state is ScheduleState.ACTIVE else None,
        declared_at=moment(row.declared_us),
        paused_at=moment(row.paused_us),
        paused_by=row.paused_by,
        paused_reason=row.paused_reason,
        retired_at=moment(row.retired_us),
        retired_reason=row.retired_reason,
    )


class FireView(msgspec.Struct, frozen=True, kw_only=True):
    """One decided fire of a schedule."""

    schedule: str
    nominal_at: datetime
    outcome: FireOutcome
    job_id: UUID | None = None
    """``None``: it was skipped or missed."""
    decided_at: datetime | None = None
    until_at: datetime | None = None
    """This line stands for all fires from ``nominal_at`` up to this time, without it; ``None``: for one."""
    manual: bool = False
    """Run by a person, outside the recurrence."""


def fire_view(fire: Fire) -> FireView:
    """The view of a line of the master."""
    return FireView(
        schedule=fire.schedule,
        nominal_at=moment(fire.nominal_us) or EPOCH,
        outcome=fire.outcome,
        job_id=None if fire.job_id is None else UUID(bytes=fire.job_id),
        decided_at=moment(fire.at_us),
        until_at=moment(fire.through_us),
        manual=fire.manual,
    )
