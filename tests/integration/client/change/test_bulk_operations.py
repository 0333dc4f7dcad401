"""``Cluster.bulk``: every job that fits a filter is changed once, page by page, whatever dies meanwhile."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from jobmaster.audit import audit
from jobmaster.client.bulk_operations.retried_jobs import RetriedJobs
from jobmaster.client.idempotency_keys import digest
from jobmaster.client.jobs.job_filters import JobFilters
from jobmaster.client.signals.wait import signal
from jobmaster.client.sync import SyncCluster
from jobmaster.clock import Clock, SystemClock, new_id
from jobmaster.master.reports import Reader
from jobmaster.model.errors import Conflict, InputError, NotFound, WaitTimeout
from jobmaster.model.flow.bulk_operation import BulkKind, BulkPage, BulkState, BulkView, SkipCause
from jobmaster.model.job import ErrorInfo, JobState
from jobmaster.model.job_change import NewValues
from jobmaster.model.job_view import JobFilter, JobView
from jobmaster.settings.model import Encryption
from jobmaster.telemetry import Telemetry
from jobmaster_agents.event_log import EventLog
from jobmaster_agents.leader import bulk_worker
from jobmaster_agents.leader.bulk_worker import IDLE_SECONDS, BulkWorker
from tests.integration.client.conftest import OpenCluster
from tests.integration.client.fixture import ClientFixture, resize
from tests.support.hand_clock import HandClock
from tests.support.patience import PATIENCE_SECONDS

KEY = base64.b64encode(b"k" * 32).decode()


class Leader:
    """An agent that leads, as far as bulk operations go."""

    def __init__(self, client: ClientFixture, bulk: Any = None, clock: Clock | None = None) -> None:
        settings, master = client.cluster.settings, client.master
        self.telemetry = Telemetry()
        retried = RetriedJobs(settings, master.queries, SystemClock())
        self.worker = BulkWorker(
            bulk or master.bulk, retried, lambda: True, clock or SystemClock(), self.telemetry, EventLog()
        )

    async def page(self) -> bool:
        """One tick; False when there was nothing to do."""
        self.worker.on_bulk()
        return await self.worker.tick() != IDLE_SECONDS

    async def work(self) -> None:
        while await self.page():
            pass


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of four jobs."""
    for name in ("PAGE_JOBS", "PAGE_JOBS_MIN", "PAGE_JOBS_MAX", "READS_MAX"):
        monkeypatch.setattr(bulk_worker, name, 4)


async def held(client: ClientFixture, count: int, **options: Any) -> list[UUID]:
    return [(await client.cluster.submit(resize, {"path": "a"}, after=3600, **options)).id for _ in range(count)]


async def failed(client: ClientFixture, count: int, **options: Any) -> list[UUID]:
    """Jobs that have failed, the oldest first."""
    made = [(await client.cluster.submit(resize, {"path": "a"}, **options)).id for _ in range(count)]
    error = ErrorInfo(type="E", message="m", reason="error")
    for buckets in client.agent.buckets.values():
        for bucket in buckets:
            await client.agent.finish(bucket, await client.agent.claim(bucket), state=JobState.FAILED, error=error)
    return made


async def ended(client: ClientFixture, kind: Any, **parts: Any) -> BulkView:
    """A bulk operation, worked off."""
    view = await client.cluster.bulk.start(kind, **parts)
    await Leader(client).work()
    return await client.cluster.bulk.get(view)


async def sql(client: ClientFixture, query: str, *args: Any) -> list[Any]:
    connection = await client.connect()
    try:
        return list(await connection.fetch(query, *args))
    finally:
        await connection.close()


async def states(client: ClientFixture, jobs: list[UUID]) -> list[str]:
    return [(await client.cluster.get(job)).state.value for job in jobs]


