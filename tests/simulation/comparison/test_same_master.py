"""The simulated master answers as the real one and holds the same rows after every call: Hypothesis chooses the calls of
owners, rescuers, leaders and clients, lawful and unlawful ones, and closes connections in between."""

from __future__ import annotations

import time
from functools import partial
from operator import attrgetter
from typing import Any
from uuid import UUID

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from jobmaster.clock import new_id
from jobmaster.master.master import Master
from jobmaster.model.bucket import Bucket, BucketState
from jobmaster.model.bucket_map import BucketMap
from jobmaster.model.flow.uniqueness import OnConflict, UniqueRule, UniqueSubmit, UniqueTerm
from jobmaster.model.ids import Identity
from jobmaster.model.job import Entry, FinalRow, HoldRow, InFlightRow, NewJob
from jobmaster.model.job_change import NewValues
from jobmaster.model.pause import PauseKind
from jobmaster.ports import CancelledRow, FetchScope, TenantTurns, UnstorableEntry
from tests.integration.postgres.fixture import ERROR, SNOOZED, TIMEOUT
from tests.simulation.comparison.two_masters import TwoMasters, run_on_both
from tests.simulation.master.statements_base import INT4_MAX

PAST_US = 1_700_000_000_000_000
FUTURE_US = 4_000_000_000_000_000
SPAN_US = 90_000_000
ONCE = b'{"at_most_once":true}'
agents = st.integers(0, 2)
buckets = st.sampled_from([0, 0, 0, 1, 2])
epochs = st.sampled_from([None, None, None, None, 1, 2, 3])
jobs = st.sets(st.integers(0, 5), min_size=1, max_size=3).map(sorted)
hows = st.sampled_from(["copy", "copy twice", "record"])
mosts = st.integers(1, 3)
ends = st.sampled_from(["SUCCEEDED", "FAILED"])
steps = st.sampled_from([0, 0, 0, 0, -1, 1])
dues = st.sampled_from([0, PAST_US, FUTURE_US])
headers = st.sampled_from(
    [
        b"",
        b"",
        ONCE,
        b'{"snoozes":1}',
        b'{"at_most_once":true,"snoozes":2}',
        b'{"expires_us":1700000000000001}',
        b'{"tags":["a","c"]}',
        b'{"requires":["complete_time"],"complete_seconds":9.0}',
        b'{"tenant":["a"]}',
        b'{"tenant":["b"]}',
        b'{"metadata":{"tenant":"a"},"tenant":["c"]}',
    ]
)


def _place(bucket: Any) -> tuple[Any, ...]:
    return bucket.id, bucket.store, bucket.lane, bucket.priority, str(bucket.state), bucket.epoch, bucket.owner


lock_names = st.sampled_from(["k", "k", "l"])
ttls = st.sampled_from([60.0, 60.0, -60.0])


async def _acquired(master: Master, name: str, acquisition: bytes, label: str, ttl: float) -> object:
    """Numbers of two sequences differ: whether the number grows is compared."""
    before = _last_fence(master, name)
    answer = await master.locks.acquire(name, acquisition, label, ttl)
    if answer.fence is None:
        return None if answer.held is None else (answer.held.name, answer.held.holder)
    _fences(master)[name] = answer.fence
    return (answer.fence > before) - (answer.fence < before)


async def _renewed(master: Master, name: str, ttl: float, back: int) -> object:
    return await master.locks.renew(name, _last_fence(master, name) - back, ttl)


async def _released(master: Master, name: str, acquisition: bytes | None) -> object:
    lock = None
    if acquisition is not None:
        await master.locks.release(name, acquisition)
    else:
        lock = await master.locks.revoke(name, "operator")
    return lock and lock.holder, [(one.name, one.holder) for one in await master.locks.held(10)]


async def _recorded(master: Master, name: str, back: int) -> object:
    recorded = await master.locks.record(name, "1", name, _last_fence(master, name) - back)
    return recorded, await master.locks.is_done(name, "1")


async def _tried(master: Master, name: str, back: int, error: str | None) -> object:
    fence = _last_fence(master, name) - back
    begun = await master.locks.begin(name, "1", name, fence)
    if error is not None:
        await master.locks.fail(name, "1", fence, error)
    found = await master.locks.actions(10)
    return begun, sorted((one.name, one.holder, one.state, one.failures, one.error or "") for one in found)


