"""``Cluster.jobs`` and ``attempts``: every filter, page by page, and what a view shows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from jobmaster.client.jobs import listing
from jobmaster.client.jobs.job_filters import JobFilters
from jobmaster.client.workflows.definition import chain
from jobmaster.clock import new_id
from jobmaster.codec import encode_error
from jobmaster.handlers import call
from jobmaster.model.errors import InputError, NotFound, UnknownHandler
from jobmaster.model.ids import created_ms
from jobmaster.model.job import AttemptOutcome, ErrorInfo, HoldRow, JobState, Priority
from jobmaster.model.job_view import JobView
from jobmaster.rules.failure_group import error_fingerprint, error_line
from tests.integration.client.fixture import ClientFixture, Size, pay, resize
from tests.support.cases import about

NOTE = 'a "b" \\u0000 ü \\'
"""What JSON writes in another way."""


@pytest.fixture
def steps(client: ClientFixture, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows that each statement of a list may read."""
    jobs = client.master.queries.jobs
    seen: list[int] = []

    async def noted(*args: Any, **options: Any) -> Any:
        seen.append(options["reads"])
        return await jobs(*args, **options)

    monkeypatch.setattr(client.master.queries, "jobs", noted)
    return seen


async def held(client: ClientFixture, count: int, handler: Any = resize, **options: Any) -> list[UUID]:
    """Jobs with a row, oldest first."""
    args = {"path": "a"} if handler is resize else {"employee": 1}
    return [(await client.cluster.submit(handler, args, after=3600, **options)).id for _ in range(count)]


def of(views: list[JobView]) -> list[UUID]:
    return [view.id for view in views]


async def test_pages_follow_one_another_newest_first_without_gaps(client: ClientFixture) -> None:
    made = await held(client, 25)
    assert of(await client.cluster.jobs()) == made[::-1]
    pages: list[list[UUID]] = []
    after = None
    while page := await client.cluster.jobs(limit=10, after=after):
        pages.append(of(page))
        after = page[-1]
    assert [len(page) for page in pages] == [10, 10, 5]
    assert [job for listed in pages for job in listed] == made[::-1]
    await held(client, 3)
    assert of(await client.cluster.jobs(limit=10, after=made[15])) == made[5:15][::-1], "new jobs move no page"


async def test_every_filter(client: ClientFixture) -> None:
    plain = await held(client, 2)
    tagged = await held(client, 2, tags=["blue", "a\\u0000"], priority="critical")
    paid = await held(client, 2, pay)
    await client.cluster.cancel(plain[0])
    jobs = client.cluster.jobs
    assert of(await jobs(state="cancelled")) == [plain[0]]
    assert of(await jobs(state=JobState.HELD)) == [*paid[::-1], *tagged[::-1], plain[1]]
    assert len(await jobs(state=["HELD", JobState.CANCELLED])) == 6
    assert of(await jobs(handler=pay)) == of(await jobs(handler="pay")) == of(await jobs(lane="payroll")) == paid[::-1]
    assert of(await jobs(priority="critical")) == of(await jobs(priority=Priority.CRITICAL)) == tagged[::-1]
    assert of(await jobs(tag="blue")) == of(await jobs(tag="a\\u0000")) == tagged[::-1]
    assert await jobs(tag="green") == []
    assert of(await jobs(handler="images.resize", tag="blue", priority=5, state="HELD", lane="default")) == tagged[::-1]


