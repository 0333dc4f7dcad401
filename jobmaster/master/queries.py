"""Reads of clients and agents."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from jobmaster.codec import decode_error
from jobmaster.master.buckets import bucket_of
from jobmaster.master.driver.connection import Row, StatementRunner, to_us
from jobmaster.model.agent import Agent, AgentState, HandlerSpec
from jobmaster.model.bucket import Bucket, BucketState
from jobmaster.model.job import JobState, JobView, Priority
from jobmaster.ports import EVERY_OWNER, OwnerTraits, SentBefore, SentRow
from jobmaster.rules.unserved_cause import UnservedCause

_SPEC = msgspec.json.Decoder(HandlerSpec)


class Queries:
    """``jobmaster.ports.Queries`` on PostgreSQL."""

    def __init__(self, data: StatementRunner) -> None:
        self._data = data

    async def get(self, job_id: bytes) -> JobView | None:
        """One job; ``None`` when the master has no row of it."""
        rows = await self._data.read("queries/get", job_id)
        return _view(rows[0]) if rows else None

    async def states(self, job_ids: Sequence[bytes]) -> dict[bytes, JobState]:
        """The states of those that have a row."""
        if not job_ids:
            return {}
        rows = await self._data.read("queries/states", list(job_ids), min(job_ids), max(job_ids))
        return {row["id"]: JobState(row["state"]) for row in rows}

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

    async def served(self) -> dict[bytes, OwnerTraits]:
        """Owner of buckets -> its traits; ``EVERY_OWNER`` alone when all are alike, nothing when there is none."""
        return {
            id_ or EVERY_OWNER: OwnerTraits(frozenset(handlers), share)
            for id_, handlers, share in await self._data.read("queries/served")
        }

    async def unserved_causes(self, job_ids: Sequence[bytes]) -> dict[bytes, UnservedCause]:
        """Those of the jobs that wait in the master for a handler that no owner has, and what is missing."""
        if not job_ids:
            return {}
        rows = await self._data.read("queries/unserved", list(job_ids), min(job_ids), max(job_ids))
        return {id_: UnservedCause(*cause) for id_, *cause in rows}

    async def handlers(self) -> dict[str, HandlerSpec]:
        """Handlers that agents have published, by name."""
        specs = [_SPEC.decode(row["spec"]) for row in await self._data.read("queries/handlers")]
        return {spec.name: spec for spec in specs}


def _view(row: Row) -> JobView:
    error = row["error"]
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
        args=row["args"],
        headers=row["headers"],
        result=row["result"],
        error=decode_error(error) if error is not None else None,
    )
