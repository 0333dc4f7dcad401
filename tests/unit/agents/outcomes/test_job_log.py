"""Lines of handlers on their way to the master."""

from __future__ import annotations

import threading

from jobmaster.clock import new_id
from jobmaster.model.errors import Refused, Unavailable
from jobmaster.model.job_log import RUNS_KEPT, LogLevel, LogLine
from jobmaster.ports import JobLines, OldRuns, SurplusLines
from jobmaster.telemetry import Telemetry
from jobmaster_agents.outcomes.job_log import STATEMENT_LINES, WAITING_BYTES_MAX, JobLogWriter


class Statements:
    """What the master got."""

    def __init__(self) -> None:
        self.batches: list[JobLines] = []
        self.error: Exception | None = None

    async def keep(self, batch: JobLines) -> None:
        if self.error is not None:
            raise self.error
        self.batches.append(batch)

    @property
    def numbers(self) -> list[int]:
        return [line.number for batch in self.batches for line in batch.lines]


def line(number: int, token: int = 1, text: str = "text") -> LogLine:
    return LogLine(token=token, number=number, at_us=number, level=LogLevel.INFO, text=text)


async def test_lines_are_sent_once_in_the_order_of_their_run() -> None:
    master = Statements()
    writer = JobLogWriter(master, Telemetry())
    job_id = new_id()
    writer.keep(job_id, line(1), 1)
    writer.keep(job_id, line(2), 1)
    await writer.tick()
    writer.keep(job_id, line(3), 1)
    await writer.tick()
    await writer.tick()
    assert master.numbers == [1, 2, 3]
    assert len(master.batches) == 2, "a tick without lines costs no statement"
    assert [(batch.surplus, batch.old_runs) for batch in master.batches] == [([], []), ([], [])]


async def test_lines_that_are_not_kept_are_not_sent_and_those_in_the_master_go() -> None:
    master = Statements()
    writer = JobLogWriter(master, Telemetry())
    job_id = new_id()
    for number in range(1, 8):
        writer.keep(job_id, line(number, token=RUNS_KEPT + 3), max(number - 2, 1))
    await writer.tick()
    assert master.numbers == [5, 6, 7]
    assert master.batches[0].surplus == [SurplusLines(job_id, RUNS_KEPT + 3, 5)]
    assert master.batches[0].old_runs == [], "only the first line of a run looks for old runs"
    writer.keep(job_id, line(1, token=RUNS_KEPT + 4), 1)
    await writer.tick()
    assert master.batches[1].old_runs == [OldRuns(job_id, 4)]


async def test_while_the_master_is_away_lines_wait_in_their_order() -> None:
    master = Statements()
    writer = JobLogWriter(master, Telemetry())
    job_id = new_id()
    master.error = Unavailable("the master is away")
    for number in range(1, 5):
        writer.keep(job_id, line(number), max(number - 2, 1))
    await writer.tick()
    writer.keep(job_id, line(5), 3)
    master.error = None
    await writer.tick()
    assert master.numbers == [3, 4, 5]
    assert master.batches[0].surplus == [SurplusLines(job_id, 1, 3)]


async def test_lines_that_the_master_refuses_do_not_keep_others_back() -> None:
    master, telemetry = Statements(), Telemetry()
    writer = JobLogWriter(master, telemetry)
    writer.keep(new_id(), line(1), 1)
    master.error = Refused("a value")
    await writer.tick()
    master.error = None
    writer.keep(new_id(), line(2), 1)
    await writer.tick()
    assert master.numbers == [2]
    assert telemetry.value("log_lines_dropped") == 1


async def test_what_waits_is_bounded() -> None:
    master, telemetry = Statements(), Telemetry()
    writer = JobLogWriter(master, telemetry)
    text = "x" * 2000
    count = WAITING_BYTES_MAX // 2200 + 11
    runs = [new_id() for _ in range(20)]
    for number in range(count):
        writer.keep(runs[number % 20], line(number // 20 + 1, text=text), 1)
    dropped = telemetry.value("log_lines_dropped")
    assert isinstance(dropped, int)
    assert 11 <= dropped <= 12
    writer.keep(new_id(), line(1, text=text), 1)
    assert len(writer._runs) == 20, "a run without a line that waits takes no memory"
    dropped += 1
    await writer.tick()
    assert len(master.numbers) == count + 1 - dropped
    assert max(len(batch.lines) for batch in master.batches) < STATEMENT_LINES, "a statement is bounded in bytes"


async def test_a_run_that_writes_very_much_holds_no_other_up() -> None:
    master = Statements()
    writer = JobLogWriter(master, Telemetry())
    loud, quiet = new_id(), new_id()
    for number in range(1, 3 * STATEMENT_LINES + 1):
        writer.keep(loud, line(number), 1)
    writer.keep(quiet, line(1), 1)
    await writer.tick()
    assert len(master.numbers) == 3 * STATEMENT_LINES + 1
    assert quiet in {stored.job_id for stored in master.batches[1].lines}, "a run with more lines comes last"
    assert [len(batch.lines) for batch in master.batches] == [STATEMENT_LINES] * 3 + [1]


async def test_threads_may_write_while_lines_are_sent() -> None:
    master = Statements()
    writer = JobLogWriter(master, Telemetry())
    runs = [new_id() for _ in range(3)]

    def write(job_id: bytes) -> None:
        for number in range(1, 2001):
            writer.keep(job_id, line(number), 1)

    threads = [threading.Thread(target=write, args=(job_id,)) for job_id in runs]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        await writer.tick()
    await writer.tick()
    for job_id in runs:
        own = [stored.number for batch in master.batches for stored in batch.lines if stored.job_id == job_id]
        assert own == list(range(1, 2001))


async def test_the_end_of_a_run_hurries_its_lines_alone() -> None:
    writer = JobLogWriter(Statements(), Telemetry())
    writer.hurry()
    assert not writer.kicked.is_set()
    writer.keep(new_id(), line(1), 1)
    writer.hurry()
    assert writer.kicked.is_set()
