"""The base of all twins of statements: the tables, the server's clock, and the audit of every write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from jobmaster.master.driver.connection import EPOCH_2000_US
from jobmaster.model.errors import ValueRefused
from jobmaster.model.flow.batch import range_of
from tests.simulation.master.tables import Event, JobRow, Snapshot, Tables

if TYPE_CHECKING:
    from tests.simulation.checks.audit import Audit

INT4_MAX = 2**31 - 1


def demand_values(what: str, texts: Sequence[str], numbers: Sequence[int]) -> None:
    """Check the ranges of the master's columns before anything is written: a refused statement has no effect.

    Raises:
        ValueRefused: text with NUL, or a number beyond four bytes.
    """
    if any("\0" in each for each in texts):
        raise ValueRefused(f"{what}: the master does not take a value: text with 0x00")
    if any(each > INT4_MAX for each in numbers):
        raise ValueRefused(f"{what}: the master does not take a value: value out of int32 range")


AGENT_OUTCOMES = frozenset({"copy_final", "outcomes/record_final", "outcomes/finish_steps"})
"""Statements by which agents end jobs that they have run."""


class StatementsBase:
    """Tables with a clock.

    Args:
        clock_us: the server's clock, microseconds since 1970.
        audit: called for every write before it counts.
        without: guards left out on purpose.
    """

    def __init__(self, clock_us: Callable[[], int], audit: Audit, without: frozenset[str] = frozenset()) -> None:
        self.tables = Tables()
        self.now_us = clock_us
        self.audit = audit
        self.without = without
        self.hits: Counter[str] = audit.hits

    def moment(self, us: int | None) -> tuple[int] | None:
        """A time as the driver hands it over."""
        return None if us is None else (us - EPOCH_2000_US,)

    def _put(self, row: JobRow) -> None:
        before = self.tables.jobs.get(row.id)
        self.tables.jobs[row.id] = row
        self.audit.wrote(before, row)

    def _note_end(self, job_id: bytes) -> None:
        """A job, perhaps of a batch, has ended, and no agent tells of it."""
        self.tables.batch_notes.append(range_of(job_id))

    def run_triggers(self, statement: str, old: Snapshot) -> None:
        """What follows the changes of a statement."""

    def _tell(self, bucket_id: bytes, before: str | None, after: str, epoch: int, actor: bytes, reason: str) -> None:
        event = Event(bucket_id, before, after, epoch, actor, reason)
        self.tables.events.append(event)
        self.audit.bucket_event(self.tables, event)