async def test_filters_by_what_the_submit_has_said(client: ClientFixture) -> None:
    await held(client, 2)
    invoice = await held(client, 1, metadata={"invoice": "17", "note": NOTE}, tenant="acme")
    other = await held(client, 1, metadata={"invoice": "171"}, tenant="acme/eu")
    async with client.cluster.batch("night") as batch:
        grouped = [
            receipt.id for receipt in [await client.cluster.submit(resize, {"path": "b"}, after=3600) for _ in range(3)]
        ]
        await batch.submit(resize, {"path": "b"}, after=3600)
    jobs, count = client.cluster.jobs, client.cluster.count
    assert of(await jobs(metadata={"invoice": "17"})) == invoice
    assert of(await jobs(metadata={"note": NOTE, "invoice": "17"}, tenant="acme")) == invoice
    assert of(await jobs(tenant="acme/eu")) == other
    assert await jobs(metadata={"invoice": "1"}) == await jobs(metadata={"note": "17"}) == []
    (member,) = await jobs(batch=batch.id)
    assert member.headers.batch
    assert member.id not in grouped
    assert of(await jobs(batch=str(batch.id), state="HELD")) == [member.id]
    assert await jobs(batch=other[0]) == [], "no batch has this id"
    assert await count() == (8, True)
    assert await count(metadata={"invoice": "171"}) == await count(batch=batch.id) == (1, True)
    assert str(await count(at_most=3)) == "3+"


async def test_due_times_count_for_jobs_that_wait_in_the_master(client: ClientFixture) -> None:
    submit, jobs, count = client.cluster.submit, client.cluster.jobs, client.cluster.count
    soon, later = [(await submit(resize, {"path": "a"}, after=after)).id for after in (600, 7200)]
    paid = (await submit(pay, {"employee": 1}, after=600)).id
    put_off = (await submit(resize, {"path": "a"}, after=1800)).id
    sql = await client.connect()
    await sql.execute(
        "WITH j AS (UPDATE job SET due_at = due_at + interval '1 hour' WHERE id = $1 RETURNING *)"
        " INSERT INTO put_off (job_id, lane, priority, handler, due_at, until)"
        " SELECT id, lane, priority, handler, due_at - interval '1 hour', due_at FROM j",
        put_off,
    )
    await sql.close()
    assert of(await jobs(due_before=3600)) == [put_off, paid, soon], "one that is put off has its own due time"
    assert of(await jobs(due_after=timedelta(hours=1))) == [later]
    assert await count(due_after=timedelta(hours=1)) == (1, True), "not the time until which it is put off"
    assert of(await jobs(due_after=datetime.now(UTC), due_before=1000, lane="payroll")) == [paid]
    assert of(await jobs(due_before=3600, handler=resize, limit=1)) == [put_off]
    assert of(await jobs(due_before=3600, after=put_off, state=["HELD", "FAILED"])) == [paid, soon]
    assert await jobs(due_before=-1) == await jobs(due_before=3600, state="FAILED") == []
    assert await count(due_before=3600) == await count(due_before=3600, state=["HELD"]) == (3, True)
    assert await count(due_before=3600, handler="pay") == (1, True)
    assert await count(due_before=9000, at_most=2) == (2, False)


