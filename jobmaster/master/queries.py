"""Reads of clients and agents."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from jobmaster.codec import decode_error
from jobmaster.master.buckets import bucket_of, mapped_bucket_of
from jobmaster.master.driver.connection import Row, StatementRunner, to_us
from jobmaster.model.agent import Agent, AgentState, HandlerSpec
from jobmaster.model.bucket import Bucket, BucketState
from jobmaster.model.bucket_map import MapChanges, MapVersion, OwnerTraits
from jobmaster.model.flow.tenant import TenantView
from jobmaster.model.job import IN_FLIGHT_STATES, ErrorInfo, JobState, Priority
from jobmaster.model.job_view import Attempt, JobFilter, JobView, moment
from jobmaster.model.run_progress import RunProgress
from jobmaster.ports import (
    CountStep,
    EndedRow,
    FilledBucket,
    HeldJobs,
    JobsStep,
    MasterBacklog,
    SentBefore,
    SentRow,
)
from jobmaster.rules.unserved_cause import UnservedCause

INDEXED_STATES = IN_FLIGHT_STATES | {JobState.HELD}
"""States whose jobs have an index of their own, however long the history is."""

_SPEC = msgspec.json.Decoder(HandlerSpec)


class Queries:
    """``jobmaster.ports.Queries`` on PostgreSQL."""

    def __init__(self, data: StatementRunner) -> None:
        self._data = data

    async def get(self, job_id: bytes) -> JobView | None:
        """One job; ``None`` when the master has no row of it."""
        rows = await self._data.read("queries/get", job_id)
        return msgspec.structs.replace(_view(rows[0]), progress=_progress(rows[0])) if rows else None

    async def states(self, job_ids: Sequence[bytes]) -> dict[bytes, JobState]:
        """The states of those that have a row."""
        if not job_ids:
            return {}
        rows = await self._data.read("queries/states", list(job_ids), min(job_ids), max(job_ids))
        return {row["id"]: JobState(row["state"]) for row in rows}

    async def jobs(
        self, chosen: JobFilter, lowest: bytes, highest: bytes, *, reads: int, limit: int, payload: bool
    ) -> JobsStep:
        """The newest jobs of a range of ids that fit: one step, which reads at most ``reads`` rows.

        Args:
            limit: jobs that are returned at most.
            payload: with arguments and results.
        """
        rows = await self._data.read("queries/list", chosen.as_json, lowest, highest, reads, limit, payload)
        return JobsStep(rows[0]["read_to"], [_view(row, payload) for row in rows if row["id"] is not None])

    async def jobs_of(self, chosen: JobFilter, job_ids: Sequence[bytes], *, payload: bool) -> list[JobView]:
        """Those of some jobs that fit, newest first."""
        if not job_ids:
            return []
        rows = await self._data.read(
            "queries/list_of", chosen.as_json, list(job_ids), min(job_ids), max(job_ids), payload
        )
        return [_view(row, payload) for row in rows]

    async def count(self, chosen: JobFilter, lowest: bytes, highest: bytes, *, reads: int, limit: int) -> CountStep:
        """How many jobs of a range of ids fit: one step, which reads at most ``reads`` rows and counts at most ``limit``."""
        rows = await self._data.read("queries/count", chosen.as_json, lowest, highest, reads, limit)
        return CountStep(rows[0]["read_to"], rows[0]["jobs"])

    async def waiting_ids(self, chosen: JobFilter, limit: int) -> list[bytes] | None:
        """Jobs in the states of a filter, of its lane and priority and due in its time, by the indexes of these: at most
        ``limit``. ``None``: a state of the filter has no index."""
        due = (chosen.due_after_us, chosen.due_before_us)
        states = frozenset(chosen.states)
        if due != (None, None):
            if states and JobState.HELD not in states:
                return []
            states = frozenset({JobState.HELD})
        if not states or states - INDEXED_STATES:
            return None
        priority = None if chosen.priority is None else int(chosen.priority)
        rows = await self._data.read(
            "queries/waiting_ids",
            *(JobState.HELD in states, bool(states & IN_FLIGHT_STATES), chosen.lane, priority, *due, limit),
        )
        return [row["id"] for row in rows]

    async def id_ranges(self, batch: bytes | None, workflow: bytes | None) -> list[tuple[bytes, bytes]]:
        """Lowest and highest id of each range in which the jobs of a batch, or of a workflow, lie; the newest first."""
        rows = await self._data.read("queries/id_ranges", batch, workflow)
        return [(row["lowest"], row["highest"]) for row in rows]

    async def attempts(self, job_id: bytes) -> list[Attempt]:
        """Every recorded line of a job, oldest first, the concluding one last."""
        return [
            Attempt(
                token=row["token"],
                bucket_id=row["bucket_id"],
                bucket_epoch=row["bucket_epoch"],
                concluding=row["concluding"],
                outcome=row["outcome"],
                at_us=to_us(row["at"]),
                ran_us=row["ran_us"],
                error=_error(row["error"]),
                refused_us=to_us(row["refused_at"]) or None,
                refused_count=row["refused_count"],
            )
            for row in await self._data.read("queries/attempts", job_id)
        ]

    async def ended(self, job_ids: Sequence[bytes]) -> dict[bytes, EndedRow]:
        """Results and errors of the jobs that have a row, by id."""
        if not job_ids:
            return {}
        rows = await self._data.read("queries/ended", list(job_ids), min(job_ids), max(job_ids))
        return {
            row["id"]: EndedRow(row["id"], JobState(row["state"]), row["handler"], row["result"], _error(row["error"]))
            for row in rows
        }

    async def backlog(self, jobs_max: int) -> MasterBacklog:
        """HELD jobs, buckets and agents. Of each lane and priority ``jobs_max`` due jobs are counted at most, and as many of
        the others."""
        (row,) = await self._data.read("queries/backlog", jobs_max)
        held = zip(*map(row.get, ("lanes", "priorities", "due", "later", "oldest_seconds")), strict=True)
        of_buckets = ("buckets", "stores", "bucket_lanes", "bucket_priorities", "owners", "active")
        buckets = zip(*map(row.get, of_buckets), strict=True)
        return MasterBacklog(
            [HeldJobs(*each) for each in held],
            [FilledBucket(*each) for each in buckets],
            dict(zip(row["agents"], row["slots"], strict=True)),
        )

    async def now_us(self) -> int:
        """The master's clock, in microseconds since 1970."""
        return to_us((await self._data.read("queries/now"))[0]["now"])

    async def sent_before(self, job_ids: Sequence[bytes], bucket_ids: Sequence[bytes]) -> SentBefore:
        """The rows of these jobs (at least one is named), and whether there are buckets beyond these at the same moment."""
        found = await self._data.read(
            "queries/sent_before", list(job_ids), min(job_ids), max(job_ids), list(bucket_ids)
        )
        rows = {
            row["id"]: SentRow(JobState(row["state"]), row["handler"], row["args"], row["bucket_id"])
            for row in found
            if row["id"] is not None
        }
        return SentBefore(rows, found[0]["strangers"])

    async def list_buckets(self, *, states: Sequence[BucketState] = ()) -> list[Bucket]:
        """Buckets in some states; no states = all."""
        return [bucket_of(row) for row in await self._data.read("queries/buckets", [str(state) for state in states])]

    async def agents(self, *, all_: bool = False) -> list[Agent]:
        """Living agents; ``all_`` those that have ended too."""
        return [
            Agent(
                id=row["id"],
                name=row["name"],
                host=row["host"],
                pid=row["pid"],
                version=row["version"],
                mode=row["mode"],
                store=row["store"],
                weight=row["weight"],
                state=AgentState(row["state"]),
                lease_us=to_us(row["lease_until"]),
                lease_seconds=row["lease_seconds"],
                started_us=to_us(row["started_at"]),
            )
            for row in await self._data.read("queries/agents", all_)
        ]

    async def bucket_map(self, known: MapVersion | None) -> MapChanges:
        """What has changed in the map of buckets since a version (``None``: all of it), and the new version."""
        version, whole = MapVersion(0, 0), True
        buckets, owners = [], []
        for row in await self._data.read("queries/bucket_map", *(known or (None, None))):
            if row["id"] is not None:
                buckets.append(mapped_bucket_of(row))
            elif row["owners"] is not None:
                owners.append((row["owners"], _traits(row)))
            else:
                version, whole = MapVersion(row["server"], row["horizon"]), row["whole"]
        return MapChanges(version, whole, buckets, owners)

    async def other_owners(self, agent_id: bytes, lane: str, priority: int, handlers: Sequence[str]) -> frozenset[str]:
        """Those of the handlers that another living owner of an ACTIVE bucket of the lane and priority has."""
        rows = await self._data.read("queries/other_owners", agent_id, lane, priority, list(handlers))
        return frozenset(rows[0]["handlers"])

    async def unserved_causes(self, job_ids: Sequence[bytes]) -> dict[bytes, UnservedCause]:
        """Those of the jobs that wait in the master for a handler that no owner has, and what is missing."""
        if not job_ids:
            return {}
        rows = await self._data.read("queries/unserved", list(job_ids), min(job_ids), max(job_ids))
        return {id_: UnservedCause(*cause)._replace(requires=tuple(words)) for id_, *cause, words in rows}

    async def tenants(self, lane: str | None, limit: int) -> list[TenantView]:
        """Tenants with due jobs that wait in the master, or jobs in flight, the one with the most waiting jobs first."""
        return [
            TenantView(row["name"], row["lane"], row["held"], row["in_flight"], to_us(row["oldest"]) or None)
            for row in await self._data.read("queries/tenants", lane, limit)
        ]

    async def handlers(self) -> dict[str, HandlerSpec]:
        """Handlers that agents have published, by name."""
        specs = [_SPEC.decode(row["spec"]) for row in await self._data.read("queries/handlers")]
        return {spec.name: spec for spec in specs}