async def test_a_retry_makes_one_new_job_of_each_failed_one_however_often_it_is_asked_for(
    client: ClientFixture, small_pages: None
) -> None:
    jobs, others = await failed(client, 9, tags=["a"]), await failed(client, 2, tags=["b"])
    alone = await client.cluster.retry(jobs[3])
    filters = JobFilters(tag="a")
    preview = await client.cluster.bulk.preview("retry", **filters)
    assert (preview.eligible, preview.skipped, preview.capped) == (8, {SkipCause.RETRIED: 1}, False)
    view = await ended(client, "retry", reason="bad disk", actor="ann", **filters)
    assert (view.state, view.changed, view.skipped, view.done) == (BulkState.DONE, 8, {"RETRIED": 1}, 1.0)
    new = await client.cluster.jobs(state="HELD", tag="a")
    by_old = {each.metadata["retry_of"]: each for each in [*new, await alone.get()]}
    assert by_old.keys() == {str(job) for job in jobs}
    assert all(each.arguments == {"path": "a"} for each in new)
    assert (await client.cluster.retry(jobs[0])).id == by_old[str(jobs[0])].id, "a retry of one job finds it"
    again = await ended(client, "retry", **filters)
    assert (again.changed, again.skipped) == (0, {"RETRIED": 9})
    assert await states(client, others) == ["FAILED", "FAILED"]
    log = await sql(
        client, "SELECT actor, action, subject, detail FROM operator_log WHERE action LIKE 'bulk%' ORDER BY seq"
    )
    assert [(row["actor"], row["action"]) for row in log[:2]] == [("ann", "bulk retry"), ("ann", "bulk done")]
    assert {row["subject"] for row in log} == {str(view.id), str(again.id)}
    assert json.loads(log[0]["detail"])["reason"] == "bad disk"
    assert json.loads(log[1]["detail"])["changed"] == 8


async def test_the_next_page_of_a_retry_is_read_while_one_is_written_and_compared_with_the_rows_then(
    client: ClientFixture, small_pages: None
) -> None:
    jobs = await failed(client, 10)
    view = await client.cluster.bulk.start("retry", state="FAILED")

    class Master:
        """Writes a page when the next one has been read."""

        def __init__(self) -> None:
            self.read = [asyncio.Event() for _ in range(4)]
            self.reads = 0

        def __getattr__(self, name: str) -> Any:
            return getattr(client.master.bulk, name)

        async def find(self, *args: Any, **options: Any) -> Any:
            found = await client.master.bulk.find(*args, **options)
            self.read[self.reads].set()
            self.reads += 1
            return found

        async def retry_page(self, *args: Any) -> Any:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await self.read[min(self.reads, 2)].wait()
            return await client.master.bulk.retry_page(*args)

    master = Master()
    leader = Leader(client, master)
    assert await leader.page()
    assert master.reads == 2
    alone = await client.cluster.retry(jobs[5])  # of the page that was read
    await leader.work()
    assert master.reads == 4, "three pages and the end, each read once"
    after = await client.cluster.bulk.get(view)
    assert (after.state, after.changed, after.skipped) == (BulkState.DONE, 9, {"CHANGED": 1})
    assert (await client.cluster.retry(jobs[5])).id == alone.id


@pytest.mark.parametrize(
    ("ended_per_page", "published", "sizes", "rest"),
    [
        (0, 0, [4, 8, 8], 0.1),
        (100, 0, [4, 2, 2], 1.9),
        (1000, 0, [4, 2, 2], 19.0),
        (0, 5000, [4, 2, 2], 9.5),
    ],
    ids=["idle", "1,000 a second", "10,000 a second", "other agents"],
)
async def test_pages_of_a_tenth_of_a_second_grow_and_shrink_while_agents_end_jobs(
    client: ClientFixture,
    monkeypatch: pytest.MonkeyPatch,
    ended_per_page: int,
    published: int,
    sizes: list[int],
    rest: float,
) -> None:
    for name, size in (("PAGE_JOBS", 4), ("PAGE_JOBS_MIN", 2), ("PAGE_JOBS_MAX", 8)):
        monkeypatch.setattr(bulk_worker, name, size)
    await held(client, 24, tags=["a"])
    await client.cluster.bulk.start("cancel", tag="a")
    clock = HandClock()
    limits: list[int] = []

    class Master:
        """Takes a tenth of a second for each page."""

        def __getattr__(self, name: str) -> Any:
            return getattr(client.master.bulk, name)

        async def next(self) -> Any:
            work = await client.master.bulk.next()
            return None if work is None else work._replace(ended_per_second=work.ended_per_second + published)

        async def find(self, *args: Any, **options: Any) -> Any:
            limits.append(options["limit"])
            clock.now += 0.1
            return await client.master.bulk.find(*args, **options)

    leader = Leader(client, Master(), clock)
    for _ in sizes:
        leader.telemetry.jobs_ended["succeeded"] += ended_per_page
        leader.worker.on_bulk()
        assert await leader.worker.tick() == pytest.approx(0.1 * rest)
    assert limits == sizes


