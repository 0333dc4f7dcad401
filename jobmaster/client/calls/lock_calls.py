"""Calls of a cluster about named locks, and about actions that run once."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import aclosing
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, Unpack, overload
from uuid import UUID

import msgspec

from jobmaster.client.batches.batch import Batch
from jobmaster.client.batches.batches import Batches
from jobmaster.client.batches.options import BatchOptions, check_batch_options
from jobmaster.client.breakers.breakers import Breakers
from jobmaster.client.bucket_directory import BucketDirectory
from jobmaster.client.bulk import BulkSubmit, BulkSummary, IdList, Items
from jobmaster.client.bulk_operations.operations import BulkOperations
from jobmaster.client.events.event_readers import EventReaders
from jobmaster.client.handler_lookup import HandlerLookup
from jobmaster.client.inspect.inspection import Inspection
from jobmaster.client.jobs.changes import ChangeOptions, JobChanger, check_change_options, due_options
from jobmaster.client.jobs.existence import ExistenceCheck
from jobmaster.client.jobs.job_filters import JobFilters, checked_filter
from jobmaster.client.jobs.job_logs import JobLogReader
from jobmaster.client.jobs.job_refs import JobRef, job_id_of, ref_of, watched
from jobmaster.client.jobs.listing import COUNTED, LIMIT, JobCount, count_jobs, list_jobs
from jobmaster.client.jobs.result_waiter import ResultWaiter
from jobmaster.client.jobs.results import Results, is_final
from jobmaster.client.jobs.retry_as_new_job import retry_job
from jobmaster.client.limits.limits import Limits
from jobmaster.client.locks.held_lock import HeldLock
from jobmaster.client.locks.lock import Lock
from jobmaster.client.locks.once import run_once
from jobmaster.client.locks.options import (
    LISTED_MAX,
    LOCK_CHARS_MAX,
    TTL_SECONDS,
    LockOptions,
    Seconds,
    check_lock_name,
    lock_options,
    wait_seconds,
)
from jobmaster.client.lookup import JobLookup, confirm_run
from jobmaster.client.operate.operating import Operating
from jobmaster.client.options import BulkOptions, SubmitOptions
from jobmaster.client.outbox.outbox import Outbox
from jobmaster.client.pauses.pausing import TIMEOUT_SECONDS, PauseSubject, Pausing, Until
from jobmaster.client.receipts import JobReceipt
from jobmaster.client.schedules.schedules import Schedules
from jobmaster.client.signals.signals import Signals
from jobmaster.client.sql_submit import ParamStyle, styled
from jobmaster.client.store_handle import store_handles
from jobmaster.client.submit_router import SubmitRequest, SubmitRouter
from jobmaster.client.submitter import PreparedSubmit, SubmitChecks, Submitter
from jobmaster.client.tenants.tenants import Tenants
from jobmaster.client.transactions import ClusterTransaction
from jobmaster.client.workflows.workflows import Workflows
from jobmaster.clock import Clock, SystemClock
from jobmaster.encryption import opened_view
from jobmaster.handlers import Call, Handlers, check_name
from jobmaster.handlers.call import parts
from jobmaster.handlers.once import once_action
from jobmaster.model import ids
from jobmaster.model.errors import JobMasterError, OutcomeUnknown
from jobmaster.model.job import Durability, JobState, Priority, PriorityLabel, Receipt
from jobmaster.model.job_change import JobChange
from jobmaster.model.job_view import Attempt, JobView
from jobmaster.model.lock import LockView, OnceView
from jobmaster.model.pause import Pause, PauseChange
from jobmaster.model.schedule_view import ScheduleView
from jobmaster.ports import ClientMaster, ClientStore
from jobmaster.rules.placement import Route
from jobmaster.settings.model import ClusterSettings
from jobmaster.telemetry import Telemetry

from jobmaster.client.calls.parts import ClusterParts

class LockCalls(ClusterParts):
    """Part of ``Cluster``."""

    def lock(
        self, name: str, /, *, ttl: Seconds = TTL_SECONDS, wait: Seconds | None = 0.0, label: str | None = None
    ) -> Lock:
        """A named lock of the whole cluster, for ``async with``: at most one program holds it.

        Args:
            name: 1 to 200 printable characters; not beginning with ``once/``.
            ttl: 1 s to a day: how long a dead holder blocks the others. A living one renews the lock every third of it.
            wait: seconds to wait for another holder; 0: fail at once; ``None``: no limit. There is no queue: the first
                attempt after the release gets the lock, and attempts are up to 1 s apart.
            label: what the lock is held for, beside host and process; at most 100 characters.

        Raises:
            InputError: one of these cannot be meant. For the errors of ``async with`` see ``Lock``.
        """
        return Lock(self._held_lock(lock_options(name, ttl, wait, label)))

    def _held_lock(self, options: LockOptions) -> HeldLock:
        self._refuse_closed()
        return HeldLock(self.master.locks, options, self._clock)

    async def locks(self, name: str | None = None) -> list[LockView]:
        """Locks that have a holder now, by name; at most 1000. With ``name``: that one, if it has a holder."""
        return await self.master.locks.held(LISTED_MAX, None if name is None else check_lock_name(name))

    async def release_lock(self, name: str, *, actor: str = "client") -> LockView | None:
        """Take a lock from its holder, with a line in the operator's log. The holder notices it with its next renewal,
        within a third of the ttl; until then both may work. The lock as it was; ``None``: it was free."""
        return await self.master.locks.revoke(check_lock_name(name), check_name(actor, "'actor'", LOCK_CHARS_MAX))

    async def once(self, name: str, version: str, action: Callable[[], Any], /, *, wait: Seconds | None = None) -> bool:
        """Run ``action()`` once per cluster and version; wait while another program runs it. True when it ran here.

        The action of a process that dies, or loses the lock of the action, runs again elsewhere: it must be repeatable.

        Args:
            name: 1 to 90 printable characters.
            version: the same.
            action: a coroutine function, or a plain one, which runs in a thread.
            wait: seconds to wait for the other program; ``None``: no limit.

        Raises:
            LockHeld: another program runs it, and the time to wait is over.
            LockLost: its lock was lost while it ran here; it has not been recorded.
            Exception: what the action raised; it has not been recorded.
        """
        self._refuse_closed()
        limit = wait_seconds(wait)
        return await run_once(self.master.locks, self._clock, once_action(name, version, action), wait_seconds=limit)

    async def once_actions(self) -> list[OnceView]:
        """Actions that run once: those that run, then failed ones, then done ones; of each the latest first. At most 1000."""
        return await self.master.locks.actions(LISTED_MAX)
