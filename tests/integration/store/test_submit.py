"""What producers may do: submit, put, hint, cancel, find, depths."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from jobmaster.agentstore.entries import read_entries
from jobmaster.clock import new_id
from jobmaster.codec import ID_AT, decode_entry, encode_entry
from jobmaster.model.bucket import BucketBacklog, BucketDepth
from jobmaster.model.errors import CodeError, JobMasterError
from jobmaster.model.job import Entry
from jobmaster.ports import FIND_IDS_MAX, ReplyStatus, Submitted
from tests.integration.store.fixture import HOUR_MS, ROOM, OneBucketStore, assert_ok, make_entry, make_items, submit


async def test_a_batch_lies_in_pending_in_order(one_bucket: OneBucketStore) -> None:
    items = make_items(3)
    assert await one_bucket.submit(items) == Submitted(ReplyStatus.OK, 3)
    claimed = await one_bucket.store.claim(one_bucket.fence, "a", 10)
    assert claimed.raw == items
    assert claimed.entries == [decode_entry(item) for item in items]


async def test_counters_follow_the_batches(one_bucket: OneBucketStore) -> None:
    first, second = make_items(2, size=100), make_items(5, size=7)
    await one_bucket.submit(first)
    await one_bucket.submit(second)
    size = sum(map(len, first + second))
    assert await one_bucket.field("seq") == b"7"
    assert await one_bucket.store.depths([one_bucket.bucket_id]) == [BucketDepth(7, 0, 0, 0, size)]
    await one_bucket.store.claim(one_bucket.fence, "a", 3)
    assert await one_bucket.store.depths([one_bucket.bucket_id]) == [
        BucketDepth(4, 0, 1, 0, size - sum(map(len, (first + second)[:3])))
    ]


async def test_what_waits_is_counted_with_the_age_of_the_oldest_and_what_claims_have_taken(
    one_bucket: OneBucketStore,
) -> None:
    async def backlog() -> BucketBacklog:
        found, missing = await one_bucket.store.backlogs([one_bucket.bucket_id, new_id()])
        assert missing is None
        assert found is not None
        return found

    assert await backlog() == BucketBacklog(0, 0, 0.0, 0)
    items = make_items(4)
    await one_bucket.submit(items)
    fresh = await backlog()
    assert (fresh.pending, fresh.due, fresh.taken) == (4, 0, 0)
    assert 0.0 <= fresh.oldest_seconds < 3600.0
    now_us = (await one_bucket.store.claim(one_bucket.fence, "look", 0)).now_us
    later, due = make_items(2)
    await one_bucket.store.assign(one_bucket.fence, [(now_us + 10**9, later), (now_us - 7200 * 10**6, due)])
    found = await backlog()
    assert (found.pending, found.due) == (4, 1), "what is due later does not wait to be run"
    assert 7200.0 <= found.oldest_seconds < 10_000.0
    await one_bucket.store.claim(one_bucket.fence, "a-1", 3)
    await one_bucket.store.claim(one_bucket.fence, "a-1", 3)  # the repetition of a claim takes nothing
    found = await backlog()
    assert (found.pending, found.due, found.taken) == (2, 0, 3)
    await one_bucket.store.assign(one_bucket.fence, [(0, make_items(1)[0])])
    assert (await backlog()).due == 1


async def test_20000_jobs_go_in_and_out_in_portions(one_bucket: OneBucketStore) -> None:
    items = make_items(20_000)
    assert await one_bucket.submit(items) == Submitted(ReplyStatus.OK, 20_000)
    claimed = await one_bucket.store.claim(one_bucket.fence, "a", 20_000)
    assert claimed.raw == items
    assert claimed.remaining == 0


async def test_an_empty_batch_changes_nothing(one_bucket: OneBucketStore) -> None:
    before = await one_bucket.contents()
    assert await one_bucket.submit([]) == Submitted(ReplyStatus.OK, 0)
    assert await one_bucket.contents() == before


async def test_a_missing_bucket_is_named_so(one_bucket: OneBucketStore) -> None:
    assert await submit(one_bucket.store, new_id(), make_items(1)) == Submitted(ReplyStatus.NO_BUCKET, 0)


@pytest.mark.parametrize("state", ["COMPLETING", "DRAINING", "FROZEN", "LOST", "READY_TO_DELETE"])
async def test_only_an_active_bucket_takes_jobs(one_bucket: OneBucketStore, state: str) -> None:
    await one_bucket.force(state=state)
    before = await one_bucket.contents()
    assert (await one_bucket.submit(make_items(1))).status is ReplyStatus.CLOSED
    assert (
        await one_bucket.store.put(one_bucket.bucket_id, 1, [(0, make_items(1)[0])], **ROOM)
    ).status is ReplyStatus.CLOSED
    await one_bucket.store.hint(one_bucket.bucket_id)
    assert await one_bucket.contents() == before


async def test_the_high_water_mark_of_jobs_refuses_the_whole_batch(one_bucket: OneBucketStore) -> None:
    assert (await one_bucket.submit(make_items(8), high_water_jobs=10)).status is ReplyStatus.OK
    before = await one_bucket.contents()
    assert await one_bucket.submit(make_items(3), high_water_jobs=10) == Submitted(ReplyStatus.FULL, 8)
    assert await one_bucket.contents() == before
    assert await one_bucket.submit(make_items(2), high_water_jobs=10) == Submitted(ReplyStatus.OK, 10)


async def test_the_high_water_mark_of_bytes_refuses_the_whole_batch(one_bucket: OneBucketStore) -> None:
    items = make_items(2, size=500)
    limit = sum(map(len, items))
    assert (await one_bucket.submit(items[:1], high_water_bytes=limit)).status is ReplyStatus.OK
    before = await one_bucket.contents()
    assert (await one_bucket.submit(make_items(1, size=501), high_water_bytes=limit)).status is ReplyStatus.FULL
    assert await one_bucket.contents() == before
    assert (await one_bucket.submit(items[1:], high_water_bytes=limit)).status is ReplyStatus.OK


@pytest.mark.parametrize("hours", [-2, 2])
@pytest.mark.parametrize("place", [0, 1, 2])
async def test_an_id_of_another_time_refuses_the_whole_batch(
    one_bucket: OneBucketStore, hours: int, place: int
) -> None:
    items = make_items(3)
    entry = decode_entry(items[place])
    skewed_ms = int.from_bytes(entry.id[:6], "big") + hours * HOUR_MS
    items[place] = encode_entry(make_entry(skewed_ms.to_bytes(6, "big") + entry.id[6:]))
    before = await one_bucket.contents()
    answer = await one_bucket.submit(items)
    assert answer.status is ReplyStatus.SKEW
    assert abs(answer.skew_ms - hours * HOUR_MS) < 60_000
    assert await one_bucket.contents() == before
    assert (await one_bucket.submit(items, skew_ms_max=3 * HOUR_MS)).status is ReplyStatus.OK


@pytest.mark.parametrize(
    "bad", [b"", b"\xa3abc", b"\x98\xc4\x10short", b"\x98\xc4\x11" + b"i" * 40, b"\xdc" + b"i" * 40]
)
async def test_what_does_not_begin_with_an_id_is_our_own_fault(one_bucket: OneBucketStore, bad: bytes) -> None:
    before = await one_bucket.contents()
    with pytest.raises(CodeError, match="entry 2"):
        await one_bucket.submit([*make_items(1), bad, *make_items(1)])
    with pytest.raises(CodeError, match="pair 1"):
        await one_bucket.store.put(one_bucket.bucket_id, 1, [(0, bad)], **ROOM)
    with pytest.raises(CodeError, match="pair 1"):
        await one_bucket.store.assign(one_bucket.fence, [(0, bad)])
    assert await one_bucket.contents() == before


async def test_put_places_jobs_by_due_time(one_bucket: OneBucketStore) -> None:
    late, soon = make_items(2)
    assert (
        await one_bucket.store.put(one_bucket.bucket_id, 1, [(2, late), (1, soon)], **ROOM)
    ).status is ReplyStatus.OK
    assert (await one_bucket.store.claim(one_bucket.fence, "a", 10)).raw == [soon, late]


async def test_put_of_another_epoch_is_refused(one_bucket: OneBucketStore) -> None:
    before = await one_bucket.contents()
    assert (
        await one_bucket.store.put(one_bucket.bucket_id, 2, [(0, make_items(1)[0])], **ROOM)
    ).status is ReplyStatus.FENCED
    assert (await one_bucket.store.put(new_id(), 1, [(0, make_items(1)[0])], **ROOM)).status is ReplyStatus.NO_BUCKET
    assert await one_bucket.contents() == before


async def test_a_hint_reaches_the_next_claim_once(one_bucket: OneBucketStore) -> None:
    await one_bucket.store.hint(one_bucket.bucket_id)
    assert (await one_bucket.store.claim(one_bucket.fence, "a", 0)).hint
    assert not (await one_bucket.store.claim(one_bucket.fence, "b", 0)).hint


async def test_a_hint_makes_no_bucket(one_bucket: OneBucketStore) -> None:
    ghost = OneBucketStore(
        one_bucket.store, one_bucket.fence._replace(bucket_id=type(one_bucket.bucket_id)(new_id())), one_bucket.raw
    )
    await ghost.store.hint(ghost.bucket_id)
    assert await ghost.store.request_cancel(ghost.bucket_id, new_id()) is ReplyStatus.NO_BUCKET
    assert await ghost.contents() == {}


async def test_cancel_requests_come_with_claims_until_they_are_noted(one_bucket: OneBucketStore) -> None:
    ids = {new_id(), new_id()}
    for job_id in ids:
        await assert_ok(one_bucket.store.request_cancel(one_bucket.bucket_id, job_id))
    assert set((await one_bucket.store.claim(one_bucket.fence, "a", 0)).cancelled) == ids
    assert set((await one_bucket.store.claim(one_bucket.fence, "b", 0)).cancelled) == ids, (
        "until their owner notes them"
    )
    assert (await one_bucket.store.withdraw(one_bucket.fence, sorted(ids), []))[0] is ReplyStatus.OK
    assert (await one_bucket.store.claim(one_bucket.fence, "c", 0)).cancelled == ()
    await one_bucket.force(state="READY_TO_DELETE")
    assert await one_bucket.store.request_cancel(one_bucket.bucket_id, new_id()) is ReplyStatus.CLOSED


async def test_more_cancel_requests_than_one_answer_carries_come_with_the_next(one_bucket: OneBucketStore) -> None:
    ids = {new_id() for _ in range(1500)}
    cancelled = one_bucket.store.keys.bucket(one_bucket.bucket_id).cancelled
    await one_bucket.raw.sadd(cancelled, *ids)
    first = await one_bucket.store.claim(one_bucket.fence, "a", 0)
    assert len(first.cancelled) == 1000
    await one_bucket.store.withdraw(one_bucket.fence, sorted(first.cancelled), [])
    second = await one_bucket.store.claim(one_bucket.fence, "b", 0)
    assert {*first.cancelled, *second.cancelled} == ids


async def test_find_looks_at_every_place_within_its_bound(one_bucket: OneBucketStore) -> None:
    store, bucket_id = one_bucket.store, one_bucket.bucket_id
    waiting, claimed, assigned = make_items(1200), make_items(2), make_items(2)
    await one_bucket.submit(claimed)
    await store.claim(one_bucket.fence, "a", 2)
    await one_bucket.submit(waiting)
    await store.assign(one_bucket.fence, [(9 * 10**15, item) for item in assigned])
    there = [decode_entry(item) for item in (claimed[1], assigned[1], waiting[0], waiting[1199])]
    for entry in there:
        assert await store.find([bucket_id], [entry.id], 10_000) == [{entry.id: entry}]
    last = there[-1].id
    assert await store.find([bucket_id], [last], 1203) == [{}]
    assert (await store.find([bucket_id], [last], 1204))[0].keys() == {last}
    everything = {entry.id: entry for entry in there}
    asked = [new_id(), *everything, last, new_id()]
    assert await store.find([new_id(), bucket_id, new_id()], asked, 10_000) == [{}, everything, {}]
    assert (await store.find([bucket_id], asked, 1203))[0].keys() == everything.keys() - {last}
    assert await store.find([], asked, 10_000) == []


async def test_find_takes_up_to_its_documented_number_of_ids(one_bucket: OneBucketStore) -> None:
    waiting = make_items(FIND_IDS_MAX)
    await one_bucket.submit(waiting)
    ids = [decode_entry(item).id for item in waiting]
    (found,) = await one_bucket.store.find([one_bucket.bucket_id], ids, 20_000)
    assert found.keys() == set(ids)
    with pytest.raises(JobMasterError, match="at most 500 ids"):
        await one_bucket.store.find([one_bucket.bucket_id], [*ids, new_id()], 20_000)


async def test_find_answers_one_copy_of_each_id_and_looks_no_further_than_the_last(one_bucket: OneBucketStore) -> None:
    (item,) = make_items(1)
    entry = decode_entry(item)
    await one_bucket.submit([item, item])
    await one_bucket.store.assign(
        one_bucket.fence, [(9 * 10**15, encode_entry(msgspec.structs.replace(entry, token=2)))]
    )
    (found,) = await one_bucket.store.find([one_bucket.bucket_id], [entry.id, entry.id], 10_000)
    assert found[entry.id].token == 2, "assigned comes first"


async def test_depths_report_missing_buckets(one_bucket: OneBucketStore) -> None:
    await one_bucket.submit(make_items(2))
    missing, there, _ = await one_bucket.store.depths([new_id(), one_bucket.bucket_id, new_id()])
    assert missing is None
    assert there is not None
    assert there.pending == 2
    assert await one_bucket.store.depths([]) == []


async def test_a_copy_that_cannot_be_decoded_comes_back_with_all_its_bytes(one_bucket: OneBucketStore) -> None:
    good, job_id = make_items(1)[0], new_id()
    broken = b"\x98\xc4\x10" + job_id + b"\xc1 not msgpack"
    await one_bucket.submit([good, broken])
    claimed = await one_bucket.store.claim(one_bucket.fence, "a", 10)
    assert claimed.entries[0] == decode_entry(good)
    assert claimed.entries[1].id == job_id
    assert claimed.entries[1].handler == "jobmaster.undecodable"
    assert broken.hex().encode() in claimed.entries[1].args


def test_an_id_of_another_length_makes_a_copy_undecodable() -> None:
    """Sent to the master it would break the connection, for the neighbours as well."""
    broken = encode_entry(Entry(b"short", 1, "handler", b"{}"))
    (entry,) = read_entries([broken])
    assert (len(entry.id), entry.handler) == (16, "jobmaster.undecodable")


async def test_jobs_that_are_due_count_toward_the_mark_wherever_they_lie(one_bucket: OneBucketStore) -> None:
    """What a master submit puts stands in the same line as what producers submit; what is due later does not."""
    limits = {"high_water_jobs": 10, "high_water_bytes": 10**9}
    await assert_ok(one_bucket.store.assign(one_bucket.fence, [(9 * 10**15, item) for item in make_items(20)]))
    put = await one_bucket.store.put(one_bucket.bucket_id, 1, [(1, item) for item in make_items(6)], **limits)
    assert put == (ReplyStatus.OK, 6, 0)
    assert await submit(one_bucket.store, one_bucket.bucket_id, make_items(3), **limits) == (ReplyStatus.OK, 9, 0)
    before = await one_bucket.contents()
    assert await one_bucket.store.put(one_bucket.bucket_id, 1, [(1, item) for item in make_items(2)], **limits) == (
        ReplyStatus.FULL,
        9,
        0,
    )
    assert await submit(one_bucket.store, one_bucket.bucket_id, make_items(2), **limits) == (ReplyStatus.FULL, 9, 0)
    assert await one_bucket.contents() == before, "all of them or none"
    by_bytes = {"high_water_jobs": 100, "high_water_bytes": sum(map(len, make_items(10)))}
    assert (
        await one_bucket.store.put(one_bucket.bucket_id, 1, [(1, item) for item in make_items(4)], **by_bytes)
    ).status is ReplyStatus.FULL
    assert (await submit(one_bucket.store, one_bucket.bucket_id, make_items(4), **by_bytes)).status is ReplyStatus.FULL


async def test_calls_of_earlier_builds_are_understood(one_bucket: OneBucketStore) -> None:
    keys = one_bucket.store.keys.bucket(one_bucket.bucket_id)
    (first, second) = make_items(2)
    put: Any = one_bucket.raw.fcall("jm2_put", 3, keys.meta, keys.assigned, keys.wake, 1, 5, first)
    assert (await put)[0] == b"OK"
    sent: Any = one_bucket.raw.fcall("jm2_submit", 3, keys.meta, keys.pending, keys.wake, 10, 10**6, HOUR_MS, second)
    assert await sent == [b"OK", 1]
    assert {entry.id for entry in (await one_bucket.store.claim(one_bucket.fence, "a", 5)).entries} == {
        first[ID_AT],
        second[ID_AT],
    }