def comparable(view: JobView, old: UUID) -> Any:
    """A retried job without what differs from one retry to the next."""
    headers = view.headers_json.replace(str(old).encode(), b"OLD")
    return view.handler, view.lane, view.priority, view.arguments_json, headers, view.attempt, view.rescues


async def test_a_job_of_a_bulk_retry_is_the_one_that_a_retry_of_it_makes(client: ClientFixture) -> None:
    given: list[dict[str, Any]] = [
        {},
        {
            "tags": ["x", "y"],
            "metadata": {"a": "1", "nul": "\0 \\u0000", "quote": '"'},
            "timeout": 5,
            "max_attempts": 2,
        },
        {"accept_time": 3, "complete_time": 60, "cancel_slow": True, "expires": 5000, "idempotency_key": "its own"},
        {"delivery": "at_most_once", "tenant": "acme", "priority": "low", "lane": "payroll"},
        {"ordering_key": "k"},
    ]
    pairs: list[list[UUID]] = []
    for options in given:
        pair = []
        for turn in ("one", "two"):
            keyed = {**options, "idempotency_key": turn} if "idempotency_key" in options else options
            pair.append((await client.cluster.submit(resize, {"width": 5, "path": "\u00e4"}, after=3600, **keyed)).id)
        pairs.append(pair)
    every = [job for pair in pairs for job in pair]
    await sql(client, "UPDATE job SET state = 'FAILED', expires_at = NULL WHERE id = ANY ($1)", every)
    alone = [await (await client.cluster.retry(one)).get() for one, _ in pairs]
    view = await ended(client, "retry", handler=resize)
    assert (view.changed, view.skipped) == (len(given), {"RETRIED": len(given)})
    made = {each.metadata["retry_of"]: each for each in await client.cluster.jobs(state="HELD")}
    for single, (one, two) in zip(alone, pairs, strict=True):
        assert comparable(made[str(two)], two) == comparable(single, one)
        assert (await client.cluster.retry(two)).id == made[str(two)].id, "the payload is the same, too"
        assert made[str(two)].id_bytes > view.highest, "it is no job that the operation could find"


@pytest.mark.parametrize("client_settings", [{"encryption": Encryption(keys={"k": KEY}, active="k")}], indirect=True)
async def test_sealed_arguments_are_sealed_for_the_new_job(client: ClientFixture, open_cluster: OpenCluster) -> None:
    plain = await open_cluster(settings=replace(client.settings, encryption=Encryption()))
    receipts = [await client.cluster.submit(resize, {"path": "a"}), await plain.submit(resize, {"path": "a"})]
    await failed(client, 0)
    view = await client.cluster.bulk.start("retry", handler=resize)
    blind = RetriedJobs(plain.settings, client.master.queries, SystemClock())
    found = await client.master.bulk.find(
        BulkKind.RETRY, JobFilter(states=(JobState.FAILED,)), NewValues(), bytes(16), view.highest,
        reads=9, limit=9, payload=True,
    )  # fmt: skip
    made, refused = await blind.make(found.jobs, view.highest)
    assert (len(made), dict(refused)) == (1, {SkipCause.REFUSED: 1}), "a leader without the key leaves it alone"
    asking = Encryption(keys={"k": KEY}, active="k", require=["*"])
    strict = RetriedJobs(replace(client.settings, encryption=asking), client.master.queries, SystemClock())
    made, refused = await strict.make(found.jobs, view.highest)
    assert (len(made), dict(refused)) == (1, {SkipCause.REFUSED: 1}), "a plain job would get a seal"
    await Leader(client).work()
    assert (await client.cluster.bulk.get(view)).changed == 2
    for job in await client.cluster.jobs(state="HELD"):
        assert job.arguments == {"path": "a"}
        assert b"$sealed" in (await plain.get(job)).arguments_json
    for receipt in receipts:
        again = await client.cluster.retry(receipt)
        assert again.duplicate