def _traits(row: Row) -> OwnerTraits | None:
    if row["handlers"] is None:
        return None
    return OwnerTraits(frozenset(row["handlers"]), row["share"], frozenset(row["capabilities"]))


def _error(data: bytes | None) -> ErrorInfo | None:
    return decode_error(data) if data else None


def _progress(row: Row) -> RunProgress | None:
    if row["done"] is None:
        return None
    at = moment(to_us(row["progress_at"]))
    return RunProgress(done=row["done"], total=row["total"], text=row["progress_text"], at=at)


def _view(row: Row, payload: bool = True) -> JobView:
    return JobView(
        id_bytes=row["id"],
        state=JobState(row["state"]),
        priority=Priority(row["priority"]),
        lane=row["lane"],
        handler=row["handler"],
        token=row["token"],
        attempt=row["attempt"],
        rescues=row["rescues"],
        bucket_id=row["bucket_id"],
        bucket_epoch=row["bucket_epoch"],
        cancel_requested=row["cancel_requested"],
        due_us=to_us(row["due_at"]) or None,
        changed_us=to_us(row["changed_at"]),
        waited_us=row["waited_us"],
        ran_us=row["ran_us"],
        with_payload=payload,
        arguments_json=row["args"] if payload else b"{}",
        headers_json=row["headers"],
        result_json=row["result"],
        error=_error(row["error"]),
    )
