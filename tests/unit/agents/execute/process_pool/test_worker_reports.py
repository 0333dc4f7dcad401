"""Lines of a handler on their way from a worker process to its agent."""

from __future__ import annotations

import threading

import pytest

from jobmaster.clock import new_id
from jobmaster.model.job_log import LINE_CHARS_MAX, LINES_MAX, LogLevel, LogLine
from jobmaster_agents.execute.process_pool.protocol import Logged, encode_frame
from jobmaster_agents.execute.process_pool.worker_reports import LogReporter

ACCEPTED_BYTES = 64 * 1024
"""What an agent accepts whatever its limits are."""


def line(number: int, text: str = "") -> LogLine:
    return LogLine(token=1, number=number, at_us=1_900_000_000_123_456, level=LogLevel.INFO, text=text)


@pytest.mark.parametrize("text", ["", "\U0001f600" * LINE_CHARS_MAX])
def test_no_frame_is_larger_than_what_an_agent_accepts(text: str) -> None:
    sent: list[Logged] = []
    reporter = LogReporter(sent.append)
    reporter.number, reporter.job_id = 7, new_id()
    count = LINES_MAX if not text else 50
    for number in range(1, count + 1):
        reporter.keep(reporter.job_id, line(number, text), 1)
    reporter.flush()
    reporter.flush()
    assert max(len(encode_frame(message)) for message in sent) < ACCEPTED_BYTES
    assert [each.number for message in sent for each in message.lines] == list(range(1, count + 1))
    assert {message.number for message in sent} == {7}


def test_lines_that_are_not_kept_and_lines_of_earlier_jobs_are_not_sent() -> None:
    sent: list[Logged] = []
    reporter = LogReporter(sent.append)
    reporter.number, reporter.job_id = 7, new_id()
    for number in range(1, 6):
        reporter.keep(reporter.job_id, line(number), max(number - 1, 1))
    reporter.keep(new_id(), line(6), 6)
    reporter.flush()
    (message,) = sent
    assert [each.number for each in message.lines] == [4, 5]
    assert message.lowest == 4


def test_lines_are_sent_while_the_handler_goes_on() -> None:
    came = threading.Event()
    reporter = LogReporter(lambda message: came.set())
    reporter.job_id = new_id()
    reporter.start()
    reporter.keep(reporter.job_id, line(1), 1)
    assert came.wait(60)