async def test_what_a_submit_refuses_now_is_left_alone_and_counted(client: ClientFixture) -> None:
    (good,) = await failed(client, 1)
    unknown, wrong, signalled = await failed(client, 1), await failed(client, 1), await failed(client, 1)
    waiting = await client.cluster.submit(resize, {"path": "a"}, wait_for=signal("s"))
    await client.cluster.cancel(waiting)
    await sql(client, "UPDATE job SET handler = 'gone' WHERE id = ANY ($1)", unknown)
    await sql(client, "UPDATE job SET args = '{\"pth\":1}' WHERE id = ANY ($1)", wrong)
    view = await ended(client, "retry", since=60, state=["FAILED", "CANCELLED"])
    assert (view.changed, view.skipped) == (2, {"REFUSED": 2, "SIGNAL": 1})
    old = {each.metadata.get("retry_of") for each in await client.cluster.jobs(state="HELD")}
    assert old == {str(good), str(signalled[0])}


async def test_a_cancel_ends_what_waits_and_asks_for_what_is_in_flight(
    client: ClientFixture, small_pages: None
) -> None:
    waiting, running = await held(client, 6, tags=["a"]), await held(client, 2, tags=["a"])
    kept = await held(client, 1, tags=["b"])
    bucket = client.agent.buckets["default", 3][0]
    await sql(
        client,
        "UPDATE job SET state = 'PROCESSING', bucket_id = $2, bucket_epoch = 1 WHERE id = ANY ($1)",
        running,
        UUID(bytes=bucket.id),
    )
    view = await ended(client, "cancel", tag="a")
    assert (view.changed, view.unsearched) == (8, 2), "both buckets may have jobs without a row"
    assert await states(client, waiting) == ["CANCELLED"] * 6
    assert await states(client, [*running, *kept]) == ["PROCESSING", "PROCESSING", "HELD"]
    assert all([(await client.cluster.get(job)).cancel_requested for job in running])
    again = await ended(client, "cancel", tag="a")
    assert (again.changed, again.skipped) == (0, {"REQUESTED": 2})


async def test_a_reschedule_changes_what_waits_in_the_master(client: ClientFixture) -> None:
    jobs = await held(client, 3, tags=["a"])
    (short,) = await held(client, 1, tags=["a"], expires=5000)
    signalled = (await client.cluster.submit(resize, {"path": "a"}, tags=["a"], wait_for=signal("s"))).id
    change: Any = {"after": 7200, "priority": "high", "lane": "payroll"}
    preview = await client.cluster.bulk.preview("reschedule", change=change, tag="a")
    assert (preview.eligible, preview.skipped) == (3, {SkipCause.EXPIRES: 1, SkipCause.SIGNAL: 1})
    view = await ended(client, "reschedule", change=change, tag="a")
    assert (view.changed, view.skipped) == (3, {"EXPIRES": 1, "SIGNAL": 1})
    for job in jobs:
        changed = await client.cluster.get(job)
        assert (changed.priority.label, changed.lane) == ("high", "payroll")
        assert changed.due_at is not None
        assert 7100 < (changed.due_at - changed.created_at).total_seconds() < 7300
    assert [(await client.cluster.get(job)).lane for job in (short, signalled)] == ["default", "default"]


