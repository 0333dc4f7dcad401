"""Leader election, hints, anti-entropy and maintenance tasks on real servers."""

from __future__ import annotations

import asyncio

import msgspec
import redis.asyncio

from jobmaster.clock import SystemClock, new_id
from jobmaster.model.ids import text
from jobmaster.model.job import NewJob
from jobmaster.ports import ReplyStatus
from jobmaster.rules.lease import term
from jobmaster.settings.model import ClusterSettings, Leases
from jobmaster_agents.buckets.anti_entropy import AntiEntropy, _Watch
from jobmaster_agents.event_log import EventLog
from jobmaster_agents.leader.due_notifier import DueNotifier
from jobmaster_agents.leader.leader import Leader
from jobmaster_agents.leader.maintenance import ClusterMaintenance
from jobmaster_agents.state.ownership import OwnedBucket
from tests.integration.agents.fixture import PRIORITY, DrivenCluster, Participant
from tests.support.hand_clock import HandClock


class Candidate:
    """An agent that may lead."""

    def __init__(self, agent: Participant, leases: Leases | None = None) -> None:
        self.agent = agent
        self.overdue = 0
        self.due_notifier = DueNotifier(
            agent.master.queries, agent.stores, agent.reachability, SystemClock(), agent.telemetry, map_seconds=10.0
        )
        self.task = Leader(
            agent.ownership,
            agent.master.leadership,
            self.due_notifier,
            [],
            leases or Leases(),
            SystemClock(),
            self.count,
            agent.telemetry,
            EventLog(),
            weight=1,
            horizon_seconds=300.0,
        )

    def count(self) -> None:
        self.overdue += 1


# ---------------------------------------------------------------- election


class Remembered:
    """What the owner has in memory."""

    def __init__(self, ids: set[bytes]) -> None:
        self._ids = ids

    def tokens_of(self, bucket_id: bytes) -> dict[bytes, int]:
        return dict.fromkeys(self._ids, 1 << 30)

    def settled_of(self, bucket_id: bytes) -> set[tuple[bytes, int]]:
        return set()


async def test_one_leads_the_other_waits_and_a_resignation_hands_over_with_a_new_epoch(driven: DrivenCluster) -> None:
    first, second = Candidate(await driven.agent()), Candidate(await driven.agent())
    await first.task.tick()
    await second.task.tick()
    assert first.task.epoch is not None
    assert second.task.epoch is None
    await first.task.tick()
    await first.task.resign()
    second.task.on_leader_seen((await second.agent.master.members.renew(second.agent.agent_id, 600.0)).leader)
    await second.task.tick()
    assert second.task.epoch is not None
    assert second.task.epoch > 1


async def test_a_leader_that_slept_through_its_lease_finds_its_successor(driven: DrivenCluster) -> None:
    leases = Leases(leader_lease_seconds=0.4, leader_renew_seconds=0.1)
    sleeper, successor = Candidate(await driven.agent(), leases), Candidate(await driven.agent(), leases)
    await sleeper.task.tick()
    epoch = sleeper.task.epoch
    while successor.task.epoch is None:
        successor.task.on_leader_seen(None)
        await successor.task.tick()
        await asyncio.sleep(0.02)
    await sleeper.task.tick()
    assert sleeper.task.epoch is None
    assert epoch is not None
    assert successor.task.epoch > epoch


async def test_a_dead_leader_is_replaced_at_once(driven: DrivenCluster) -> None:
    first, second = Candidate(await driven.agent()), Candidate(await driven.agent())
    await first.task.tick()
    await second.task.tick()
    await first.agent.die()
    second.task.on_vacancy()
    await second.task.tick()
    assert second.task.epoch is not None


