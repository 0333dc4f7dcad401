"""A client takes the copy of a waiting job out of its bucket."""

from __future__ import annotations

import pytest

from jobmaster.clock import new_id
from jobmaster.codec import encode_entry
from jobmaster.model.ids import Identity
from jobmaster.model.job import Entry
from jobmaster.ports import Recall
from tests.integration.store.fixture import ROOM, OneBucketStore, assert_ok, make_entry, make_items

DUE = 1_900_000_000_123_456
SCAN = 1000


def identity(one_bucket: OneBucketStore, token: int, *, epoch: int | None = None) -> Identity:
    return Identity(token, one_bucket.bucket_id, epoch or one_bucket.fence.epoch)


async def recall(
    one_bucket: OneBucketStore, job_id: bytes, token: int = 1, due_us: int = 0, scan: int = SCAN
) -> Recall:
    return await one_bucket.store.recall(job_id, identity(one_bucket, token), due_us, scan)


async def assigned(one_bucket: OneBucketStore, *entries: Entry) -> None:
    await assert_ok(one_bucket.store.assign(one_bucket.fence, [(one.due_us, encode_entry(one)) for one in entries]))


def due(job_id: bytes, token: int, due_us: int = DUE) -> Entry:
    return Entry(job_id, token, "tests.handler", b"{}", due_us)


@pytest.mark.parametrize("token", [2, 127, 128, 255, 256, 65_535, 65_536])
async def test_of_many_that_are_due_at_one_time_exactly_the_named_copy_goes(
    one_bucket: OneBucketStore, token: int
) -> None:
    ids = [new_id() for _ in range(1200)]
    await assigned(one_bucket, *(due(job_id, token) for job_id in ids), due(new_id(), token, DUE + 1))
    assert await recall(one_bucket, ids[700], token, DUE) is Recall.RECALLED
    (depth,) = await one_bucket.store.depths([one_bucket.bucket_id])
    assert depth is not None
    assert depth.assigned == 1200
    (found,) = await one_bucket.store.find([one_bucket.bucket_id], [ids[700]], 10_000)
    assert found == {}


async def test_a_waiting_submit_goes_with_its_bytes_and_the_order_of_the_others_stays(
    one_bucket: OneBucketStore,
) -> None:
    entries = [make_entry(size=100 + n) for n in range(3)]
    items = [encode_entry(entry) for entry in entries]
    await one_bucket.submit(items)
    assert await recall(one_bucket, entries[1].id) is Recall.RECALLED
    assert await one_bucket.field("bytes") == b"%d" % (len(items[0]) + len(items[2]))
    claimed = await one_bucket.store.claim(one_bucket.fence, "a-1", 10)
    assert claimed.raw == [items[0], items[2]]


async def test_what_an_agent_has_claimed_stays(one_bucket: OneBucketStore) -> None:
    entry = make_entry()
    await one_bucket.submit([encode_entry(entry)])
    await one_bucket.store.claim(one_bucket.fence, "a-1", 10)
    before = await one_bucket.contents()
    assert await recall(one_bucket, entry.id) is Recall.CLAIMED
    assert await one_bucket.contents() == before


async def test_a_second_copy_of_what_is_claimed_stays_too(one_bucket: OneBucketStore) -> None:
    """The same entry was put again, after a lost answer, and the first one has been claimed."""
    entry = due(new_id(), 2, 1)
    await assigned(one_bucket, entry)
    await one_bucket.store.claim(one_bucket.fence, "a-1", 10)
    await assigned(one_bucket, entry)
    assert await recall(one_bucket, entry.id, 2, 1) is Recall.CLAIMED
    (depth,) = await one_bucket.store.depths([one_bucket.bucket_id])
    assert depth is not None
    assert depth.assigned == 1


@pytest.mark.parametrize(("token", "due_us", "epoch"), [(3, DUE, 1), (1, DUE, 1), (2, DUE + 1, 1), (2, DUE, 2)])
async def test_a_copy_of_another_token_time_or_epoch_stays(
    one_bucket: OneBucketStore, token: int, due_us: int, epoch: int
) -> None:
    job_id = new_id()
    await assigned(one_bucket, due(job_id, 2))
    before = await one_bucket.contents()
    found = await one_bucket.store.recall(job_id, identity(one_bucket, token, epoch=epoch), due_us, SCAN)
    assert found is Recall.ABSENT
    assert await one_bucket.contents() == before