async def test_a_delete_keeps_the_row_that_proves_the_end_and_nothing_else(client: ClientFixture) -> None:
    jobs = await failed(client, 2, tags=["secret"], metadata={"who": "ann"})
    kept = await failed(client, 1)
    before = [await client.cluster.get(job) for job in jobs]
    cursor = [event async for event in client.cluster.events("start", follow=False)][-1].cursor
    view = await ended(client, "delete", tag="secret")
    assert view.changed == 2
    for job, old in zip(jobs, before, strict=True):
        now = await client.cluster.get(job)
        assert (now.arguments, now.result_json, now.tags, now.metadata) == ({}, None, (), {})
        assert now.error is not None
        assert (now.deleted, now.error.type) == (True, "Deleted")
        assert (now.state, now.token, now.bucket_id, now.changed_us, now.attempt) == (
            old.state, old.token, old.bucket_id, old.changed_us, old.attempt
        )  # fmt: skip
        with pytest.raises(Conflict, match="have been deleted"):
            await client.cluster.retry(job)
    assert [each.id for each in await client.cluster.jobs(state="FAILED")] == kept, "no list shows them"
    assert [(group.jobs, group.sample) for group in (await client.cluster.inspect.failures()).groups] == [(1, kept[0])]
    later = [event.kind async for event in client.cluster.events(cursor, follow=False)]
    assert set(later) == {"operator_acted"}, "no end comes again"
    assert (await ended(client, "delete", handler=resize)).changed == 1
    assert (await ended(client, "retry", handler=resize)).changed == 0


async def test_the_audit_is_clean_after_a_delete(client: ClientFixture) -> None:
    async with client.cluster.batch("night") as batch:
        await batch.submit(resize, {"path": "a"})
    keyed = (await client.cluster.submit(resize, {"path": "k"}, idempotency_key="k")).id
    (lost,) = await failed(client, 1)
    await sql(client, "UPDATE job SET token = 10 WHERE id = $1", lost)
    await sql(
        client,
        "INSERT INTO attempt (job_id, token, bucket_id, bucket_epoch, outcome, error) "
        "SELECT id, 9, bucket_id, 1, 'failed', '{}' FROM job WHERE id = $1",
        lost,
    )
    await sql(client, "INSERT INTO job_log VALUES ($1, 1, 1, now(), 20, 'secret')", lost)
    batch_view = await client.cluster.batches.cancel(batch.id)
    assert (await ended(client, "delete", handler=resize)).changed == 3
    assert (await client.cluster.batches.get(batch.id)).state is batch_view.state
    assert (await client.cluster.submit(resize, {"path": "k"}, idempotency_key="k")).id == keyed, "it keeps its key"
    assert await sql(client, "SELECT FROM job_log") == []
    [line] = await sql(client, "SELECT outcome, error FROM attempt WHERE token = 9")
    assert (line["outcome"], line["error"]) == ("failed", None)
    reader = await Reader.connect(dsn=client.dsn, schema=client.settings.schema_name(), settings=client.settings.master)
    try:
        report = await audit(reader, {"default": client.store})
    finally:
        await reader.close()
    assert report.clean, report


class DyingMaster:
    """The bulk operations of the master; the leader dies before, or right after, a page."""

    def __init__(self, master: Any, dies: str) -> None:
        self._master = master
        self._dies = dies
        self.pages = 0

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._master, name)
        if not name.endswith("_page"):
            return real

        async def page(*args: Any) -> Any:
            self.pages += 1
            if self.pages == 2 and self._dies == "before":
                raise ConnectionError("killed")
            answer = await real(*args)
            if self.pages == 2:
                raise ConnectionError("killed")
            return answer

        return page


@pytest.mark.parametrize("dies", ["before", "after"])
async def test_the_next_leader_goes_on_where_a_dead_one_was(
    client: ClientFixture, small_pages: None, dies: str
) -> None:
    jobs = await failed(client, 14)
    view = await client.cluster.bulk.start("retry", handler=resize)
    dying = Leader(client, DyingMaster(client.master.bulk, dies))
    with pytest.raises(ConnectionError):
        await dying.work()
    half = await client.cluster.bulk.get(view)
    assert (half.state, half.changed) == (BulkState.RUNNING, 4 if dies == "before" else 8)
    assert 0.0 <= half.done < 1.0
    await Leader(client).work()
    done = await client.cluster.bulk.get(view)
    assert (done.state, done.changed, done.skipped) == (BulkState.DONE, 14, {}), "no job was counted twice"
    new = await client.cluster.jobs(state="HELD")
    assert sorted(each.metadata["retry_of"] for each in new) == sorted(map(str, jobs))


