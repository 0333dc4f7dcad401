"""Writes about a job: only under its present identity, and none once it is final."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

import pytest

from jobmaster.clock import new_id
from jobmaster.model.ids import Fence
from jobmaster.model.job import FinalRow
from jobmaster.ports import StepScope, Written
from tests.integration.postgres.fixture import DUE, ERROR, MasterFixture, final_row, hold_row, in_flight_row

Write = Callable[[MasterFixture, Fence, bytes, int], Awaitable[Written]]


class Kind(NamedTuple):
    name: str
    write: Write
    bucket_lock: bool
    after: str


STEPS = StepScope("default", 3)


async def _finished(db: MasterFixture, rows: list[FinalRow]) -> Written:
    return (await db.master.outcomes.finish_steps(db.fence, rows, STEPS)).written


async def _final(db: MasterFixture, fence: Fence, job_id: bytes, token: int) -> Written:
    return await db.master.outcomes.record_final([final_row(job_id, fence, token)])


async def _finish_steps(db: MasterFixture, fence: Fence, job_id: bytes, token: int) -> Written:
    return await _finished(db, [final_row(job_id, fence, token)])


async def _persist(db: MasterFixture, fence: Fence, job_id: bytes, token: int) -> Written:
    return await db.master.outcomes.persist(fence, [in_flight_row(job_id, token)])


async def _hold(db: MasterFixture, fence: Fence, job_id: bytes, token: int) -> Written:
    return await db.master.outcomes.hold(fence, [hold_row(job_id, token, error=ERROR)])


async def _retry_here(db: MasterFixture, fence: Fence, job_id: bytes, token: int) -> Written:
    return await db.master.outcomes.retry_here(fence, [hold_row(job_id, token, error=ERROR, due_us=DUE)])


async def _release(db: MasterFixture, fence: Fence, job_id: bytes, token: int) -> Written:
    return await db.master.onboarding.release(fence, [(job_id, token)])


KINDS = [
    Kind("record_final", _final, False, "SUCCEEDED"),
    Kind("finish_steps", _finish_steps, False, "SUCCEEDED"),
    Kind("persist", _persist, True, "PROCESSING"),
    Kind("hold", _hold, False, "HELD"),
    Kind("retry_here", _retry_here, True, "ASSIGNED"),
    Kind("release", _release, False, "HELD"),
]
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


@every_kind
async def test_the_present_identity_writes(db: MasterFixture, kind: Kind) -> None:
    (job_id,) = await db.assigned()
    written = await kind.write(db, db.fence, job_id, 2)
    assert written == Written(True, frozenset([job_id]))
    assert await db.state(job_id) == kind.after


@every_kind
@pytest.mark.parametrize("token", [1, 3])
async def test_another_token_is_refused_by_the_row(db: MasterFixture, kind: Kind, token: int) -> None:
    (job_id,) = await db.assigned()
    view = await db.view(job_id)
    written = await kind.write(db, db.fence, job_id, token)
    assert written == Written(True, frozenset(), refused=frozenset([job_id]))
    assert await db.view(job_id) == view


@every_kind
async def test_another_bucket_is_refused_by_the_row(db: MasterFixture, kind: Kind) -> None:
    (job_id,) = await db.assigned()
    view = await db.view(job_id)
    written = await kind.write(db, await db.bucket(), job_id, 2)
    assert written == Written(True, frozenset(), refused=frozenset([job_id]))
    assert await db.view(job_id) == view


@every_kind
async def test_another_epoch_of_the_same_bucket_is_refused(db: MasterFixture, kind: Kind) -> None:
    (job_id,) = await db.assigned()
    view = await db.view(job_id)
    # The bucket itself moves on, so that it is the row and not the bucket's lock that has to refuse.
    await db.sql.execute("UPDATE bucket SET epoch = 2")
    written = await kind.write(db, db.fence._replace(epoch=2), job_id, 2)
    assert written == Written(True, frozenset(), refused=frozenset([job_id]))
    assert await db.view(job_id) == view


@every_kind
@pytest.mark.parametrize("state", ["SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED"])
async def test_a_final_row_is_never_written_again(db: MasterFixture, kind: Kind, state: str) -> None:
    (job_id,) = await db.assigned()
    await db.master.outcomes.record_final([final_row(job_id, db.fence, 2, state=state)])
    view = await db.view(job_id)
    await kind.write(db, db.fence, job_id, 2)
    assert await db.view(job_id) == view


@every_kind
async def test_a_row_that_was_given_back_has_no_owner(db: MasterFixture, kind: Kind) -> None:
    (job_id,) = await db.assigned()
    await db.master.outcomes.hold(db.fence, [hold_row(job_id, 2)])
    view = await db.view(job_id)
    assert (view.state, view.bucket_id, view.bucket_epoch, view.token) == ("HELD", None, None, 2)
    written = await kind.write(db, db.fence, job_id, 2)
    # What was given back with this token was given back by this identity: the same again is a repeat, not a refusal.
    repeat = kind.after == "HELD"
    assert written.accepted == (frozenset([job_id]) if repeat else frozenset())
    assert written.refused == (frozenset() if repeat else frozenset([job_id]))
    assert await db.view(job_id) == view


@every_kind
async def test_every_row_of_a_mixed_batch_is_accounted_for(db: MasterFixture, kind: Kind) -> None:
    good, final, moved = await db.assigned(3)
    await db.master.outcomes.record_final([final_row(final, db.fence, 2)])
    await db.master.outcomes.hold(db.fence, [hold_row(moved, 2)])
    await db.master.onboarding.onboard(db.fence, "default", 3, 60.0, 1)  # moved again: token 3
    writes = {
        "record_final": lambda: db.master.outcomes.record_final(
            [final_row(i, db.fence, 2) for i in (moved, final, good)]
        ),
        "finish_steps": lambda: _finished(db, [final_row(i, db.fence, 2) for i in (moved, final, good)]),
        "persist": lambda: db.master.outcomes.persist(db.fence, [in_flight_row(i, 2) for i in (moved, final, good)]),
        "hold": lambda: db.master.outcomes.hold(db.fence, [hold_row(i, 2) for i in (moved, final, good)]),
        "retry_here": lambda: db.master.outcomes.retry_here(db.fence, [hold_row(i, 2) for i in (moved, final, good)]),
        "release": lambda: db.master.onboarding.release(db.fence, [(i, 2) for i in (moved, final, good)]),
    }
    written = await writes[kind.name]()
    own_outcome = kind.name in ("record_final", "finish_steps")
    assert written.accepted == ({good, final} if own_outcome else {good})
    assert written.refused == ({moved} if own_outcome else {moved, final})


@every_kind
async def test_the_same_write_again_is_accepted_again_and_changes_nothing(db: MasterFixture, kind: Kind) -> None:
    (job_id,) = await db.assigned()
    first = await kind.write(db, db.fence, job_id, 2)
    view, lines = await db.view(job_id), await db.lines(job_id)
    again = await kind.write(db, db.fence, job_id, 2)
    assert again == first
    after = await db.view(job_id)
    if kind.name == "persist":
        assert (after.state, after.token) == (view.state, view.token)
    else:
        assert after == view
    assert await db.lines(job_id) == lines


async def test_processing_never_goes_back_to_assigned(db: MasterFixture) -> None:
    (job_id,) = await db.processing()
    written = await db.master.outcomes.persist(db.fence, [in_flight_row(job_id, state="ASSIGNED")])
    assert written.accepted == {job_id}
    assert await db.state(job_id) == "PROCESSING"


async def test_a_missing_row_is_made_by_every_write_that_carries_the_job(db: MasterFixture) -> None:
    final, running, held, here = (new_id() for _ in range(4))
    assert (await db.master.outcomes.record_final([final_row(final, db.fence)])).accepted == {final}
    assert (await db.master.outcomes.persist(db.fence, [in_flight_row(running)])).accepted == {running}
    assert (await db.master.outcomes.hold(db.fence, [hold_row(held)])).accepted == {held}
    assert (await db.master.outcomes.retry_here(db.fence, [hold_row(here)])).accepted == {here}
    views = [await db.view(id_) for id_ in (final, running, held, here)]
    assert [(v.state, v.token, v.bucket_id) for v in views] == [
        ("SUCCEEDED", 1, db.fence.bucket_id),
        ("PROCESSING", 1, db.fence.bucket_id),
        ("HELD", 1, None),
        ("ASSIGNED", 2, db.fence.bucket_id),
    ]


async def test_a_release_does_not_take_a_running_job(db: MasterFixture) -> None:
    (job_id,) = await db.processing()
    assert (await db.master.onboarding.release(db.fence, [(job_id, 1)])).refused == {job_id}
    assert await db.state(job_id) == "PROCESSING"


async def test_a_refused_outcome_leaves_a_trace_on_the_line_of_its_identity(db: MasterFixture) -> None:
    (job_id,) = await db.assigned()
    for _ in range(2):
        assert (await db.master.outcomes.record_final([final_row(job_id, db.fence, 1)])).refused == {job_id}
    rows = await db.sql.fetch("SELECT token, outcome, refused_count FROM attempt")
    assert [tuple(row) for row in rows] == [(1, "refused", 2)]


async def test_a_refused_outcome_twice_in_a_batch_leaves_one_trace(db: MasterFixture) -> None:
    """A call that keeps outcomes and whose answer was lost leaves an outcome in the store twice."""
    job_id, other = await db.assigned(2)
    late = [final_row(job_id, db.fence, 1), final_row(other, db.fence, 1)]
    written = await db.master.outcomes.record_final([*late, late[0]])
    assert written.refused == {job_id, other}
    rows = await db.sql.fetch("SELECT job_id, outcome, refused_count FROM attempt ORDER BY job_id")
    assert [(row["job_id"].bytes, row["outcome"], row["refused_count"]) for row in rows] == sorted(
        [(job_id, "refused", 1), (other, "refused", 1)]
    )


async def test_copy_takes_fresh_outcomes_and_refuses_a_batch_with_a_known_id(db: MasterFixture) -> None:
    fresh = [new_id() for _ in range(3)]
    assert await db.master.outcomes.copy_final([final_row(id_, db.fence) for id_ in fresh])
    assert [await db.state(id_) for id_ in fresh] == ["SUCCEEDED"] * 3
    before = await db.jobs()
    mixed = [new_id(), fresh[0], new_id()]
    assert not await db.master.outcomes.copy_final([final_row(id_, db.fence) for id_ in mixed])
    assert await db.jobs() == before, "a refused COPY writes nothing"


async def test_copy_keeps_every_field(db: MasterFixture) -> None:
    job_id = new_id()
    row = final_row(job_id, db.fence)._replace(due_us=1_700_000_000_123_456, attempt=2, rescues=1, args=b'{"a":1}')
    assert await db.master.outcomes.copy_final([row])
    copied = await db.view(job_id)
    other = new_id()
    await db.master.outcomes.record_final([row._replace(id=other)])
    upserted = await db.view(other)
    assert (copied.due_us, copied.attempt, copied.rescues, copied.arguments_json) == (
        1_700_000_000_123_456,
        2,
        1,
        b'{"a":1}',
    )
    for name in (
        "due_us",
        "attempt",
        "rescues",
        "arguments_json",
        "headers_json",
        "result_json",
        "error",
        "waited_us",
        "ran_us",
        "token",
    ):
        assert getattr(copied, name) == getattr(upserted, name), name


async def test_an_id_twice_in_a_batch_is_written_once(db: MasterFixture) -> None:
    job_id = new_id()
    written = await db.master.outcomes.record_final([final_row(job_id, db.fence), final_row(job_id, db.fence)])
    assert written.accepted == {job_id}
