"""A schedule: the definition of recurring jobs, and the record of each of its fires. Times are microseconds since 1970.

A *fire* is one nominal time of a schedule. It is decided once: a job, or a line that says why there is none.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import Annotated, NamedTuple

import msgspec

from jobmaster.model.job import Priority

MISFIRE_MAX_LIMIT = 100
"""Most fires that ``Misfire.ALL`` or ``Overlap.QUEUE`` can make up for."""
LEAD_SECONDS = 30.0
"""A fire is decided at most this long before its nominal time, so that a change of the leader delays no job."""
MISFIRE_SECONDS = 60.0
"""A fire that is decided later than this is a misfire."""
FIRE_LINES_MAX = 10
"""Most fires given up at once that get a line each; more of them share one line."""


class Misfire(StrEnum):
    """What becomes of fires that no leader could decide in time."""

    SKIP = "skip"
    """None is made up for."""
    LAST = "last"
    """The newest is."""
    ALL = "all"
    """The newest ``misfire_max`` are."""


class Overlap(StrEnum):
    """What becomes of a fire while a job of an earlier fire has not ended."""

    SKIP = "skip"
    """No job, and a line that says so."""
    QUEUE = "queue"
    """The fire waits for the end of that job; at most ``misfire_max`` wait, older ones are skipped."""
    PARALLEL = "parallel"
    """The job starts beside it."""
    CANCEL_PREVIOUS = "cancel_previous"
    """That job is cancelled, and the new one does not wait until it has ended."""


class FireOutcome(StrEnum):
    """How a fire was decided."""

    FIRED = "fired"
    """There is a job."""
    SKIPPED = "skipped"
    """By the overlap rule."""
    MISSED = "missed"
    """By the misfire rule."""
    WITHDRAWN = "withdrawn"
    """Its job was cancelled before its time, because the schedule was changed, paused or removed."""


class ScheduleSource(StrEnum):
    """Where a definition comes from. One that is declared by agents is retired when no agent declares it any more."""

    CODE = "code"
    YAML = "yaml"
    API = "api"


class Schedule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One definition, as it is declared and stored (JSON)."""

    name: str
    handler: str
    expression: str
    """As ``jobmaster.rules.recurrence.Recurrence`` takes it."""
    zone: str = "UTC"
    """IANA name; cron fields are wall clock times there."""
    start_us: int | None = None
    """No fire before this."""
    end_us: int | None = None
    """No fire after this."""
    jitter_seconds: float = 0.0
    """Each job is due up to this much after its nominal time, by a number that depends on name and nominal time alone."""
    misfire: Misfire = Misfire.LAST
    misfire_max: Annotated[int, msgspec.Meta(ge=1, le=MISFIRE_MAX_LIMIT)] = 10
    overlap: Overlap = Overlap.SKIP
    expires_seconds: float | None = None
    """The job of a fire must not start later than this after its due time."""
    args: bytes = b"{}"
    """JSON object of the handler's arguments."""
    headers: bytes = b""
    """JSON of ``Headers`` of each job, or empty."""
    priority: int = Priority.MEDIUM.value
    lane: str = "default"
    tags: tuple[str, ...] = ()
    """Of the schedule. The tags of its jobs are in ``headers``."""

    @property
    def digest(self) -> str:
        """Equal for equal definitions."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()


class ScheduleRow(NamedTuple):
    """A schedule as the master has it."""

    schedule: Schedule
    source: ScheduleSource
    declared_us: int
    """Start of the agent that declared it; of an API definition, the time of the call."""
    revision: int
    """Grows with every change but a fire."""
    next_us: int | None
    """The nominal time that is decided next; ``None`` when the schedule has ended."""
    paused_us: int | None
    paused_by: str
    paused_reason: str
    retired_us: int | None
    retired_reason: str
    now_us: int
    """The master's clock when the row was read."""


class Fire(NamedTuple):
    """The record of one fire."""

    schedule: str
    nominal_us: int
    outcome: FireOutcome
    job_id: bytes | None
    at_us: int
    """When it was decided."""
    through_us: int | None
    """This line stands for all fires from ``nominal_us`` up to this time, without it; ``None``: for one."""
    manual: bool
    """Run by a person, outside the recurrence."""