async def test_only_the_owner_of_a_matching_bucket_gets_a_hint(driven: DrivenCluster) -> None:
    owner, other, leader = await driven.owner(), await driven.owner(), Candidate(await driven.agent())
    jobs = [NewJob(new_id(), PRIORITY, owner.lane, "work", b"{}", b"", 0)]
    await owner.master.intake.insert_held(jobs)
    await leader.task.tick()
    await leader.task.tick()
    await leader.due_notifier.tick()
    assert (await owner.store.claim(owner.fence, "one", 10)).hint
    assert not (await other.store.claim(other.fence, "one", 10)).hint
    assert leader.agent.telemetry.hints == 1


async def test_an_overdue_lease_is_seen_by_the_leader(driven: DrivenCluster) -> None:
    leader = Candidate(await driven.agent())
    await leader.task.tick()
    await leader.task.tick()
    assert leader.overdue == 0
    await driven.agent(lease_seconds=0.01)
    while not leader.overdue:
        await leader.task.tick()


# ---------------------------------------------------------------- anti-entropy


async def test_a_row_marked_and_never_put_comes_back_and_its_neighbours_stay(driven: DrivenCluster) -> None:
    owner = await driven.owner()
    lost = await owner.mark(2)
    put = await owner.onboard(3)
    claimed = await owner.claim("one", 2)
    in_memory = {claimed[0].id}  # the other one's reply was lost: it is in a claimed list, and nowhere else
    clock = HandClock()
    owner.ownership.trust(term(clock.now, 1e6))
    owned = OwnedBucket(owner.fence, owner.lane, PRIORITY, "default")
    owner.ownership.add(owned)
    adopted: list[bytes] = []

    async def adopt(bucket_id: bytes) -> None:
        adopted.append(bucket_id)

    task = AntiEntropy(
        owner.ownership,
        owner.master.onboarding,
        owner.store,
        Remembered(in_memory),
        adopt,
        lambda job_ids: set(),
        clock,
        owner.telemetry,
        EventLog(),
        every_seconds=30.0,
    )
    watch = _Watch(0.0)
    await task.compare(owned, watch)
    clock.now += 30.0
    await task.compare(owned, watch)
    found = await driven.jobs()
    assert {job_id: found[job_id][0] for job_id in found} == {
        **{entry.id: "HELD" for entry in lost},
        **dict.fromkeys(put, "ASSIGNED"),
    }
    assert adopted == [owner.fence.bucket_id] * 2
    assert owner.telemetry.rows_released == 2


# ---------------------------------------------------------------- tasks


def maintenance_of(agent: Participant, kicks: list[int], tombstone_seconds: float = 0.02) -> ClusterMaintenance:
    leases = Leases(tombstone_seconds=tombstone_seconds, bucket_map_seconds=0.001)
    return ClusterMaintenance(
        agent.agent_id,
        agent.master,
        agent.stores,
        agent.reachability,
        ClusterSettings(leases=leases),
        lambda: kicks.append(1),
        agent.telemetry,
        EventLog(),
    )


async def test_a_drained_bucket_is_forgotten_in_store_and_master(driven: DrivenCluster) -> None:
    owner, keeper = await driven.owner(), await driven.agent()
    await owner.submit(3)
    await owner.die()
    await keeper.rescue().tick()
    maintenance = maintenance_of(keeper, [])
    while await driven.rows("SELECT FROM bucket WHERE id = $1", text(owner.fence.bucket_id)):
        await maintenance.forget_buckets()
    assert owner.fence.bucket_id not in await keeper.store.known_buckets()
    assert len(await driven.jobs()) == 3


async def test_a_fresh_tombstone_stays(driven: DrivenCluster) -> None:
    owner, keeper = await driven.owner(), await driven.agent()
    await owner.die()
    await keeper.rescue().tick()
    await maintenance_of(keeper, [], tombstone_seconds=600.0).forget_buckets()
    assert (await driven.bucket_state(owner.fence.bucket_id))[0] == "READY_TO_DELETE"