async def test_of_two_leaders_one_writes_a_page(client: ClientFixture) -> None:
    jobs = [job.bytes for job in await held(client, 3)]
    view = await client.cluster.bulk.start("cancel", handler=resize)
    page = BulkPage(view.id_bytes, None, jobs[1], {})
    bulk = client.master.bulk
    assert await bulk.cancel_page(page, jobs[:2], [JobState.HELD]) == 2
    assert await bulk.cancel_page(page._replace(read_to=jobs[2]), jobs[2:], [JobState.HELD]) is None
    assert await bulk.reschedule_page(page, jobs[2:], (await bulk.next()).change) is None  # type: ignore[union-attr]
    assert await bulk.delete_page(page, jobs[:2], [JobState.CANCELLED]) is None
    assert await bulk.retry_page(page, [], [JobState.CANCELLED]) is None
    assert await bulk.finish(page) is None
    await client.cluster.bulk.cancel(view)
    after = page._replace(cursor=jobs[1], read_to=jobs[2])
    assert await bulk.cancel_page(after, jobs[2:], [JobState.HELD]) is None, "it has ended"
    assert await states(client, [UUID(bytes=job) for job in jobs]) == ["CANCELLED", "CANCELLED", "HELD"]


async def test_a_job_that_is_retried_alone_between_look_and_page_is_not_retried_again(client: ClientFixture) -> None:
    jobs, bulk = await failed(client, 2), client.master.bulk
    view = await client.cluster.bulk.start("retry", handler=resize)
    work = await bulk.next()
    assert work is not None
    step = await bulk.find(
        work.kind, work.chosen, work.change, work.lowest, work.highest, reads=9, limit=9, payload=True
    )
    retried = RetriedJobs(client.cluster.settings, client.master.queries, SystemClock())
    made, refused = await retried.make(step.jobs, work.highest)
    assert (len(made), dict(refused)) == (2, {})
    alone = await client.cluster.retry(jobs[0])
    page = BulkPage(work.id, None, step.jobs[-1].id, {})
    assert await bulk.retry_page(page, made, work.chosen.states) == 1
    half = await client.cluster.bulk.get(view)
    assert (half.changed, half.skipped) == (1, {"CHANGED": 1})
    assert (await client.cluster.retry(jobs[0])).id == alone.id
    new = {each.metadata["retry_of"] for each in await client.cluster.jobs(state="HELD")} | {str(jobs[0])}
    assert new == {str(job) for job in jobs}


async def test_a_retry_whose_key_was_reserved_and_that_was_not_stored_is_made_under_its_id(
    client: ClientFixture,
) -> None:
    (job,) = await failed(client, 1)
    reserved = new_id()
    key = (f"retry of {job}", reserved, digest("images.resize", b'{"path":"a"}'))
    await client.master.intake.reserve_keys("images.resize", [key])
    view = await ended(client, "retry", handler=resize)
    assert (view.changed, view.skipped) == (1, {})
    assert (await client.cluster.get(UUID(bytes=reserved))).metadata["retry_of"] == str(job)
    assert (await client.cluster.retry(job)).id_bytes == reserved


async def test_an_operation_that_is_cancelled_half_way_changes_nothing_more(
    client: ClientFixture, small_pages: None
) -> None:
    jobs = await held(client, 9)
    first = await client.cluster.bulk.start("cancel", handler=resize)
    second = await client.cluster.bulk.start("cancel", lane="payroll")
    assert await Leader(client).page()
    stopped = await client.cluster.bulk.cancel(first)
    assert (stopped.state, stopped.changed) == (BulkState.CANCELLED, 4)
    assert (await client.cluster.bulk.cancel(first)).ended_us == stopped.ended_us, "asked twice, it ends once"
    await Leader(client).work()
    assert await states(client, jobs) == ["CANCELLED"] * 4 + ["HELD"] * 5
    assert (await client.cluster.bulk.wait(second, timeout=10)).state is BulkState.DONE, "the next one is worked on"
    listed = await client.cluster.bulk.list()
    assert [each.id for each in listed] == [second.id, first.id]
    assert [each.id for each in await client.cluster.bulk.list(state="cancelled")] == [first.id]


