"""Evidence of a fault is recorded, and freezes buckets where the configuration says so."""

from __future__ import annotations

import pytest

from jobmaster.clock import new_id
from jobmaster.doctor.findings import CheckStatus
from jobmaster.doctor.life import suspicion_finding
from jobmaster.settings.model import OnSuspicion, Safety
from jobmaster_agents.buckets.refusal_watch import LOOK_SECONDS, RefusalWatch
from jobmaster_agents.event_log import EventLog
from jobmaster_agents.leader.suspicion_watch import SuspicionWatch
from jobmaster_agents.state.ownership import OwnedBucket
from jobmaster_agents.state.suspicions import Suspicions
from tests.integration.agents.fixture import DrivenCluster, Owner
from tests.support.hand_clock import HandClock


def _watch(owner: Owner, rule: OnSuspicion) -> SuspicionWatch:
    return SuspicionWatch(owner.master, Safety(on_suspicion=rule), Suspicions(owner.master, rule, EventLog()))


async def _noted(driven: DrivenCluster) -> list[str]:
    rows = await driven.rows(
        "SELECT detail ->> 'kind' AS kind FROM operator_log WHERE action = 'suspicion' ORDER BY seq"
    )
    return [row["kind"] for row in rows]


async def _another_owner_acts(driven: DrivenCluster, owner: Owner) -> None:
    await driven.rows(
        "INSERT INTO bucket_event (bucket_id, to_state, epoch, actor, reason) VALUES ($1, 'ACTIVE', 1, $2, 'test')",
        owner.fence.bucket_id.hex(),
        new_id().hex(),
    )


@pytest.mark.parametrize("rule", [OnSuspicion.WARN, OnSuspicion.FREEZE])
async def test_two_owners_of_an_epoch_are_recorded_once_and_freeze_that_bucket_alone(
    driven: DrivenCluster, rule: OnSuspicion
) -> None:
    owner, other = await driven.owner(), await driven.owner()
    watch = _watch(owner, rule)
    await watch.look()
    assert await _noted(driven) == [], "an ordinary life of a bucket is not suspicious"
    await _another_owner_acts(driven, owner)
    await watch.look()
    await watch.look()
    assert await _noted(driven) == ["two_owners"]
    freezes = rule is OnSuspicion.FREEZE
    assert await driven.bucket_state(owner.fence.bucket_id) == ("FROZEN" if freezes else "ACTIVE", 1)
    assert await driven.bucket_state(other.fence.bucket_id) == ("ACTIVE", 1)
    status, detail = await driven.finding(suspicion_finding)
    assert status is CheckStatus.WARN
    assert "two_owners" in detail
    assert detail.endswith("(its buckets were frozen)") is freezes
    if freezes:
        (event,) = await driven.rows("SELECT reason FROM bucket_event WHERE to_state = 'FROZEN'")
        assert event["reason"].startswith("frozen by jobmaster: two_owners: agent ")


async def test_a_store_that_loses_buckets_again_and_again_is_frozen_and_an_operator_is_not_opposed(
    driven: DrivenCluster,
) -> None:
    owner = await driven.owner()
    watch = _watch(owner, OnSuspicion.FREEZE)
    lose = """
        INSERT INTO store_loss (bucket_id, epoch, store, at, at_risk, salvaged, reason)
        SELECT gen_random_uuid(), 1, 'default', clock_timestamp() - make_interval(secs => $1 * n), 1, 0, 'ROLLBACK'
        FROM generate_series(1, 3) AS n
    """
    await driven.rows(lose, 0.0)
    await watch.look()
    assert await _noted(driven) == [], "one loss of all buckets of a store is repaired"
    await driven.rows(lose, 61.0)
    await watch.look()
    assert await _noted(driven) == ["store_losses"]
    assert await driven.bucket_state(owner.fence.bucket_id) == ("FROZEN", 1)
    await owner.master.buckets.unfreeze(None, None, "ann", "looked at it")
    await watch.look()
    assert await driven.bucket_state(owner.fence.bucket_id) == ("ACTIVE", 2)


async def test_a_burst_of_refused_outcomes_freezes_the_buckets_of_that_agent(driven: DrivenCluster) -> None:
    owner, other = await driven.owner(), await driven.owner()
    (bucket,) = await owner.master.buckets.owned_buckets(owner.agent_id)
    owner.ownership.add(OwnedBucket.of(bucket))
    refused, clock = 0, HandClock()
    suspicions = Suspicions(owner.master, OnSuspicion.FREEZE, EventLog())
    watch = RefusalWatch(owner.ownership, suspicions, lambda: refused, Safety(refused_outcomes=100), clock)
    for _ in range(30):  # 80 in a minute
        await watch.tick()
        refused += 13
        clock.now += LOOK_SECONDS
    assert await _noted(driven) == []
    refused += 80
    await watch.tick()
    assert await _noted(driven) == ["refused_outcomes"]
    assert await driven.bucket_state(owner.fence.bucket_id) == ("FROZEN", 1)
    assert await driven.bucket_state(other.fence.bucket_id) == ("ACTIVE", 1)