async def test_jobs_in_a_bucket_the_master_has_forgotten_run_again(driven: DrivenCluster) -> None:
    owner, keeper = await driven.owner(), await driven.agent()
    submitted = await owner.submit(4)
    await owner.claim("one", 2)
    await driven.rows("DELETE FROM bucket WHERE id = $1", text(owner.fence.bucket_id))
    await owner.die()
    kicks: list[int] = []
    await maintenance_of(keeper, kicks).resurrected.resurrect()
    assert kicks == [1]
    await keeper.rescue().tick()
    found = await driven.jobs()
    assert {job_id: found[job_id][0] for job_id in submitted} == dict.fromkeys(submitted, "HELD")
    assert (await owner.store.claim(owner.fence, "two", 10)).status is ReplyStatus.FENCED


async def test_jobs_in_a_claimed_list_whose_name_the_store_has_lost_run_again(driven: DrivenCluster) -> None:
    """A rescue goes by names: it passes over them, and the bucket is retired and forgotten around its jobs."""
    owner, keeper = await driven.owner(), await driven.agent()
    submitted = await owner.submit(4)
    await owner.claim("one", 3)
    keys = keeper.store.keys.bucket(owner.fence.bucket_id)
    async with redis.asyncio.Redis.from_url(driven.store_url) as raw:
        await raw.delete(keys.lists)
    await owner.die()
    await keeper.rescue().tick()
    kicks: list[int] = []
    maintenance = maintenance_of(keeper, kicks)
    while await driven.rows("SELECT FROM bucket WHERE id = $1", text(owner.fence.bucket_id)):
        await maintenance.forget_buckets()
    assert len(await driven.jobs()) == 1, "three of them are known to the store only"
    await maintenance.resurrected.resurrect()
    assert kicks == [1]
    await keeper.rescue().tick()
    found = await driven.jobs()
    assert {job_id: found[job_id][0] for job_id in submitted} == dict.fromkeys(submitted, "HELD")
    while await driven.rows("SELECT FROM bucket WHERE id = $1", text(owner.fence.bucket_id)):
        await maintenance.forget_buckets()
    assert owner.fence.bucket_id not in await keeper.store.known_buckets()


async def test_a_resurrected_bucket_is_lost_at_once_and_above_every_epoch_it_ever_had(driven: DrivenCluster) -> None:
    """It was rescued and dropped before the store was rolled back; its new owner may be interrupted right after."""
    owner, keeper = await driven.owner(), await driven.agent()
    submitted = await owner.submit(2)
    bucket_id = owner.fence.bucket_id
    await owner.die()
    taken = await keeper.master.rescue.take_lost(keeper.agent_id, ["default"], {})
    assert taken is not None
    await driven.rows("DELETE FROM bucket WHERE id = $1", text(bucket_id))
    again = msgspec.structs.replace(taken, owner=keeper.agent_id)
    assert await keeper.master.buckets.resurrect_bucket(again, "the test")
    assert not await keeper.master.buckets.resurrect_bucket(again, "the test")
    rows = await driven.rows("SELECT state, epoch FROM bucket WHERE id = $1", text(bucket_id))
    assert [(row["state"], row["epoch"]) for row in rows] == [("LOST", taken.epoch + 1)]
    await keeper.rescue().tick()
    found = await driven.jobs()
    assert {job_id: found[job_id][0] for job_id in submitted} == dict.fromkeys(submitted, "HELD")


async def test_orphaned_rows_expired_jobs_and_partitions_are_looked_after(driven: DrivenCluster) -> None:
    owner, keeper = await driven.owner(), await driven.agent()
    await owner.submit(2)
    await owner.persist(await owner.claim("one", 2))
    await driven.rows("DELETE FROM bucket WHERE id = $1", text(owner.fence.bucket_id))
    assert await keeper.master.maintenance.return_orphans(0.0, 100, max_rescues=3) == (2, 2, 0)
    assert {state for state, _, _ in (await driven.jobs()).values()} == {"HELD"}
    maintenance = maintenance_of(keeper, [])
    for task in maintenance.tasks():
        await task.run()
