"""A small cluster without processes: real master and store, agents that are driven call by call, and their deaths.

``DrivenCluster.owner`` makes an agent with one bucket; ``Owner.live`` brings jobs into every place a job can be in when its
owner dies. ``CallCutter`` cuts another agent off at its n-th call, before or after the call had its effect.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import asyncpg

from jobmaster.agentstore.store import AgentStore
from jobmaster.clock import SystemClock, new_id
from jobmaster.codec import encode_entry
from jobmaster.doctor.findings import CheckStatus, Finding
from jobmaster.master.master import Master
from jobmaster.master.reports import Reader
from jobmaster.model.agent import Agent, AgentState
from jobmaster.model.bucket import Bucket, BucketState
from jobmaster.model.ids import AgentId, BucketId, Fence, text
from jobmaster.model.job import Entry, FinalRow, HoldRow, InFlightRow, NewJob
from jobmaster.ports import ReplyStatus
from jobmaster.rules.lease import term
from jobmaster.settings.model import ClusterSettings, Leases, MasterSettings, StoreSettings
from jobmaster.telemetry import Telemetry
from jobmaster.wiring import open_reader
from jobmaster_agents.event_log import EventLog
from jobmaster_agents.outcomes.kept_codec import keep_final, keep_hold
from jobmaster_agents.rescue.rescuer import StoreRescuer
from jobmaster_agents.state.ownership import Ownership
from jobmaster_agents.state.store_reachability import StoreReachability
from tests.support.master_parts import PARTS

PRIORITY = 3
HIGH_WATER = {"high_water_jobs": 10_000, "high_water_bytes": 1 << 30, "skew_ms_max": 3_600_000}


@dataclass
class JobsLeft:
    """Ids of the jobs an owner left behind, by place."""

    pending: list[bytes] = field(default_factory=list)
    assigned: list[bytes] = field(default_factory=list)
    claimed_new: list[bytes] = field(default_factory=list)
    """SavePending copies in a claimed list, no row."""
    claimed_known: list[bytes] = field(default_factory=list)
    """Onboarded copies in a claimed list."""
    processing: list[bytes] = field(default_factory=list)
    """PROCESSING rows whose list is still there."""
    processing_alone: list[bytes] = field(default_factory=list)
    """PROCESSING rows whose list was deleted."""
    marked: list[bytes] = field(default_factory=list)
    """ASSIGNED rows that never got a copy (crash between mark and put)."""
    poison: list[bytes] = field(default_factory=list)
    """Rescued twice before, and running again."""
    waited_again: list[bytes] = field(default_factory=list)
    """In a claimed list, rescued twice before, and not started since."""
    finished: list[bytes] = field(default_factory=list)
    """In a claimed list although their outcome is in the master (crash before the list was deleted)."""
    kept_final: list[bytes] = field(default_factory=list)
    kept_hold: list[bytes] = field(default_factory=list)
    cancelled: list[bytes] = field(default_factory=list)
    """PROCESSING rows with a cancel request."""

    def expected(self) -> dict[bytes, tuple[str, int, int]]:
        """Id -> (state, token, rescues) after the rescue."""
        table: dict[bytes, tuple[str, int, int]] = {}
        for ids, after in (
            (self.pending, ("HELD", 2, 0)),
            (self.assigned, ("HELD", 3, 0)),
            (self.claimed_new, ("HELD", 2, 1)),
            (self.claimed_known, ("HELD", 3, 1)),
            (self.processing, ("HELD", 2, 1)),
            (self.processing_alone, ("HELD", 2, 1)),
            (self.marked, ("HELD", 3, 0)),
            (self.poison, ("FAILED", 1, 3)),
            (self.waited_again, ("HELD", 2, 2)),
            (self.finished, ("SUCCEEDED", 1, 0)),
            (self.kept_final, ("SUCCEEDED", 1, 0)),
            (self.kept_hold, ("HELD", 1, 0)),
            (self.cancelled, ("CANCELLED", 1, 1)),
        ):
            table.update((job_id, after) for job_id in ids)
        return table


class Participant:
    """One agent: its own connections, so that its end is only its own."""

    def __init__(
        self, driven: DrivenCluster, master: Master, store: AgentStore, agent_id: bytes, lease_seconds: float
    ) -> None:
        self.driven = driven
        self.master = master
        self.store = store
        self.agent_id = agent_id
        self.telemetry = Telemetry()
        self.told: list[set[tuple[str, int]]] = []
        self.ownership = Ownership(agent_id)
        self.ownership.trust(term(SystemClock().boottime(), lease_seconds))
        self.stores = {store.name: store}
        self.heard: list[str] = []
        self.reachability = StoreReachability(
            ["default"], self.stores, SystemClock(), self.heard.append, self.telemetry, EventLog()
        )

    def rescue(self, master: Any = None, store: Any = None, page_jobs: int = 100, of: str = "default") -> StoreRescuer:
        """Its rescuer of one store, perhaps over ports that end it."""
        return StoreRescuer(
            self.ownership,
            master or self.master,
            of,
            store or self.stores[of],
            self.reachability,
            self.notify_owners,
            SystemClock(),
            self.telemetry,
            EventLog(),
            page_jobs=page_jobs,
            max_rescues=3,
            store_dead_seconds=Leases().store_dead_seconds,
        )

    async def notify_owners(self, groups: set[tuple[str, int]]) -> None:
        """Recorded instead of sent."""
        self.told.append(set(groups))

    async def die(self) -> None:
        """Proof of its death reaches the master."""
        assert await self.master.members.end_agent(self.agent_id, dead=True, reason="the test killed it")


class Owner(Participant):
    """An agent with one bucket."""

    fence: Fence
    lane: str

    async def open(self) -> None:
        # A lane of its own: what other owners left HELD must not be onboarded here.
        self.lane = f"lane-{self.agent_id.hex()[-12:]}"
        bucket = Bucket(
            id=new_id(),
            store="default",
            lane=self.lane,
            priority=PRIORITY,
            state=BucketState.ACTIVE,
            epoch=1,
            owner=self.agent_id,
        )
        assert await self.master.buckets.create_buckets([bucket])
        self.fence = Fence(BucketId(bucket.id), 1, AgentId(self.agent_id))
        assert await self.store.open_bucket(self.fence) is ReplyStatus.OK

    async def submit(self, count: int, *, rescues: int = 0) -> list[bytes]:
        """SavePending jobs."""
        entries = [Entry(new_id(), 1, "work", b"{}", rescues=rescues) for _ in range(count)]
        answer = await self.store.submit(self.fence.bucket_id, [encode_entry(e) for e in entries], **HIGH_WATER)
        assert answer.status is ReplyStatus.OK
        return [entry.id for entry in entries]

    async def mark(self, count: int) -> list[Entry]:
        """Onboarded rows, not yet put into the store."""
        jobs = [NewJob(new_id(), PRIORITY, self.lane, "work", b"{}", b"", 0) for _ in range(count)]
        held = await self.master.intake.insert_held(jobs)
        assert len(held.accepted) == count
        taken = await self.master.onboarding.onboard(self.fence, self.lane, PRIORITY, 300.0, count)
        assert {entry.id for entry in taken.entries} == held.accepted
        return taken.entries

    async def onboard(self, count: int) -> list[bytes]:
        """Onboarded jobs, due now."""
        entries = await self.mark(count)
        assert await self.store.assign(self.fence, [(0, encode_entry(entry)) for entry in entries]) is ReplyStatus.OK
        return [entry.id for entry in entries]

    async def claim(self, name: str, count: int) -> list[Entry]:
        claimed = await self.store.claim(self.fence, name, count)
        assert claimed.status is ReplyStatus.OK
        assert len(claimed.entries) == count
        return claimed.entries

    async def persist(self, entries: list[Entry]) -> None:
        rows = [in_flight(entry, self.lane) for entry in entries]
        written = await self.master.outcomes.persist(self.fence, rows)
        assert written.bucket_ok
        assert written.accepted == {entry.id for entry in entries}

    async def settle(self, name: str) -> None:
        assert await self.store.settle(self.fence, [name], []) is ReplyStatus.OK

    async def live(self, count: int = 3) -> JobsLeft:
        """Jobs in every place; then it may die."""
        lived = JobsLeft()
        lived.processing_alone = await self.submit(count)
        await self.persist(await self.claim("done-1", count))
        await self.settle("done-1")
        lived.cancelled = await self.submit(1)
        await self.persist(await self.claim("done-2", 1))
        await self.settle("done-2")
        for job_id in lived.cancelled:
            await self.master.requests.cancel(job_id, tombstone=None, actor="test")
        lived.kept_final, lived.kept_hold = await self.submit(count), await self.submit(count)
        entries = await self.claim("kept", 2 * count)
        outcomes = [keep_final(self.fence, self.final(entry)) for entry in entries[:count]]
        outcomes += [keep_hold(self.fence, hold_row(entry, self.lane)) for entry in entries[count:]]
        assert await self.store.keep_outcomes(self.fence, outcomes, ["kept"]) is ReplyStatus.OK
        lived.processing = await self.submit(count)
        await self.persist(await self.claim("run", count))
        lived.finished = await self.submit(count)
        assert await self.master.outcomes.copy_final([self.final(entry) for entry in await self.claim("over", count)])
        lived.claimed_new, lived.poison = await self.submit(count), await self.submit(1, rescues=2)
        lived.waited_again = await self.submit(1, rescues=2)
        await self.persist([each for each in await self.claim("new", count + 2) if each.id in lived.poison])
        lived.claimed_known = await self.onboard(count)
        await self.claim("known", count)
        lived.marked = [entry.id for entry in await self.mark(count)]
        lived.assigned = await self.onboard(count)
        lived.pending = await self.submit(count)
        return lived

    def final(self, entry: Entry) -> FinalRow:
        """A success of a claimed job."""
        return FinalRow(
            entry.id, "SUCCEEDED", PRIORITY, self.lane, entry.handler, entry.token, self.fence.bucket_id, self.fence.epoch,
            entry.attempt + 1, entry.rescues, entry.due_us, 1, 1, entry.args, entry.headers, b"1", None,
        )  # fmt: skip


def in_flight(entry: Entry, lane: str) -> InFlightRow:
    """The row of a running job."""
    return InFlightRow(
        entry.id, "PROCESSING", PRIORITY, lane, entry.handler, entry.token, entry.attempt, entry.rescues, entry.due_us,
        entry.args, entry.headers,
    )  # fmt: skip


def hold_row(entry: Entry, lane: str) -> HoldRow:
    """The row of a job given back unrun."""
    return HoldRow(
        entry.id, PRIORITY, lane, entry.handler, entry.token, entry.attempt, entry.rescues, entry.due_us, entry.args,
        entry.headers, None, 0,
    )  # fmt: skip


class DrivenCluster:
    """The servers, and agents on them that the test drives."""

    def __init__(self, dsn: str, schema: str, store_url: str, cluster: str) -> None:
        self.dsn = dsn
        self.schema = schema
        self.store_url = store_url
        self.cluster = cluster
        self.opened: list[Master | AgentStore] = []

    async def connect(self, agent_id: bytes) -> tuple[Master, AgentStore]:
        master = await Master.connect(
            dsn=self.dsn, schema=self.schema, settings=MasterSettings(pool_size=1), application_name=text(agent_id)
        )
        self.opened.append(master)
        store = await AgentStore.connect(
            cluster=self.cluster, name="default", url=self.store_url, settings=StoreSettings()
        )
        self.opened.append(store)
        await store.initialise(master.cluster.uid, new_id())
        return master, store

    async def finding(self, check: Callable[[ClusterSettings, Reader], Awaitable[Finding]]) -> tuple[CheckStatus, str]:
        """Status and detail that a check of ``jobmaster doctor`` finds."""
        settings = ClusterSettings(
            cluster=self.cluster,
            master=MasterSettings(dsn=self.dsn, schema=self.schema),
            stores={"default": StoreSettings(url=self.store_url)},
        )
        reader = await open_reader(settings)
        try:
            found = await check(settings, reader)
        finally:
            await reader.close()
        return found.status, found.detail

    async def agent(self, kind: type[Participant] = Participant, lease_seconds: float = 600.0) -> Participant:
        """A registered agent."""
        agent_id = new_id()
        master, store = await self.connect(agent_id)
        row = Agent(
            id=agent_id,
            name="test",
            host="here",
            pid=os.getpid(),
            version="0",
            mode="full",
            store="default",
            weight=1,
            state=AgentState.ACTIVE,
            lease_us=0,
            lease_seconds=lease_seconds,
            started_us=0,
        )
        await master.members.register(row, ["default"], [])
        return kind(self, master, store, agent_id, lease_seconds)

    async def owner(self, lease_seconds: float = 600.0) -> Owner:
        """An agent with one bucket."""
        owner = await self.agent(Owner, lease_seconds)
        assert isinstance(owner, Owner)
        await owner.open()
        return owner

    async def rows(self, statement: str, *values: object) -> list[asyncpg.Record]:
        """What stands in the master, seen without any of our code."""
        connection = await asyncpg.connect(self.dsn)
        try:
            await connection.execute(f'SET search_path = "{self.schema}"')
            return list(await connection.fetch(statement, *values))
        finally:
            await connection.close()

    async def jobs(self) -> dict[bytes, tuple[str, int, int]]:
        """Id -> (state, token, rescues) of every row."""
        rows = await self.rows("SELECT id, state::text, token, rescues FROM job")
        return {row["id"].bytes: (row["state"], row["token"], row["rescues"]) for row in rows}

    async def bucket_state(self, bucket_id: bytes) -> tuple[str, int]:
        """State and epoch of a bucket."""
        rows = await self.rows("SELECT state::text, epoch FROM bucket WHERE id = $1", text(bucket_id))
        return rows[0]["state"], rows[0]["epoch"]

    async def close(self) -> None:
        """Close what was opened; a connection that was cut is closed already."""
        for thing in reversed(self.opened):
            await thing.close()


async def check(driven: DrivenCluster, owner: Owner, lived: JobsLeft) -> None:
    """Every job is where it belongs, once; the bucket is retired; nothing lies in the store."""
    expected = lived.expected()
    found = await driven.jobs()
    assert {job_id: found.get(job_id) for job_id in expected} == expected
    state, epoch = await driven.bucket_state(owner.fence.bucket_id)
    assert state == "READY_TO_DELETE"
    assert epoch > owner.fence.epoch
    depth = (await owner.store.depths([owner.fence.bucket_id]))[0]
    assert depth is None or (depth.pending, depth.assigned, depth.claimed_lists, depth.kept) == (0, 0, 0, 0)


class CutMoment(Enum):
    """Where a call is cut."""

    BEFORE = "before"
    AFTER = "after"


class AgentKilled(BaseException):
    """The agent is gone in the middle of what it did; nothing in it may catch this."""


class CallCutter:
    """Counts the calls an agent makes to both stores and ends it at one of them."""

    def __init__(self, at: int | None = None, when: CutMoment = CutMoment.BEFORE) -> None:
        self.at = at
        self.when = when
        self.calls = 0
        self.names: list[str] = []

    def over(self, thing: object) -> Any:
        """The same port, with an end."""
        return _Cut(thing, self)


class _Cut:
    def __init__(self, thing: object, ending: CallCutter) -> None:
        self._thing = thing
        self._ending = ending

    def __getattr__(self, name: str) -> Callable[..., Awaitable[object]]:
        call = getattr(self._thing, name)
        ending = self._ending
        if name in PARTS and not callable(call):  # a part and a method may be called alike
            return _Cut(call, ending)  # type: ignore[return-value]

        async def cut(*arguments: object, **named: object) -> object:
            number, ending.calls = ending.calls, ending.calls + 1
            ending.names.append(name)
            if number == ending.at and ending.when is CutMoment.BEFORE:
                raise AgentKilled
            answer = await call(*arguments, **named)
            if number == ending.at:
                raise AgentKilled
            return answer

        return cut
