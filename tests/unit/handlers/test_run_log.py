"""Lines of one run: numbered, bounded, checked."""

from __future__ import annotations

import logging
from contextvars import copy_context

import pytest

from jobmaster.clock import new_id
from jobmaster.handlers import Handlers, JobContext
from jobmaster.handlers.current import set_running
from jobmaster.model.errors import ConfigError, InputError
from jobmaster.model.job import Priority
from jobmaster.model.job_log import LINE_CHARS_MAX, LINES_DEFAULT, RUN_BYTES_MAX, LogLevel, LogLine, dropped_before
from jobmaster_agents.event_log import relay
from jobmaster_agents.execute.log_records import JobLogRecords, keep_records


class Kept:
    """A sink as the master's table is: lines below the lowest number are dropped."""

    def __init__(self) -> None:
        self.lines: list[LogLine] = []

    def keep(self, job_id: bytes, line: LogLine, lowest: int) -> None:
        self.lines = [each for each in (*self.lines, line) if each.number >= lowest]


def context_of(kept: Kept, keep_logs: int | None = None) -> JobContext:
    return JobContext(
        job_id_bytes=new_id(),
        token=3,
        handler="handler",
        lane="default",
        priority=Priority.MEDIUM,
        attempt=1,
        max_attempts=3,
        log_sink=kept,
        keep_logs=keep_logs,
    )


@pytest.mark.parametrize(("keep_logs", "kept_lines"), [(None, LINES_DEFAULT), (3, 3), (0, 0)])
def test_the_last_lines_are_kept(keep_logs: int | None, kept_lines: int) -> None:
    kept = Kept()
    ctx = context_of(kept, keep_logs)
    for number in range(1, 151):
        ctx.log(f"line {number}")
    assert [line.text for line in kept.lines] == [f"line {number}" for number in range(151 - kept_lines, 151)]
    assert {line.token for line in kept.lines} <= {3}
    if kept.lines:
        assert dropped_before(kept.lines[0], None) == 150 - kept_lines
        assert dropped_before(kept.lines[1], kept.lines[0]) == 0


def test_long_lines_are_cut_and_a_run_keeps_so_many_bytes() -> None:
    kept = Kept()
    ctx = context_of(kept, 10_000)
    for _ in range(1000):
        ctx.log("é" * 5000)
    assert {len(line.text) for line in kept.lines} == {LINE_CHARS_MAX}
    size = len(kept.lines[0].text.encode())
    assert len(kept.lines) == RUN_BYTES_MAX // size


def test_a_line_that_is_none_is_refused() -> None:
    ctx = context_of(Kept())
    with pytest.raises(InputError, match="text must be text, not int"):
        ctx.log(7)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"'loud' is no level of a log line .they are debug, info"):
        ctx.log("text", "loud")  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [-1, 10_001, True, "7", 1.5])
def test_keep_logs_is_a_number_of_lines(value: object) -> None:
    with pytest.raises(ConfigError, match=r"handler 'work': keep_logs must be a number of lines from 0 to 10000, not "):
        Handlers().job(name="work", keep_logs=value)(lambda: None)  # type: ignore[call-overload]


@pytest.mark.parametrize(("number", "level"), [(5, 10), (20, 20), (25, 20), (30, 30), (99, 50)])
def test_every_number_of_logging_has_a_level(number: int, level: int) -> None:
    assert LogLevel.of(number) == level


def test_lines_of_logging_are_kept_for_handlers_that_ask_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    logger = logging.getLogger()
    # Alone: an agent of another test in this process may have installed its own.
    monkeypatch.setattr(logger, "handlers", [JobLogRecords()])
    wants, other = Kept(), Kept()

    def work() -> None:
        logger.warning("number %d", 1)
        try:
            raise ValueError("no")
        except ValueError:
            logger.exception("it failed")

    set_running(copy_context(), context_of(wants, 10)).run(work)
    set_running(copy_context(), context_of(other)).run(work)
    set_running(copy_context(), context_of(wants, 10)).run(relay, "WARNING", "tests.kept", "of another process", {})
    logger.warning("outside of a job")
    first, second = wants.lines
    assert (first.level, first.text) == (LogLevel.WARNING, "number 1")
    assert second.level is LogLevel.ERROR
    assert second.text.startswith("it failed\nTraceback")
    assert second.text.endswith("ValueError: no")
    assert not other.lines


def test_warnings_are_shown_as_before_where_nothing_else_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    keep_records()
    keep_records()
    last_resort, records = logging.getLogger().handlers
    assert last_resort is logging.lastResort
    assert isinstance(records, JobLogRecords)
