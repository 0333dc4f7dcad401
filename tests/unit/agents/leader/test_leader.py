"""Leader election, hints and maintenance tasks."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest

from jobmaster.agentstore.errors import OutOfMemory
from jobmaster.clock import new_id
from jobmaster.model.bucket import Bucket, BucketState
from jobmaster.model.errors import JobMasterError, Unavailable
from jobmaster.ports import DueGroup, LeaderTick, OwnerTraits
from jobmaster.settings.model import AgentMode, Leases
from jobmaster.telemetry import Telemetry
from jobmaster_agents.event_log import EventLog
from jobmaster_agents.leader import due_notifier
from jobmaster_agents.leader.due_notifier import DueNotifier
from jobmaster_agents.leader.leader import IDLE_SECONDS, Leader, MaintenanceTask, may_lead
from jobmaster_agents.state import store_reachability
from jobmaster_agents.state.store_reachability import StoreReachability
from tests.support.hand_clock import HandClock, trusted


class Master:
    def __init__(self) -> None:
        self.queries: list[str] = []
        self.holder: bytes | None = None
        self.epoch = 0
        self.due: list[DueGroup] = []
        self.overdue = False
        self.heir: bytes | None = None
        self.active: list[Bucket] = []
        self.traits: dict[bytes, OwnerTraits] = {}

    async def acquire(self, agent_id: bytes, weight: int, lease_seconds: float) -> int | None:
        self.queries.append("acquire")
        if self.holder not in (None, agent_id):
            return None
        if self.holder is None:
            self.epoch += 1
        self.holder = agent_id
        return self.epoch

    async def tick(self, agent_id: bytes, weight: int, lease_seconds: float, horizon_seconds: float) -> LeaderTick:
        self.queries.append("tick")
        if self.holder != agent_id:
            return LeaderTick(None, [], self.overdue)
        return LeaderTick(self.epoch, self.due, self.overdue, self.heir is not None)

    async def transfer(self, agent_id: bytes, weight: int, epoch: int) -> bytes | None:
        self.queries.append("transfer")
        if self.heir is not None and (self.holder, self.epoch) == (agent_id, epoch):
            self.holder, self.epoch = self.heir, epoch + 1
            return self.heir
        return None

    async def resign(self, agent_id: bytes, epoch: int) -> None:
        self.queries.append("resign")
        if self.holder == agent_id and self.epoch == epoch:
            self.holder = None

    async def list_buckets(self, *, states: Sequence[BucketState] = ()) -> list[Bucket]:
        self.queries.append("buckets")
        assert list(states) == [BucketState.ACTIVE]
        return self.active

    async def served(self) -> dict[bytes, OwnerTraits]:
        return self.traits


class Store:
    def __init__(self) -> None:
        self.hinted: list[bytes] = []
        self.asked = 0
        self.pings = 0
        self.silent = False
        self.failure: JobMasterError | None = None

    async def hint(self, bucket_id: bytes) -> None:
        self.asked += 1
        if self.silent:
            await asyncio.Event().wait()
        if self.failure is not None:
            raise self.failure
        self.hinted.append(bucket_id)

    async def ping(self) -> None:
        self.pings += 1
        if self.silent:
            await asyncio.Event().wait()
        if self.failure is not None:
            raise self.failure


def a_bucket(store: str = "one", lane: str = "default", priority: int = 3) -> Bucket:
    return Bucket(
        id=new_id(), store=store, lane=lane, priority=priority, state=BucketState.ACTIVE, epoch=1, owner=new_id()
    )


class Bench:
    def __init__(self, tasks: Sequence[MaintenanceTask] = (), master: Master | None = None) -> None:
        self.clock = HandClock()
        self.master = master or Master()
        self.stores = {"one": Store(), "two": Store()}
        self.telemetry = Telemetry()
        self.overdue = 0
        self.ownership = trusted(self.clock)
        map_seconds = Leases().bucket_map_seconds
        self.reachability = StoreReachability(
            self.stores, self.stores, self.clock, lambda _: None, self.telemetry, EventLog()
        )
        self.due_notifier = DueNotifier(
            self.master, self.stores, self.reachability, self.clock, self.telemetry, map_seconds=map_seconds
        )
        self.duty = Leader(
            self.ownership, self.master, self.due_notifier, tasks, Leases(), self.clock, self.count, self.telemetry,
            EventLog(), weight=1, horizon_seconds=300.0,
        )  # fmt: skip

    def count(self) -> None:
        self.overdue += 1

    async def second(self) -> float:
        self.clock.now += 1.0
        delay = await self.duty.tick()
        await self.due_notifier.tick()
        return delay


def test_who_may_lead() -> None:
    allowed = {mode for mode in AgentMode if may_lead(mode, 1)}
    assert allowed == {AgentMode.FULL, AgentMode.LEADER}
    assert not any(may_lead(mode, 0) for mode in AgentMode)


async def test_the_first_agent_leads_at_once_and_then_asks_one_query_a_second() -> None:
    bench = Bench()
    assert await bench.duty.tick() == 0.0
    assert bench.duty.epoch == 1
    for _ in range(30):
        assert await bench.second() == 1.0
    assert bench.master.queries == ["acquire"] + ["tick"] * 30


async def test_a_candidate_waits_without_asking_until_a_renewal_shows_a_vacancy() -> None:
    bench = Bench()
    other = new_id()
    bench.master.holder, bench.master.epoch = other, 7
    assert await bench.duty.tick() == IDLE_SECONDS
    for _ in range(5):
        bench.duty.on_leader_seen(other)
        await bench.duty.tick()
    assert bench.master.queries == ["acquire"]
    bench.master.holder = None
    bench.duty.on_leader_seen(None)
    assert bench.duty.kicked.is_set()
    await bench.duty.tick()
    assert bench.duty.epoch == 8


async def test_a_superseded_leader_stops_at_once() -> None:
    bench = Bench()
    await bench.duty.tick()
    bench.master.holder, bench.master.epoch = new_id(), 2
    bench.master.due = [DueGroup("default", 3)]
    bench.master.active = [a_bucket()]
    assert await bench.second() == IDLE_SECONDS
    assert bench.duty.epoch is None
    assert bench.stores["one"].hinted == []
    assert bench.telemetry.value("leading") == 0


async def test_a_lighter_leader_ends_its_tick_and_hands_over_once() -> None:
    bench = Bench()
    await bench.duty.tick()
    bench.master.heir = heir = new_id()
    bench.master.due, bench.master.active = [DueGroup("default", 3)], [a_bucket()]
    assert await bench.second() == IDLE_SECONDS
    assert (bench.duty.epoch, bench.master.holder, bench.master.epoch) == (None, heir, 2)
    assert len(bench.stores["one"].hinted) == 1
    for _ in range(5):
        bench.duty.on_leader_seen(heir)
        assert await bench.second() == IDLE_SECONDS
    assert bench.master.queries == ["acquire", "tick", "buckets", "transfer"]


async def test_a_successor_that_has_left_meanwhile_changes_no_leader() -> None:
    bench = Bench()
    await bench.duty.tick()
    bench.master.heir = new_id()

    async def no_successor(agent_id: bytes, weight: int, epoch: int) -> bytes | None:
        return None

    bench.master.transfer = no_successor  # type: ignore[method-assign]
    assert await bench.second() == 1.0
    assert bench.duty.epoch == 1


async def test_an_agent_that_a_renewal_names_as_leader_tries_to_lead() -> None:
    bench = Bench()
    bench.master.holder, bench.master.epoch = new_id(), 7
    await bench.duty.tick()
    bench.master.holder, bench.master.epoch = bench.ownership.agent_id, 8
    bench.duty.on_leader_seen(bench.ownership.agent_id)
    await bench.duty.tick()
    assert bench.duty.epoch == 8


async def test_the_same_agent_under_a_newer_epoch_applies_again() -> None:
    """Its lease ran out, another led and left, and an answer was lost: the epochs differ although the name does not."""
    bench = Bench()
    await bench.duty.tick()
    bench.master.epoch = 5
    assert await bench.second() == 0.0
    assert bench.duty.epoch is None
    await bench.duty.tick()
    assert bench.duty.epoch == 5


async def test_a_leader_in_doubt_of_its_own_lease_does_nothing() -> None:
    bench = Bench()
    await bench.duty.tick()
    before = len(bench.master.queries)
    bench.ownership.fence("certificate seen")
    await bench.second()
    assert bench.duty.epoch is None
    assert len(bench.master.queries) == before


async def test_resigning_ends_the_leadership_once() -> None:
    bench = Bench()
    await bench.duty.tick()
    await bench.duty.resign()
    await bench.duty.resign()
    assert bench.master.queries.count("resign") == 1
    assert bench.master.holder is None
    bench.duty.on_leader_seen(None)
    assert await bench.second() == IDLE_SECONDS  # who has resigned does not apply again
    assert bench.master.holder is None


@pytest.mark.parametrize("question", ["acquire", "tick"])
async def test_an_answer_after_the_resignation_makes_no_leader(question: str) -> None:
    bench = Bench()
    if question == "tick":
        await bench.duty.tick()
    ask = getattr(bench.master, question)

    async def answer_late(*arguments: object) -> object:
        answer = await ask(*arguments)
        await bench.duty.resign()
        return answer

    setattr(bench.master, question, answer_late)
    await bench.second()
    assert bench.duty.epoch is None
    assert bench.master.holder is None
    assert await bench.second() == IDLE_SECONDS


async def test_overdue_leases_wake_the_failure_detector() -> None:
    bench = Bench()
    await bench.duty.tick()
    await bench.second()
    assert bench.overdue == 0
    bench.master.overdue = True
    await bench.second()
    assert bench.overdue == 1


async def test_two_owners_in_turn_get_a_hint_of_due_jobs() -> None:
    bench = Bench()
    buckets = [a_bucket("one"), a_bucket("two"), a_bucket("one"), a_bucket("one", lane="other")]
    bench.master.active = buckets
    bench.master.due = [DueGroup("default", 3)]
    await bench.duty.tick()
    for _ in range(3):
        await bench.second()
    told = bench.stores["one"].hinted + bench.stores["two"].hinted
    assert sorted(told) == sorted([b.id for b in buckets[:3]] * 2)  # 3 seconds x 2 hints, evenly
    assert bench.telemetry.hints == 6


async def test_an_owner_with_a_greater_share_has_more_turns_and_all_have_some() -> None:
    bench = Bench()
    small, big, huge = buckets = [a_bucket("one"), a_bucket("one"), a_bucket("one")]
    bench.master.active = buckets
    shares = {small: 0.5, big: 1.0, huge: 2.5}
    bench.master.traits = {bucket.owner: OwnerTraits(frozenset(), share) for bucket, share in shares.items()}
    for _ in range(80):
        await bench.due_notifier.notify({("default", 3)})
        await bench.due_notifier.tick()
    told = Counter(bench.stores["one"].hinted)
    assert sum(told.values()) == 160
    assert told[huge.id] > told[big.id] > told[small.id] >= 80 / (1 + 2 + 5)


async def test_where_owners_differ_in_their_handlers_two_of_each_kind_get_a_hint() -> None:
    bench = Bench()
    many = [a_bucket("one") for _ in range(10)]
    rare = a_bucket("two")
    bench.master.active = [*many, rare]
    bench.master.traits = {bucket.owner: OwnerTraits(frozenset({"common"}), 1.0) for bucket in many}
    bench.master.traits[rare.owner] = OwnerTraits(frozenset({"rare"}), 1.0)
    for _ in range(5):
        await bench.due_notifier.notify({("default", 3)})
        await bench.due_notifier.tick()
    assert Counter(bench.stores["one"].hinted) == dict.fromkeys((bucket.id for bucket in many), 1)
    assert bench.stores["two"].hinted == [rare.id] * 5


async def test_the_bucket_map_is_read_only_when_it_is_needed() -> None:
    bench = Bench()
    bench.master.active = [a_bucket()]
    await bench.duty.tick()
    for _ in range(20):
        await bench.second()
    assert "buckets" not in bench.master.queries
    bench.master.due = [DueGroup("default", 3)]
    for _ in range(10):
        await bench.second()
    assert bench.master.queries.count("buckets") == 1


async def test_owners_get_a_hint_although_the_map_is_read_again_at_that_moment() -> None:
    """A rescue asks for it afresh; the last owner of a group may have gone, and it is a group of the others, too."""
    bench = Bench()
    gone, stays = a_bucket(), a_bucket(lane="payroll")
    bench.master.active = [gone, stays]
    await bench.due_notifier.notify([("default", 3), ("payroll", 3)])
    telling = asyncio.ensure_future(bench.due_notifier.tick())
    await asyncio.sleep(0)  # up to its first question
    bench.master.active = [stays]
    await bench.due_notifier.notify([("payroll", 3)], afresh=True)
    await telling
    assert stays.id in bench.stores["one"].hinted


async def test_a_store_that_does_not_answer_passes_its_turn_on() -> None:
    bench = Bench()
    bench.master.active = [a_bucket("one"), a_bucket("two"), a_bucket("nowhere")]
    bench.master.due = [DueGroup("default", 3)]
    bench.stores["one"].failure = Unavailable("away")
    await bench.duty.tick()
    await bench.second()
    assert len(bench.stores["two"].hinted) == 1


async def test_a_silent_store_delays_neither_the_leader_nor_the_owners_of_other_stores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(due_notifier, "HINT_SECONDS", 0.01)
    bench = Bench()
    healthy = [a_bucket("two") for _ in range(2)]
    bench.master.active = [*(a_bucket("one") for _ in range(30)), *healthy]
    bench.master.due = [DueGroup("default", 3)]
    bench.stores["one"].silent = True
    await bench.duty.tick()
    bench.clock.now += 1.0
    assert await bench.duty.tick() == 1.0, "the tick that renews the leader's lease calls no store"
    assert bench.stores["one"].asked == 0
    for _ in range(5):
        await bench.second()
    assert bench.stores["one"].asked == 1, "one silent call, then it is passed over"
    assert len(bench.stores["two"].hinted) == 2 * 5


async def test_a_store_gets_hints_again_once_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(due_notifier, "HINT_SECONDS", 0.01)
    monkeypatch.setattr(store_reachability, "PING_SECONDS", 0.01)
    bench = Bench()
    bench.master.active = [a_bucket("one")]
    bench.master.due = [DueGroup("default", 3)]
    bench.stores["one"].silent = True
    await bench.duty.tick()
    await bench.second()
    await bench.reachability.tick()
    bench.stores["one"].silent = False
    await bench.second()
    assert bench.stores["one"].hinted == []
    await bench.reachability.tick()
    await bench.second()
    assert len(bench.stores["one"].hinted) == 1


async def test_a_full_store_is_passed_over_and_not_taken_for_silent() -> None:
    bench = Bench()
    bench.master.active = [a_bucket("one"), a_bucket("two")]
    bench.master.due = [DueGroup("default", 3)]
    bench.stores["one"].failure = OutOfMemory("full")
    await bench.duty.tick()
    await bench.second()
    assert len(bench.stores["two"].hinted) == 1
    assert bench.reachability.answers("one")


async def test_a_long_maintenance_task_does_not_delay_the_leader() -> None:
    never = asyncio.Event()

    async def wait() -> None:
        await never.wait()

    bench = Bench([MaintenanceTask("long", 60.0, wait)])
    await bench.duty.tick()
    assert bench.duty.maintenance.kicked.is_set(), "who is elected begins with the tasks at once"
    task = asyncio.ensure_future(bench.duty.maintenance.tick())
    for _ in range(5):
        assert await bench.second() == 1.0
    assert bench.master.queries == ["acquire"] + ["tick"] * 5
    assert not task.done()
    never.set()
    await task


async def test_maintenance_waits_for_the_election() -> None:
    done: list[str] = []

    async def work() -> None:
        done.append("work")

    bench = Bench([MaintenanceTask("work", 30.0, work)])
    bench.master.holder, bench.master.epoch = new_id(), 1
    await bench.duty.tick()
    assert await bench.duty.maintenance.tick() == IDLE_SECONDS
    assert done == []


async def test_a_rescuer_asks_for_the_buckets_as_they_are_now() -> None:
    """What was read a second ago may list the very owners that have just died."""
    bench = Bench()
    bench.master.active = [a_bucket()]
    await bench.due_notifier.notify({("default", 3)})
    alive = a_bucket("two")
    bench.master.active = [alive]
    await bench.due_notifier.notify({("default", 3)}, afresh=True)
    await bench.due_notifier.tick()
    assert bench.stores["two"].hinted == [alive.id]
    assert bench.master.queries == ["buckets", "buckets"]


async def test_due_jobs_without_an_owner_are_logged_once() -> None:
    bench = Bench()
    bench.master.due = [DueGroup("payroll", 5)]
    await bench.duty.tick()
    for _ in range(5):
        await bench.second()
    assert bench.telemetry.groups_unserved == 1
    bench.master.active = [a_bucket(lane="payroll", priority=5)]
    await bench.second()
    assert bench.telemetry.groups_unserved == 0
    assert len(bench.stores["one"].hinted) == 1


async def test_one_maintenance_task_a_tick_and_a_failing_one_does_not_take_every_turn() -> None:
    done: list[str] = []

    async def work() -> None:
        done.append("work")

    async def fail() -> None:
        done.append("fail")
        raise Unavailable("away")

    bench = Bench([MaintenanceTask("fail", 60.0, fail), MaintenanceTask("work", 30.0, work)])
    await bench.duty.tick()
    for second in range(62):
        await bench.second()
        try:
            await bench.duty.maintenance.tick()
        except Unavailable:
            assert second in (0, 60)
    assert done == ["fail", "work", "work", "fail", "work"]


async def test_a_busy_leader_stays_within_two_queries_a_second() -> None:
    """House-keeping, hints and the bucket map together, over ten minutes; the heartbeat adds one in three seconds."""
    counted = 0

    async def query() -> None:
        nonlocal counted
        counted += 1

    bench = Bench([MaintenanceTask(name, every, query) for name, every in
                   (("a", 3600.0), ("b", 60.0), ("c", 30.0), ("d", 30.0), ("e", 60.0))])  # fmt: skip
    bench.master.active = [a_bucket()]
    bench.master.due = [DueGroup("default", 3)]
    await bench.duty.tick()
    for _ in range(600):
        await bench.second()
        await bench.duty.maintenance.tick()
    failure_detector = 600 / Leases().lease_seconds
    heartbeat = 600 / Leases().renew_seconds
    assert (len(bench.master.queries) + counted + heartbeat + failure_detector) / 600 < 2.0
