"""In-flight rows: what an accepted one frees and authorises, and what one without an answer does not (interleavings)."""

from __future__ import annotations

import asyncio

import pytest

from jobmaster.model.job import Entry, JobState
from tests.support.bucket_worker_fixture import LOST, Gate, Row, WorkerHarness, turns
from tests.support.waiting import until
from tests.unit.agents.worker_handlers import go, handlers, job, ran

pytestmark = pytest.mark.usefixtures("no_delays")


def state_of(harness: WorkerHarness, entry: Entry) -> str:
    row = harness.master.rows.get(entry.id)
    return row.state if row is not None else "none"


async def test_a_job_in_flight_frees_its_list_and_its_outcome_is_an_upsert(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    entry = job("wait")
    harness.submit(bucket, [entry])
    await until(lambda: ran)
    harness.clock.now += 1.0
    await harness.bucket_worker.in_flight_writer.tick()
    await until(lambda: not harness.lists(bucket))
    assert state_of(harness, entry) == "PROCESSING"
    assert not harness.bucket_worker.job_table.empty(bucket.fence.bucket_id)
    go.set()
    await harness.settled()
    assert state_of(harness, entry) == JobState.SUCCEEDED
    assert not harness.master.of("copy_final")


async def test_a_job_persisted_while_it_waited_is_marked_when_it_runs() -> None:
    """A rescue counts rows in PROCESSING: a job that kills its agent must not look as if it had only been queued."""
    from jobmaster.settings.model import AgentSettings

    async with WorkerHarness(handlers, AgentSettings(slots=1)) as harness:
        bucket = harness.bucket()
        first, second = job("wait"), job("wait")
        harness.submit(bucket, [first, second])
        await until(lambda: ran)
        harness.clock.now += 1.0
        await harness.bucket_worker.in_flight_writer.tick()
        assert (state_of(harness, first), state_of(harness, second)) == ("PROCESSING", "ASSIGNED")
        go.set()
        await until(lambda: state_of(harness, first) == "SUCCEEDED" and len(ran) == 2)
        await harness.settled()
        go.clear()
        third, fourth = job("wait"), job("wait")
        harness.submit(bucket, [third, fourth])
        await until(lambda: len(ran) == 3)
        harness.clock.now += 1.0
        await harness.bucket_worker.in_flight_writer.tick()
        running = harness.bucket_worker.job_table.get(third.id)
        assert running is not None
        go.set()
        go.clear()
        await until(lambda: len(ran) == 4)
        assert state_of(harness, fourth) == "ASSIGNED"
        harness.clock.now += 1.0
        await harness.bucket_worker.in_flight_writer.tick()
        assert state_of(harness, fourth) == "PROCESSING"
        go.set()
        await harness.settled()


async def test_a_queued_job_with_a_row_keeps_its_list_until_it_is_marked(harness: WorkerHarness) -> None:
    """It may start and kill the agent before its row is PROCESSING: then the rescuer finds the list."""
    from jobmaster.settings.model import AgentSettings

    async with WorkerHarness(handlers, AgentSettings(slots=1)) as harness:
        bucket = harness.bucket()
        first, second = job("wait"), job("wait")
        harness.submit(bucket, [first])
        await until(lambda: ran)
        harness.submit(bucket, [second])
        await until(lambda: len(harness.lists(bucket)) == 2)
        for _ in range(2):
            harness.clock.now += 1.0
            await harness.bucket_worker.in_flight_writer.tick()
        await until(lambda: len(harness.lists(bucket)) == 1)
        assert (state_of(harness, first), state_of(harness, second)) == ("PROCESSING", "ASSIGNED")
        written = [[row.state for row in rows] for _, rows in harness.master.of("persist")]
        assert sorted(written) == [["ASSIGNED"], ["PROCESSING"]], "a row that is correct is not written again"
        go.set()
        await until(lambda: len(ran) == 2)
        await harness.settled()
        assert not harness.lists(bucket)


async def test_a_job_that_was_rescued_before_starts_only_after_its_row_is_processing(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    write = Gate()
    harness.master.script["persist"].append(write)
    entry = job("wait", rescues=1)
    harness.submit(bucket, [entry])
    await until(lambda: harness.master.of("persist"))
    await turns(20)
    assert not ran
    assert state_of(harness, entry) == "none"
    write.opened.set()
    await until(lambda: ran)
    assert state_of(harness, entry) == "PROCESSING"
    go.set()
    await harness.settled()


async def test_a_rescued_job_that_waits_for_its_turn_is_written_as_queued() -> None:
    """Two that run alone, and one process for such: a crash of the first does not count the second."""
    from jobmaster.settings.model import AgentSettings, JobDefaults

    defaults = JobDefaults()
    async with WorkerHarness(handlers, AgentSettings(isolated_processes=1)) as harness:
        bucket = harness.bucket()
        harness.master.script["persist"].append(write := Gate())
        last = defaults.max_rescues - 1
        first, second = (job("wait", rescues=last) for _ in range(2))
        harness.submit(bucket, [first, second])
        await until(lambda: harness.master.of("persist"))
        write.opened.set()
        await until(lambda: state_of(harness, first) == "PROCESSING")
        harness.clock.now += 1.0
        await harness.bucket_worker.in_flight_writer.tick()
        assert (state_of(harness, first), state_of(harness, second)) == ("PROCESSING", "ASSIGNED")


async def test_an_unknown_persist_frees_no_list(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    again = Gate()
    harness.master.script["persist"] += [LOST, again]
    harness.submit(bucket, [job("wait")])
    await until(lambda: ran)
    harness.clock.now += 1.0
    tick = asyncio.ensure_future(harness.bucket_worker.in_flight_writer.tick())
    await again.reached.wait()
    await turns()
    assert harness.lists(bucket)
    again.opened.set()
    await tick
    await until(lambda: not harness.lists(bucket))
    go.set()
    await harness.settled()


async def test_a_fenced_start_waits_for_the_accepted_write(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    write = Gate()
    harness.master.script["persist"].append(write)
    entry = job("fenced")
    harness.submit(bucket, [entry])
    await write.reached.wait()
    await turns()
    assert not ran
    write.opened.set()
    await until(lambda: ran)
    await harness.settled()
    assert state_of(harness, entry) == JobState.SUCCEEDED


async def test_a_fenced_start_refused_by_its_row_does_not_run(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    entry = job("fenced")
    harness.master.rows[entry.id] = Row("ASSIGNED", 5, b"x" * 16, 1)
    harness.submit(bucket, [entry])
    await harness.settled()
    assert not ran
    assert harness.bucket_worker.executor.running == 0


async def test_a_fenced_start_whose_lease_is_half_over_is_given_back_unrun(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    write = Gate()
    harness.master.script["persist"].append(write)
    entry = job("fenced")
    harness.submit(bucket, [entry])
    await write.reached.wait()
    harness.clock.now = harness.ownership.soft_until + 1.0
    write.opened.set()
    await until(lambda: state_of(harness, entry) == "HELD")
    assert not ran
    assert harness.master.of("hold")[0][1][0].attempt == 0


async def test_a_job_cancelled_while_its_fenced_start_is_written_does_not_run(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    write = Gate()
    harness.master.script["persist"].append(write)
    entry = job("fenced")
    harness.submit(bucket, [entry])
    await write.reached.wait()
    harness.bucket_worker.cancel([entry.id])
    write.opened.set()
    await harness.settled()
    assert not ran
    assert state_of(harness, entry) == JobState.CANCELLED
    assert harness.bucket_worker.executor.running == 0


async def test_a_cancel_flag_on_the_row_refuses_the_fenced_start(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    entry = job("fenced", token=2)
    harness.master.rows[entry.id] = Row("ASSIGNED", 2, bucket.fence.bucket_id, 1, cancel=True)
    harness.submit(bucket, [entry])
    await harness.settled()
    assert not ran
    assert state_of(harness, entry) == JobState.CANCELLED


async def test_a_job_that_ends_between_persist_and_its_answer_is_counted_as_its_own_success(
    harness: WorkerHarness,
) -> None:
    bucket = harness.bucket()
    entry = job("wait")
    harness.submit(bucket, [entry])
    await until(lambda: ran)
    harness.clock.now += 1.0
    write = Gate()
    harness.master.script["persist"].append(write)
    tick = asyncio.ensure_future(harness.bucket_worker.in_flight_writer.tick())
    await write.reached.wait()
    go.set()
    await until(lambda: harness.master.finals)
    write.opened.set()
    await tick
    await harness.settled()
    assert harness.bucket_worker.outcome_writer.refused == 0
    assert len(harness.master.finals) == 1


def late_seconds(harness: WorkerHarness) -> list[float | None]:
    return [row.late_seconds for _, rows in harness.master.of("persist") for row in rows]


async def test_the_row_of_a_running_job_has_what_is_left_of_its_complete_time(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    limited, free = job("wait", complete_seconds=10.0), job("wait")
    harness.submit(bucket, [limited, free])
    await until(lambda: len(ran) == 2)
    harness.clock.now += 3.0
    await harness.bucket_worker.in_flight_writer.tick()
    assert late_seconds(harness) == [7.0, None]
    harness.clock.now += 30.0
    await harness.bucket_worker.in_flight_writer.tick()
    assert len(late_seconds(harness)) == 2, "without cancel_slow the slow run goes on, and nothing is asked"
    go.set()
    await harness.settled()


async def test_a_queued_job_and_one_delivered_at_most_once_have_no_deadline() -> None:
    from jobmaster.settings.model import AgentSettings

    async with WorkerHarness(handlers, AgentSettings(slots=1)) as harness:
        bucket = harness.bucket()
        once = job("wait", complete_seconds=10.0, at_most_once=True)
        harness.submit(bucket, [once, job("wait", complete_seconds=10.0)])
        await until(lambda: ran)
        harness.clock.now += 3.0
        await harness.bucket_worker.in_flight_writer.tick()
        assert late_seconds(harness) == [None, None]
        go.set()
        await harness.settled()


async def test_a_fenced_start_has_the_whole_time(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    harness.submit(bucket, [job("fenced", complete_seconds=10.0)])
    await until(lambda: ran)
    assert late_seconds(harness) == [10.0]
    await harness.settled()


@pytest.mark.parametrize("stays", [False, True], ids=["another agent has it", "it is still ours"])
async def test_cancel_slow_stops_the_run_as_soon_as_another_agent_has_the_job(
    harness: WorkerHarness, stays: bool
) -> None:
    bucket = harness.bucket()
    entry = job("wait", complete_seconds=10.0, cancel_slow=True)
    harness.submit(bucket, [entry])
    await until(lambda: ran)
    harness.clock.now += 3.0
    await harness.bucket_worker.in_flight_writer.tick()
    if not stays:
        harness.master.rows[entry.id] = Row("HELD", 2)
    harness.clock.now += 6.0
    await harness.bucket_worker.in_flight_writer.tick()
    assert len(harness.master.of("persist")) == 1, "not before its time"
    harness.clock.now += 2.0
    await harness.bucket_worker.in_flight_writer.tick()
    assert len(harness.master.of("persist")) == 2
    if stays:
        go.set()
    await harness.settled()
    assert harness.bucket_worker.outcome_writer.refused == (0 if stays else 1)
    assert state_of(harness, entry) == ("SUCCEEDED" if stays else "HELD")


async def test_a_slow_run_gives_way_to_its_successor_in_the_same_agent(harness: WorkerHarness) -> None:
    """The job came back to this agent: its new copy waits behind the slow run, which cannot count any more."""
    bucket = harness.bucket()
    entry = job("wait", complete_seconds=10.0)
    harness.submit(bucket, [entry])
    await until(lambda: ran)
    harness.clock.now += 3.0
    await harness.bucket_worker.in_flight_writer.tick()
    harness.master.rows[entry.id] = Row("ASSIGNED", 3, *bucket.fence[:2])
    harness.submit(bucket, [Entry(entry.id, 3, "note", b"{}")])
    await until(lambda: harness.bucket_worker.job_table.duplicates)
    harness.clock.now += 8.0
    await harness.bucket_worker.in_flight_writer.tick()
    await until(lambda: ran == ["wait", "note"])
    await harness.settled()
    assert state_of(harness, entry) == "SUCCEEDED"
