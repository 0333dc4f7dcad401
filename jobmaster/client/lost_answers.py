"""Answers to a submit that were lost: the same call is sent once more, and an error after that is ``OutcomeUnknown``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from jobmaster.model.errors import JobMasterError, OutcomeUnknown, Refused
from jobmaster.model.job import NewJob
from jobmaster.ports import Written


class BatchTrial:
    """What happened so far to one batch."""

    __slots__ = ("again", "full", "refusal", "renewed", "tried", "unknown")

    def __init__(self) -> None:
        self.tried: set[bytes] = set()
        self.full = False
        self.renewed = False
        self.refusal: Refused | None = None
        self.again = False
        """A store's answer was lost: its bucket is tried once more, however recently it failed."""
        self.unknown: OutcomeUnknown | None = None
        """A call whose answer was lost. Whatever a later call answers, short of "stored", does not undo that."""

    def answer_lost(self, bucket_id: bytes, error: OutcomeUnknown) -> None:
        """A store's answer was lost. The batch goes once more to the same bucket: its owner keeps one copy per id, so a
        second copy there costs nothing."""
        if self.again:
            self.tried.add(bucket_id)
        self.again, self.unknown = True, error

    @contextmanager
    def certain(self, job_ids: Sequence[bytes] = ()) -> Iterator[None]:
        """Around the calls for one batch: an error after a lost answer is ``OutcomeUnknown``, whatever it is. An error
        of any other class means that nothing was stored."""
        try:
            yield
        except JobMasterError as error:
            if self.unknown is None:
                raise
            first = self.unknown
            message = first.message if error is first else f"{first.message}; then: {error.message}"
            raise OutcomeUnknown(message, id_bytes=job_ids or first.id_bytes) from error


async def insert_held(insert: Callable[[Sequence[NewJob]], Awaitable[Written]], jobs: list[NewJob]) -> Written:
    """First rows by ``insert``; sent a second time when the first answer was lost."""
    state = BatchTrial()
    with state.certain([job.id for job in jobs]):
        return await write_once_more(partial(insert, jobs), state)


async def write_once_more(write: Callable[[], Awaitable[Written]], state: BatchTrial) -> Written:
    """The write; sent a second time when its first answer was lost."""
    try:
        return await write()
    except OutcomeUnknown as error:
        state.unknown = error
        return await write()