async def test_a_page_that_the_master_refuses_ends_the_operation_and_not_the_others(client: ClientFixture) -> None:
    await held(client, 1)
    bad = await client.cluster.bulk.start("cancel", handler=resize)
    good = await client.cluster.bulk.start("cancel", handler=resize)
    await sql(client, 'UPDATE bulk_operation SET filter = \'{"states":["HELD"],"priority":3,"later":1}\'')
    assert not await Leader(client).page(), "a filter of a later version is left to a later version"
    await sql(client, 'UPDATE bulk_operation SET filter = \'{"states":["HELD"]}\'')

    class Refusing:
        def __getattr__(self, name: str) -> Any:
            return getattr(client.master.bulk, "no_page" if name == "cancel_page" else name)

    from jobmaster.model.errors import Refused

    async def refuse(*args: Any) -> Any:
        raise Refused("no such thing")

    master = Refusing()
    master.cancel_page = refuse  # type: ignore[attr-defined]
    await Leader(client, master).page()
    view = await client.cluster.bulk.get(bad)
    assert (view.state, view.error) == (BulkState.FAILED, "no such thing")
    await Leader(client).work()
    assert (await client.cluster.bulk.get(good)).state is BulkState.DONE


async def test_what_cannot_be_meant_is_refused_and_nothing_is_stored(client: ClientFixture) -> None:
    bulk = client.cluster.bulk
    wrong: list[tuple[str, dict[str, Any], str]] = [
        ("retry", {}, "needs a filter"),
        ("purge", {"tag": "a"}, "no kind"),
        ("retry", {"state": "HELD"}, "cannot change jobs that are HELD"),
        ("delete", {"state": ["FAILED", "PROCESSING"]}, "PROCESSING"),
        ("retry", {"tag": "a", "change": {"after": 5}}, "takes no change"),
        ("reschedule", {"tag": "a"}, "sets nothing"),
        ("reschedule", {"tag": "a", "change": {"lane": "nowhere"}}, "no agent serves"),
        ("cancel", {"color": "red"}, "no filter 'color'"),
        ("cancel", {"tag": "a", "reason": "x" * 1001}, "at most 1000"),
    ]
    for kind, parts, words in wrong:
        with pytest.raises(InputError, match=words):
            await bulk.start(kind, **parts)  # type: ignore[arg-type]
    assert await bulk.list() == []
    with pytest.raises(NotFound):
        await bulk.get(UUID(bytes=new_id()))
    with pytest.raises(InputError, match="no bulk operation"):
        await bulk.get("nonsense")
    waits = await bulk.start("cancel", tag="a")
    with pytest.raises(WaitTimeout, match="has not ended"):
        await bulk.wait(waits, timeout=0.01)


async def test_the_leaders_tick_sees_an_operation_until_it_has_ended(client: ClientFixture) -> None:
    leadership, agent = client.master.leadership, client.agent.id
    assert await leadership.acquire(agent, 1, 60.0)
    assert not (await leadership.tick(agent, 1, 60.0, 1.0)).bulk
    view = await client.cluster.bulk.start("cancel", tag="a")
    assert (await leadership.tick(agent, 1, 60.0, 1.0)).bulk
    await Leader(client).work()
    assert (await client.cluster.bulk.get(view)).state is BulkState.DONE
    assert not (await leadership.tick(agent, 1, 60.0, 1.0)).bulk


async def test_the_same_in_plain_code(client: ClientFixture, plain: SyncCluster) -> None:
    await held(client, 2, tags=["a"])

    def calls() -> list[Any]:
        preview = plain.bulk.preview("cancel", tag="a")
        view = plain.bulk.start("cancel", tag="a", reason="a test")
        stopped = plain.bulk.cancel(view)
        ended = plain.bulk.wait(view, timeout=10)
        return [preview.eligible, stopped.state, ended.state, plain.bulk.get(view).reason, len(plain.bulk.list())]

    assert await asyncio.to_thread(calls) == [2, "CANCELLED", "CANCELLED", "a test", 1]