async def test_an_older_copy_of_the_same_job_is_not_taken_for_the_claimed_one(one_bucket: OneBucketStore) -> None:
    """A stale copy waits, and the live copy runs: taking the stale one would start the job a second time."""
    job_id = new_id()
    await one_bucket.submit([encode_entry(make_entry(job_id))])
    assert await recall(one_bucket, job_id, 2) is Recall.ABSENT


async def test_a_lost_answer_is_given_again(one_bucket: OneBucketStore) -> None:
    job_id = new_id()
    await assigned(one_bucket, due(job_id, 2))
    assert await recall(one_bucket, job_id, 2, DUE) is Recall.RECALLED
    assert await recall(one_bucket, job_id, 2, DUE) is Recall.RECALLED
    assert await recall(one_bucket, job_id, 3, DUE) is Recall.ABSENT


@pytest.mark.parametrize("token", [2, 127, 128, 255, 256, 65_535, 65_536])
async def test_a_put_that_comes_late_leaves_out_what_was_recalled(one_bucket: OneBucketStore, token: int) -> None:
    """A put without an answer may be done after its repetition was recalled: the job waits for another time by then."""
    recalled, other = due(new_id(), token), due(new_id(), token)
    await assigned(one_bucket, recalled)
    assert await recall(one_bucket, recalled.id, token, DUE) is Recall.RECALLED
    await assigned(one_bucket, recalled, other)
    put = [(DUE, encode_entry(recalled))]
    await one_bucket.store.put(one_bucket.bucket_id, one_bucket.fence.epoch, put, **ROOM)
    (found,) = await one_bucket.store.find([one_bucket.bucket_id], [recalled.id, other.id], SCAN)
    assert found.keys() == {other.id}
    again = due(recalled.id, token + 1)
    await assigned(one_bucket, again)
    (found,) = await one_bucket.store.find([one_bucket.bucket_id], [recalled.id], SCAN)
    assert found[recalled.id].token == token + 1, "the next assignment is another copy"


async def test_the_last_recalls_are_remembered_in_bounded_room(one_bucket: OneBucketStore) -> None:
    entries = [due(new_id(), 65_536) for _ in range(100)]
    await assigned(one_bucket, *entries)
    for one in entries:
        assert await recall(one_bucket, one.id, one.token, DUE) is Recall.RECALLED
    assert len(await one_bucket.field("recalled") or b"") == 1500
    await assigned(one_bucket, *entries[-60:])
    (depth,) = await one_bucket.store.depths([one_bucket.bucket_id])
    assert depth is not None
    assert depth.assigned == 0


async def test_a_submit_that_was_sent_twice_goes_twice(one_bucket: OneBucketStore) -> None:
    item, other = encode_entry(make_entry()), encode_entry(make_entry(size=50))
    await one_bucket.submit([item, other])
    await one_bucket.submit([item])
    assert await recall(one_bucket, item[3:19]) is Recall.RECALLED
    assert await one_bucket.field("bytes") == b"%d" % len(other)
    assert (await one_bucket.store.claim(one_bucket.fence, "a-1", 10)).raw == [other]


async def test_a_bucket_that_is_emptied_keeps_its_pages(one_bucket: OneBucketStore) -> None:
    """Pages of pending are read in place and cut off by their number."""
    waiting, onboarded = make_entry(), due(new_id(), 2)
    await one_bucket.submit([encode_entry(waiting), *make_items(2)])
    await assigned(one_bucket, onboarded)
    await assert_ok(one_bucket.store.close_intake(one_bucket.fence))
    assert await recall(one_bucket, waiting.id) is Recall.ABSENT
    assert await recall(one_bucket, onboarded.id, 2, DUE) is Recall.RECALLED
    taken = one_bucket.fence._replace(epoch=2)
    await one_bucket.store.fence(taken)
    assert await one_bucket.store.recall(waiting.id, Identity(1, one_bucket.bucket_id, 2), 0, SCAN) is Recall.ABSENT


async def test_only_so_many_of_those_that_wait_are_looked_through(one_bucket: OneBucketStore) -> None:
    entries = [make_entry() for _ in range(5)]
    await one_bucket.submit([encode_entry(entry) for entry in entries])
    assert await recall(one_bucket, entries[4].id, scan=4) is Recall.ABSENT
    assert await recall(one_bucket, entries[4].id, scan=5) is Recall.RECALLED


async def test_a_client_is_no_owner_and_leaves_the_change_counter(one_bucket: OneBucketStore) -> None:
    job_id = new_id()
    await assigned(one_bucket, due(job_id, 2))
    before = await one_bucket.field("ver")
    await recall(one_bucket, job_id, 2, DUE)
    assert await one_bucket.field("ver") == before
