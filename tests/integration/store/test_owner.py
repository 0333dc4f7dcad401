"""What an owner may do: open, claim, settle, assign, keep outcomes, re-read, close."""

from __future__ import annotations

import asyncio
import os
import time

import pytest
import redis.asyncio

from jobmaster.clock import new_id
from jobmaster.codec import ID_AT, decode_entry, encode_entry
from jobmaster.model.ids import created_ms
from jobmaster.ports import ReplyStatus
from tests.integration.store.conftest import Connect
from tests.integration.store.fixture import OneBucketStore, assert_ok, make_entry, make_items, new_fence, submit
from tests.support.waiting import eventually

NEVER_US = 9 * 10**15


async def test_open_again_with_the_same_fence_keeps_what_lies_there(
    one_bucket: OneBucketStore, connect: Connect
) -> None:
    await one_bucket.submit(make_items(2))
    before = await one_bucket.contents()
    await assert_ok(one_bucket.store.open_bucket(one_bucket.fence))
    await assert_ok((await connect()).open_bucket(one_bucket.fence))
    assert await one_bucket.contents() == before


async def test_a_claim_asked_again_returns_the_same_list_and_takes_nothing(one_bucket: OneBucketStore) -> None:
    items = make_items(5)
    await one_bucket.submit(items)
    await one_bucket.store.assign(one_bucket.fence, [(NEVER_US, make_items(1)[0])])
    first = await one_bucket.store.claim(one_bucket.fence, "a", 3)
    await one_bucket.store.hint(one_bucket.bucket_id)
    request = new_id()
    await one_bucket.store.request_cancel(one_bucket.bucket_id, request)
    before = await one_bucket.contents()
    again = await one_bucket.store.claim(one_bucket.fence, "a", 100)
    assert again.raw == first.raw == items[:3]
    assert again.remaining == 2
    assert again.next_due_us == NEVER_US
    assert not again.hint
    assert again.cancelled == (request,), "a request stays until its owner has noted it"
    assert await one_bucket.contents() == before


async def test_a_claim_says_how_old_the_first_job_is_that_it_leaves_when_it_is_asked(
    one_bucket: OneBucketStore,
) -> None:
    items = make_items(3)
    await one_bucket.submit(items)
    made = [created_ms(decode_entry(item).id) * 1000 for item in items]
    assert (await one_bucket.store.claim(one_bucket.fence, "a", 0)).oldest_us == 0
    assert (await one_bucket.store.claim(one_bucket.fence, "a", 0, oldest=True)).oldest_us == made[0]
    assert (await one_bucket.store.claim(one_bucket.fence, "b", 2, oldest=True)).oldest_us == made[2]
    assert (await one_bucket.store.claim(one_bucket.fence, "c", 2, oldest=True)).oldest_us == 0, "none is left"


async def test_a_claim_that_comes_late_does_not_make_a_list_that_was_deleted_anew(one_bucket: OneBucketStore) -> None:
    """It was asked twice, because no answer came; the second was answered, and its list is settled when the first arrives.
    Its owner knows that list as one that may go: whatever lay in it now would go unseen."""
    items = make_items(4)
    await one_bucket.submit(items[:2])
    assert (await one_bucket.store.claim(one_bucket.fence, "me-9", 2)).raw == items[:2]
    await assert_ok(one_bucket.store.settle(one_bucket.fence, ["me-9"], []))
    await one_bucket.submit(items[2:])
    late = await one_bucket.store.claim(one_bucket.fence, "me-9", 2)
    assert (late.status, late.raw, late.remaining) == (ReplyStatus.OK, [], 2)
    assert (await one_bucket.store.claim(one_bucket.fence, "me-8", 2)).raw == []
    assert (await one_bucket.store.claim(one_bucket.fence, "me-10", 2)).raw == items[2:]
    assert (await one_bucket.store.claim(one_bucket.fence, "me-10", 9)).raw == items[2:], (
        "its list is there: the same again"
    )


