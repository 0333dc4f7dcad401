"""The new jobs of a bulk retry: each is the one that a retry of its job would submit.

The options of a retry come from the headers of the old job, and few of these differ. So they are checked once for all jobs of
the same headers, with a placeholder for the id of the old job, which stands in the key and in the metadata.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from jobmaster.client.handler_lookup import HandlerLookup, ResolvedHandler, headers_for
from jobmaster.client.idempotency_keys import digest
from jobmaster.client.jobs.retry_as_new_job import keyed_options
from jobmaster.client.options import CheckedOptions
from jobmaster.client.submitter import StoredArguments, SubmitChecks
from jobmaster.clock import Clock, new_id
from jobmaster.encryption import CannotOpen
from jobmaster.handlers import Handlers
from jobmaster.model import ids
from jobmaster.model.errors import InputError
from jobmaster.model.flow.bulk_operation import BulkRetry, FoundBulkJob, SkipCause
from jobmaster.model.job import JobState, Priority
from jobmaster.model.job_view import JobView
from jobmaster.ports import Queries
from jobmaster.settings.model import ClusterSettings

_PLACEHOLDER = bytes.fromhex("ffffffffffff7fffbfffffffffffffff")
_PLACEHOLDER_TEXT = ids.text(_PLACEHOLDER).encode()
_KEPT_MAX = 10_000
"""Different headers that are remembered."""
_TURN_JOBS = 500
"""Jobs after which other tasks of the event loop have a turn: about 10 ms."""


class _Options(NamedTuple):
    """Options of the retries of all jobs of one handler and the same headers; ``None``: a submit refuses them."""

    checked: CheckedOptions | None


class _Payload(NamedTuple):
    """What a new job carries."""

    headers: bytes
    args: bytes
    """As they are stored."""


class RetriedJobs:
    """Makes the jobs of a page. Belongs to one event loop. What agents have published decides, as for a producer without the
    code of the handlers."""

    def __init__(self, settings: ClusterSettings, queries: Queries, clock: Clock) -> None:
        self._lookup = HandlerLookup(Handlers(), queries, settings.jobs, clock)
        self._checks = SubmitChecks(settings, self._lookup, clock)
        self._options: dict[tuple[str, bytes], _Options] = {}

    async def make(self, found: Sequence[FoundBulkJob], above: bytes) -> tuple[list[BulkRetry], Counter[SkipCause]]:
        """The new jobs, and the number of those that are left alone, by the cause.

        Args:
            above: the new ids are higher than this one, so that the operation does not find its own jobs.
        """
        self._options.clear()  # the handlers may have been published again
        handlers: dict[str, ResolvedHandler | None] = {}
        made: list[BulkRetry] = []
        skipped: Counter[SkipCause] = Counter()
        for number, job in enumerate(found, 1):
            if number % _TURN_JOBS == 0:
                await asyncio.sleep(0)
            if job.handler not in handlers:
                handlers[job.handler] = await self._resolved(job.handler)
            payload = await self._payload(job, handlers[job.handler])
            if isinstance(payload, SkipCause):
                skipped[payload] += 1
                continue
            new, own = job.holder or _above(new_id(), above), digest(job.handler, payload.args)
            args = None if payload.args == job.args else payload.args
            made.append(BulkRetry(job.id, new, job.holder is not None, payload.headers, own, args))
        return made, skipped

    async def _resolved(self, name: str) -> ResolvedHandler | None:
        try:
            return await self._lookup.find(name, allow_unregistered=False)
        except InputError:
            return None

    async def _payload(self, job: FoundBulkJob, handler: ResolvedHandler | None) -> _Payload | SkipCause:
        """What the new job carries, or why there is none."""
        if handler is None:
            return SkipCause.REFUSED
        options = self._options.get((job.handler, job.headers))
        if options is None:
            if len(self._options) >= _KEPT_MAX:
                self._options.clear()
            options = self._options[job.handler, job.headers] = self._checked(job, handler)
        checked, cipher = options.checked, self._checks.cipher
        if checked is None:
            return SkipCause.REFUSED
        if checked.waits:
            return SkipCause.SIGNAL
        try:
            args = job.args if cipher is None else cipher.open_arguments(job.handler, job.id, job.args)
            data = self._checks.encode(handler, StoredArguments(args))
            await self._lookup.check(handler, data, allow_unregistered=False)
            headers = self._checks.in_order(handler, data, checked).headers
        except (InputError, CannotOpen):
            return SkipCause.REFUSED
        named = headers.replace(_PLACEHOLDER_TEXT, ids.text(job.id).encode())
        return _Payload(named, self._checks.sealed(job.handler, None, data))

    def _checked(self, job: FoundBulkJob, handler: ResolvedHandler) -> _Options:
        view = JobView(
            id_bytes=_PLACEHOLDER, state=JobState.FAILED, priority=Priority(job.priority), lane=job.lane,
            handler=job.handler, token=1, attempt=0, rescues=0, headers_json=job.headers,
        )  # fmt: skip
        try:
            checked = self._checks.checked(keyed_options(view, {}))
            return _Options(checked._replace(headers=headers_for(handler, checked.headers)))
        except InputError:
            return _Options(None)


def _above(id_: bytes, least: bytes) -> bytes:
    """The id, or one with its random part in the millisecond after ``least``, of which this machine's clock is behind."""
    if id_ > least:
        return id_
    return (ids.created_ms(least) + 1).to_bytes(6, "big") + id_[6:]