async def test_jobs_of_many_are_found_with_and_without_an_index(
    client: ClientFixture, steps: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await held(client, 6)
    assert of(await client.cluster.jobs(state="HELD")) == of(await client.cluster.jobs(due_before=9000)) == made[::-1]
    assert steps == [], "the history is not read"
    monkeypatch.setattr(listing, "INDEXED_MAX", 5)
    assert of(await client.cluster.jobs(state="HELD")) == of(await client.cluster.jobs(due_before=9000)) == made[::-1]
    assert len(steps) == 2, "of too many the history is read"
    assert await client.cluster.count(state="HELD", handler=resize) == (6, True)


async def test_filters_by_error(client: ClientFixture) -> None:
    kinds = [
        ("builtins.ValueError", "order 17 of 2f6c1d3e-0000-7000-8000-00000000abcd\nmore"),
        ("ValueError", "order 4 of 11111111-2222-3333-4444-555555555555"),
        ("shop.Refused", "card deadbeef99 \u0000 at 0x7f01"),
        ("shop.Closed", "$sealed:key-2026.job.ezf0HWcSDRi"),
    ]
    failed = [await held(client, 1, handler) for handler in (resize, resize, pay, pay)]
    sql = await client.connect()
    for (job,), (kind, message) in zip(failed, kinds, strict=True):
        error = encode_error(ErrorInfo(type=kind, message=message, traceback="ValueError"))
        await sql.execute("UPDATE job SET state = 'FAILED', error = $2 WHERE id = $1", job, error)
    await sql.close()
    jobs = client.cluster.jobs
    assert of(await jobs(error="ValueError")) == [failed[1][0], failed[0][0]]
    assert of(await jobs(error="builtins.ValueError")) == failed[0]
    assert of(await jobs(error="shop.Refused")) == of(await jobs(error="Refused")) == failed[2]
    assert await jobs(error="Value") == await jobs(error="shop.Ref") == []
    for view in await jobs(state="FAILED"):
        assert view.error is not None
        group = error_fingerprint(view.handler, view.error.type, view.error.message.replace("\0", ""))
        assert of(await jobs(error=group)) == [view.id]
    assert error_line(kinds[0][1]) == error_line(kinds[1][1]) == "order # of #"


async def test_jobs_of_a_workflow_and_of_a_schedule(client: ClientFixture) -> None:
    flow = await client.cluster.workflows.start("order", chain(call(resize, "a"), call(resize, "b")))
    await client.cluster.schedules.put("nightly", "0 3 * * *", call(resize, "c"))
    fired = (await client.cluster.schedules.run("nightly")).id
    (step,) = await client.cluster.jobs(workflow=flow)
    assert step.headers.workflow == (str(flow), 1)
    assert of(await client.cluster.jobs(schedule="nightly")) == [fired]
    assert await client.cluster.jobs(schedule="night") == []
    sql = await client.connect()
    await sql.execute("DELETE FROM workflow")
    await sql.close()
    assert of(await client.cluster.jobs(workflow=str(flow))) == [step.id], "also of a workflow that is forgotten"


async def test_bounds_of_time(client: ClientFixture) -> None:
    made = await held(client, 4)
    at = [datetime.fromtimestamp(created_ms(job.bytes) / 1000, tz=UTC) for job in made]
    jobs = client.cluster.jobs
    assert set(of(await jobs(since=at[1]))) >= set(made[2:])
    assert made[1] in of(await jobs(since=at[1])), "a time is the first of its range"
    assert made[1] not in of(await jobs(until=at[1])), "and does not belong to the range before it"
    assert of(await jobs(since=timedelta(hours=1))) == of(await jobs(since=3600.0)) == made[::-1]
    assert await jobs(until=3600) == await jobs(since=at[0] + timedelta(days=1)) == []
    assert await jobs(since=at[3], until=at[0]) == []


async def test_a_rare_job_is_found_in_bounded_steps(
    client: ClientFixture, steps: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "READS", 2)
    monkeypatch.setattr(listing, "READS_MAX", 8)
    rare = await held(client, 1, pay)
    await client.cluster.submit_many([{"path": "a"}] * 40, resize, after=3600)
    assert of(await client.cluster.jobs(handler=pay)) == rare
    assert steps == [2, 8, 8, 8, 8, 8], "41 rows"
    steps.clear()
    assert of(await client.cluster.jobs(handler=pay, limit=1)) == rare
    assert len(steps) == 6
    steps.clear()
    assert len(await client.cluster.jobs(limit=2)) == 2
    assert steps == [2]
    assert len(await client.cluster.jobs(limit=40)) == 40


async def test_a_list_with_a_time_ends_early_and_is_continued_where_it_has_ended(
    client: ClientFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "READS", 2)
    monkeypatch.setattr(listing, "_BY_ID", 2)
    rare = await held(client, 1, pay)
    made = await held(client, 4)
    by_index: JobFilters = {"handler": pay, "state": "HELD"}
    by_id: JobFilters = {"handler": pay}
    for filters in (by_id, by_index):
        pages = [await client.cluster.jobs(at_most_seconds=1e-9, **filters)]
        while (searched_to := pages[-1].searched_to) is not None:
            pages.append(await client.cluster.jobs(at_most_seconds=1e-9, after=searched_to, **filters))
        assert [of(page) for page in pages] == [[], [], rare]
    whole = await client.cluster.jobs(at_most_seconds=600, handler=pay)
    assert (of(whole), whole.searched_to) == (rare, None)
    full = await client.cluster.jobs(at_most_seconds=1e-9, limit=1)
    assert (of(full), full.searched_to) == (made[-1:], None)


WRONG: list[tuple[Any, ...]] = [
    ({"at_most_seconds": 0}, "above 0"),
    ({"at_most_seconds": "1s"}, "above 0"),
    ({"state": "fail"}, "did you mean 'FAILED'"),
    ({"state": ["HELD", 7]}, "7 is not a state"),
    ({"state": "SAVE_PENDING"}, "have no row in the master"),
    ({"state": JobState.QUEUED}, "have no row in the master"),
    ({"priority": "urgent"}, "unknown priority 'urgent'"),
    ({"lane": "No Lane"}, "is not the name of a lane"),
    ({"tag": ["a", "b"]}, "'tag'"),
    ({"handler": ""}, "'handler'"),
    ({"lanes": "default"}, "no filter 'lanes' .did you mean 'lane'"),
    ({"limit": 0}, "from 1 to 1000"),
    ({"limit": 1001}, "from 1 to 1000"),
    ({"limit": True}, "from 1 to 1000"),
    ({"since": datetime.fromisoformat("2030-01-01")}, "'since' is a naive datetime"),
    ({"until": -1}, "'until' must be"),
    ({"since": "yesterday"}, "'since' must be"),
    ({"due_before": "tomorrow"}, "'due_before' must be"),
    ({"due_after": float("nan")}, "'due_after' must be"),
    ({"metadata": {}}, "'metadata' must be a mapping of 1 to 20"),
    ({"metadata": {"a": 1}}, "metadata 'a' must be a text"),
    ({"metadata": {"a": "\0"}}, "metadata 'a' must be a text"),
    ({"metadata": {"a": "\ud800"}}, "metadata 'a' must be a text"),
    ({"metadata": {"\n": "a"}}, "contains the character U.000A"),
    ({"batch": "night"}, "'batch' must be an id"),
    ({"workflow": 7}, "'workflow' must be an id"),
    ({"schedule": 7}, "'schedule' must be text"),
    ({"tenant": "a b"}, "is not the name of a tenant"),
    ({"error": "a\0"}, "contains the character U.0000"),
    ({"after": "nonsense"}, "'nonsense' is not the id of a job"),
]


async def test_a_filter_that_no_job_can_fit_is_refused(client: ClientFixture) -> None:
    for filters, words in WRONG:
        with about(filters), pytest.raises(InputError, match=words):
            await client.cluster.jobs(**filters)


async def test_a_function_that_is_no_handler_is_refused(client: ClientFixture) -> None:
    with pytest.raises(UnknownHandler, match="not declared"):
        await client.cluster.jobs(handler=of)


async def test_a_view_shows_what_went_in_what_came_out_and_when(client: ClientFixture) -> None:
    before = datetime.now(UTC)
    receipt = await client.cluster.submit(resize, {"path": "a"}, tags=["t"], metadata={"k": "v"})
    waiting = await receipt.get()
    assert (waiting.state, waiting.arguments, waiting.tags) == (JobState.SAVE_PENDING, {"path": "a"}, ("t",))
    assert (waiting.changed_at, waiting.started_at, waiting.ended_at, waiting.failed_because) == (None,) * 4
    await client.agent.work_off(result=b'{"width":4,"height":2}')
    (view,) = await client.cluster.jobs()
    assert view == await receipt.get()
    assert (view.arguments, view.result_value) == ({"path": "a"}, {"width": 4, "height": 2})
    assert (view.tags, view.metadata, view.failed_because) == (("t",), {"k": "v"}, None)
    assert await receipt.result() == Size(4, 2)
    assert view.started_at is not None
    assert view.ended_at is not None
    assert before - timedelta(seconds=1) <= view.created_at <= view.started_at <= view.ended_at
    assert view.ended_at == view.changed_at
    assert view.ended_at.tzinfo is UTC

    failing = await client.cluster.submit(resize, {"path": "b"})
    info = ErrorInfo(type="ValueError", message="no such picture")
    for bucket in client.agent.buckets["default", 3]:
        await client.agent.finish(bucket, await client.agent.claim(bucket), state=JobState.FAILED, error=info)
    view = await failing.get()
    assert (view.failed_because, view.result_value) == ("ValueError: no such picture [error]", None)
    later = await client.cluster.submit(resize, {"path": "c"}, after=3600)
    view = await later.get()
    assert view.due_at is not None
    assert timedelta(minutes=55) < view.due_at - before < timedelta(minutes=65)
    await later.cancel()
    assert (await later.get()).failed_because == "cancelled"


async def test_arguments_and_result_of_a_list_without_payload_raise_an_error(client: ClientFixture) -> None:
    await held(client, 1, tags=["t"])
    (view,) = await client.cluster.jobs(payload=False)
    assert (view.tags, view.arguments_json) == (("t",), b"{}")
    for name in ("arguments", "result_value"):
        with pytest.raises(InputError, match="without its arguments and result"):
            getattr(view, name)


async def test_the_list_shows_ranges_that_have_left_the_table(client: ClientFixture) -> None:
    """``job_detached`` holds ranges that are on their way to the archive; ``get`` finds their jobs, and so do lists."""
    receipt = await client.cluster.submit(resize, {"path": "a"})
    await client.agent.work_off(result=b"null")
    connection = await client.connect()
    try:
        await connection.execute("INSERT INTO job_detached SELECT * FROM job")
        await connection.execute("DELETE FROM job")
    except asyncpg.PostgresError as error:
        pytest.fail(f"the shape of the tables: {error}")
    finally:
        await connection.close()
    assert of(await client.cluster.jobs(state="SUCCEEDED")) == [receipt.id]
    assert (await client.cluster.attempts(receipt))[-1].concluding


async def test_attempts_in_order_with_the_concluding_one_last(client: ClientFixture) -> None:
    receipt = await client.cluster.submit(resize, {"path": "a"}, durability="master")
    assert await client.cluster.attempts(receipt) == []
    bucket = next(b for b in client.agent.buckets["default", 3] if b.id == receipt.bucket_id)
    name, entries = await client.agent.claim(bucket)
    (entry,) = entries
    error = b'{"type":"ValueError","message":"first"}'
    row = HoldRow(
        entry.id, 3, "default", entry.handler, entry.token, 1, 0, 0, entry.args, entry.headers, error, 1_500_000
    )
    fence = client.agent.fence(bucket)
    written = await client.master.outcomes.retry_here(fence, [row])
    assert written.accepted == {entry.id}
    again = entry.__class__(
        entry.id, entry.token + 1, entry.handler, entry.args, 0, entry.headers, attempt=1, rescues=0
    )
    await client.agent.finish(bucket, (name, [again]), result=b"null")
    first, last = await client.cluster.attempts(receipt.id)
    assert (first.outcome, first.token, first.concluding) == (AttemptOutcome.FAILED, entry.token, False)
    assert first.error is not None
    assert (first.error.message, first.ran_us) == ("first", 1_500_000)
    assert first.ended_at is not None
    assert first.started_at == first.ended_at - timedelta(seconds=1.5)
    assert (last.outcome, last.token, last.concluding, last.error) == ("SUCCEEDED", entry.token + 1, True, None)
    with pytest.raises(NotFound):
        await client.cluster.attempts(new_id())
