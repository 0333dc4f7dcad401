"""Jobs that lie with a worker process while it runs another one: none is lost, none is counted that did not run."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from jobmaster.clock import SystemClock
from jobmaster_agents.execute.attempt_result import AttemptResult, ResultKind
from jobmaster_agents.execute.process_pool.pool import AHEAD_JOBS
from jobmaster_agents.execute.process_pool.protocol import ProcessJob
from jobmaster_agents.execute.process_pool.worker_process import GivenJob, WorkerProcess
from tests.support.waiting import until
from tests.unit.agents.execute.process_pool.process_pool_fixture import (
    NEVER_KILLED,
    Make,
    WatchedPool,
    content_of,
    make_job,
    value,
)

LATER = float("inf")


class Given:
    """Jobs given to one worker, and what became of each."""

    def __init__(self, worker: WorkerProcess, jobs: Sequence[ProcessJob], start_within: Sequence[float] = ()) -> None:
        self.ended: dict[int, AttemptResult | None] = {}
        self.events: list[str] = []
        self.jobs = [
            GivenJob(
                job,
                lambda result, at=at: self._ended(at, result),  # type: ignore[misc]
                lambda ago, at=at: self.events.append(f"start {at}"),  # type: ignore[misc]
                start_within[at] if start_within else LATER,
            )
            for at, job in enumerate(jobs)
        ]
        self.worker = worker
        worker.give(self.jobs)

    def _ended(self, at: int, result: AttemptResult | None) -> None:
        assert at not in self.ended, "each job ends once"
        self.ended[at] = result
        self.events.append(f"end {at}" if result is not None else f"back {at}")

    async def all_ended(self) -> list[AttemptResult | None]:
        await until(lambda: len(self.ended) == len(self.jobs))
        return [self.ended[at] for at in range(len(self.jobs))]


async def worker_of(pool: WatchedPool) -> WorkerProcess:
    """A worker without a job."""
    await value(pool, "pid")
    await until(lambda: pool._free)
    return pool._free.pop()


async def test_jobs_given_together_run_one_after_another_and_each_start_is_announced(make_pool: Make) -> None:
    pool = make_pool()
    given = Given(await worker_of(pool), [make_job("double", value=number) for number in range(20)])
    assert [each and each.result for each in await given.all_ended()] == [b"%d" % (2 * n) for n in range(20)]
    assert given.events == [f"{what} {at}" for at in range(20) for what in ("start", "end")]
    await until(lambda: pool._free)
    assert await value(pool, "pid") == given.worker.pid


async def test_a_worker_that_is_killed_gives_back_what_it_had_not_begun(make_pool: Make, tmp_path: Path) -> None:
    pool, started = make_pool(), tmp_path / "started"
    hangs = make_job("hangs", started=str(started))
    given = Given(await worker_of(pool), [make_job("double", value=4), hangs, *(make_job("pid") for _ in range(5))])
    os.kill(int(await content_of(started)), signal.SIGKILL)
    first, second, *others = await given.all_ended()
    assert first is not None
    assert first.result == b"8"
    assert second is not None
    assert second.kind is ResultKind.CRASHED
    assert others == [None] * 5
    assert all(each.taken_back for each in given.jobs[2:]), "the job that ran is the cause"
    assert [event for event in given.events if event.startswith("start")] == ["start 0", "start 1"]
    assert await value(pool, "double", value=2) == 4, "another worker takes its place"


async def test_a_handler_that_ends_its_process_costs_the_jobs_behind_it_nothing(make_pool: Make) -> None:
    pool = make_pool()
    jobs = [make_job("double", value=1), make_job("kill_self"), make_job("double", value=3)]
    first, second, third = await Given(await worker_of(pool), jobs).all_ended()
    assert first is not None
    assert first.result == b"2", "its result was on its way when the process died"
    assert second is not None
    assert second.kind is ResultKind.CRASHED
    assert third is None


async def test_only_the_job_that_was_to_begin_is_charged_with_the_end_of_a_worker(make_pool: Make) -> None:
    pool = make_pool()
    worker = await worker_of(pool)
    os.kill(worker.pid, signal.SIGSTOP)  # it begins nothing
    given = Given(worker, [make_job("pid") for _ in range(3)])
    os.kill(worker.pid, signal.SIGKILL)
    assert await given.all_ended() == [None] * 3
    assert [each.taken_back for each in given.jobs] == [False, True, True]
    given = Given(await worker_of(pool), [make_job("leaves_thread"), make_job("pid"), make_job("pid")])
    assert [each is None for each in await given.all_ended()] == [False, True, True], "the agent replaces the worker"
    assert all(each.taken_back for each in given.jobs[1:]), "the job before them is the cause"


async def test_output_of_left_tasks_and_the_last_line_of_a_crash_belong_to_their_jobs(make_pool: Make) -> None:
    lines: list[tuple[str, bytes | None]] = []
    pool = make_pool(on_output=lambda line, pid, job: lines.append((line, job and job.job_id)))
    jobs = [make_job("async_leaves_printer", text="of a task"), make_job("prints_and_ends", text="no end of line")]
    await Given(await worker_of(pool), jobs).all_ended()
    assert lines == [("of a task", jobs[0].job_id), ("no end of line", jobs[1].job_id)]


async def test_a_job_that_is_asked_back_goes_on_if_it_has_begun(make_pool: Make, tmp_path: Path) -> None:
    pool, started, go_on = make_pool(), tmp_path / "started", tmp_path / "go"
    jobs = [make_job("waits", started=str(started), go_on=str(go_on)), make_job("pid"), make_job("double", value=3)]
    given = Given(await worker_of(pool), jobs)
    await until(started.exists)
    pool.take_back(given.jobs[0])
    pool.take_back(given.jobs[1])
    await until(lambda: 1 in given.ended)
    go_on.touch()
    first, second, third = await given.all_ended()
    assert first is not None
    assert first.kind is ResultKind.OK
    assert second is None
    assert third is not None
    assert third.result == b"6"


async def test_a_job_that_lies_with_a_worker_is_stopped_without_harm_to_the_one_that_runs(
    make_pool: Make, tmp_path: Path
) -> None:
    pool = make_pool(limits=NEVER_KILLED)
    started, go_on, never = tmp_path / "started", tmp_path / "go", tmp_path / "never"
    jobs = [
        make_job("waits", started=str(started), go_on=str(go_on)),
        make_job("hangs", started=str(never)),
        make_job("pid"),
    ]
    given = Given(await worker_of(pool), jobs)
    await content_of(started)
    given.worker.stop(given.jobs[1], ResultKind.CANCELLED)
    await until(lambda: 1 in given.ended)
    assert given.events == ["start 0", "back 1"], "the answer does not wait for the job that runs"
    go_on.touch()
    first, _, third = await given.all_ended()
    assert first is not None
    assert third is not None
    assert first.result == third.result == b"%d" % given.worker.pid
    assert not never.exists()


async def test_what_does_not_begin_in_time_is_taken_back(make_pool: Make, tmp_path: Path) -> None:
    """A job takes longer than those of its handler usually do: the jobs behind it go to other workers."""
    pool, started, go_on = make_pool(), tmp_path / "started", tmp_path / "go"
    jobs = [make_job("waits", started=str(started), go_on=str(go_on)), make_job("pid"), make_job("pid")]
    given = Given(await worker_of(pool), jobs)
    await content_of(started)
    pool.take_back_stalled(SystemClock.boottime() - 3600.0)
    pool.take_back_stalled(SystemClock.boottime() + 3600.0)
    await until(lambda: len(given.ended) == 2)
    assert given.events == ["start 0", "back 1", "back 2"]
    go_on.touch()
    assert [each is None for each in await given.all_ended()] == [False, True, True]


async def test_a_job_begins_only_while_the_lease_it_was_given_under_is_good(make_pool: Make, tmp_path: Path) -> None:
    pool, started, go_on = make_pool(), tmp_path / "started", tmp_path / "go"
    jobs = [make_job("waits", started=str(started), go_on=str(go_on)), make_job("pid"), make_job("pid")]
    given = Given(await worker_of(pool), jobs, [LATER, 0.0, LATER])
    await content_of(started)
    go_on.touch()
    assert [each is None for each in await given.all_ended()] == [False, True, False]


async def test_output_of_jobs_given_together_belongs_to_each(make_pool: Make) -> None:
    lines: list[tuple[str, bytes | None]] = []
    pool = make_pool(on_output=lambda line, pid, job: lines.append((line, job and job.job_id)))
    printing = [make_job("prints_lines", lines=[f"of {at}", "more"], end="rest") for at in range(12)]
    jobs = [job for one in printing for job in (one, make_job("nothing"))]
    given = Given(await worker_of(pool), [*jobs, make_job("os_exit", code=3)])
    *_, last = await given.all_ended()
    assert [line for line in lines if line[1]] == [
        *((line, job.job_id) for at, job in enumerate(printing) for line in (f"of {at}", "more", "rest")),
        ("last words", given.jobs[-1].job.job_id),
    ]
    assert last is not None
    assert last.error is not None
    assert "last words" in last.error.traceback
    assert "of 11" not in last.error.traceback


async def test_a_stop_of_the_pool_lets_no_job_begin_that_lies_with_a_worker(make_pool: Make, tmp_path: Path) -> None:
    pool, started, never = make_pool(fresh=True), tmp_path / "started", tmp_path / "never"
    jobs = [make_job("hangs", started=str(started)), make_job("hangs", started=str(never))]
    given = Given(await worker_of(pool), jobs)
    await content_of(started)
    await asyncio.wait_for(pool.close(), 60)
    assert given.ended[1] is None
    assert not never.exists()


async def test_only_workers_whose_jobs_are_short_are_given_more(make_pool: Make, tmp_path: Path) -> None:
    pool = make_pool(fresh=True)
    assert pool.room() is None
    assert pool.grows
    worker = await worker_of(pool)
    pool._free.append(worker)
    assert pool.room() is worker
    assert not pool.grows
    unknown = make_job("hangs", started=str(tmp_path / "started"))
    assert pool.fits(worker, [], unknown.handler, 2), "the first job of a worker may be any"
    one = GivenJob(unknown, lambda result: None)
    assert not pool.fits(worker, [one], unknown.handler, 2), "how long it takes is not known"
    for _ in range(100):
        pool.note_run("iso.pid", AttemptResult(kind=ResultKind.OK, ran_us=100))
    assert pool.fits(worker, [one], "iso.pid", 2)
    assert not pool.fits(worker, [one], "iso.pid", 1 << 20), "its arguments are too large to lie there"
    assert not pool.fits(worker, [one] * AHEAD_JOBS, "iso.pid", 2)
    pool.note_run("iso.pid", AttemptResult(kind=ResultKind.OK, ran_us=300_000))
    assert not pool.fits(worker, [one], "iso.pid", 2), "one long run is enough"


async def test_workers_may_be_ready_before_the_first_job(make_pool: Make) -> None:
    pool = make_pool(2, fresh=True)
    pool.warm(1)
    await until(lambda: len(pool._free) == 1)
    assert len(pool.pids) == 1
    assert await value(pool, "pid") == pool.pids[0]
