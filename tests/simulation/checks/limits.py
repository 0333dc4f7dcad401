"""I11 and the order of ordering keys, checked at every admission and every start."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from jobmaster.model.flow.limit import LimitKey, LimitUse
from jobmaster.model.ids import text
from tests.simulation.master.tables import FINAL, JobRow, PermitRow
from tests.simulation.runtime.event_loop import Process

Run = tuple[bytes, int, bytes | None, int | None]
MOST = {"pool": 3, "tenant": 1, "lent": 4}
"""The greatest number of each limit that is ever in force."""


@dataclass
class LimitChecks:
    """What runs under limits."""

    broken: Callable[[str, str], None]
    now: Callable[[], float]
    forgotten: set[bytes]
    """Jobs whose newest rows a failover has forgotten, and with them their permits."""
    given_back: set[tuple[bytes, int]] = field(default_factory=set)
    """Jobs and tokens of rows that went back to the master as orphans: their bucket was unfrozen during the run, which goes
    on under the epoch before."""
    _running: dict[LimitKey, dict[Run, tuple[Process, int]]] = field(default_factory=dict)

    def admitted(
        self,
        key: LimitKey,
        maximum: int,
        permits: Mapping[tuple[str, str, bytes], PermitRow],
        jobs: Mapping[bytes, JobRow],
        lent: int,
    ) -> None:
        """An admission under a limit has ended, or a loan has grown: its permits are counted again, by the rows alone.

        Args:
            lent: permits that living agents have.
        """
        taken = lent + sum(
            min(permit.weight, maximum)
            for (name, of, job_id), permit in permits.items()
            if (name, of) == key and is_valid(permit, jobs.get(job_id))
        )
        if taken > maximum:
            self.broken("I11", f"{taken} permits of {' '.join(key)} are taken, and the limit is {maximum}")

    def began(self, process: Process, run: Run, uses: Sequence[LimitUse], *, excused: bool) -> None:
        """A handler is called. Runs of agents that are dead, stand still or are about to end themselves do not count: that is
        what their permits are free by. Those of an agent that is suspended go on under the terms of its store.

        Args:
            excused: a fault has broken what the promise rests on.
        """
        for use in uses:
            runs = self._running.setdefault((use.name, use.key), {})
            others = sum(
                weight
                for each, (where, weight) in runs.items()
                if each != run and each[0] not in self.forgotten and each[:2] not in self.given_back
                if self._goes_on(where)
            )
            most = MOST.get(use.name)
            if most is not None and others and others + min(use.weight, most) > most and not excused:
                self.broken("I11", f"{text(run[0])} runs under {use.name} {use.key} beside {others} of at most {most}")
            runs[run] = (process, use.weight)

    def ended(self, run: Run, uses: Sequence[LimitUse]) -> None:
        """The handler has ended."""
        for use in uses:
            self._running.get((use.name, use.key), {}).pop(run, None)

    def _goes_on(self, process: Process) -> bool:
        if not process.alive or process.resumes_at > self.now():
            return False
        ownership = process.parts.ownership
        return bool(process.parts._clock.boottime() < ownership.fence_at and not ownership.fenced.is_set())

    def in_order(self, job_id: bytes, earlier: Sequence[bytes], jobs: Mapping[bytes, JobRow]) -> None:
        """A job of an ordering key starts: those that were acknowledged before its submit have ended."""
        for before in earlier:
            row = jobs.get(before)
            if row is not None and row.state not in FINAL:
                self.broken("order", f"{text(job_id)} starts, and {text(before)}, which came before, is {row.state}")


def is_valid(permit: PermitRow, row: JobRow | None) -> bool:
    """A permit counts while its job's row is PROCESSING with its token."""
    return row is not None and row.state == "PROCESSING" and row.token == permit.token
