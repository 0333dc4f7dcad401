"""Leader election, hints and maintenance tasks."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest

from jobmaster.agentstore.errors import OutOfMemory
from jobmaster.clock import new_id
from jobmaster.model.bucket import Bucket, BucketState
from jobmaster.model.bucket_map import MapChanges, MapVersion, OwnerTraits
from jobmaster.model.errors import JobMasterError, Unavailable
from jobmaster.ports import DueGroup, LeaderTick
from jobmaster.rules.lease import term
from jobmaster.settings.model import AgentMode, Leases
from jobmaster.telemetry import Telemetry
from jobmaster_agents.event_log import EventLog
from jobmaster_agents.leader import due_notifier
from jobmaster_agents.leader.due_notifier import DueNotifier
from jobmaster_agents.leader.leader import Leader, may_lead
from jobmaster_agents.leader.maintenance_runner import IDLE_SECONDS, MaintenanceTask
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

    async def bucket_map(self, known: MapVersion | None) -> MapChanges:
        self.queries.append("buckets")
        return MapChanges(MapVersion(1, 1), True, self.active, [([each], one) for each, one in self.traits.items()])


class Store:
    def __init__(self) -> None:
        self.hinted: list[bytes] = []
        self.calls = 0
        self.pings = 0
        self.silent = False
        self.failure: JobMasterError | None = None

    async def hint(self, bucket_id: bytes) -> None:
        self.calls += 1
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


class LeaderHarness:
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
        self.periodic_task = Leader(
            self.ownership, self.master, self.due_notifier, tasks, Leases(), self.clock, self.count, self.telemetry,
            EventLog(), weight=1, horizon_seconds=300.0,
        )  # fmt: skip
        self.led: list[bool] = []
        self.periodic_task.on_change = lambda: self.led.append(self.periodic_task.leads())

    def count(self) -> None:
        self.overdue += 1

    async def second(self) -> float:
        self.clock.now += 1.0
        delay = await self.periodic_task.tick()
        await self.due_notifier.tick()
        return delay


def test_modes_and_weights_that_may_lead() -> None:
    allowed = {mode for mode in AgentMode if may_lead(mode, 1)}
    assert allowed == {AgentMode.FULL, AgentMode.LEADER}
    assert not any(may_lead(mode, 0) for mode in AgentMode)


async def test_the_first_agent_leads_at_once_and_then_asks_one_query_a_second() -> None:
    harness = LeaderHarness()
    assert await harness.periodic_task.tick() == 0.0
    assert harness.periodic_task.epoch == 1
    for _ in range(30):
        assert await harness.second() == 1.0
    assert harness.master.queries == ["acquire"] + ["tick"] * 30


async def test_a_candidate_waits_without_asking_until_a_renewal_shows_a_vacancy() -> None:
    harness = LeaderHarness()
    other = new_id()
    harness.master.holder, harness.master.epoch = other, 7
    assert await harness.periodic_task.tick() == IDLE_SECONDS
    for _ in range(5):
        harness.periodic_task.on_leader_seen(other)
        await harness.periodic_task.tick()
    assert harness.master.queries == ["acquire"]
    harness.master.holder = None
    harness.periodic_task.on_leader_seen(None)
    assert harness.periodic_task.kicked.is_set()
    await harness.periodic_task.tick()
    assert harness.periodic_task.epoch == 8


async def test_a_superseded_leader_stops_at_once() -> None:
    harness = LeaderHarness()
    await harness.periodic_task.tick()
    harness.master.holder, harness.master.epoch = new_id(), 2
    harness.master.due = [DueGroup("default", 3)]
    harness.master.active = [a_bucket()]
    assert await harness.second() == IDLE_SECONDS
    assert harness.periodic_task.epoch is None
    assert harness.stores["one"].hinted == []
    assert harness.telemetry.value("leading") == 0
    assert harness.led == [True, False]


async def test_every_election_is_announced_also_of_an_agent_that_was_named_the_leader_all_the_time() -> None:
    harness = LeaderHarness()
    elected: list[int | None] = []
    harness.periodic_task.on_change = lambda: elected.append(harness.periodic_task.epoch)
    await harness.periodic_task.tick()
    await harness.second()
    assert elected == [1]
    harness.clock.now += 6e5  # half of its lease is over: it is in doubt for a moment
    await harness.second()
    assert harness.periodic_task.epoch is None
    harness.ownership.trust(term(harness.clock.now, 1e6))
    await harness.second()
    assert elected == [1, None, 1]


async def test_a_lighter_leader_ends_its_tick_and_hands_over_once() -> None:
    harness = LeaderHarness()
    await harness.periodic_task.tick()
    harness.master.heir = heir = new_id()
    harness.master.due, harness.master.active = [DueGroup("default", 3)], [a_bucket()]
    assert await harness.second() == IDLE_SECONDS
    assert (harness.periodic_task.epoch, harness.master.holder, harness.master.epoch) == (None, heir, 2)
    assert len(harness.stores["one"].hinted) == 1
    for _ in range(5):
        harness.periodic_task.on_leader_seen(heir)
        assert await harness.second() == IDLE_SECONDS
    assert harness.master.queries == ["acquire", "tick", "buckets", "transfer"]
    assert harness.led == [True, False]


async def test_a_successor_that_has_left_meanwhile_changes_no_leader() -> None:
    harness = LeaderHarness()
    await harness.periodic_task.tick()
    harness.master.heir = new_id()

    async def no_successor(agent_id: bytes, weight: int, epoch: int) -> bytes | None:
        return None

    harness.master.transfer = no_successor  # type: ignore[method-assign]
    assert await harness.second() == 1.0
    assert harness.periodic_task.epoch == 1


async def test_an_agent_that_a_renewal_names_as_leader_tries_to_lead() -> None:
    harness = LeaderHarness()
    harness.master.holder, harness.master.epoch = new_id(), 7
    await harness.periodic_task.tick()
    harness.master.holder, harness.master.epoch = harness.ownership.agent_id, 8
    harness.periodic_task.on_leader_seen(harness.ownership.agent_id)
    await harness.periodic_task.tick()
    assert harness.periodic_task.epoch == 8


async def test_the_same_agent_under_a_newer_epoch_applies_again() -> None:
    """Its lease ran out, another led and left, and an answer was lost: the epochs differ although the name does not."""
    harness = LeaderHarness()
    await harness.periodic_task.tick()
    harness.master.epoch = 5
    assert await harness.second() == 0.0
    assert harness.periodic_task.epoch is None
    await harness.periodic_task.tick()
    assert harness.periodic_task.epoch == 5


async def test_a_leader_in_doubt_of_its_own_lease_does_nothing() -> None:
    harness = LeaderHarness()
    await harness.periodic_task.tick()
    before = len(harness.master.queries)
    harness.ownership.fence("certificate seen")
    await harness.second()
    assert harness.periodic_task.epoch is None
    assert len(harness.master.queries) == before


async def test_resigning_ends_the_leadership_once() -> None:
    harness = LeaderHarness()
    await harness.periodic_task.tick()
    await harness.periodic_task.resign()
    await harness.periodic_task.resign()
    assert harness.master.queries.count("resign") == 1
    assert harness.master.holder is None
    assert harness.led == [True, False]
    harness.periodic_task.on_leader_seen(None)
    assert await harness.second() == IDLE_SECONDS  # an agent that has resigned does not apply again
    assert harness.master.holder is None


@pytest.mark.parametrize("question", ["acquire", "tick"])
async def test_an_answer_after_the_resignation_makes_no_leader(question: str) -> None:
    harness = LeaderHarness()
    if question == "tick":
        await harness.periodic_task.tick()
    send = getattr(harness.master, question)

    async def answer_late(*arguments: object) -> object:
        answer = await send(*arguments)
        await harness.periodic_task.resign()
        return answer

    setattr(harness.master, question, answer_late)
    await harness.second()
    assert harness.periodic_task.epoch is None
    assert harness.master.holder is None
    assert await harness.second() == IDLE_SECONDS


async def test_overdue_leases_wake_the_failure_detector() -> None:
    harness = LeaderHarness()
    await harness.periodic_task.tick()
    await harness.second()
    assert harness.overdue == 0
    harness.master.overdue = True
    await harness.second()
    assert harness.overdue == 1


async def test_two_owners_in_turn_get_a_hint_of_due_jobs() -> None:
    harness = LeaderHarness()
    buckets = [a_bucket("one"), a_bucket("two"), a_bucket("one"), a_bucket("one", lane="other")]
    harness.master.active = buckets
    harness.master.due = [DueGroup("default", 3)]
    await harness.periodic_task.tick()
    for _ in range(3):
        await harness.second()
    hints = harness.stores["one"].hinted + harness.stores["two"].hinted
    assert sorted(hints) == sorted([b.id for b in buckets[:3]] * 2)  # 3 seconds x 2 hints, evenly
    assert harness.telemetry.hints == 6


async def test_an_owner_with_a_greater_share_has_more_turns_and_all_have_some() -> None:
    harness = LeaderHarness()
    small, big, huge = buckets = [a_bucket("one"), a_bucket("one"), a_bucket("one")]
    harness.master.active = buckets
    shares = {small: 0.5, big: 1.0, huge: 2.5}
    harness.master.traits = {bucket.owner: OwnerTraits(frozenset(), share) for bucket, share in shares.items()}
    for _ in range(80):
        await harness.due_notifier.notify({("default", 3)})
        await harness.due_notifier.tick()
    hints = Counter(harness.stores["one"].hinted)
    assert sum(hints.values()) == 160
    assert hints[huge.id] > hints[big.id] > hints[small.id] >= 80 / (1 + 2 + 5)


async def test_where_owners_differ_in_their_handlers_two_of_each_kind_get_a_hint() -> None:
    harness = LeaderHarness()
    many = [a_bucket("one") for _ in range(10)]
    rare = a_bucket("two")
    harness.master.active = [*many, rare]
    harness.master.traits = {bucket.owner: OwnerTraits(frozenset({"common"}), 1.0) for bucket in many}
    harness.master.traits[rare.owner] = OwnerTraits(frozenset({"rare"}), 1.0)
    for _ in range(5):
        await harness.due_notifier.notify({("default", 3)})
        await harness.due_notifier.tick()
    assert Counter(harness.stores["one"].hinted) == dict.fromkeys((bucket.id for bucket in many), 1)
    assert harness.stores["two"].hinted == [rare.id] * 5


async def test_the_bucket_map_is_read_only_when_it_is_needed() -> None:
    harness = LeaderHarness()
    harness.master.active = [a_bucket()]
    await harness.periodic_task.tick()
    for _ in range(20):
        await harness.second()
    assert "buckets" not in harness.master.queries
    harness.master.due = [DueGroup("default", 3)]
    for _ in range(10):
        await harness.second()
    assert harness.master.queries.count("buckets") == 1


async def test_owners_get_a_hint_although_the_map_is_read_again_at_that_moment() -> None:
    """A rescue asks for it afresh; the last owner of a group may have gone, and it is a group of the others, too."""
    harness = LeaderHarness()
    gone, stays = a_bucket(), a_bucket(lane="payroll")
    harness.master.active = [gone, stays]
    await harness.due_notifier.notify([("default", 3), ("payroll", 3)])
    telling = asyncio.ensure_future(harness.due_notifier.tick())
    await asyncio.sleep(0)  # up to its first question
    harness.master.active = [stays]
    await harness.due_notifier.notify([("payroll", 3)], afresh=True)
    await telling
    assert stays.id in harness.stores["one"].hinted


async def test_a_store_that_does_not_answer_passes_its_turn_on() -> None:
    harness = LeaderHarness()
    harness.master.active = [a_bucket("one"), a_bucket("two"), a_bucket("nowhere")]
    harness.master.due = [DueGroup("default", 3)]
    harness.stores["one"].failure = Unavailable("away")
    await harness.periodic_task.tick()
    await harness.second()
    assert len(harness.stores["two"].hinted) == 1


async def test_a_silent_store_delays_neither_the_leader_nor_the_owners_of_other_stores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(due_notifier, "HINT_SECONDS", 0.01)
    harness = LeaderHarness()
    healthy = [a_bucket("two") for _ in range(2)]
    harness.master.active = [*(a_bucket("one") for _ in range(30)), *healthy]
    harness.master.due = [DueGroup("default", 3)]
    harness.stores["one"].silent = True
    await harness.periodic_task.tick()
    harness.clock.now += 1.0
    assert await harness.periodic_task.tick() == 1.0, "the tick that renews the leader's lease calls no store"
    assert harness.stores["one"].calls == 0
    for _ in range(5):
        await harness.second()
    assert harness.stores["one"].calls == 1, "one silent call, then it is passed over"
    assert len(harness.stores["two"].hinted) == 2 * 5


async def test_a_store_gets_hints_again_once_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(due_notifier, "HINT_SECONDS", 0.01)
    monkeypatch.setattr(store_reachability, "PING_SECONDS", 0.01)
    harness = LeaderHarness()
    harness.master.active = [a_bucket("one")]
    harness.master.due = [DueGroup("default", 3)]
    harness.stores["one"].silent = True
    await harness.periodic_task.tick()
    await harness.second()
    await harness.reachability.tick()
    harness.stores["one"].silent = False
    await harness.second()
    assert harness.stores["one"].hinted == []
    await harness.reachability.tick()
    await harness.second()
    assert len(harness.stores["one"].hinted) == 1


async def test_a_full_store_is_passed_over_and_not_taken_for_silent() -> None:
    harness = LeaderHarness()
    harness.master.active = [a_bucket("one"), a_bucket("two")]
    harness.master.due = [DueGroup("default", 3)]
    harness.stores["one"].failure = OutOfMemory("full")
    await harness.periodic_task.tick()
    await harness.second()
    assert len(harness.stores["two"].hinted) == 1
    assert harness.reachability.answers("one")


async def test_a_long_maintenance_task_does_not_delay_the_leader() -> None:
    never = asyncio.Event()

    async def wait() -> None:
        await never.wait()

    harness = LeaderHarness([MaintenanceTask("long", 60.0, wait)])
    await harness.periodic_task.tick()
    assert harness.periodic_task.maintenance.kicked.is_set(), "a new leader begins with the tasks at once"
    task = asyncio.ensure_future(harness.periodic_task.maintenance.tick())
    for _ in range(5):
        assert await harness.second() == 1.0
    assert harness.master.queries == ["acquire"] + ["tick"] * 5
    assert not task.done()
    never.set()
    await task


async def test_maintenance_waits_for_the_election() -> None:
    done: list[str] = []

    async def work() -> None:
        done.append("work")

    harness = LeaderHarness([MaintenanceTask("work", 30.0, work)])
    harness.master.holder, harness.master.epoch = new_id(), 1
    await harness.periodic_task.tick()
    assert await harness.periodic_task.maintenance.tick() == IDLE_SECONDS
    assert done == []


async def test_a_rescuer_asks_for_the_buckets_as_they_are_now() -> None:
    """What was read a second ago may list the very owners that have just died."""
    harness = LeaderHarness()
    harness.master.active = [a_bucket()]
    await harness.due_notifier.notify({("default", 3)})
    alive = a_bucket("two")
    harness.master.active = [alive]
    await harness.due_notifier.notify({("default", 3)}, afresh=True)
    await harness.due_notifier.tick()
    assert harness.stores["two"].hinted == [alive.id]
    assert harness.master.queries == ["buckets", "buckets"]


async def test_due_jobs_without_an_owner_are_logged_once() -> None:
    harness = LeaderHarness()
    harness.master.due = [DueGroup("payroll", 5)]
    await harness.periodic_task.tick()
    for _ in range(5):
        await harness.second()
    assert harness.telemetry.groups_unserved == 1
    harness.master.active = [a_bucket(lane="payroll", priority=5)]
    await harness.second()
    assert harness.telemetry.groups_unserved == 0
    assert len(harness.stores["one"].hinted) == 1


async def test_one_maintenance_task_a_tick_and_a_failing_one_does_not_take_every_turn() -> None:
    done: list[str] = []

    async def work() -> None:
        done.append("work")

    async def fail() -> None:
        done.append("fail")
        raise Unavailable("away")

    harness = LeaderHarness([MaintenanceTask("fail", 60.0, fail), MaintenanceTask("work", 30.0, work)])
    await harness.periodic_task.tick()
    for second in range(62):
        await harness.second()
        try:
            await harness.periodic_task.maintenance.tick()
        except Unavailable:
            assert second in (0, 60)
    assert done == ["fail", "work", "work", "fail", "work"]


async def test_a_busy_leader_stays_within_two_queries_a_second() -> None:
    """House-keeping, hints and the bucket map together, over ten minutes; the heartbeat adds one in three seconds."""
    counted = 0

    async def query() -> None:
        nonlocal counted
        counted += 1

    harness = LeaderHarness([MaintenanceTask(name, every, query) for name, every in
                   (("a", 3600.0), ("b", 60.0), ("c", 30.0), ("d", 30.0), ("e", 60.0))])  # fmt: skip
    harness.master.active = [a_bucket()]
    harness.master.due = [DueGroup("default", 3)]
    await harness.periodic_task.tick()
    for _ in range(600):
        await harness.second()
        await harness.periodic_task.maintenance.tick()
    failure_detector = 600 / Leases().lease_seconds
    heartbeat = 600 / Leases().renew_seconds
    assert (len(harness.master.queries) + counted + heartbeat + failure_detector) / 600 < 2.0
