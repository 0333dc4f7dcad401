"""Every invariant: a lawful history is clean, and each crime is found (and only as what it is).

The guards that make most crimes impossible (keys, checks, foreign hands off) are taken down first, in the test's own schema.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from uuid import UUID

import pytest

from jobmaster.audit import INVARIANTS
from jobmaster.clock import new_id
from jobmaster.codec import encode_entry
from jobmaster.model.errors import JobMasterError
from jobmaster.model.ids import AgentId, BucketId, Fence
from jobmaster.model.job import Entry
from jobmaster.ports import ReplyStatus
from tests.integration.audit.conftest import AuditedCluster, fresh

CHECKED = [invariant.number for invariant in INVARIANTS]


async def test_a_lawful_history_is_clean(history: AuditedCluster) -> None:
    report = await history.audit(quiet_seconds=0.0)
    assert report.violations == dict.fromkeys(CHECKED, 0), report.evidence
    assert report.clean


async def test_the_reader_cannot_write(history: AuditedCluster) -> None:
    with pytest.raises(JobMasterError, match="read-only"):
        await history.reader.rows("DELETE FROM job")


async def drop_keys(audited: AuditedCluster, table: str) -> None:
    """The primary key of a table and of its partitions."""
    await audited.execute(f"ALTER TABLE {table} DROP CONSTRAINT {table}_pkey")


# ---------------------------------------------------------------- crimes: what is done, and what it is found as


async def two_final_rows(audited: AuditedCluster) -> str:
    await drop_keys(audited, "job")
    first = await audited.add_job("SUCCEEDED")
    await audited.add_job("SUCCEEDED", id=first)
    return str(first)


async def an_assignment_that_failed_and_succeeded(audited: AuditedCluster) -> str:
    job = await audited.add_job("SUCCEEDED", token=2)
    await audited.add_attempt(job, 2)
    return str(job)


async def success_with_an_error(audited: AuditedCluster) -> str:
    return str(await audited.add_job("SUCCEEDED", error=b"{}"))


async def failure_without_an_error(audited: AuditedCluster) -> str:
    return str(await audited.add_job("FAILED", error=None))


async def result_before_the_end(audited: AuditedCluster) -> str:
    return str(await audited.add_job("PROCESSING", result=b"1"))


async def epochs_go_back(audited: AuditedCluster) -> str:
    await audited.add_event(audited.bucket, "ACTIVE", "COMPLETING", 3, audited.agent)
    await audited.execute("UPDATE bucket SET epoch = 3 WHERE id = $1", audited.bucket)
    await audited.add_event(audited.bucket, "COMPLETING", "READY_TO_DELETE", 2, audited.agent)
    return str(audited.bucket)


async def row_behind_its_events(audited: AuditedCluster) -> str:
    await audited.add_event(audited.bucket, "ACTIVE", "COMPLETING", 2, audited.agent)
    return str(audited.bucket)


async def permits(
    audited: AuditedCluster, count: int, state: str, *maxima: int, key: str = "a", weight: int = 1
) -> None:
    """Of one key: jobs of a state with their permits, each given under the limit of its moment."""
    for at in range(count):
        job = await audited.add_job(state)
        await audited.execute(
            "INSERT INTO permit (name, key, job_id, token, weight, maximum, admitted_at)"
            " VALUES ('api', $3, $1, 2, $4, $2, clock_timestamp())",
            job,
            maxima[at],
            key,
            weight,
        )


async def one_more_than_the_limit(audited: AuditedCluster) -> str:
    await permits(audited, 3, "PROCESSING", 2, 2, 2)
    return "api a"


async def beside_a_job_that_takes_the_whole_limit(audited: AuditedCluster) -> str:
    await permits(audited, 1, "PROCESSING", 2, weight=9)
    await permits(audited, 1, "PROCESSING", 2)
    return "api a"


async def more_were_given_after_the_limit_was_lowered(audited: AuditedCluster) -> str:
    await permits(audited, 3, "PROCESSING", 5, 5, 2)
    return "api a"


async def more_is_lent_beside_a_job(audited: AuditedCluster) -> str:
    await permits(audited, 1, "PROCESSING", 3)
    await audited.execute(
        "INSERT INTO permit_loan VALUES ('api', 'a', $1, 3, 3, 1, 3, clock_timestamp(), clock_timestamp())",
        audited.agent,
    )
    return "api a"


async def test_permits_from_before_a_limit_was_lowered_of_ended_and_of_heavy_jobs_are_no_violation(
    history: AuditedCluster,
) -> None:
    await permits(history, 2, "SUCCEEDED", 1, 1)
    await permits(history, 3, "PROCESSING", 3, 3, 3)
    await permits(history, 1, "PROCESSING", 2, key="heavy", weight=9)
    await history.execute("INSERT INTO job_limit (name, set_running, set_at) VALUES ('api', 1, now())")
    report = await history.audit(quiet_seconds=600.0)
    assert report.violations["I11"] == 0, report.evidence


async def row_ahead_of_its_bucket(audited: AuditedCluster) -> str:
    return str(await audited.add_job("SUCCEEDED", bucket_epoch=7))


async def token_goes_back(audited: AuditedCluster) -> str:
    job = await audited.add_job("HELD", token=2)
    await audited.add_attempt(job, 3)
    return str(job)


async def stale_outcome(audited: AuditedCluster) -> str:
    job = await audited.add_job("SUCCEEDED", token=2)
    await audited.add_attempt(job, 3)
    return str(job)


async def refused_yet_recorded(audited: AuditedCluster) -> str:
    job = await audited.add_job("SUCCEEDED", token=2)
    await audited.add_attempt(job, 2, "refused", refused=True)
    return str(job)


async def two_owners(audited: AuditedCluster) -> str:
    await audited.add_event(audited.bucket, "ACTIVE", "COMPLETING", 1, audited.rescuer)
    return str(audited.bucket)


async def owner_who_never_took_it(audited: AuditedCluster) -> str:
    await audited.execute("UPDATE bucket SET owner = $2 WHERE id = $1", audited.bucket, audited.rescuer)
    return str(audited.bucket)


async def held_in_a_bucket(audited: AuditedCluster) -> str:
    await audited.execute("ALTER TABLE job DROP CONSTRAINT job_held_is_nowhere")
    return str(await audited.add_job("HELD", bucket_id=audited.bucket))


async def in_flight_nowhere(audited: AuditedCluster) -> str:
    await audited.execute("ALTER TABLE job DROP CONSTRAINT job_assigned_is_somewhere")
    return str(await audited.add_job("ASSIGNED", bucket_id=None))


async def in_flight_twice(audited: AuditedCluster) -> str:
    await drop_keys(audited, "job")
    other = fresh()
    await audited.add_bucket(other, audited.agent)
    job = await audited.add_job("ASSIGNED")
    await audited.add_job("ASSIGNED", id=job, bucket_id=other)
    return str(job)


async def in_a_bucket_of_another_lane(audited: AuditedCluster) -> str:
    return str(await audited.add_job("PROCESSING", lane="payroll"))


async def in_no_bucket_at_all(audited: AuditedCluster) -> str:
    return str(await audited.add_job("PROCESSING", bucket_id=fresh()))


async def in_the_hands_of_the_dead(audited: AuditedCluster) -> str:
    dead, bucket = fresh(), fresh()
    await audited.add_agent(dead, "DEAD", "-1 hour")
    await audited.add_bucket(bucket, dead)
    return str(await audited.add_job("PROCESSING", bucket_id=bucket))


async def under_an_old_epoch(audited: AuditedCluster) -> str:
    await audited.execute("UPDATE bucket SET epoch = 2 WHERE id = $1", audited.bucket)
    return str(await audited.add_job("ASSIGNED"))


async def two_jobs_of_one_key(audited: AuditedCluster) -> str:
    for _ in range(2):
        await audited.add_job("SUCCEEDED", headers=b'{"key":"k9"}')
    return "h k9"


async def key_of_another_job(audited: AuditedCluster) -> str:
    job = await audited.add_job("SUCCEEDED", headers=b'{"key":"k8"}')
    await audited.execute("INSERT INTO idempotency (scope, key, job_id, digest) VALUES ('h', 'k7', $1, '')", job)
    return "h k7"


async def two_jobs_that_live_with_one_unique_key(audited: AuditedCluster) -> str:
    for more in (b"", b"", b',"superseded_by":"x"'):
        await audited.add_job("HELD", headers=b'{"unique_key":"u1","unique_term":"live"' + more + b"}")
    return "h u1"


async def two_windows_of_one_unique_key_that_overlap(audited: AuditedCluster) -> str:
    for begin in (100, 150, 200):
        window = f'"unique_from_us":{begin},"unique_until_us":{begin + 60}'
        await audited.add_job("SUCCEEDED", headers=f'{{"unique_key":"u2","unique_term":"window",{window}}}'.encode())
    return "h u2"


async def unique_key_of_another_job(audited: AuditedCluster) -> str:
    job = await audited.add_job("SUCCEEDED", headers=b'{"unique_key":"u3","unique_term":"live"}')
    await audited.execute(
        "INSERT INTO unique_key (handler, key, job_id, term, held_at) VALUES ('h', 'u4', $1, 'live', now())", job
    )
    return "h u4"


NOMINAL = "to_timestamp(1900000000)"
_FIRE = b'{"schedule":"nightly","nominal_us":1900000000000000}'


async def add_line(
    audited: AuditedCluster, nominal: str, outcome: str, job: UUID | None, previous: str = "NULL"
) -> None:
    await audited.execute(
        f"INSERT INTO schedule_fire (schedule, nominal, outcome, job_id, previous)"
        f" VALUES ('nightly', {nominal}, $1, $2, {previous})", outcome, job,
    )  # fmt: skip


async def fire_of(audited: AuditedCluster) -> str:
    """How the evidence names the fire."""
    (row,) = await audited.reader.rows(f"SELECT format('%s %s', 'nightly', {NOMINAL}) AS fire")
    return str(row["fire"])


async def two_jobs_of_one_fire(audited: AuditedCluster) -> str:
    first = await audited.add_job("SUCCEEDED", headers=_FIRE)
    await add_line(audited, NOMINAL, "fired", first)
    await audited.add_job("SUCCEEDED", headers=_FIRE)
    await audited.add_job("CANCELLED", headers=_FIRE)
    return await fire_of(audited)


async def job_of_a_fire_without_a_line(audited: AuditedCluster) -> str:
    await audited.add_job("HELD", headers=_FIRE)
    return await fire_of(audited)


async def fire_without_its_job(audited: AuditedCluster) -> str:
    await add_line(audited, NOMINAL, "fired", fresh())
    return await fire_of(audited)


async def fire_without_a_line(audited: AuditedCluster) -> str:
    """Three fires, of which the one in the middle was decided and left no line."""
    await add_line(audited, f"{NOMINAL} - interval '2 hours'", "missed", None)
    await add_line(audited, NOMINAL, "missed", None, f"{NOMINAL} - interval '1 hour'")
    return await fire_of(audited)


async def two_leases_of_one_name(audited: AuditedCluster) -> str:
    await drop_keys(audited, "lease")
    await audited.execute(
        "INSERT INTO lease (name, owner, epoch, expires_at) VALUES ('leader', $1, 1, now() + interval '1 hour')",
        audited.rescuer,
    )
    return "leader"


async def lost_out_of_completing(audited: AuditedCluster) -> str:
    left, bucket = fresh(), fresh()
    await audited.add_agent(left, "RETIRED")
    await audited.execute("UPDATE agent SET ended_at = now() + interval '1 hour' WHERE id = $1", left)
    await audited.add_bucket(bucket, left)
    await audited.add_event(bucket, "ACTIVE", "COMPLETING", 1, left)
    await audited.add_event(bucket, "COMPLETING", "LOST", 1, left)
    return str(bucket)


async def lost_after_the_exit(audited: AuditedCluster) -> str:
    left, bucket = fresh(), fresh()
    await audited.add_agent(left, "RETIRED")
    await audited.add_bucket(bucket, left)
    await audited.add_event(bucket, "ACTIVE", "LOST", 1, left)
    return str(bucket)


async def lost_by_its_owner_after_its_end(audited: AuditedCluster) -> str:
    """The owner is alive: it shrinks, or has a long job in another bucket."""
    bucket = fresh()
    await audited.add_bucket(bucket, audited.agent)
    await audited.add_event(bucket, "ACTIVE", "COMPLETING", 1, audited.agent)
    await audited.add_event(bucket, "COMPLETING", "READY_TO_DELETE", 1, audited.agent)
    await audited.add_event(bucket, "READY_TO_DELETE", "LOST", 1, audited.agent)
    return str(bucket)


async def add_workflow(audited: AuditedCluster, state: str, step: str, job: UUID | None, also: str = "STARTED") -> UUID:
    """A workflow of two steps that do not depend on each other."""
    of = fresh()
    ended = "clock_timestamp()" if state in ("SUCCEEDED", "FAILED") else "NULL"
    await audited.execute(
        f"INSERT INTO workflow (id, name, state, undoes, args_bytes, ended_at) VALUES ($1, 'w', $2, false, 1, {ended})",
        of,
        state,
    )
    for number, became, job_id in ((1, step, job), (2, also, None)):
        await audited.execute(
            "INSERT INTO workflow_step (workflow, step, name, state, runs_on, parents, handler, priority, lane, args, refs,"
            " headers, delay_us, kept, job_id) VALUES ($1, $2, 's', $3, 'success', '{}', 'h', 3, 'default', '', '[]', '', 0,"
            " false, $4)", of, number, became, job_id,
        )  # fmt: skip
    return of


async def a_step_that_missed_the_end_of_its_job(audited: AuditedCluster) -> str:
    return f"{await add_workflow(audited, 'RUNNING', 'STARTED', await audited.add_job('SUCCEEDED'))} 1"


async def a_step_that_ended_in_another_way_than_its_job(audited: AuditedCluster) -> str:
    return f"{await add_workflow(audited, 'RUNNING', 'FAILED', await audited.add_job('SUCCEEDED'))} 1"


async def a_step_without_its_job(audited: AuditedCluster) -> str:
    return f"{await add_workflow(audited, 'RUNNING', 'STARTED', fresh())} 1"


async def a_step_that_was_never_started(audited: AuditedCluster) -> str:
    return f"{await add_workflow(audited, 'RUNNING', 'PENDING', None)} 1"


async def a_workflow_that_stands_still(audited: AuditedCluster) -> str:
    return str(await add_workflow(audited, "RUNNING", "SKIPPED", None, "SKIPPED"))


async def a_workflow_that_ended_before_its_steps(audited: AuditedCluster) -> str:
    return str(await add_workflow(audited, "SUCCEEDED", "SKIPPED", None))


async def add_batch(
    audited: AuditedCluster, *jobs: str, succeeded: int = 0, size: int = 0, state: str = "SUCCEEDED"
) -> UUID:
    """A batch that has ended, with jobs in these states and one callback that was fired."""
    lowest = fresh().bytes[:12]
    of, callback = UUID(bytes=lowest + bytes(4)), await audited.add_job("SUCCEEDED")
    await audited.execute(
        "INSERT INTO batch (id, name, state, size, ended_at, succeeded, failed, cancelled, expired, unfinished, missing)"
        " VALUES ($1, 'b', $2, $3, clock_timestamp(), $4, 0, 0, 0, 0, 0)", of, state, size, succeeded,
    )  # fmt: skip
    await audited.execute("INSERT INTO batch_range (lo, batch) VALUES ($1, $1)", of)
    await audited.execute(
        "INSERT INTO batch_callback (batch, occasion, job_id, priority, lane, handler, args, headers)"
        " VALUES ($1, 'complete', $2, 3, 'default', 'h', '{}', '')", of, callback,
    )  # fmt: skip
    for number, job in enumerate(jobs, 1):
        await audited.add_job(job, id=UUID(bytes=lowest + number.to_bytes(4, "big")))
    return of


async def a_batch_with_a_job_that_was_not_counted(audited: AuditedCluster) -> str:
    return str(await add_batch(audited, "SUCCEEDED", "SUCCEEDED", succeeded=1, size=1))


async def a_batch_that_ended_before_its_job(audited: AuditedCluster) -> str:
    return str(await add_batch(audited, "SUCCEEDED", "HELD", succeeded=1, size=1))


async def a_batch_whose_counters_are_not_its_size(audited: AuditedCluster) -> str:
    return str(await add_batch(audited, "SUCCEEDED", succeeded=1, size=2))


async def a_callback_that_was_never_submitted(audited: AuditedCluster) -> str:
    of = await add_batch(audited, "SUCCEEDED", succeeded=1, size=1)
    await audited.execute("UPDATE batch_callback SET job_id = NULL WHERE batch = $1", of)
    return str(of)


async def a_callback_whose_job_is_gone(audited: AuditedCluster) -> str:
    of = await add_batch(audited, "SUCCEEDED", succeeded=1, size=1)
    await audited.execute("UPDATE batch_callback SET job_id = $2 WHERE batch = $1", of, fresh())
    return str(of)


async def a_batch_that_ended_before_one_inside_it(audited: AuditedCluster) -> str:
    of = await add_batch(audited, "SUCCEEDED", succeeded=1, size=1)
    await audited.execute(
        "INSERT INTO batch (id, parent, name, look_at) VALUES ($1, $2, 'inner', clock_timestamp())", fresh(), of
    )
    return str(of)


CRIMES: list[tuple[str, Callable[[AuditedCluster], Awaitable[str]]]] = [
    ("I1", two_final_rows),
    ("I1", an_assignment_that_failed_and_succeeded),
    ("I2", success_with_an_error),
    ("I2", failure_without_an_error),
    ("I2", result_before_the_end),
    ("I3", epochs_go_back),
    ("I3", row_behind_its_events),
    ("I3", row_ahead_of_its_bucket),
    ("I3", token_goes_back),
    ("I11", one_more_than_the_limit),
    ("I11", beside_a_job_that_takes_the_whole_limit),
    ("I11", more_were_given_after_the_limit_was_lowered),
    ("I11", more_is_lent_beside_a_job),
    ("I4", stale_outcome),
    ("I4", refused_yet_recorded),
    ("I6", two_owners),
    ("I6", owner_who_never_took_it),
    ("I7", held_in_a_bucket),
    ("I7", in_flight_nowhere),
    ("I7", in_flight_twice),
    ("I7", in_a_bucket_of_another_lane),
    ("I8", in_no_bucket_at_all),
    ("I8", in_the_hands_of_the_dead),
    ("I8", under_an_old_epoch),
    ("I9", two_jobs_of_one_key),
    ("I9", key_of_another_job),
    ("I9", two_jobs_that_live_with_one_unique_key),
    ("I9", two_windows_of_one_unique_key_that_overlap),
    ("I9", unique_key_of_another_job),
    ("I12", a_batch_with_a_job_that_was_not_counted),
    ("I12", a_batch_that_ended_before_its_job),
    ("I12", a_batch_whose_counters_are_not_its_size),
    ("I12", a_callback_that_was_never_submitted),
    ("I12", a_callback_whose_job_is_gone),
    ("I12", a_batch_that_ended_before_one_inside_it),
    ("I10", two_jobs_of_one_fire),
    ("I10", job_of_a_fire_without_a_line),
    ("I10", fire_without_its_job),
    ("I10", fire_without_a_line),
    ("I13", two_leases_of_one_name),
    ("I14", lost_out_of_completing),
    ("I14", lost_after_the_exit),
    ("I14", lost_by_its_owner_after_its_end),
    ("I15", a_step_that_missed_the_end_of_its_job),
    ("I15", a_step_that_ended_in_another_way_than_its_job),
    ("I15", a_step_without_its_job),
    ("I15", a_step_that_was_never_started),
    ("I15", a_workflow_that_stands_still),
    ("I15", a_workflow_that_ended_before_its_steps),
]
ALSO: dict[Callable[[AuditedCluster], Awaitable[str]], set[str]] = {
    in_flight_nowhere: {"I8"},
    in_the_hands_of_the_dead: set(),
    refused_yet_recorded: set(),
    # A write that breaks the order of epochs leaves rows under an epoch that is not the bucket's.
    epochs_go_back: {"I8"},
    under_an_old_epoch: set(),
}


@pytest.mark.parametrize(("number", "crime"), CRIMES, ids=[f"{number} {crime.__name__}" for number, crime in CRIMES])
async def test_a_crime_is_found(
    history: AuditedCluster, number: str, crime: Callable[[AuditedCluster], Awaitable[str]]
) -> None:
    subject = await crime(history)
    report = await history.audit(quiet_seconds=0.0)
    assert report.violations[number] >= 1, report
    assert subject in [row.subject for row in report.evidence[number]], report.evidence
    found = {name for name, count in report.violations.items() if count}
    assert found - {number} <= ALSO.get(crime, set()), report.evidence


async def test_remains_that_the_housekeeper_found_are_no_unclean_exit(history: AuditedCluster) -> None:
    """A store was put back to before the exit: its jobs are rescued, and no exit was unclean."""
    left, bucket = fresh(), fresh()
    await history.add_agent(left, "RETIRED")
    await history.add_bucket(bucket, left)
    await history.add_event(bucket, "ACTIVE", "COMPLETING", 1, left)
    await history.add_event(bucket, "COMPLETING", "READY_TO_DELETE", 1, left)
    await history.add_event(bucket, "READY_TO_DELETE", "LOST", 1, None)
    report = await history.audit(quiet_seconds=0.0)
    assert not any(report.violations.values()), report.evidence


async def test_a_bucket_whose_rescuer_dies_after_the_exit_of_its_maker_is_no_unclean_exit(
    history: AuditedCluster,
) -> None:
    """The maker gave the bucket back and left; the rescuer that drained it has died."""
    left, rescuer, bucket = fresh(), fresh(), fresh()
    await history.add_agent(left, "ACTIVE")
    await history.add_bucket(bucket, left)
    await history.add_event(bucket, "ACTIVE", "LOST", 1, left)
    await history.execute("UPDATE agent SET state = 'RETIRED', ended_at = clock_timestamp() WHERE id = $1", left)
    await history.add_agent(rescuer, "DEAD")
    await history.add_event(bucket, "LOST", "DRAINING", 2, rescuer)
    await history.add_event(bucket, "DRAINING", "LOST", 2, rescuer)
    report = await history.audit(quiet_seconds=0.0)
    assert report.violations["I14"] == 0, report.evidence


async def test_a_job_whose_metadata_looks_like_a_fire_is_none(history: AuditedCluster) -> None:
    for state in ("HELD", "SUCCEEDED", "SUCCEEDED"):
        await history.add_job(state, headers=b'{"metadata":{"nominal_us":"1900000000000000","schedule":"nightly"}}')
    report = await history.audit(quiet_seconds=0.0)
    assert report.violations["I10"] == 0, report.evidence


@pytest.mark.parametrize("retired", [False, True])
async def test_a_decided_fire_has_a_line_unless_its_schedule_is_retired(history: AuditedCluster, retired: bool) -> None:
    """The lines of a retired schedule are forgotten before the schedule."""
    await history.execute(
        "INSERT INTO schedule (name, source, digest, definition, handler, args, priority, lane, expression, zone, overlap,"
        " declared_at, last_fire, retired_at)"
        " VALUES ('nightly', 'api', '', '', 'h', '{}', 3, 'default', '60s', 'UTC', 'skip', now(), now(), $1)",
        datetime(2026, 1, 1, tzinfo=UTC) if retired else None,
    )
    report = await history.audit(quiet_seconds=0.0)
    assert report.violations["I10"] == (0 if retired else 1), report.evidence


async def test_young_rows_are_not_audited(history: AuditedCluster) -> None:
    """I8 waits until it has been quiet; the same row is a violation afterwards."""
    await in_no_bucket_at_all(history)
    assert (await history.audit(quiet_seconds=60.0)).violations["I8"] == 0
    assert (await history.audit(quiet_seconds=0.0)).violations["I8"] == 1


async def test_all_are_counted_and_few_are_shown(history: AuditedCluster) -> None:
    for _ in range(5):
        await success_with_an_error(history)
    report = await history.audit(evidence_rows=2)
    assert report.violations["I2"] == 5
    assert len(report.evidence["I2"]) == 2


async def test_rows_below_the_floor_are_not_looked_at(history: AuditedCluster) -> None:
    await success_with_an_error(history)
    assert (await history.audit(floor=new_id())).violations["I2"] == 0


# ---------------------------------------------------------------- I5


def entry_of(job_id: bytes) -> bytes:
    return encode_entry(Entry(job_id, 1, "h", b"{}"))


async def submit(audited: AuditedCluster, bucket: UUID, job_id: bytes) -> None:
    fence = Fence(BucketId(bucket.bytes), 1, AgentId(audited.agent.bytes))
    assert await audited.store.open_bucket(fence) is ReplyStatus.OK
    answer = await audited.store.submit(
        bucket.bytes, [entry_of(job_id)], high_water_jobs=10, high_water_bytes=10_000, skew_ms_max=3_600_000
    )
    assert answer.status is ReplyStatus.OK


async def test_acknowledged_jobs_are_found_in_master_and_store(history: AuditedCluster) -> None:
    in_master, waiting, claimed = await history.add_job("HELD"), new_id(), new_id()
    await submit(history, history.bucket, claimed)
    fence = Fence(BucketId(history.bucket.bytes), 1, AgentId(history.agent.bytes))
    assert len((await history.store.claim(fence, "list", 1)).entries) == 1
    await submit(history, history.bucket, waiting)
    report = await history.audit(acknowledged=[in_master.bytes, waiting, claimed])
    assert report.violations["I5"] == 0, report.evidence


async def test_an_acknowledged_job_that_is_nowhere_is_found(history: AuditedCluster) -> None:
    lost = new_id()
    report = await history.audit(acknowledged=[lost, (await history.add_job("SUCCEEDED")).bytes])
    assert report.violations["I5"] == 1
    assert [row.subject for row in report.evidence["I5"]] == [str(UUID(bytes=lost))]


async def test_jobs_in_a_bucket_that_the_master_forgot_are_found(history: AuditedCluster) -> None:
    stranger = fresh()
    await submit(history, stranger, new_id())
    report = await history.audit()
    assert report.violations["I5"] == 1
    assert [row.subject for row in report.evidence["I5"]] == [str(stranger)]