def _fences(master: Master) -> dict[str, int]:
    fences: dict[str, int] = master.__dict__.setdefault("fences", {})
    return fences


def _last_fence(master: Master, name: str) -> int:
    return _fences(master).get(name, 0)


class Masters(TwoMasters):
    """The rules."""

    @initialize()
    def begin(self) -> None:
        self.create(0, 0)

    @rule(bucket=buckets, agent=agents)
    def create(self, bucket: int, agent: int) -> None:
        row = Bucket(
            id=self.buckets[bucket], store="store", lane="default", priority=3, state=BucketState.ACTIVE, epoch=1,
            owner=self.agents[agent],
        )  # fmt: skip
        self.both(lambda master: master.buckets.create_buckets([row]))

    # ------------------------------------------------------------ clients

    @rule(chosen=jobs, due=dues, head=headers)
    def insert_held(self, chosen: list[int], due: int, head: bytes) -> None:
        self.both(lambda master: master.intake.insert_held(self._new(chosen, due, head)))

    @rule(chosen=jobs, due=dues, head=headers, bucket=buckets, epoch=epochs)
    def insert_assigned(self, chosen: list[int], due: int, head: bytes, bucket: int, epoch: int | None) -> None:
        fence = self.fence(bucket, epoch, 0)
        self.both(
            lambda master: master.intake.insert_assigned(fence.bucket_id, fence.epoch, self._new(chosen, due, head))
        )

    def _new(self, chosen: list[int], due: int, head: bytes) -> list[NewJob]:
        return [NewJob(self.jobs[job], 3, "default", "handler", b"{}", head, due) for job in chosen]

    @rule(job=st.integers(0, 5), tombstone=st.booleans())
    def cancel(self, job: int, tombstone: bool) -> None:
        new = self._new([job], 0, b"")[0] if tombstone else None
        self.both(lambda master: master.requests.cancel(self.jobs[job], tombstone=new, actor="test"))

    @rule(job=st.integers(0, 5), due=st.sampled_from([None, 0, PAST_US + 5, FUTURE_US + 5]), to=st.sampled_from([None, 2]),
          bucket=buckets, epoch=epochs, step=steps, head=headers, flagged=st.booleans())  # fmt: skip
    def change(
        self,
        job: int,
        due: int | None,
        to: int | None,
        bucket: int,
        epoch: int | None,
        step: int,
        head: bytes,
        flagged: bool,
    ) -> None:
        """A job that waits gets new values: held, in a bucket, or in a bucket without a row; sent again, as after a lost
        answer."""
        fence, job_id, new = self.fence(bucket, epoch, 0), self.jobs[job], NewValues(due, to, None)
        copy = Entry(job_id, self.token(job, step), "handler", b"{}", headers=head)
        if flagged:
            self.cancel(job, False)
        identity = Identity(self.token(job, step), fence.bucket_id, fence.epoch)
        self.both(lambda master: master.changes.change_held(job_id, new, "test"))
        self.both(lambda master: master.changes.assign_copy(fence.bucket_id, fence.epoch, 3, "default", copy))
        for _ in range(2):
            self.both(lambda master: master.changes.hold_recalled(job_id, identity, new, "test"))

    @rule(key=st.sampled_from(["k", "l"]), job=st.integers(0, 5))
    def reserve(self, key: str, job: int) -> None:
        self.both(lambda master: master.intake.reserve_keys("handler", [(key, self.jobs[job], b"d")]))

    @rule(
        key=st.sampled_from(["k", "k", "l"]),
        job=st.integers(0, 5),
        term=st.sampled_from(UniqueTerm),
        on_conflict=st.sampled_from(OnConflict),
        due=dues,
        aligned=st.booleans(),
        passed=st.sampled_from([None, None, 0, 1]),
    )
    def submit_unique(
        self, key: str, job: int, term: UniqueTerm, on_conflict: OnConflict, due: int, aligned: bool, passed: int | None
    ) -> None:
        spare = [self.jobs[job], new_id()][job % 2]
        new = NewJob(spare, 3, "default", "handler", b"{}", b'{"unique_key":"k"}', due)
        rule = UniqueRule(key, term, SPAN_US if term is not UniqueTerm.LIVE else 0, aligned, on_conflict)
        one = UniqueSubmit(new, rule, None if passed is None else self.jobs[passed])
        self.both(lambda master: master.uniqueness.submit([one]))

    @rule(chosen=jobs)
    def read(self, chosen: list[int]) -> None:
        self.both(lambda master: master.queries.get(self.jobs[chosen[0]]))
        self.both(lambda master: master.queries.states([self.jobs[job] for job in chosen]))
        for known in (self.buckets, self.buckets[:1]):
            self.both(lambda master, known=known: master.queries.sent_before([self.jobs[job] for job in chosen], known))  # type: ignore[misc]

        async def in_service(master: Any) -> list[Bucket]:
            found = await master.queries.list_buckets(states=[BucketState.ACTIVE, BucketState.DRAINING])
            return sorted(found, key=attrgetter("id"))

        self.both(in_service)

    @rule(afresh=st.booleans())
    def read_map(self, afresh: bool) -> None:
        """What a reader knows afterwards, who reads now and then, is compared, and not what it was sent: while another
        transaction runs, more is sent again."""

        async def known(master: Any) -> object:
            reader = master.__dict__.setdefault("map", BucketMap())
            reader.take(await master.queries.bucket_map(None if afresh else reader.version))
            return sorted(map(_place, reader.buckets.values())), sorted(reader.agents.items())

        buckets, _ = self.both(known)
        rows = self.server.statements.tables.buckets.values()
        assert buckets == sorted(map(_place, (row for row in rows if row.state != "READY_TO_DELETE")))

    # ------------------------------------------------------------ locks

    @rule(name=lock_names, holder=st.integers(0, 2), ttl=ttls)
    def acquire_lock(self, name: str, holder: int, ttl: float) -> None:
        """A ttl in the past: the lock has expired when the next program tries."""
        self.both(partial(_acquired, name=name, acquisition=self.agents[holder], label=f"holder {holder}", ttl=ttl))

    @rule(name=lock_names, ttl=ttls, own=st.booleans())
    def renew_lock(self, name: str, ttl: float, own: bool) -> None:
        """By the present holder, or by one of an earlier number."""
        self.both(partial(_renewed, name=name, ttl=ttl, back=0 if own else 1))

    @rule(name=lock_names, holder=st.integers(0, 2), by_operator=st.booleans())
    def release_lock(self, name: str, holder: int, by_operator: bool) -> None:
        self.both(partial(_released, name=name, acquisition=None if by_operator else self.agents[holder]))

    @rule(name=lock_names, own=st.booleans())
    def record_once(self, name: str, own: bool) -> None:
        self.both(partial(_recorded, name=name, back=0 if own else 1))

    @rule(name=lock_names, own=st.booleans(), error=st.sampled_from([None, "no rates"]))
    def try_once(self, name: str, own: bool, error: str | None) -> None:
        self.both(partial(_tried, name=name, back=0 if own else 1, error=error))

    # ------------------------------------------------------------ owners

    @rule(bucket=buckets, epoch=epochs, agent=agents, limit=st.integers(1, 4), horizon=st.sampled_from([0.0, 1e9]))
    def onboard(self, bucket: int, epoch: int | None, agent: int, limit: int, horizon: float) -> None:
        fence = self.fence(bucket, epoch, agent)
        for master in (self.real, self.simulated):
            master.onboarding._positions.clear()
        self.both(lambda master: master.onboarding.onboard(fence, "default", 3, horizon, limit, ["handler"]))

    @rule(bucket=buckets, tags=st.sampled_from([["a"], ["b", "c"], ["z"]]))
    def onboard_without_tags(self, bucket: int, tags: list[str]) -> None:
        fence = self.fence(bucket, None, 0)
        for master in (self.real, self.simulated):
            master.onboarding._positions.clear()
        self.both(lambda master: master.onboarding.onboard(fence, "default", 3, 1e9, 5, ["handler"], tags))

    @rule(bucket=buckets, words=st.sampled_from([(), ("complete_time",), ("complete_time", "more")]))
    def onboard_within_capabilities(self, bucket: int, words: tuple[str, ...]) -> None:
        fence = self.fence(bucket, None, 0)
        for master in (self.real, self.simulated):
            master.onboarding._positions.clear()
        self.both(
            lambda master: master.onboarding.onboard(fence, "default", 3, 1e9, 5, ["handler"], (), FetchScope(words))
        )

    @rule(bucket=buckets, limit=st.integers(1, 4), over=st.sampled_from([[], ["a"]]), heavy=st.integers(1, 3))
    def onboard_in_turns(self, bucket: int, limit: int, over: list[str], heavy: int) -> None:
        fence, scope = self.fence(bucket, None, 0), FetchScope(tenants=TenantTurns(over, {"b": heavy}))
        for master in (self.real, self.simulated):
            master.onboarding._positions.clear()
            master.onboarding._rounds.clear()
        self.both(lambda master: master.onboarding.onboard(fence, "default", 3, 1e9, limit, ["handler"], (), scope))

    # ------------------------------------------------------------ pauses

    @rule(value=st.sampled_from(["a", "b"]), ends=st.sampled_from(["never", "past", "far", "in an hour"]))
    def pause(self, value: str, ends: str) -> None:
        until_us = {"past": PAST_US, "far": FUTURE_US}.get(ends)
        seconds = 3600.0 if ends == "in an hour" else None

        async def paused(master: Any) -> tuple[bool, Any]:
            written = await master.pauses.pause(PauseKind.HANDLER, value, until_us, seconds, "ann", "why")
            return written is not None, None if written is None or seconds else written.until_us

        self.both(paused)

    @rule(value=st.sampled_from(["a", "b"]))
    def resume(self, value: str) -> None:
        async def resumed(master: Any) -> bool:
            return await master.pauses.resume(PauseKind.HANDLER, value, "ann", "why") is not None

        self.both(resumed)

    @rule(agent=agents, behind=st.booleans())
    def obey(self, agent: int, behind: bool) -> None:
        async def obeys(master: Any) -> Any:
            found = await master.pauses.in_force()
            taken = await master.pauses.obey(self.agents[agent], found.version - behind)
            followers = sorted((each.id, each.obeys) for each in await master.pauses.followers(found.version))
            return taken, [(each.kind, each.value, each.until_us is None) for each in found.pauses], followers

        self.both(obeys)

    @rule(chosen=jobs, bucket=buckets, epoch=epochs, agent=agents, step=steps, running=st.booleans(), head=headers,
          late=st.sampled_from([None, 0.0, 0.0, 1e6]))  # fmt: skip
    def persist(
        self, chosen: list[int], bucket: int, epoch: int | None, agent: int, step: int, running: bool, head: bytes,
        late: float | None,
    ) -> None:  # fmt: skip
        fence, state = self.fence(bucket, epoch, agent), "PROCESSING" if running else "ASSIGNED"
        rows = [
            InFlightRow(self.jobs[j], state, 3, "default", "handler", self.token(j, step), 0, 0, 0, b"{}", head, late)
            for j in chosen
        ]
        self.both(lambda master: master.outcomes.persist(fence, rows))

    @rule(chosen=jobs, bucket=buckets, epoch=epochs, step=steps, how=hows, state=ends)
    def record(self, chosen: list[int], bucket: int, epoch: int | None, step: int, how: str, state: str) -> None:
        fence = self.fence(bucket, epoch, 0)
        good = state == "SUCCEEDED"
        rows = [
            FinalRow(self.jobs[j], state, 3, "default", "handler", self.token(j, step), fence.bucket_id, fence.epoch, 1, 0,
                     0, 5, 7, b"{}", b"", b"1" if good else None, None if good else ERROR)
            for j in chosen
        ]  # fmt: skip
        rows += rows[:1] if how == "copy twice" else []
        if how != "record":
            self.both(lambda master: master.outcomes.copy_final(rows))
        else:
            self.both(lambda master: master.outcomes.record_final(rows))
            self.both(lambda master: master.outcomes.record_final(rows))  # as after a lost answer

    @rule(chosen=jobs, bucket=buckets, epoch=epochs, agent=agents, step=steps, here=st.booleans(),
          error=st.sampled_from([None, ERROR, TIMEOUT, SNOOZED]), due=dues, twice=st.booleans(), head=headers,
          used=st.integers(0, 1))  # fmt: skip
    def hold(
        self, chosen: list[int], bucket: int, epoch: int | None, agent: int, step: int, here: bool, error: bytes | None,
        due: int, twice: bool, head: bytes, used: int,
    ) -> None:  # fmt: skip
        fence = self.fence(bucket, epoch, agent)
        rows = [
            HoldRow(self.jobs[j], 3, "default", "handler", self.token(j, step), used, 0, due, b"{}", head, error, 11)
            for j in chosen
        ]
        for _ in range(2 if twice else 1):
            self.both(
                lambda master: master.outcomes.retry_here(fence, rows) if here else master.outcomes.hold(fence, rows)
            )

    @rule(chosen=jobs, bucket=buckets, epoch=epochs, step=steps)
    def release(self, chosen: list[int], bucket: int, epoch: int | None, step: int) -> None:
        fence = self.fence(bucket, epoch, 0)
        pairs = [(self.jobs[j], self.token(j, step)) for j in chosen]
        self.both(lambda master: master.onboarding.release(fence, pairs))

    @rule(chosen=jobs, where=st.lists(st.tuples(buckets, epochs), max_size=2), flagged=st.booleans())
    def cancel_waiting(self, chosen: list[int], where: list[tuple[int, int | None]], flagged: bool) -> None:
        fences, ids = [self.fence(bucket, epoch, 0) for bucket, epoch in where], [self.jobs[job] for job in chosen]
        if flagged:
            self.cancel(chosen[0], False)

        async def ended(master: Any) -> list[CancelledRow]:
            return sorted(await master.outcomes.cancel_waiting(fences, ids))

        for _ in range(2):
            self.both(ended)

    @rule(bucket=buckets)
    def give_back(self, bucket: int) -> None:
        rows = self.both(lambda master: master.onboarding.bucket_rows(self.buckets[bucket], None, 100))
        if rows:
            self.both(lambda master: master.onboarding.give_back(self.buckets[bucket], rows[:2]))

    # ------------------------------------------------------------ rescuers, operators, the leader

    @rule(agent=agents, floor=st.sampled_from([0, 0, 5]))
    def take_lost(self, agent: int, floor: int) -> None:
        floors = {self.buckets[0]: floor} if floor else {}
        lost = [b for b in self.server.statements.tables.buckets.values() if b.state == "LOST"]
        if len(lost) < 2:  # which of several is taken is a matter of the clock
            self.both(lambda master: master.rescue.take_lost(self.agents[agent], ["store"], floors))

    @rule(chosen=jobs, bucket=buckets, epoch=epochs, agent=agents, claimed=st.booleans(), most=mosts, token=mosts)
    def rescue_page(
        self, chosen: list[int], bucket: int, epoch: int | None, agent: int, claimed: bool, most: int, token: int
    ) -> None:
        fence = self.fence(bucket, epoch, agent)
        entries = [Entry(self.jobs[j], token, "handler", b"{}") for j in chosen]
        self.both(
            lambda master: master.rescue.rescue_page(fence, entries, "default", 3, claimed=claimed, max_rescues=most)
        )

    @rule(chosen=jobs, what=st.sampled_from(["copy", "record", "persist", "hold", "here", "page"]), nul=st.booleans())
    def unfit(self, chosen: list[int], what: str, nul: bool) -> None:
        """One row of a batch holds what its columns do not take: nothing of the batch is written."""
        fence, ids = self.fence(0, None, 0), [self.jobs[j] for j in chosen]
        handlers = ["nul\0" if nul and job_id == ids[-1] else "handler" for job_id in ids]
        attempts = [0 if nul or job_id != ids[-1] else INT4_MAX + 1 for job_id in ids]
        each = list(zip(ids, handlers, attempts, strict=True))
        if what in ("copy", "record"):
            place = (fence.bucket_id, fence.epoch)
            finals = [
                FinalRow(i, "FAILED", 3, "default", h, 1, *place, a, 0, 0, 5, 7, b"{}", b"", None, ERROR)
                for i, h, a in each
            ]
            self.both(lambda master: getattr(master.outcomes, f"{what}_final")(finals))
        elif what == "persist":
            rows = [InFlightRow(i, "PROCESSING", 3, "default", h, 1, a, 0, 0, b"{}", b"") for i, h, a in each]
            self.both(lambda master: master.outcomes.persist(fence, rows))
        elif what == "page":
            entries = [Entry(i, 1, h, b"{}", attempt=a) for i, h, a in each]
            self.both(
                lambda master: master.rescue.rescue_page(fence, entries, "default", 3, claimed=True, max_rescues=3)
            )
        else:
            holds = [HoldRow(i, 3, "default", h, 1, a, 0, 0, b"{}", b"", None, 0) for i, h, a in each]
            self.both(
                lambda master: (master.outcomes.hold if what == "hold" else master.outcomes.retry_here)(fence, holds)
            )

    @rule(chosen=jobs, bucket=buckets, why=st.sampled_from(["no", "nul\0 \ud800 \xe9"]))
    def quarantine(self, chosen: list[int], bucket: int, why: str) -> None:
        unfit = [UnstorableEntry(self.jobs[j], "pending", b"raw %d" % n, why) for j in chosen for n in (0, 0, j)]
        self.both(lambda master: master.outcomes.quarantine(self.buckets[bucket], unfit))

    @rule(bucket=buckets, epoch=epochs, agent=agents, limit=st.integers(1, 3), most=st.integers(1, 3))
    def sweep(self, bucket: int, epoch: int | None, agent: int, limit: int, most: int) -> None:
        fence = self.fence(bucket, epoch, agent)
        self.both(lambda master: master.rescue.sweep(fence, limit, max_rescues=most))

    @rule(bucket=buckets, epoch=epochs, agent=agents)
    def close_drained(self, bucket: int, epoch: int | None, agent: int) -> None:
        fence = self.fence(bucket, epoch, agent)
        self.both(lambda master: master.rescue.close_drained(fence, 0, 0))

    @rule(bucket=buckets, epoch=epochs, agent=agents,
          to=st.sampled_from([BucketState.COMPLETING, BucketState.LOST, BucketState.READY_TO_DELETE]))  # fmt: skip
    def move(self, bucket: int, epoch: int | None, agent: int, to: BucketState) -> None:
        fence = self.fence(bucket, epoch, agent)
        self.both(lambda master: master.buckets.move_bucket(*fence, to, "test"))

    @rule(bucket=buckets, epoch=epochs, agent=agents)
    def resurrect_retired(self, bucket: int, epoch: int | None, agent: int) -> None:
        fence = self.fence(bucket, epoch, agent)
        row = Bucket(
            id=fence.bucket_id, store="store", lane="default", priority=3, state=BucketState.READY_TO_DELETE,
            epoch=fence.epoch, owner=fence.owner,
        )  # fmt: skip
        self.both(lambda master: master.buckets.resurrect_retired(row, "test"))

    @rule(bucket=buckets, unfreeze=st.booleans())
    def operate(self, bucket: int, unfreeze: bool) -> None:
        ids = [self.buckets[bucket]]
        self.both(
            lambda m: (
                m.buckets.unfreeze(ids, None, "me", "test") if unfreeze else m.buckets.freeze(ids, None, "me", "test")
            )
        )

    @rule(bucket=buckets)
    def forget(self, bucket: int) -> None:
        self.both(lambda master: master.buckets.drop_bucket(self.buckets[bucket]))

    @rule(bucket=buckets, agent=agents)
    def resurrect(self, bucket: int, agent: int) -> None:
        row = Bucket(
            id=self.buckets[bucket], store="store", lane="default", priority=3, state=BucketState.LOST, epoch=0,
            owner=self.agents[agent],
        )  # fmt: skip
        self.both(lambda master: master.buckets.resurrect_bucket(row, "test"))

    @rule(agent=agents, dead=st.booleans())
    def end_agent(self, agent: int, dead: bool) -> None:
        living = [row for row in self.server.statements.tables.agents.values() if row.state == "ACTIVE"]
        if len(living) > 1:
            self.both(lambda master: master.members.end_agent(self.agents[agent], dead=dead, reason="test"))

    @rule(agent=agents)
    def renew(self, agent: int) -> None:
        self.both(lambda master: master.members.renew(self.agents[agent], 3600.0))

        async def owned(master: Any) -> list[Bucket]:
            return sorted(await master.buckets.owned_buckets(self.agents[agent]), key=attrgetter("id"))

        self.both(owned)

    @rule(certifier=agents, suspect=agents)
    def certify(self, certifier: int, suspect: int) -> None:
        """The suspect has let its lease run out; the certifier has held its own for a day."""
        statements = self.server.statements
        for agent, seconds in ((suspect, 0.0), (certifier, 0.5)):
            self.both(lambda master, agent=agent, seconds=seconds: master.members.renew(self.agents[agent], seconds))  # type: ignore[misc]
        self.wait(self.sql.execute("UPDATE agent SET held_since = held_since - interval '1 day'"))
        for row in list(statements.tables.agents.values()):
            statements.tables.agents[row.id] = row._replace(held_since=row.held_since - 86_400_000_000)
        self.both(lambda master: master.members.certify_dead(self.agents[certifier], 10))
        for agent in (suspect, certifier):
            self.both(lambda master, agent=agent: master.members.renew(self.agents[agent], 1000.0))  # type: ignore[misc]

    @rule(agent=agents)
    def lead(self, agent: int) -> None:
        epoch = self.both(lambda master: master.leadership.acquire(self.agents[agent], 1, 1000.0))
        self.both(lambda master: master.leadership.tick(self.agents[agent], 1, 1000.0, 1e9))
        if epoch is not None and epoch % 2:
            self.both(lambda master: master.leadership.resign(self.agents[agent], epoch))

    @rule(agent=agents, heir=agents)
    def hand_over(self, agent: int, heir: int) -> None:
        """The heir is the only one that has been there for longer than its lease."""
        epoch = self.both(lambda master: master.leadership.acquire(self.agents[agent], 0, 1000.0))
        tables = self.server.statements.tables
        leader_lease, heir_row = tables.leader_lease, tables.agents[self.agents[heir]]
        if epoch is None or leader_lease is None or heir_row.state != "ACTIVE":
            return
        day_us, heir_id = 86_400_000_000, UUID(bytes=self.agents[heir])
        self.wait(
            self.sql.execute("UPDATE agent SET started_at = started_at - interval '1 day' WHERE id = $1", heir_id)
        )
        tables.agents[heir_row.id] = heir_row._replace(started_us=heir_row.started_us - day_us)
        self.both(lambda master: master.leadership.tick(self.agents[agent], 0, 1000.0, 1e9))
        self.both(lambda master: master.leadership.transfer(self.agents[agent], 0, epoch))
        self.wait(
            self.sql.execute("UPDATE agent SET started_at = started_at + interval '2 days' WHERE id = $1", heir_id)
        )
        tables.agents[heir_row.id] = heir_row._replace(started_us=heir_row.started_us + day_us)

    @rule(most=mosts)
    def keep_house(self, most: int) -> None:
        time.sleep(0.002)
        self.both(lambda master: master.maintenance.expire_held(100))
        self.both(lambda master: master.maintenance.reassign_late(100, max_reassigns=most))
        self.both(lambda master: master.maintenance.return_orphans(0.0, 100, max_rescues=most))

    # ------------------------------------------------------------ faults

    @rule()
    def connections_close(self) -> None:
        async def close() -> None:
            for pool in self.real._pools:
                for connection in pool._idle:
                    connection.terminate()

        self.wait(close())


