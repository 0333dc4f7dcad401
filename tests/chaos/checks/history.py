"""Everything a run left behind, in the form the checker wants: what was tried, acknowledged, run, and recorded."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.chaos.processes.witness import Phase, WitnessLine

LEVELS = ("store", "store_fsync", "master", "transaction")


class Ack(NamedTuple):
    """One acknowledged job."""

    level: str
    at: float
    bucket: str
    """Empty: it was put into the master."""


class Run(NamedTuple):
    """One start of a handler."""

    pid: int
    at: float
    value: int
    token: int
    handler: str


class Row(NamedTuple):
    """What the master says in the end."""

    state: str
    token: int
    value: int
    recorded_token: int
    """Of the run whose result is recorded; 0: no result."""
    attempt: int
    reason: str = ""
    """Of a failure, as it is recorded."""


class Cancel(NamedTuple):
    """The answer to a producer's request to cancel a job that was not due yet."""

    at: float
    state: str
    due: float
    """When the job would start."""


FINAL = frozenset({"SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED"})


class FaultRecord(NamedTuple):
    """One fault that happened."""

    kind: str
    at: float
    until: float
    uncovered: frozenset[str]
    """Durability levels that do not promise to survive it."""
    store: str = ""
    """The store that was hit; empty: none, or all."""
    pids: tuple[int, ...] = ()
    """Processes that were killed by it."""
    forgets_seconds: float = math.inf
    """It excuses no loss of what was acknowledged longer before it began."""


class Death(NamedTuple):
    """One agent that has a death certificate."""

    pid: int
    at: float
    """When the certificate was written."""
    again_at: float = math.inf
    """When a later agent registered that has the same process id, in a long run on a machine with other work."""


class Evacuation(NamedTuple):
    """One bucket that was lost."""

    left_at: float
    """When its owner was fenced. One that is on its way out still moves its jobs."""
    emptied_at: float = math.inf
    """When all of it was in the master."""


class BatchRow(NamedTuple):
    """What the master says of a batch in the end."""

    state: str
    counted: int
    """Jobs that it has counted."""
    rows: int
    """Final rows in its ranges."""
    fired: tuple[str, ...]
    """Its callbacks that have become jobs."""


@dataclass(slots=True)
class History:
    """One run."""

    attempted: list[tuple[int, int]] = field(default_factory=list)
    """Ranges of values, both ends included."""
    acks: dict[str, Ack] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)
    runs: dict[str, list[Run]] = field(default_factory=dict)
    ended: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    """Job -> (pid, time) of every last line."""
    observed: dict[str, int] = field(default_factory=dict)
    """Job -> token in the result that a producer has read."""
    rows: dict[str, Row] = field(default_factory=dict)
    conclusions: dict[str, int] = field(default_factory=dict)
    """Job -> concluding ledger lines, where they are not exactly one."""
    overwritten: int = 0
    """Final rows that were changed, as a trigger saw it."""
    stale_refused: int = 0
    faults: list[FaultRecord] = field(default_factory=list)
    deaths: list[Death] = field(default_factory=list)
    stores: dict[str, str] = field(default_factory=dict)
    """Bucket -> store."""
    cancels: dict[str, Cancel] = field(default_factory=dict)
    excuse_seconds: float = 60.0
    """A fault excuses the loss of what was acknowledged at most this long before it began (or while it lasted), at a level
    that does not cover it, in the store that it hit: by then an owner has everything in the master. A bucket without an
    owner stays as it is until it is evacuated; see ``evacuations``."""
    evacuations: dict[str, Evacuation] = field(default_factory=dict)
    """Bucket -> when its owner left it, and when it was empty. The excuse reaches back from the former of a bucket that was
    not yet empty when the fault began."""
    unrescued: dict[str, str] = field(default_factory=dict)
    """Bucket -> its state, of those that were still to be rescued when the time to drain was over."""
    woken: dict[int, float] = field(default_factory=dict)
    """Pid -> time of the last time it was let go on after a freeze."""
    ordered: list[list[str]] = field(default_factory=list)
    """Jobs of each ordering key, in the order of their submits."""
    signalled: set[str] = field(default_factory=set)
    """Jobs whose signal was sent in time."""
    batches: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Closed batch -> its size, and the value of its callback."""
    workflows: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Workflow -> its value, and the state in which it has to end."""
    uniques: dict[int, list[str]] = field(default_factory=dict)
    """Value of a unique key -> the jobs of all answers."""
    batch_rows: dict[str, BatchRow] = field(default_factory=dict)
    workflow_states: dict[str, str] = field(default_factory=dict)
    loans: int = 0
    """Agents to which permits of a limit were lent, of those whose loans have not been swept."""
    fires: int = 0
    """Fires of schedules that have become jobs."""

    @property
    def attempts(self) -> int:
        return sum(last - first + 1 for first, last in self.attempted)

    def witnessed(self, lines: Iterable[WitnessLine]) -> None:
        """Take in what producers and handlers wrote."""
        for line in lines:
            self._take(line)

    def _take(self, line: WitnessLine) -> None:
        if line.phase is Phase.BEGAN:
            run = Run(line.pid, line.at, line.value, line.token, line.handler)
            self.runs.setdefault(line.job, []).append(run)
        elif line.phase is Phase.ACKNOWLEDGED:
            for job in line.jobs:
                self.acks.setdefault(job, Ack(line.level, line.at, line.bucket))
        elif line.phase is Phase.ATTEMPTED and line.values is not None:
            self.attempted.append(line.values)
        elif line.phase is Phase.UNKNOWN:
            self.unknown.update(line.jobs)
        elif line.phase is Phase.ENDED:
            self.ended.setdefault(line.job, []).append((line.pid, line.at))
        elif line.phase is Phase.CANCELLED:
            self.cancels[line.job] = Cancel(line.at, line.why, line.due)
        elif line.phase is Phase.OBSERVED:
            self.observed[line.job] = line.token
        else:
            self._take_flow(line)

    def _take_flow(self, line: WitnessLine) -> None:
        if line.phase is Phase.ORDERED:
            self.ordered.append(line.jobs)
        elif line.phase is Phase.SIGNALLED:
            self.signalled.add(line.job)
        elif line.phase is Phase.BATCH:
            self.batches[line.job] = line.token, line.value
        elif line.phase is Phase.WORKFLOW:
            self.workflows[line.job] = line.value, line.why
        elif line.phase is Phase.UNIQUE:
            self.uniques[line.value] = line.jobs
