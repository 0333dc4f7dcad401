"""``Cluster.inspect``: what operators see of a cluster. The command line, the HTTP API and the pages read by these methods.

The name says that nothing is changed; ``operations`` are the actions of operators, and ``state`` is that of a job.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Unpack
from uuid import UUID

import msgspec

from jobmaster.client.inspect.explanation import Explainer
from jobmaster.client.inspect.failures import GROUPS, WINDOW_SECONDS, group_failures, without_secrets
from jobmaster.client.inspect.overview import overview_of
from jobmaster.client.jobs.job_filters import JobFilters, checked_filter
from jobmaster.client.jobs.job_refs import JobRef, ref_of
from jobmaster.client.lookup import JobLookup
from jobmaster.client.submitter import SubmitChecks
from jobmaster.handlers import Handlers, check_name
from jobmaster.model.bucket import BucketDepth
from jobmaster.model.errors import InputError, JobMasterError
from jobmaster.model.flow.uniqueness import UniqueKeyView
from jobmaster.model.ids import parse
from jobmaster.model.inspection.explanation import Explanation
from jobmaster.model.inspection.failures import Failures
from jobmaster.model.inspection.views import (
    AgentView,
    BucketEvent,
    Buckets,
    BucketView,
    HostView,
    OperatorAct,
    Overview,
    RescueView,
)
from jobmaster.ports.client import InspectionMaster
from jobmaster.ports.inspection import InspectionStore
from jobmaster.settings.model import ClusterSettings

LISTED, LISTED_MAX = 100, 100_000
OVERDUE_SECONDS = 5.0
"""Seconds after its due time at which a HELD job counts as overdue (onboarding takes a second)."""
COUNTED_MAX = 100_000
"""HELD jobs of a lane and priority that an overview counts at most."""
_SECONDS_MAX = 1e12


class Inspection:
    """What operators see of a cluster. Made by ``Cluster``. Every method reads anew; a store that does not answer is waited
    for as long as a call to it may take.

    Args:
        stores: those of this program's configuration.
        checks: what opens sealed payloads, and knows the secret arguments of handlers.
    """

    def __init__(
        self,
        settings: ClusterSettings,
        master: InspectionMaster,
        stores: Mapping[str, InspectionStore],
        lookup: JobLookup,
        handlers: Handlers,
        checks: SubmitChecks,
        refuse_closed: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._master = master
        self._stores = stores
        self._refuse_closed = refuse_closed
        self._handlers = handlers
        self._checks = checks
        self._explainer = Explainer(master, stores, lookup, handlers, checks)

    async def explain(self, job: JobRef) -> Explanation:
        """Why a job does not run: what it waits for, in words and as data, the decisive cause first.

        The limits that a job waits for are known exactly where its handler is declared in this program, and its arguments
        are not sealed with a key that is missing here; otherwise they are those that jobs of its bucket wait for.

        Raises:
            NotFound: neither the master nor a bucket has the job.
            Unavailable: the master does not answer.
        """
        self._refuse_closed()
        return await self._explainer.explain(*ref_of(job))

    async def failures(self, *, limit: int = GROUPS, **filters: Unpack[JobFilters]) -> Failures:
        """Failed jobs by handler, type of the error and first line of its message without ids and numbers.

        Reads the jobs of a time of creation from the newest backwards, at most ``ROWS_MAX``, in short statements, and
        ends after ``JOBS_MAX`` failed ones. Values of secret arguments are cut out of the lines. Messages that are sealed are
        one group for each handler and type of error, with the line ``$sealed``.

        Args:
            limit: groups that are listed at most, 1 to 1000.
            filters: as of ``Cluster.jobs``; without ``since`` the jobs of the last day, without ``state`` those that FAILED.

        Raises:
            InputError: a filter that no job can fit.
            Unavailable: the master does not answer.
        """
        self._refuse_closed()
        asked: JobFilters = {"since": WINDOW_SECONDS, **filters}
        chosen = await checked_filter(self._master.queries, self._handlers, asked, "failures()")
        found = await group_failures(self._master.queries, self._master.inspection, chosen, limit=limit)
        return await without_secrets(found, self._master.queries, self._checks)

    async def agents(self, *, ended: bool = False) -> list[AgentView]:
        """Agents with their leases and statistics, the living first; ``ended``: also those that have ended.

        Raises:
            Unavailable: the master does not answer.
        """
        self._refuse_closed()
        reads, rule = self._master.inspection, self._settings.safety
        cordoned = await reads.cordoned_hosts(rule.flapping_deaths, rule.cordon_seconds)
        return [
            msgspec.structs.replace(agent, cordoned_seconds=cordoned.get(agent.host))
            for agent in await reads.agents(ended=ended)
        ]

    async def hosts(self) -> list[HostView]:
        """The machines of the living agents, by name. Their figures are as old as the statistics of agents, up to half a
        minute.

        Raises:
            Unavailable: the master does not answer.
        """
        by_host: dict[str, list[AgentView]] = {}
        for agent in await self.agents():
            by_host.setdefault(agent.host, []).append(agent)
        return [_host(host, by_host[host]) for host in sorted(by_host)]

    async def buckets(self, *, retired: bool = False, depths: bool = True) -> Buckets:
        """Buckets with their owners, and their depths in the stores that answer.

        Args:
            retired: also those that are about to lose their rows.
            depths: read them from the stores.

        Raises:
            Unavailable: the master does not answer.
        """
        self._refuse_closed()
        found = await self._master.inspection.buckets(retired=retired)
        if not depths:
            return Buckets(buckets=tuple(found), silent=())
        by_store: dict[str, list[BucketView]] = {}
        for bucket in found:
            by_store.setdefault(bucket.store, []).append(bucket)
        answers = await asyncio.gather(*(self._depths(name, by_store[name]) for name in sorted(by_store)))
        known = {id_: depth for answer in answers if not isinstance(answer, str) for id_, depth in answer.items()}
        return Buckets(
            buckets=tuple(_with_depth(bucket, known.get(bucket.id)) for bucket in found),
            silent=tuple(answer for answer in answers if isinstance(answer, str)),
        )

    async def _depths(self, name: str, buckets: Sequence[BucketView]) -> dict[UUID, BucketDepth | None] | str:
        """What lies in the buckets of one store; a sentence when it does not answer."""
        store = self._stores.get(name)
        if store is None:
            return f"store {name} is not in the configuration"
        try:
            depths = await store.depths([bucket.id.bytes for bucket in buckets])
        except JobMasterError as error:
            return str(error)
        return {bucket.id: depth for bucket, depth in zip(buckets, depths, strict=True)}

    async def bucket_history(self, bucket: UUID | str) -> list[BucketEvent]:
        """What has become of one bucket, oldest first; nothing for one that is not known, or whose past is forgotten.

        Raises:
            InputError: no id.
            Unavailable: the master does not answer.
        """
        self._refuse_closed()
        try:
            bucket_id = parse(bucket)
        except (AttributeError, TypeError, ValueError):
            raise InputError(f"{bucket!r:.200} is not the id of a bucket") from None
        return await self._master.inspection.bucket_history(bucket_id)

    async def rescues(
        self, *, since: float | timedelta | None = None, unfinished: bool = False, limit: int = LISTED
    ) -> list[RescueView]:
        """Buckets that were lost, and what became of them, the latest loss first.

        Args:
            since: seconds, or a ``timedelta``: lost so long ago at most.
            unfinished: those whose rescue is not over.
            limit: most lines, 1 to 100,000.

        Raises:
            InputError: an argument that cannot be meant.
            Unavailable: the master does not answer.
        """
        self._refuse_closed()
        seconds = None if since is None else _seconds(since)
        return await self._master.inspection.rescues(seconds, unfinished=unfinished, limit=_limit(limit))

    async def operator_log(
        self,
        *,
        subject: str | None = None,
        actor: str | None = None,
        since: float | timedelta | None = None,
        limit: int = LISTED,
    ) -> list[OperatorAct]:
        """The actions of operators, the latest first.

        Args:
            subject: what was acted on: its name or id, or the beginning of it.
            actor: the operator: the whole name, or the part before the ``@``.
            since: seconds, or a ``timedelta``: done so long ago at most.
            limit: most lines, 1 to 100,000.

        Raises:
            InputError: an argument that cannot be meant.
            Unavailable: the master does not answer.
        """
        self._refuse_closed()
        named = None if subject is None else check_name(subject, "'subject'")
        by = None if actor is None else check_name(actor, "'actor'")
        seconds = None if since is None else _seconds(since)
        return await self._master.inspection.acts(named, by, seconds, _limit(limit))

    async def overview(self, *, agents: Sequence[AgentView] | None = None, buckets: Buckets | None = None) -> Overview:
        """The cluster on one screen: agents, what waits and runs by lane and priority, how long it would take, warnings.

        Its cost is that of the buckets, the rows in flight and at most ``COUNTED_MAX`` HELD jobs of each lane and priority.

        Args:
            agents: what ``agents()`` has returned just now; ``None``: they are read.
            buckets: what ``buckets()`` has returned just now; ``None``: they are read.

        Raises:
            Unavailable: the master does not answer.
        """
        self._refuse_closed()
        reads = self._master.inspection
        return overview_of(
            self._settings.cluster,
            await reads.now(),
            await reads.agents(ended=False) if agents is None else agents,
            await self.buckets() if buckets is None else buckets,
            await reads.held(OVERDUE_SECONDS, COUNTED_MAX),
            (await self._master.pauses.in_force()).pauses,
            await reads.paused_schedules(),
        )

    async def unique_keys(
        self, handler: str | None = None, key: str | None = None, *, limit: int = LISTED
    ) -> list[UniqueKeyView]:
        """Unique keys that jobs hold now, by handler and key. ``operate.release_unique_key`` takes one from its job.

        Args:
            handler: only keys of this handler.
            key: only this key, of any handler if none is named.
            limit: at most so many.

        Raises:
            InputError: a value that cannot be meant.
        """
        self._refuse_closed()
        named = None if handler is None else check_name(handler, "'handler'")
        wanted = None if key is None else check_name(key, "'key'")
        return await self._master.uniqueness.held(named, wanted, _limit(limit))


def _with_depth(bucket: BucketView, depth: BucketDepth | None) -> BucketView:
    if depth is None:
        return bucket
    return msgspec.structs.replace(
        bucket, pending=depth.pending, assigned=depth.assigned, claimed_lists=depth.claimed_lists, kept=depth.kept
    )


def _host(host: str, agents: Sequence[AgentView]) -> HostView:
    published = [agent for agent in agents if agent.statistics is not None and agent.statistics_at is not None]
    published.sort(key=lambda agent: agent.statistics_at or agent.started_at)
    each = [agent.statistics for agent in published if agent.statistics is not None]
    last = each[-1] if each else None
    return HostView(
        host=host,
        agents=len(agents),
        buckets=sum(agent.buckets for agent in agents),
        slots=sum(one.slots for one in each),
        running=sum(one.running for one in each),
        processor=round(sum(one.processor for one in each), 3),
        memory_bytes=sum(one.memory_bytes for one in each),
        processors=last.host_processors if last else 0,
        load=last.host_load if last else 0.0,
        host_memory_bytes=last.host_memory_bytes if last else 0,
        host_memory_free_bytes=last.host_memory_free_bytes if last else 0,
        at=published[-1].statistics_at if published else None,
    )


def _seconds(since: object) -> float:
    seconds = since.total_seconds() if isinstance(since, timedelta) else since
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < _SECONDS_MAX:
        raise InputError(f"'since' must be a timedelta or seconds of at least 0 for 'so long ago', not {since!r:.200}")
    return float(seconds)


def _limit(limit: object) -> int:
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= LISTED_MAX:
        raise InputError(f"'limit' must be a whole number from 1 to {LISTED_MAX}, not {limit!r:.200}")
    return limit
