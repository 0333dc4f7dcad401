"""The pauses that this agent obeys, in memory: no job that one of them covers is claimed for a start, fetched or started.

A pause with an end is over by the master's clock: the agent counts the time that was left when the master answered, from the
moment of the answer, so never less. While nothing is paused the hot path reads one attribute for each claimed batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jobmaster.model.job import Priority
from jobmaster.model.pause import Pause, PauseKind, PausesInForce
from jobmaster_agents.state.ownership import OwnedBucket

NEVER_READ = -1
"""Version before the first answer of the master."""


class Pauses:
    """What shall not start.

    Args:
        by_breaker: handlers of this agent by their circuit breaker.
    """

    def __init__(self, by_breaker: Mapping[str, frozenset[str]] | None = None) -> None:
        self._by_breaker = by_breaker or {}
        self.version = NEVER_READ
        self.in_force = False
        """Something is paused, or a batch is cancelled."""
        self.handlers: frozenset[str] = frozenset()
        self.barred: frozenset[str] = frozenset()
        """Handlers whose breaker is open or half-open: only trials of them start."""
        self.trials: frozenset[bytes] = frozenset()
        self.lanes: frozenset[str] = frozenset()
        self.priorities: frozenset[int] = frozenset()
        self.tags: frozenset[str] = frozenset()
        self.cancelled_ranges: frozenset[bytes] = frozenset()
        """First bytes of the ids of jobs of cancelled batches: a copy that is claimed ends without a start."""
        self._read: Sequence[tuple[Pause, float]] = ()
        """With the time of their end (CLOCK_BOOTTIME seconds)."""

    def take(self, answer: PausesInForce, now: float) -> None:
        """Replace the pauses by those of an answer that has just arrived.

        Args:
            now: CLOCK_BOOTTIME seconds.
        """
        self.version = answer.version
        self.cancelled_ranges = answer.cancelled_ranges
        endless = float("inf")
        self._read = [
            (pause, endless if pause.left_seconds is None else now + pause.left_seconds) for pause in answer.pauses
        ]
        self._collect()

    def end(self, now: float) -> bool:
        """Drop the pauses that are over; True when there was one."""
        left = [(pause, ends_at) for pause, ends_at in self._read if ends_at > now]
        if len(left) == len(self._read):
            return False
        self._read = left
        self._collect()
        return True

    @property
    def next_end(self) -> float | None:
        """When the first pause ends (CLOCK_BOOTTIME seconds); ``None``: none has an end."""
        ends_at = min((ends_at for _, ends_at in self._read), default=float("inf"))
        return None if ends_at == float("inf") else ends_at

    @property
    def subjects(self) -> list[str]:
        """What is paused, as text."""
        return [pause.subject for pause, _ in self._read]

    def _collect(self) -> None:
        def values(kind: PauseKind) -> frozenset[str]:
            return frozenset(pause.value for pause, _ in self._read if pause.kind is kind)

        self.handlers, self.lanes, self.tags = map(values, (PauseKind.HANDLER, PauseKind.LANE, PauseKind.TAG))
        self.priorities = frozenset(int(Priority.parse(label)) for label in values(PauseKind.PRIORITY))
        breakers = [pause for pause, _ in self._read if pause.kind is PauseKind.BREAKER]
        barred = [self._by_breaker.get(pause.value, frozenset()) for pause in breakers]
        self.barred = frozenset().union(*barred) - self.handlers
        mine = [pause.trials for pause in breakers if pause.value in self._by_breaker]
        self.trials = frozenset().union(*mine)
        self.in_force = bool(self._read or self.cancelled_ranges)

    def end_trial(self, job_id: bytes) -> None:
        """The trial has ended here: a further run of the job is none."""
        self.trials -= {job_id}

    def cover_bucket(self, owned: OwnedBucket) -> bool:
        """True when no job of the bucket starts."""
        return owned.lane in self.lanes or owned.priority in self.priorities