async def test_a_claim_takes_the_due_first_and_the_oldest_of_them(one_bucket: OneBucketStore) -> None:
    waiting, due, later = make_items(3), make_items(3), make_items(1)
    await one_bucket.submit(waiting)
    await one_bucket.store.assign(one_bucket.fence, [(30, due[2]), (10, due[0]), (20, due[1]), (NEVER_US, later[0])])
    first = await one_bucket.store.claim(one_bucket.fence, "a", 2)
    assert first.raw == due[:2]
    assert first.next_due_us == 30
    second = await one_bucket.store.claim(one_bucket.fence, "b", 10)
    assert second.raw == [due[2], *waiting]
    assert second.next_due_us == NEVER_US
    assert second.now_us < NEVER_US
    assert (await one_bucket.store.claim(one_bucket.fence, "c", 10)).raw == []


class Ages:
    """Entries of jobs that were made one millisecond after the other, in the minute that ends now."""

    def __init__(self) -> None:
        self.ms = time.time_ns() // 1_000_000 - 60_000

    def next(self) -> bytes:
        self.ms += 1
        return encode_entry(make_entry(self.ms.to_bytes(6, "big") + os.urandom(10)))


async def test_pending_and_assigned_share_a_claim_by_age(one_bucket: OneBucketStore) -> None:
    ages = Ages()
    items = [ages.next() for _ in range(9)]
    await one_bucket.submit(items[::3])
    await one_bucket.store.assign(one_bucket.fence, [(0, item) for item in items[1::3]])
    due_us = (ages.ms - 1000) * 1000
    await one_bucket.store.assign(
        one_bucket.fence, [(due_us, items[2]), *((ages.ms * 1000, item) for item in items[5::3])]
    )
    first = await one_bucket.store.claim(one_bucket.fence, "a", 4)
    assert first.raw == [items[2], items[0], items[1], items[3]], "what was due before all others were made comes first"
    assert first.remaining == 1
    assert 0 < first.next_due_us < first.now_us
    second = await one_bucket.store.claim(one_bucket.fence, "b", 9)
    assert second.raw == [items[4], items[6], items[7], *sorted((items[5], items[8]))]
    assert await one_bucket.field("bytes") == b"0"