@pytest.mark.parametrize("share", [0.4, pytest.param(1.0, marks=pytest.mark.long)])
def test_the_simulated_master_is_the_real_one(migrated: str, share: float) -> None:
    run_on_both(Masters, migrated, examples=30, steps=40, share=share)


class KeysOfMovedJobs(TwoMasters):
    """One unique key, whose holder goes to the master of another cluster now and then."""

    @rule(
        term=st.sampled_from(UniqueTerm), on_conflict=st.sampled_from(OnConflict), due=st.sampled_from([0, FUTURE_US])
    )
    def submit(self, term: UniqueTerm, on_conflict: OnConflict, due: int) -> None:
        new = NewJob(new_id(), 3, "default", "handler", b"{}", b'{"unique_key":"k"}', due)
        unique = UniqueRule("k", term, SPAN_US if term is not UniqueTerm.LIVE else 0, False, on_conflict)
        self.both(lambda master: master.uniqueness.submit([UniqueSubmit(new, unique, None)]))

    @rule()
    def move_away(self) -> None:
        """As ``cluster/mark_moved`` does, in the tables themselves: the statement needs a move that has begun."""
        tables = self.server.statements.tables
        waiting = [row for row in tables.jobs.values() if row.state == "HELD"]
        for row in waiting:
            tables.jobs[row.id] = row._replace(state="MOVED")
            self.wait(self.sql.execute("UPDATE job SET state = 'MOVED' WHERE id = $1", UUID(bytes=row.id)))

    @rule()
    def cancel(self) -> None:
        """What has moved is not cancelled here."""
        for job_id in [*self.server.statements.tables.jobs]:
            self.both(lambda master, job_id=job_id: master.requests.cancel(job_id, tombstone=None, actor="test"))  # type: ignore[misc]


@pytest.mark.parametrize("share", [0.4, pytest.param(1.0, marks=pytest.mark.long)])
def test_a_job_that_has_moved_holds_its_key_on_both(migrated: str, share: float) -> None:
    run_on_both(KeysOfMovedJobs, migrated, examples=15, steps=8, share=share)


pytestmark = pytest.mark.slow
