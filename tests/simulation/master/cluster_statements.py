"""Twins of the statements about agents, buckets, the leader's lease, and what clients read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.simulation.master.batch_statements import BatchStatements
from tests.simulation.master.breaker_statements import BreakerStatements
from tests.simulation.master.bulk_statements import BulkStatements
from tests.simulation.master.change_statements import ChangeStatements
from tests.simulation.master.limit_statements import LimitStatements
from tests.simulation.master.lock_statements import LockStatements
from tests.simulation.master.move_statements import MoveStatements
from tests.simulation.master.schedule_statements import ScheduleStatements
from tests.simulation.master.tables import ALIVE, AgentRow, BucketRow, LeaseRow, Record, Snapshot
from tests.simulation.master.uniqueness_statements import UniquenessStatements
from tests.simulation.master.workflow_statements import WorkflowStatements

_MAP_COLUMNS = (
    "server", "horizon", "whole", "id", "store", "lane", "priority", "state", "epoch", "owner", "owners", "handlers", "share",
    "capabilities",
)  # fmt: skip
OWNED = ("ACTIVE", "COMPLETING", "FROZEN", "DRAINING")


def bucket_record(bucket: BucketRow, moment: object) -> Record:
    return Record({**bucket._asdict(), "changed_at": moment})


class ClusterStatements(
    ChangeStatements,
    BreakerStatements,
    LimitStatements,
    LockStatements,
    MoveStatements,
    ScheduleStatements,
    UniquenessStatements,
    BatchStatements,
    BulkStatements,
    WorkflowStatements,
):
    """Twins of ``members``, ``leadership``, ``buckets``, ``queries``, ``stores`` and the rest of ``unserved``."""

    # ------------------------------------------------------------ members

    def members_register(self, old: Snapshot, agent_id: bytes, *args: Any) -> list[Record]:
        _, _, _, _, mode, _, weight, lease, _, handlers, share, _, _, _, capabilities, _ = args
        row = self.tables.agents.get(agent_id)
        until, now = self.now_us() + int(lease * 1e6), self.now_us()
        if row is None:
            row = AgentRow(
                agent_id, mode, weight, "ACTIVE", until, int(lease * 1e6), now, False, now,
                handlers=tuple(handlers), share=share, capabilities=tuple(capabilities),
            )  # fmt: skip
        elif row.state == "ACTIVE":
            row = row._replace(lease_until=until, lease_us=int(lease * 1e6))
        else:
            return []
        self.tables.agents[agent_id] = row
        self.audit.registered(agent_id)
        self.audit.renewed(agent_id)
        return [Record(id=agent_id, mode=self.tables.mode)]

    def members_publish_handlers(
        self, old: Snapshot, agent_id: bytes, names: Sequence[str], specs: Sequence[str], digests: Any
    ) -> list[Record]:
        self.tables.handlers.update(zip(names, specs, strict=True))
        return []

    def members_publish_submit_rule(self, old: Snapshot, rules: str) -> list[Record]:
        """Nothing in the simulation submits in SQL."""
        return []

    def stores_generation(self, old: Snapshot, name: str, proposed: bytes) -> list[Record]:
        served = any(bucket.store == name for bucket in self.tables.buckets.values())
        return [Record(generation=self.tables.stores.setdefault(name, proposed), served=served)]

    def members_announce_stopping(self, old: Snapshot, agent_id: bytes) -> list[Record]:
        row = self.tables.agents.get(agent_id)
        if row is None or row.state != "ACTIVE":
            return []
        self.tables.agents[agent_id] = row._replace(state="STOPPING")
        return [Record(state="STOPPING")]

    def members_renew(self, old: Snapshot, agent_id: bytes, lease: float, statistics: str | None) -> list[Record]:
        row, now = self.tables.agents.get(agent_id), self.now_us()
        if row is None or row.state not in ALIVE:
            return []
        since = now if row.lease_until < now else row.held_since
        until = now + int(lease * 1e6)
        self.tables.agents[agent_id] = row._replace(lease_until=until, lease_us=int(lease * 1e6), held_since=since)
        self.audit.renewed(agent_id)
        buckets = self.tables.buckets
        leader_lease = self.tables.leader_lease
        asked = [
            job.id for job in sorted(self.tables.jobs.values(), key=lambda job: (job.state != "PROCESSING", job.id))
            if job.cancel_requested and job.state in ("ASSIGNED", "PROCESSING") and job.bucket_id in buckets
            and buckets[job.bucket_id].owner == agent_id and buckets[job.bucket_id].state != "READY_TO_DELETE"
        ]  # fmt: skip
        return [Record(
            drain_requested=row.drain_requested,
            leader=leader_lease.owner if leader_lease is not None and leader_lease.expires_at > now else None,
            lost_stores=sorted({bucket.store for bucket in buckets.values() if bucket.state == "LOST"}),
            cancel_requested=asked[:1000],
            frozen=[b.id for b in buckets.values() if b.owner == agent_id and b.state == "FROZEN"],
            at_work=sum(
                b.owner == agent_id and b.state in ("ACTIVE", "COMPLETING", "FROZEN") for b in buckets.values()
            ),
            epochs=sum(
                b.epoch for b in buckets.values()
                if b.owner == agent_id and b.state in ("ACTIVE", "COMPLETING", "FROZEN")
            ),
            now_at=self.moment(now),
            agents=sum(each.state in ALIVE for each in self.tables.agents.values()),
            help_lanes=[], help_priorities=[], pauses=self.tables.pause_version,
            pauses_obeyed=row.pauses_obeyed, mode=self.tables.mode,
        )]  # fmt: skip

    def members_certify_dead(self, old: Snapshot, certifier_id: bytes, limit: int) -> list[Record]:
        now = self.now_us()
        certifier = self.tables.agents.get(certifier_id)
        if certifier is None or certifier.state not in ALIVE or certifier.lease_until <= now:
            return []
        if "certificate" in self.without:
            return self._lose_by_stale_lease(old, certifier)
        dead = []
        for row in list(self.tables.agents.values()):
            term = max(certifier.lease_us, row.lease_us)
            held = max(certifier.held_since, self.audit.master_up_since) + term <= now
            if row.id != certifier_id and row.state in ALIVE and row.lease_until < now and held:
                self.tables.agents[row.id] = row._replace(state="DEAD")
                self.audit.certified(row.id, by_lease=True)
                dead.append(Record(id=row.id))
        return dead

    def _lose_by_stale_lease(self, old: Snapshot, certifier: AgentRow) -> list[Record]:
        """Without a certificate: buckets joined with leases as the snapshot shows them, and not read a second time."""
        found = []
        for row in old.agents.values():
            if row.id != certifier.id and row.state in ALIVE and row.lease_until < self.now_us():
                for bucket in list(self.tables.buckets.values()):
                    if bucket.owner == row.id and bucket.state in OWNED:
                        self._move(bucket, "LOST", bucket.owner, "its lease ran out")
                        found.append(Record(id=row.id))
        return found

    def buckets_lose(self, old: Snapshot, reason: str) -> list[Record]:
        lost = []
        for bucket in list(self.tables.buckets.values()):
            owner = self.tables.agents.get(bucket.owner)
            if bucket.state in OWNED and owner is not None and owner.state in ("DEAD", "RETIRED"):
                self._move(bucket, "LOST", bucket.owner, reason)
                lost.append(Record(id=bucket.id))
        return lost

    def members_lock(self, old: Snapshot, agent_id: bytes) -> list[Record]:
        row = self.tables.agents.get(agent_id)
        return [] if row is None else [Record(state=row.state)]

    def members_certify_on_proof(
        self, old: Snapshot, agent_id: bytes, reason: str, process_ended: bool
    ) -> list[Record]:
        return self._end(agent_id, "DEAD", process_ended=process_ended)

    def members_retire(self, old: Snapshot, agent_id: bytes, reason: str) -> list[Record]:
        held = any(
            bucket.owner == agent_id and bucket.state not in ("READY_TO_DELETE", "LOST")
            for bucket in self.tables.buckets.values()
        )
        return [] if held else self._end(agent_id, "RETIRED")

    def _end(self, agent_id: bytes, state: str, *, process_ended: bool = False) -> list[Record]:
        row = self.tables.agents.get(agent_id)
        if row is None or row.state not in ALIVE:
            return []
        self.tables.agents[agent_id] = row._replace(state=state, process_ended=process_ended)
        if state == "DEAD":
            self.audit.certified(agent_id, by_lease=False)
        else:
            self.audit.retired(agent_id)
        return [Record(id=agent_id)]

    def rescue_end_dead_sessions(self, old: Snapshot) -> list[Record]:
        owners = {bucket.owner for bucket in self.tables.buckets.values() if bucket.state == "LOST"}
        dead = {owner for owner in owners if owner in self.tables.agents and self.tables.agents[owner].state == "DEAD"}
        self.audit.terminate(dead)
        return [Record(ended=True)]

    # ------------------------------------------------------------ the leader's lease

    def leadership_acquire(self, old: Snapshot, agent_id: bytes, weight: int, lease: float) -> list[Record]:
        now, leader_lease = self.now_us(), self.tables.leader_lease
        until = now + int(lease * 1e6)
        if leader_lease is None:
            epoch = 1
        else:
            heavier = any(
                a.weight > weight and a.id != agent_id and a.state == "ACTIVE" and a.lease_until > now
                for a in self.tables.agents.values()
            )
            owner = None if leader_lease.owner is None else self.tables.agents.get(leader_lease.owner)
            free = (
                leader_lease.owner in (agent_id, None)
                or (owner is not None and owner.state in ("DEAD", "RETIRED"))
                or leader_lease.expires_at + (int(lease * 5e5) if heavier else 0) < now
            )
            if not free:
                return []
            epoch = leader_lease.epoch if leader_lease.owner == agent_id else leader_lease.epoch + 1
        self.tables.leader_lease = LeaseRow(agent_id, weight, epoch, until)
        self.audit.led(agent_id, epoch)
        return [Record(epoch=epoch)]

    def leadership_resign(self, old: Snapshot, agent_id: bytes, epoch: int) -> list[Record]:
        leader_lease = self.tables.leader_lease
        if leader_lease is not None and (leader_lease.owner, leader_lease.epoch) == (agent_id, epoch):
            self.tables.leader_lease = leader_lease._replace(owner=None, expires_at=self.now_us())
        return []

    def leadership_tick(
        self, old: Snapshot, agent_id: bytes, weight: int, lease: float, horizon: float
    ) -> list[Record]:
        leader_lease, now = self.tables.leader_lease, self.now_us()
        if leader_lease is None or leader_lease.owner != agent_id:
            return []
        self.tables.leader_lease = leader_lease._replace(weight=weight, expires_at=now + int(lease * 1e6))
        latest = now + int(horizon * 1e6)
        due = sorted({
            (job.lane, job.priority) for job in self.tables.jobs.values()
            if job.state == "HELD" and job.due_us is not None and job.due_us <= latest
        })  # fmt: skip
        overdue = any(row.state in ALIVE and row.lease_until < now for row in self.tables.agents.values())
        lanes, priorities = [lane for lane, _ in due], [priority for _, priority in due]
        heavier = self._heir(weight) is not None
        late = any(
            job.state == "PROCESSING" and job.expires_us is not None and job.expires_us <= now
            for job in self.tables.jobs.values()
        )
        return [
            Record(
                epoch=leader_lease.epoch, overdue=overdue, heavier=heavier, late=late,
                signals=self.signals_wanted(), batches=self.batches_wanted(), bulk=self.bulk_goes_on(),
                lanes=lanes, priorities=priorities,
                fires_in_seconds=self.fires_in_seconds(),
            )
        ]  # fmt: skip

    def _heir(self, weight: int) -> AgentRow | None:
        now = self.now_us()
        able = [
            a for a in self.tables.agents.values()
            if a.weight > weight and a.mode in ("full", "leader") and a.state == "ACTIVE" and not a.drain_requested
            and a.lease_until > now and a.started_us + a.lease_us < now
        ]  # fmt: skip
        return min(able, key=lambda a: (-a.weight, a.started_us, a.id), default=None)

    def leadership_transfer(self, old: Snapshot, agent_id: bytes, weight: int, epoch: int) -> list[Record]:
        leader_lease, heir = self.tables.leader_lease, self._heir(weight)
        if leader_lease is None or heir is None or (leader_lease.owner, leader_lease.epoch) != (agent_id, epoch):
            return []
        self.tables.leader_lease = LeaseRow(heir.id, heir.weight, epoch + 1, self.now_us() + heir.lease_us)
        self.hits["the leader's lease goes to a heavier agent"] += 1
        return [Record(heir=heir.id)]

    # ------------------------------------------------------------ buckets

    def buckets_create(self, old: Snapshot, owner: bytes, *columns: Any) -> list[Record]:
        row = self.tables.agents.get(owner)
        if row is None or row.state != "ACTIVE":
            return [Record(owner_ok=False, created=[])]
        created = []
        for bucket_id, store, lane, priority in zip(*columns, strict=True):
            if bucket_id not in self.tables.buckets:
                bucket = BucketRow(bucket_id, store, lane, priority, "ACTIVE", 1, owner, self.now_us())
                self.tables.buckets[bucket_id] = bucket
                self._tell(bucket_id, None, "ACTIVE", 1, owner, "created")
                created.append(bucket_id)
        return [Record(owner_ok=True, created=created)]

    def buckets_resurrect(
        self, old: Snapshot, owner: bytes, bucket_id: bytes, store: str, lane: str, priority: int, reason: str
    ) -> list[Record]:
        row = self.tables.agents.get(owner)
        if row is None or row.state != "ACTIVE" or bucket_id in self.tables.buckets:
            return [Record(resurrected=False)]
        epoch = max((e.epoch for e in self.tables.events if e.bucket_id == bucket_id), default=0) + 1
        self.tables.buckets[bucket_id] = BucketRow(
            bucket_id, store, lane, priority, "LOST", epoch, owner, self.now_us()
        )
        self._tell(bucket_id, None, "LOST", epoch, owner, reason)
        return [Record(resurrected=True)]

    def buckets_move(
        self, old: Snapshot, bucket_id: bytes, epoch: int, owner: bytes, sources: Sequence[str], to: str, reason: str
    ) -> list[Record]:
        bucket = self.tables.buckets.get(bucket_id)
        if bucket is None or (bucket.epoch, bucket.owner) != (epoch, owner):
            return [Record(moved=False, state=None)]
        if bucket.state in sources:
            self._move(bucket, to, owner, reason)
        return [Record(moved=bucket.state in sources or bucket.state == to, state=bucket.state)]

    def buckets_resurrect_retired(self, old: Snapshot, bucket_id: bytes, epoch: int, reason: str) -> list[Record]:
        bucket = self.tables.buckets.get(bucket_id)
        if bucket is None or bucket.epoch != epoch:
            return [Record(resurrected=False)]
        if bucket.state == "READY_TO_DELETE":
            self._move(bucket, "LOST", b"", reason)
        return [Record(resurrected=bucket.state in ("READY_TO_DELETE", "LOST"))]

    def buckets_note_loss(self, old: Snapshot, *columns: Any) -> list[Record]:
        return []  # a line for people, which no agent reads

    def buckets_owned(self, old: Snapshot, agent_id: bytes) -> list[Record]:
        return [bucket_record(b, self.moment(b.changed_us)) for b in old.buckets.values() if b.owner == agent_id]

    def buckets_freeze(
        self, old: Snapshot, ids: Sequence[bytes] | None, lane: str | None, actor: str, reason: str
    ) -> list[Record]:
        return self._operate(ids, lane, "ACTIVE", "FROZEN", 0)

    def buckets_unfreeze(
        self, old: Snapshot, ids: Sequence[bytes] | None, lane: str | None, actor: str, reason: str
    ) -> list[Record]:
        return self._operate(ids, lane, "FROZEN", "ACTIVE", 1)

    def _operate(
        self, ids: Sequence[bytes] | None, lane: str | None, before: str, after: str, bump: int
    ) -> list[Record]:
        answer = []
        for bucket in sorted(self.tables.buckets.values(), key=lambda b: b.id):
            if bucket.state == before and (ids is None or bucket.id in ids) and lane in (None, bucket.lane):
                moved = bucket._replace(state=after, epoch=bucket.epoch + bump, changed_us=self.now_us())
                self.tables.buckets[bucket.id] = moved
                self._tell(bucket.id, before, after, moved.epoch, b"", "an operator")
                answer.append(bucket_record(moved, self.moment(moved.changed_us)))
        return answer

    def buckets_take_lost(
        self, old: Snapshot, agent_id: bytes, stores: Sequence[str], floors: Sequence[bytes], epochs: Sequence[int]
    ) -> list[Record]:
        me = self.tables.agents.get(agent_id)
        lost = sorted(
            (b for b in self.tables.buckets.values() if b.state == "LOST" and b.store in stores),
            key=lambda b: (-b.priority, b.changed_us, b.id),
        )
        if me is None or me.state not in ALIVE or not lost:
            return []
        bucket = lost[0]
        floor = max((e for b, e in zip(floors, epochs, strict=True) if b == bucket.id), default=0)
        taken = bucket._replace(
            state="DRAINING", owner=agent_id, epoch=max(bucket.epoch, floor) + 1, changed_us=self.now_us(),
            former_owner=bucket.former_owner or bucket.owner,
        )  # fmt: skip
        self.tables.buckets[bucket.id] = taken
        self._tell(bucket.id, "LOST", "DRAINING", taken.epoch, agent_id, "taken")
        return [bucket_record(taken, self.moment(taken.changed_us))]

    def buckets_forget(self, old: Snapshot, age: float, stores: list[str], of_these: bool) -> list[Record]:
        before = self.now_us() - int(age * 1e6)
        return [
            bucket_record(bucket, self.moment(bucket.changed_us))
            for bucket in sorted(self.tables.buckets.values(), key=lambda b: (b.changed_us, b.id))
            if bucket.state == "READY_TO_DELETE" and bucket.changed_us < before and (bucket.store in stores) == of_these
        ]

    def buckets_drop(self, old: Snapshot, bucket_id: bytes) -> list[Record]:
        bucket = self.tables.buckets.get(bucket_id)
        if bucket is None or bucket.state != "READY_TO_DELETE":
            return []
        del self.tables.buckets[bucket_id]
        return [Record(id=bucket_id)]

    # ------------------------------------------------------------ what people and clients read

    def queries_get(self, old: Snapshot, job_id: bytes) -> list[Record]:
        row = self.tables.jobs.get(job_id)
        if row is None:
            return []
        times = {"due_at": self.moment(row.due_us), "changed_at": self.moment(row.changed_us)}
        # No handler of a history reports its progress.
        reported = dict.fromkeys(("done", "total", "progress_text", "progress_at"))
        return [Record({**row._asdict(), **times, **reported, "waited_us": None, "ran_us": None})]

    def queries_states(self, old: Snapshot, ids: Sequence[bytes], low: bytes, high: bytes) -> list[Record]:
        return [Record(id=i, state=self.tables.jobs[i].state) for i in ids if i in self.tables.jobs]

    def queries_sent_before(
        self, old: Snapshot, ids: Sequence[bytes], low: bytes, high: bytes, known: Sequence[bytes]
    ) -> list[Record]:
        """Without locks, but of one moment; this one: what is seen of buckets is as old as what is seen of jobs."""
        strangers = any(b.id not in known and b.state != "READY_TO_DELETE" for b in self.tables.buckets.values())
        names = ("id", "state", "handler", "args", "bucket_id")
        rows = [self.tables.jobs[i]._asdict() for i in ids if i in self.tables.jobs] or [dict.fromkeys(names)]
        return [Record(strangers=strangers, **{name: row[name] for name in names}) for row in rows]

    def queries_buckets(self, old: Snapshot, states: Sequence[str]) -> list[Record]:
        found = [b for b in self.tables.buckets.values() if not states or b.state in states]
        return [bucket_record(b, self.moment(b.changed_us)) for b in found]

    def queries_bucket_map(self, old: Snapshot, server: int | None, horizon: int | None) -> list[Record]:
        """A twin in what a reader knows afterwards: a version stands for what was read with it, and what differs from that
        has changed. (In the master the numbers of transactions show it.)"""
        tables = self.tables
        known = tables.map_versions.get(horizon or 0) if server == tables.server else None
        # Deleted although the reader has not seen its end: the master shows that by its floor.
        if known is not None and any(
            each.state != "READY_TO_DELETE" and each.id not in tables.buckets for each in known.buckets.values()
        ):
            self.hits["a whole map, for the end of a deleted bucket"] += 1
            known = None
        seen = known or Snapshot({}, {})
        version = len(tables.map_versions) + 1
        tables.map_versions[version] = Snapshot(dict(tables.buckets), dict(tables.agents))
        empty = dict.fromkeys(_MAP_COLUMNS)
        rows = [Record({**empty, "server": tables.server, "horizon": version, "whole": known is None})]
        rows += [
            Record({**empty, **each._asdict()})
            for each in tables.buckets.values() if seen.buckets.get(each.id) != each
        ]  # fmt: skip
        for agent in tables.agents.values():
            before, alive = seen.agents.get(agent.id), agent.state in ALIVE
            if (before is None or before.state != agent.state) and (alive or known is not None):
                names = ("handlers", "share", "capabilities") if alive else ()
                traits = {name: getattr(agent, name) for name in names}
                rows.append(Record({**empty, "owners": [agent.id], **traits}))
        return rows

    def queries_other_owners(
        self, old: Snapshot, agent_id: bytes, lane: str, priority: int, handlers: list[str]
    ) -> list[Record]:
        agents, now = self.tables.agents, self.now_us()
        others = [
            agents[b.owner] for b in self.tables.buckets.values()
            if b.state == "ACTIVE" and (b.lane, b.priority) == (lane, priority) and b.owner != agent_id and b.owner in agents
        ]  # fmt: skip
        able = any(a.state == "ACTIVE" and not a.drain_requested and a.lease_until > now for a in others)
        return [Record(handlers=handlers if able else [])]  # all agents of a history are alike

    def queries_handlers(self, old: Snapshot) -> list[Record]:
        return [Record(spec=spec) for _, spec in sorted(self.tables.handlers.items())]
