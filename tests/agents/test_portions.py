"""The in-memory ledger: when a claimed list may be deleted (rule E), and one live copy per id (rule F)."""

from __future__ import annotations

from jobmaster.model.ids import AgentId, BucketId, Fence
from jobmaster.model.job import Entry
from jobmaster_agents.holdings import Holding
from jobmaster_agents.portions import Memory, Phase, Portion

OWNER = AgentId(b"o" * 16)


def holding(letter: bytes) -> Holding:
    return Holding(Fence(BucketId(letter * 16), 1, OWNER), "default", 3, "default")


def entry(number: int, token: int = 1) -> Entry:
    return Entry(number.to_bytes(16, "big"), token, "noop", b"{}")


def claim(memory: Memory, where: Holding, name: str, *entries: Entry, at: float = 0.0) -> Portion:
    portion = Portion(where, name, at, 0)
    memory.adopt(portion, entries, {})
    return portion


def test_a_list_is_deletable_only_when_its_last_entry_is_settled() -> None:
    memory, bucket = Memory(), holding(b"a")
    portion = claim(memory, bucket, "1", entry(1), entry(2), entry(3))
    first, second, third = portion.jobs
    assert memory.settle(first, accepted=True) == ([], [])
    assert memory.settle(third, accepted=False) == ([], [])
    assert memory.settle(second, accepted=True) == ([portion], [])
    # Until the store has said so the list is known, or a look for lost lists would run its jobs again.
    assert memory.knows(bucket.fence.bucket_id, "1")
    assert not memory.empty(bucket.fence.bucket_id)
    memory.deleted(bucket.fence.bucket_id, ["1"])
    assert not memory.knows(bucket.fence.bucket_id, "1")
    assert memory.empty(bucket.fence.bucket_id)


def test_an_entry_that_is_in_flight_no_longer_keeps_its_list_but_stays_live() -> None:
    memory, bucket = Memory(), holding(b"a")
    portion = claim(memory, bucket, "1", entry(1))
    job = portion.jobs[0]
    assert memory.make_safe(job) is portion
    assert memory.make_safe(job) is None
    assert memory.get(job.entry.id) is job
    assert not memory.empty(bucket.fence.bucket_id)
    memory.deleted(bucket.fence.bucket_id, ["1"])
    assert not memory.empty(bucket.fence.bucket_id)
    assert memory.settle(job, accepted=True) == ([], [])
    assert memory.empty(bucket.fence.bucket_id)


def test_a_second_copy_waits_behind_the_first_and_its_list_waits_too() -> None:
    memory, one, two = Memory(), holding(b"a"), holding(b"b")
    kept = claim(memory, one, "1", entry(7)).jobs[0]
    other = claim(memory, two, "1", entry(7))
    copy = other.jobs[0]
    assert copy.phase is Phase.FOLLOWING
    assert memory.duplicates == 1
    done, promoted = memory.settle(kept, accepted=True)
    assert done == [kept.portion, other]
    assert promoted == []
    assert copy.phase.name == "GONE"


def test_a_second_copy_takes_over_when_the_first_was_refused_by_its_row() -> None:
    memory, one, two = Memory(), holding(b"a"), holding(b"b")
    kept = claim(memory, one, "1", entry(7)).jobs[0]
    other = claim(memory, two, "1", entry(7, token=2))
    done, promoted = memory.settle(kept, accepted=False)
    assert done == [kept.portion]
    assert promoted == [other.jobs[0]]
    assert memory.get(entry(7).id) is other.jobs[0]
    assert promoted[0].phase is Phase.QUEUED


def test_forgetting_a_bucket_settles_nothing_and_promotes_copies_elsewhere() -> None:
    memory, one, two = Memory(), holding(b"a"), holding(b"b")
    lost = claim(memory, one, "1", entry(7), entry(8))
    other = claim(memory, two, "1", entry(7))
    dropped, promoted = memory.forget(one.fence.bucket_id)
    assert {job.entry.id for job in dropped} == {entry(7).id, entry(8).id}
    assert promoted == [other.jobs[0]]
    # A verdict that arrives afterwards must not make the lost list deletable: it is the rescuer's now.
    assert [memory.settle(job, accepted=True)[0] for job in lost.jobs] == [[], []]
    assert memory.get(entry(7).id) is other.jobs[0]


def test_a_batch_that_is_accepted_late_leaves_the_copy_that_took_over_alone() -> None:
    memory, one, two = Memory(), holding(b"a"), holding(b"b")
    lost = claim(memory, one, "1", entry(7), entry(8))
    other = claim(memory, two, "1", entry(7))
    memory.forget(one.fence.bucket_id)
    assert memory.settle_accepted(lost.jobs) == ([], [])
    assert memory.get(entry(7).id) is other.jobs[0]


def test_forgetting_finds_jobs_whose_list_is_gone_already() -> None:
    memory, bucket = Memory(), holding(b"a")
    job = claim(memory, bucket, "1", entry(1)).jobs[0]
    memory.make_safe(job)
    dropped, _ = memory.forget(bucket.fence.bucket_id)
    assert dropped == [job]
    assert len(memory) == 0


def test_anti_entropy_sees_every_copy_in_memory_followers_included() -> None:
    memory, one, two = Memory(), holding(b"a"), holding(b"b")
    claim(memory, one, "1", entry(7))
    claim(memory, two, "1", entry(7), entry(9))
    assert memory.ids_of(two.fence.bucket_id) == {entry(7).id, entry(9).id}


def test_unpersisted_names_old_lists_only() -> None:
    memory, bucket = Memory(), holding(b"a")
    old = claim(memory, bucket, "1", entry(1), at=1.0)
    claim(memory, bucket, "2", entry(2), at=5.0)
    assert memory.unpersisted(2.0) == [old]
    memory.make_safe(old.jobs[0])
    assert memory.unpersisted(2.0) == []
