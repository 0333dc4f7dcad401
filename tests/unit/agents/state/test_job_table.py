"""The job table: when a claimed list may be deleted (rule E), and one live copy per id (rule F)."""

from __future__ import annotations

from jobmaster.model.ids import AgentId, BucketId, Fence
from jobmaster.model.job import Entry
from jobmaster_agents.state.job_table import ClaimedList, JobPhase, JobTable
from jobmaster_agents.state.ownership import OwnedBucket

OWNER = AgentId(b"o" * 16)


def owned(letter: bytes) -> OwnedBucket:
    return OwnedBucket(Fence(BucketId(letter * 16), 1, OWNER), "default", 3, "default")


def entry(number: int, token: int = 1) -> Entry:
    return Entry(number.to_bytes(16, "big"), token, "noop", b"{}")


def claim(job_table: JobTable, where: OwnedBucket, name: str, *entries: Entry, at: float = 0.0) -> ClaimedList:
    claimed_list = ClaimedList(where, name, at, 0)
    job_table.adopt(claimed_list, entries, {})
    return claimed_list


def test_a_list_is_deletable_only_when_its_last_entry_is_settled() -> None:
    job_table, bucket = JobTable(), owned(b"a")
    claimed_list = claim(job_table, bucket, "1", entry(1), entry(2), entry(3))
    first, second, third = claimed_list.jobs
    assert job_table.settle(first, accepted=True) == ([], [])
    assert job_table.settle(third, accepted=False) == ([], [])
    assert job_table.settle(second, accepted=True) == ([claimed_list], [])
    # Until the store has confirmed the deletion the list is known, or a look for lost lists would run its jobs again.
    assert job_table.knows(bucket.fence.bucket_id, "1")
    assert not job_table.empty(bucket.fence.bucket_id)
    job_table.deleted(bucket.fence.bucket_id, ["1"])
    assert not job_table.knows(bucket.fence.bucket_id, "1")
    assert job_table.empty(bucket.fence.bucket_id)


def test_an_entry_that_is_in_flight_no_longer_keeps_its_list_but_stays_live() -> None:
    job_table, bucket = JobTable(), owned(b"a")
    claimed_list = claim(job_table, bucket, "1", entry(1))
    job = claimed_list.jobs[0]
    assert job_table.make_safe(job) is claimed_list
    assert job_table.make_safe(job) is None
    assert job_table.get(job.entry.id) is job
    assert not job_table.empty(bucket.fence.bucket_id)
    job_table.deleted(bucket.fence.bucket_id, ["1"])
    assert not job_table.empty(bucket.fence.bucket_id)
    assert job_table.settle(job, accepted=True) == ([], [])
    assert job_table.empty(bucket.fence.bucket_id)


def test_a_second_copy_waits_behind_the_first_and_its_list_waits_too() -> None:
    job_table, one, two = JobTable(), owned(b"a"), owned(b"b")
    kept = claim(job_table, one, "1", entry(7)).jobs[0]
    other = claim(job_table, two, "1", entry(7))
    copy = other.jobs[0]
    assert copy.phase is JobPhase.FOLLOWING
    assert job_table.duplicates == 1
    done, promoted = job_table.settle(kept, accepted=True)
    assert done == [kept.claimed_list, other]
    assert promoted == []
    assert copy.phase.name == "GONE"


def test_a_second_copy_takes_over_when_the_first_was_refused_by_its_row() -> None:
    job_table, one, two = JobTable(), owned(b"a"), owned(b"b")
    kept = claim(job_table, one, "1", entry(7)).jobs[0]
    other = claim(job_table, two, "1", entry(7, token=2))
    done, promoted = job_table.settle(kept, accepted=False)
    assert done == [kept.claimed_list]
    assert promoted == [other.jobs[0]]
    assert job_table.get(entry(7).id) is other.jobs[0]
    assert promoted[0].phase is JobPhase.QUEUED


def test_forgetting_a_bucket_settles_nothing_and_promotes_copies_elsewhere() -> None:
    job_table, one, two = JobTable(), owned(b"a"), owned(b"b")
    lost = claim(job_table, one, "1", entry(7), entry(8))
    other = claim(job_table, two, "1", entry(7))
    dropped, promoted = job_table.forget(one.fence.bucket_id)
    assert {job.entry.id for job in dropped} == {entry(7).id, entry(8).id}
    assert promoted == [other.jobs[0]]
    # An outcome that arrives afterwards must not make the lost list deletable: it is the rescuer's now.
    assert [job_table.settle(job, accepted=True)[0] for job in lost.jobs] == [[], []]
    assert job_table.get(entry(7).id) is other.jobs[0]


def test_a_batch_that_is_accepted_late_leaves_the_copy_that_took_over_alone() -> None:
    job_table, one, two = JobTable(), owned(b"a"), owned(b"b")
    lost = claim(job_table, one, "1", entry(7), entry(8))
    other = claim(job_table, two, "1", entry(7))
    job_table.forget(one.fence.bucket_id)
    assert job_table.settle_accepted(lost.jobs)[:2] == ([], [])
    assert job_table.get(entry(7).id) is other.jobs[0]


def test_forgetting_finds_jobs_whose_list_is_gone_already() -> None:
    job_table, bucket = JobTable(), owned(b"a")
    job = claim(job_table, bucket, "1", entry(1)).jobs[0]
    job_table.make_safe(job)
    dropped, _ = job_table.forget(bucket.fence.bucket_id)
    assert dropped == [job]
    assert len(job_table) == 0


def test_anti_entropy_sees_every_copy_in_memory_followers_included() -> None:
    job_table, one, two = JobTable(), owned(b"a"), owned(b"b")
    claim(job_table, one, "1", entry(7))
    claim(job_table, two, "1", entry(7), entry(9))
    assert job_table.tokens_of(two.fence.bucket_id).keys() == {entry(7).id, entry(9).id}


def test_unpersisted_names_old_lists_only() -> None:
    job_table, bucket = JobTable(), owned(b"a")
    old = claim(job_table, bucket, "1", entry(1), at=1.0)
    claim(job_table, bucket, "2", entry(2), at=5.0)
    assert job_table.unpersisted(2.0) == [old]
    job_table.make_safe(old.jobs[0])
    assert job_table.unpersisted(2.0) == []