@pytest.mark.parametrize("starved", ["pending", "assigned"])
async def test_a_lasting_stream_into_one_keeps_nothing_waiting_in_the_other(
    one_bucket: OneBucketStore, starved: str
) -> None:
    """Twelve jobs come for every ten that are claimed. A job of the other kind waits for the older ones and for no other."""
    ages = Ages()

    async def put(kind: str, items: list[bytes]) -> None:
        if kind == "pending":
            assert (await one_bucket.submit(items)).status is ReplyStatus.OK
        else:
            await assert_ok(one_bucket.store.assign(one_bucket.fence, [(0, item) for item in items]))

    stream = {"pending": "assigned", "assigned": "pending"}[starved]
    older = taken = 0
    for number in range(20):
        await put(stream, [ages.next() for _ in range(12)])
        older += 12
        taken += len((await one_bucket.store.claim(one_bucket.fence, f"before-{number + 1}", 10)).raw)
    one = ages.next()
    await put(starved, [one])
    position = older - taken
    for number in range(position // 10 + 1):
        await put(stream, [ages.next() for _ in range(12)])
        claimed = (await one_bucket.store.claim(one_bucket.fence, f"after-{number + 100}", 10)).raw
    assert one in claimed


@pytest.mark.parametrize("lie_in", ["pending", "assigned", "both"])
async def test_a_claim_is_cut_by_its_bytes_and_takes_one_at_least(one_bucket: OneBucketStore, lie_in: str) -> None:
    items = make_items(300, size=1000)
    if lie_in == "pending":
        await one_bucket.submit(items)
    else:
        await one_bucket.store.assign(one_bucket.fence, [(0, item) for item in items[:: 2 if lie_in == "both" else 1]])
        if lie_in == "both":
            await one_bucket.submit(items[1::2])
    size = len(items[0])
    assert len({len(item) for item in items}) == 1
    taken: list[bytes] = []
    for number, count in enumerate((1, 1, 3, 200, 95)):
        bytes_max = count * size if number else 1
        answer = await one_bucket.store.claim(one_bucket.fence, f"me-{number + 1}", 1000, bytes_max)
        assert len(answer.raw) == count
        taken += answer.raw
        lying = await one_bucket.field("bytes")
        assert int(lying or 0) == answer.remaining * size
    assert sorted(taken) == sorted(items)
    assert (await one_bucket.store.claim(one_bucket.fence, "me-9", 1000)).raw == []


async def test_the_reply_of_a_cut_claim_shows_that_more_is_due(one_bucket: OneBucketStore) -> None:
    await one_bucket.store.assign(one_bucket.fence, [(1, item) for item in make_items(2, size=1000)])
    answer = await one_bucket.store.claim(one_bucket.fence, "a", 10, 1500)
    assert len(answer.raw) == 1
    assert 0 < answer.next_due_us <= answer.now_us


async def test_an_agent_of_an_earlier_build_may_leave_the_bound_out(one_bucket: OneBucketStore) -> None:
    items = make_items(9, size=1000)
    await one_bucket.submit(items)
    keys, store = one_bucket.store.keys.bucket(one_bucket.bucket_id), one_bucket.store
    claim = (keys.meta, keys.pending, keys.assigned, keys.claimed("a"), keys.lists, keys.cancelled)
    answer = await store._calls.function(b"jm2_claim", claim, (*store._fences.arguments(one_bucket.fence), 5, b"a"))
    assert answer[7] == items[:5]
    kept = await store._calls.function(
        b"jm2_read_kept", (keys.meta, keys.kept), (*store._fences.arguments(one_bucket.fence), 5)
    )
    assert kept[3] == []


async def test_pages_are_cut_by_their_bytes(one_bucket: OneBucketStore) -> None:
    items, due, later = make_items(6, size=1000), make_items(3, size=1000), make_items(4, size=1000)
    await one_bucket.submit(items)
    await one_bucket.store.claim(one_bucket.fence, "a", 3)
    await one_bucket.store.assign(one_bucket.fence, [(NEVER_US, item) for item in (*due, *later)])
    outcomes = [bytes(1000) for _ in range(5)]
    await assert_ok(one_bucket.store.keep_outcomes(one_bucket.fence, outcomes, []))
    assert (await one_bucket.store.read_kept(one_bucket.fence, 100, 2500)).raw == outcomes[:2]
    assert (await one_bucket.store.read_kept(one_bucket.fence, 100, 1)).raw == outcomes[:1]
    await assert_ok(one_bucket.store.close_intake(one_bucket.fence))
    read: list[tuple[str, int]] = []
    while (page := await one_bucket.store.read_page(one_bucket.fence, 100, 2500)).kind:
        read.append((page.kind, len(page.raw)))
        await assert_ok(one_bucket.store.remove_page(one_bucket.fence, page))
    sizes = {kind: [count for found, count in read if found == kind] for kind, _ in read}
    assert sizes == {"kept": [2, 2, 1], "claimed": [2, 1], "pending": [2, 1], "assigned": [2, 2, 2, 1]}


async def test_a_claim_of_nothing_leaves_no_trace(one_bucket: OneBucketStore) -> None:
    await one_bucket.store.assign(one_bucket.fence, [(NEVER_US, make_items(1)[0])])
    before = await one_bucket.contents()
    claimed = await one_bucket.store.claim(one_bucket.fence, "a", 100)
    assert (claimed.status, claimed.raw) == (ReplyStatus.OK, [])
    assert await one_bucket.contents() == before


async def test_a_claimed_list_lies_there_until_it_is_settled(one_bucket: OneBucketStore) -> None:
    items = make_items(4)
    await one_bucket.submit(items)
    await one_bucket.store.claim(one_bucket.fence, "a", 2)
    await one_bucket.store.claim(one_bucket.fence, "b", 2)
    assert await one_bucket.store.claimed_lists(one_bucket.fence) == (ReplyStatus.OK, ["a", "b"])
    assert (await one_bucket.store.read_claimed(one_bucket.fence, "b")).raw == items[2:]
    await assert_ok(one_bucket.store.settle(one_bucket.fence, ["a"], []))
    assert await one_bucket.store.claimed_lists(one_bucket.fence) == (ReplyStatus.OK, ["b"])
    assert (await one_bucket.store.read_claimed(one_bucket.fence, "a")).raw == []
    version = await one_bucket.field("ver")
    await assert_ok(one_bucket.store.settle(one_bucket.fence, ["a"], []))
    assert await one_bucket.field("ver") == version


async def test_settle_publishes_the_finished_even_with_a_superseded_fence(one_bucket: OneBucketStore) -> None:
    ids = [new_id() for _ in range(3)]
    news = one_bucket.store.finished()
    assert await anext(news) == b""
    await assert_ok(one_bucket.store.settle(one_bucket.fence, [], ids[:2]))
    superseded = one_bucket.fence._replace(epoch=0)
    assert await one_bucket.store.settle(superseded, [], ids[2:]) is ReplyStatus.FENCED
    assert [await anext(news) for _ in range(3)] == ids
    await news.aclose()  # type: ignore[attr-defined]


async def test_assigning_the_same_entry_again_changes_nothing(one_bucket: OneBucketStore) -> None:
    items = [(NEVER_US + i, item) for i, item in enumerate(make_items(1500))]
    await assert_ok(one_bucket.store.assign(one_bucket.fence, items))
    await assert_ok(one_bucket.store.assign(one_bucket.fence, items))
    (depth,) = await one_bucket.store.depths([one_bucket.bucket_id])
    assert depth is not None
    assert depth.assigned == 1500


async def test_keep_outcomes_stores_them_and_drops_their_lists_at_once(one_bucket: OneBucketStore) -> None:
    items = make_items(3)
    await one_bucket.submit(items)
    await one_bucket.store.claim(one_bucket.fence, "a", 2)
    await one_bucket.store.claim(one_bucket.fence, "b", 1)
    outcomes = [f"outcome {i}".encode() for i in range(2500)]
    await assert_ok(one_bucket.store.keep_outcomes(one_bucket.fence, outcomes, ["a", "b"]))
    (depth,) = await one_bucket.store.depths([one_bucket.bucket_id])
    assert depth is not None
    assert (depth.kept, depth.claimed_lists) == (2500, 0)
    assert await one_bucket.raw.lrange(one_bucket.store.keys.bucket(one_bucket.bucket_id).kept, 0, -1) == outcomes


async def test_after_close_intake_the_owner_goes_on_and_no_job_is_added(one_bucket: OneBucketStore) -> None:
    items = make_items(2)
    await one_bucket.submit(items)
    await assert_ok(one_bucket.store.close_intake(one_bucket.fence))
    await assert_ok(one_bucket.store.close_intake(one_bucket.fence))
    assert (await one_bucket.submit(make_items(1))).status is ReplyStatus.CLOSED
    assert await one_bucket.store.assign(one_bucket.fence, [(0, make_items(1)[0])]) is ReplyStatus.CLOSED
    assert await one_bucket.store.close_if_empty(one_bucket.fence) is ReplyStatus.NOT_EMPTY
    assert (await one_bucket.store.claim(one_bucket.fence, "a", 10)).raw == items
    assert await one_bucket.store.close_if_empty(one_bucket.fence) is ReplyStatus.NOT_EMPTY
    await assert_ok(one_bucket.store.settle(one_bucket.fence, ["a"], []))
    await assert_ok(one_bucket.store.close_if_empty(one_bucket.fence))
    await assert_ok(one_bucket.store.close_if_empty(one_bucket.fence))
    assert await one_bucket.field("state") == b"READY_TO_DELETE"


async def test_every_place_keeps_a_bucket_from_closing_and_from_being_deleted(one_bucket: OneBucketStore) -> None:
    keys = one_bucket.store.keys.bucket(one_bucket.bucket_id)
    await assert_ok(one_bucket.store.close_intake(one_bucket.fence))
    places = {
        keys.pending: one_bucket.raw.rpush,
        keys.kept: one_bucket.raw.rpush,
        keys.lists: one_bucket.raw.sadd,
    }
    for key, add in places.items():
        await add(key, b"something")
        before = await one_bucket.contents()
        assert await one_bucket.store.close_if_empty(one_bucket.fence) is ReplyStatus.NOT_EMPTY
        assert await one_bucket.store.delete_bucket(one_bucket.bucket_id) is ReplyStatus.NOT_EMPTY
        assert await one_bucket.contents() == before
        await one_bucket.raw.delete(key)
    await one_bucket.raw.zadd(keys.assigned, {b"something": 1})
    assert await one_bucket.store.close_if_empty(one_bucket.fence) is ReplyStatus.NOT_EMPTY
    assert await one_bucket.store.delete_bucket(one_bucket.bucket_id) is ReplyStatus.NOT_EMPTY
    await one_bucket.raw.delete(keys.assigned)
    await assert_ok(one_bucket.store.close_if_empty(one_bucket.fence))


async def test_a_claimed_list_that_lost_its_name_is_named_again_and_keeps_its_bucket(
    one_bucket: OneBucketStore,
) -> None:
    """No rescuer reads a list without a name: the bucket would be deleted around it, and its jobs would stay for ever."""
    items = make_items(3)
    await one_bucket.submit(items)
    await one_bucket.store.claim(one_bucket.fence, "a", 2)
    await one_bucket.store.claim(one_bucket.fence, "b", 1)
    keys = one_bucket.store.keys.bucket(one_bucket.bucket_id)
    await one_bucket.raw.delete(keys.lists)
    await one_bucket.raw.set(keys.claimed_prefix + b"of another agent", b"1")
    assert await one_bucket.store.known_lists(one_bucket.bucket_id) == ["a", "b"]
    await one_bucket.store.close_intake(one_bucket.fence)
    assert await one_bucket.store.delete_bucket(one_bucket.bucket_id, ["a", "gone"]) is ReplyStatus.NOT_EMPTY
    assert await one_bucket.raw.smembers(keys.lists) == {b"a"}
    assert await one_bucket.store.delete_bucket(one_bucket.bucket_id, ["a", "b"]) is ReplyStatus.NOT_EMPTY
    assert await one_bucket.store.claimed_lists(one_bucket.fence) == (ReplyStatus.OK, ["a", "b"])


async def test_a_deleted_bucket_leaves_no_key(one_bucket: OneBucketStore) -> None:
    await one_bucket.store.hint(one_bucket.bucket_id)
    await one_bucket.store.request_cancel(one_bucket.bucket_id, new_id())
    assert await one_bucket.store.delete_bucket(one_bucket.bucket_id) is ReplyStatus.NOT_EMPTY
    await assert_ok(one_bucket.store.close_intake(one_bucket.fence))
    await assert_ok(one_bucket.store.close_if_empty(one_bucket.fence))
    await assert_ok(one_bucket.store.delete_bucket(one_bucket.bucket_id))
    assert await one_bucket.contents() == {}
    await assert_ok(one_bucket.store.delete_bucket(one_bucket.bucket_id))


async def test_overlapping_calls_of_one_owner_never_look_like_a_rollback(one_bucket: OneBucketStore) -> None:
    await one_bucket.submit(make_items(400))

    async def work(number: int) -> None:
        claimed = await one_bucket.store.claim(one_bucket.fence, f"list_{number}", 4)
        assert claimed.status is ReplyStatus.OK
        assert len(claimed.raw) == 4
        await assert_ok(one_bucket.store.settle(one_bucket.fence, [f"list_{number}"], []))

    await asyncio.gather(*[work(number) for number in range(100)])
    (depth,) = await one_bucket.store.depths([one_bucket.bucket_id])
    assert depth is not None
    assert (depth.pending, depth.claimed_lists, depth.pending_bytes) == (0, 0, 0)


async def test_clusters_on_one_server_do_not_meet(
    connect: Connect, raw: redis.asyncio.Redis, cluster_name: str
) -> None:
    # The second name begins with the first, and a pattern or prefix that is not careful would take it for the same.
    one, other = await connect(), await connect(cluster=f"{cluster_name}-b")
    fence, items = new_fence(), make_items(2)
    await assert_ok(one.open_bucket(fence))
    assert (await submit(other, fence.bucket_id, items)).status is ReplyStatus.NO_BUCKET
    await assert_ok(other.open_bucket(fence))
    await submit(one, fence.bucket_id, items[:1])
    await submit(other, fence.bucket_id, items[1:])
    assert (await one.claim(fence, "a", 10)).entries == [decode_entry(items[0])]
    assert (await other.claim(fence, "a", 10)).entries == [decode_entry(items[1])]
    only_here = new_fence()
    await assert_ok(one.open_bucket(only_here))
    assert await one.known_buckets() == sorted([fence.bucket_id, only_here.bucket_id])
    assert await other.known_buckets() == [fence.bucket_id]
    agent = new_id()
    await one.beat(agent, 60)
    assert await raw.exists(one.keys.agent(agent))
    assert not await raw.exists(other.keys.agent(agent))


async def test_heartbeats_end_by_the_servers_clock(one_bucket: OneBucketStore) -> None:
    agents = [new_id() for _ in range(3)]
    await one_bucket.store.beat(agents[0], 60)
    await one_bucket.store.beat(agents[1], 0.001)
    key = one_bucket.store.keys.agent(agents[1])

    async def gone() -> bool:
        return not await one_bucket.raw.exists(key)

    await eventually(gone, 10, "the heartbeat that was to last a millisecond is gone")
    assert await one_bucket.raw.exists(*map(one_bucket.store.keys.agent, agents)) == 1
    assert 59_000 < await one_bucket.raw.pttl(one_bucket.store.keys.agent(agents[0])) <= 60_000


async def test_copies_of_cancelled_jobs_are_taken_out_and_noted_requests_with_them(one_bucket: OneBucketStore) -> None:
    """Many copies of one due time share a scan; a copy at another due time is none of the row's."""
    same, others = make_items(2500), make_items(3)
    await one_bucket.store.assign(one_bucket.fence, [(NEVER_US, item) for item in same])
    await one_bucket.store.assign(one_bucket.fence, [(NEVER_US + 1 + n, item) for n, item in enumerate(others)])
    noted, unread = new_id(), new_id()
    for request in (noted, unread):
        await one_bucket.store.request_cancel(one_bucket.bucket_id, request)
    out = [*(same[n] for n in (0, 1, 1234, 2499)), others[1]]
    pairs = [(NEVER_US, item[ID_AT]) for item in out[:4]] + [(NEVER_US + 2, others[1][ID_AT])]
    strangers = [(NEVER_US, new_id()), (NEVER_US + 1, others[2][ID_AT])]
    for _ in range(2):  # a repeat takes out nothing more
        status, removed = await one_bucket.store.withdraw(one_bucket.fence, [noted], pairs + strangers)
        assert status is ReplyStatus.OK
        assert removed in ({item[ID_AT] for item in out}, frozenset())
        claimed = await one_bucket.store.claim(one_bucket.fence, "look", 0)
        assert claimed.cancelled == (unread,)
        depth = (await one_bucket.store.depths([one_bucket.bucket_id]))[0]
        assert depth is not None
        assert depth.assigned == 2503 - len(out)
