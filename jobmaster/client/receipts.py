"""What an acknowledged submit hands back: where the job is, how safe it is, and the ways to follow it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Generic, Protocol, TypeVar
from uuid import UUID

import msgspec

from jobmaster.model import ids
from jobmaster.model.flow.uniqueness import SubmitAnswer
from jobmaster.model.job import Durability, JobState, Priority, PriorityLabel
from jobmaster.model.job_change import JobChange
from jobmaster.model.job_view import JobView
from jobmaster.model.response import response_schema

R = TypeVar("R")


class Follows(Protocol):
    """What a receipt needs of the cluster that gave it. A type of its own, so that the receipt's annotations can be read at
    any time, by ``help()`` too."""

    async def wait_saved(self, job: JobReceipt[Any], *, timeout: float | None = None) -> None:
        """Wait until the master has the job."""
        ...

    async def wait(self, job: JobReceipt[Any], *, timeout: float | None = None) -> JobState:
        """Wait until it has ended."""
        ...

    async def result(self, job: JobReceipt[Any], *, timeout: float | None = None) -> Any:
        """Wait for its result."""
        ...

    async def get(self, job: JobReceipt[Any]) -> JobView:
        """The job as it is now."""
        ...

    async def cancel(self, job: JobReceipt[Any]) -> JobState:
        """Request the cancellation."""
        ...

    async def reschedule(
        self, job: JobReceipt[Any], *, at: datetime | None = None, after: float | timedelta | None = None
    ) -> JobChange:
        """Change its due time."""
        ...

    async def reprioritise(self, job: JobReceipt[Any], priority: Priority | int | PriorityLabel) -> JobChange:
        """Change its priority."""
        ...

    async def move(self, job: JobReceipt[Any], lane: str) -> JobChange:
        """Change its lane."""
        ...

    async def run_now(self, job: JobReceipt[Any]) -> JobChange:
        """Make it due now."""
        ...


RECEIPT_RESPONSE = {"id": UUID, "level": Durability, "duplicate": bool, "unserved": bool}
"""What a web response shows of a receipt."""


class JobReceipt(msgspec.Struct, Generic[R], frozen=True, eq=False, gc=False):
    """One acknowledged job. ``level`` is what was truly reached, never more, and never less than was required."""

    cluster: Follows
    id_bytes: bytes
    """The id as its 16 bytes, for code that keeps or compares many."""
    level: Durability
    bucket_id: bytes | None = None
    """Where it was put; ``None`` when it waits in the master."""
    duplicate: bool = False
    """The idempotency key or the id was known already, with the same payload: this is that job."""
    unserved: bool = False
    """It waits in the master, and no agent has a bucket of its lane and priority now, by this producer's list: it runs
    when one is configured, or when an agent helps out. False where the master gave no answer within a second."""
    unique_answer: str | None = None
    """Of a submit with a unique key: the value of ``answer``; else ``None``."""

    @property
    def id(self) -> UUID:
        """The job's id, a UUIDv7."""
        return UUID(bytes=self.id_bytes)

    @property
    def answer(self) -> SubmitAnswer:
        """What the submit has done: ``created`` a job, found an ``existing`` one, ``replaced`` or ``debounced`` one."""
        if self.unique_answer is not None:
            return SubmitAnswer(self.unique_answer)
        return SubmitAnswer.EXISTING if self.duplicate else SubmitAnswer.CREATED

    def __str__(self) -> str:
        return ids.text(self.id_bytes)

    def __repr__(self) -> str:
        marks = [name for name in ("duplicate", "unserved") if getattr(self, name)]
        return f"<JobReceipt {' '.join([str(self), self.level.value, *marks])}>"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """A receipt in a response of FastAPI."""
        return response_schema(cls, RECEIPT_RESPONSE, handler)

    async def wait_saved(self, timeout: float | None = None) -> None:
        """Wait until the master has the job; ``WaitTimeout`` when that takes longer than ``timeout`` seconds."""
        await self.cluster.wait_saved(self, timeout=timeout)

    async def wait(self, timeout: float | None = None) -> JobState:
        """Wait until the job has ended, however; its final state."""
        return await self.cluster.wait(self, timeout=timeout)

    async def result(self, timeout: float | None = None) -> R:
        """Wait for the job's result; ``JobFailed`` when it ended in another way."""
        value: Any = await self.cluster.result(self, timeout=timeout)
        result: R = value
        return result

    async def get(self) -> JobView:
        """The job as it is now."""
        return await self.cluster.get(self)

    async def cancel(self) -> JobState:
        """Request the cancellation; the state after the request."""
        return await self.cluster.cancel(self)

    async def reschedule(self, *, at: datetime | None = None, after: float | timedelta | None = None) -> JobChange:
        """Give it another due time, unless it has started; see ``Cluster.change``."""
        return await self.cluster.reschedule(self, at=at, after=after)

    async def reprioritise(self, priority: Priority | int | PriorityLabel) -> JobChange:
        """Give it another priority, unless it has started; see ``Cluster.change``."""
        return await self.cluster.reprioritise(self, priority)

    async def move(self, lane: str) -> JobChange:
        """Move it to another lane, unless it has started; see ``Cluster.change``."""
        return await self.cluster.move(self, lane)

    async def run_now(self) -> JobChange:
        """Make it due now, unless it has started; see ``Cluster.change``."""
        return await self.cluster.run_now(self)
