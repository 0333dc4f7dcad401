"""The map of buckets by its changes: a reader that continues from a version knows what a reader of the whole map knows."""

from __future__ import annotations

import asyncio
from uuid import UUID

from jobmaster.clock import new_id
from jobmaster.model.bucket import BucketState
from jobmaster.model.bucket_map import BucketMap, MapChanges, OwnerTraits
from jobmaster.model.ids import Fence
from tests.integration.postgres.fixture import MasterFixture, uuids
from tests.support.patience import PATIENCE_SECONDS

PLAIN = OwnerTraits(frozenset(), 1.0)


class Reader:
    """A producer that keeps the map."""

    def __init__(self, db: MasterFixture) -> None:
        self.db = db
        self.map = BucketMap()

    async def read(self) -> MapChanges:
        """What has changed; the reader keeps it."""
        changes = await self.db.master.queries.bucket_map(self.map.version)
        self.map.take(changes)
        return changes

    async def agrees(self) -> None:
        await self.read()
        whole = BucketMap()
        whole.take(await self.db.master.queries.bucket_map(None))
        assert self.map.buckets == whole.buckets
        assert self.map.agents == whole.agents

    async def settled(self) -> MapChanges:
        """Until nothing is sent again: no other transaction of the server runs, such as one of autovacuum."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (changes := await self.read()).buckets or changes.owners or changes.whole:
                pass  # each look is a round trip to the server
        return changes

    def state(self, fence: Fence) -> BucketState | None:
        bucket = self.map.buckets.get(fence.bucket_id)
        return None if bucket is None else bucket.state


async def retire(db: MasterFixture, fence: Fence) -> None:
    for to in (BucketState.COMPLETING, BucketState.READY_TO_DELETE):
        assert await db.master.buckets.move_bucket(*fence, to, "test")


async def test_the_whole_map_is_sent_once_and_then_what_has_changed(db: MasterFixture) -> None:
    reader = Reader(db)
    others = [await db.bucket() for _ in range(20)]
    first = await reader.read()
    assert first.whole
    assert {bucket.id for bucket in first.buckets} == {db.fence.bucket_id, *(fence.bucket_id for fence in others)}
    assert reader.map.agents == {db.owner: PLAIN}
    await reader.settled()
    assert await db.master.buckets.move_bucket(*others[3], BucketState.COMPLETING, "test")
    new = await db.bucket()
    second = await reader.read()
    assert not second.whole
    assert {bucket.id for bucket in second.buckets} == {others[3].bucket_id, new.bucket_id}
    assert reader.state(others[3]) is BucketState.COMPLETING
    await reader.agrees()
    await db.sql.execute("UPDATE bucket SET state = 'FROZEN' WHERE id = $1", UUID(bytes=new.bucket_id))
    await reader.read()
    assert reader.state(new) is BucketState.FROZEN, "changed by a statement that knows nothing of the map"
    await db.sql.execute("UPDATE bucket SET former_owner = owner, changed_at = now()")
    assert (await reader.settled()).version == (await reader.read()).version


async def test_a_change_that_is_committed_after_a_later_one_is_not_passed_over(db: MasterFixture) -> None:
    """Step by step: a transaction closes a bucket; a later one closes another and commits; a producer reads; the first one
    commits.

    A reader that continues from the highest number it has seen never hears of the first bucket.
    """
    other, reader = await db.bucket(), Reader(db)
    await reader.settled()
    args = (*uuids([db.fence.bucket_id]), 1, *uuids([db.owner]), ["ACTIVE"], "COMPLETING", "test")
    async with db.open_transaction("buckets/move", *args) as commit:
        assert await db.master.buckets.move_bucket(*other, BucketState.COMPLETING, "test")
        between = await reader.read()
        assert (reader.state(db.fence), reader.state(other)) == (BucketState.ACTIVE, BucketState.COMPLETING)
        highest = await db.sql.fetchval("SELECT max(changed_xid) + 1 FROM bucket")
        await commit()
    from_highest = await db.master.queries.bucket_map(between.version._replace(horizon=highest))
    assert not from_highest.whole
    assert db.fence.bucket_id not in {bucket.id for bucket in from_highest.buckets}, (
        "so the order was the dangerous one"
    )
    await reader.read()
    assert reader.state(db.fence) is BucketState.COMPLETING
    await reader.agrees()


async def test_a_version_goes_no_further_than_the_last_change(db: MasterFixture) -> None:
    """Numbers of transactions that leave nothing in the log are assigned again after a crash: a change under one of them
    would pass for an old one."""
    reader = Reader(db)
    known = (await reader.settled()).version
    for _ in range(10):
        await db.sql.fetchval("SELECT pg_current_xact_id()")
    assert (await reader.settled()).version == known
    assert known.horizon == await db.sql.fetchval(
        "SELECT greatest((SELECT max(changed_xid) FROM bucket), (SELECT max(changed_xid) FROM agent)) + 1"
    )


async def test_while_another_transaction_runs_changes_are_sent_again_and_none_is_missed(db: MasterFixture) -> None:
    reader = Reader(db)
    await reader.settled()
    holder = await db.connect()
    async with holder.transaction():
        await holder.fetchval("SELECT pg_current_xact_id()")
        fences = [await db.bucket() for _ in range(3)]
        for fence in fences:
            await reader.read()
            assert reader.state(fence) is BucketState.ACTIVE
            await retire(db, fence)
        again = await reader.read()
        assert {fence.bucket_id for fence in fences} <= {bucket.id for bucket in again.buckets}
        assert [reader.state(fence) for fence in fences] == [None] * 3
    await holder.close()
    await reader.settled()
    await reader.agrees()


async def test_a_reader_that_has_missed_the_end_of_a_deleted_bucket_reads_the_whole_map(db: MasterFixture) -> None:
    stays, early, late = await db.bucket(), Reader(db), Reader(db)
    await early.settled()
    await retire(db, db.fence)
    await late.settled()
    await db.master.buckets.drop_bucket(db.fence.bucket_id)
    assert not (await late.read()).whole, "it has seen the end"
    assert early.state(db.fence) is BucketState.ACTIVE
    assert (await early.read()).whole
    assert (early.state(db.fence), early.state(stays)) == (None, BucketState.ACTIVE)
    await late.settled()
    await early.settled()


async def test_a_reader_that_has_missed_the_end_of_a_forgotten_agent_reads_the_whole_map(db: MasterFixture) -> None:
    gone = await db.agent(new_id())
    early, late = Reader(db), Reader(db)
    await early.settled()
    assert await db.master.members.end_agent(gone, dead=False, reason="test")
    await late.settled()
    await db.sql.execute("DELETE FROM agent WHERE id = $1", UUID(bytes=gone))
    assert not (await late.read()).whole
    assert (await early.read()).whole
    assert early.map.agents == late.map.agents == {db.owner: PLAIN}


async def test_a_version_of_another_server_is_not_continued(db: MasterFixture) -> None:
    reader = Reader(db)
    known = (await reader.settled()).version
    for foreign in (
        known._replace(server=known.server + 1),
        known._replace(horizon=known.horizon + (1 << 40)),
        known._replace(horizon=-1),
    ):
        changes = await db.master.queries.bucket_map(foreign)
        assert changes.whole
        assert changes.version.server == known.server


async def test_a_dump_from_a_server_with_more_transactions_is_read_as_a_whole_until_a_bucket_is_deleted(
    db: MasterFixture,
) -> None:
    reader, gone = Reader(db), await db.bucket()
    await reader.settled()
    await db.sql.execute("UPDATE bucket_map_floor SET xid = 1::bigint << 60")
    assert (await reader.read()).whole
    assert (await reader.read()).whole
    await retire(db, gone)
    await db.master.buckets.drop_bucket(gone.bucket_id)
    await reader.settled()
    await reader.agrees()


async def test_owners_that_are_alike_come_together_and_those_that_have_ended_leave(db: MasterFixture) -> None:
    reader = Reader(db)
    same = [await db.agent(new_id()) for _ in range(3)]
    changes = await reader.read()
    assert [(set(agents), traits) for agents, traits in changes.owners] == [({db.owner, *same}, PLAIN)]
    await reader.settled()
    for agent in (db.owner, *same):
        await db.master.members.renew(agent, 30.0)
    assert not (await reader.read()).owners, "a renewal changes nothing"
    await db.sql.execute("UPDATE agent SET share = 2.5, handlers = '{a,b}' WHERE id = $1", UUID(bytes=same[0]))
    await db.sql.execute("UPDATE agent SET capabilities = '{later}' WHERE id = $1", UUID(bytes=same[1]))
    await db.master.members.announce_stopping(same[2])
    await reader.read()
    assert reader.map.agents == {
        db.owner: PLAIN,
        same[0]: OwnerTraits(frozenset({"a", "b"}), 2.5),
        same[1]: OwnerTraits(frozenset(), 1.0, frozenset({"later"})),
        same[2]: PLAIN,
    }
    assert await db.master.members.end_agent(same[2], dead=True, reason="test")
    await reader.read()
    assert same[2] not in reader.map.agents
    await reader.agrees()
