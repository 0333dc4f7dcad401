"""Log lines: one per change of state, for people or for collectors."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from uuid import UUID

import pytest

from jobmaster_agents.event_log import LOGGER_NAME, Event, EventLog, configure

ID = UUID("01a1fc1a-96cd-70c1-b1d9-7ce5c08a9d3f")


@pytest.fixture
def quiet_afterwards() -> Iterator[None]:
    logger = logging.getLogger(LOGGER_NAME)
    before = (list(logger.handlers), logger.level, logger.propagate)
    yield
    logger.handlers[:], logger.propagate = before[0], before[2]
    logger.setLevel(before[1])


@pytest.mark.usefixtures("quiet_afterwards")
def test_json_lines_are_one_object_each_with_the_fixed_fields() -> None:
    out = io.StringIO()
    configure("info", "json", out)
    log = EventLog({"agent": ID.bytes}).with_fields({"name": "worker"})
    log.info(Event.BUCKET_DRAINED, {"bucket": ID.bytes, "moved": 12, "seconds": 0.123456, "lanes": ["a", "b"]})
    line = json.loads(out.getvalue())
    assert line.pop("at").endswith("Z")
    assert line == {
        "level": "info", "event": "bucket_drained", "agent": str(ID), "name": "worker", "bucket": str(ID), "moved": 12,
        "seconds": 0.123, "lanes": ["a", "b"],
    }  # fmt: skip


@pytest.mark.parametrize("log_format", ["text", "json"])
@pytest.mark.usefixtures("quiet_afterwards")
def test_no_value_can_forge_a_line(log_format: str) -> None:
    out = io.StringIO()
    configure("info", log_format, out)
    EventLog().warning(Event.PERIODIC_TASK_FAILED, {"reason": "x\n2026-01-01T00:00:00.000Z error all_is_lost\x1b[31m"})
    assert out.getvalue().count("\n") == 1
    assert "\x1b" not in out.getvalue()


@pytest.mark.parametrize("log_format", ["text", "json"])
@pytest.mark.usefixtures("quiet_afterwards")
def test_no_name_of_a_field_can_forge_a_line(log_format: str) -> None:
    out = io.StringIO()
    configure("info", log_format, out)
    EventLog().warning(Event.PERIODIC_TASK_FAILED, {"x\n2026-01-01T00:00:00.000Z error all_is_lost\x1b[31m": 1})
    assert out.getvalue().count("\n") == 1
    assert "\x1b" not in out.getvalue()


@pytest.mark.parametrize("log_format", ["text", "json"])
@pytest.mark.usefixtures("quiet_afterwards")
def test_values_given_by_a_handler_replace_no_field_of_its_job(log_format: str) -> None:
    out = io.StringIO()
    logger = logging.getLogger("tests.log_fields")
    logger.propagate = False
    configure("info", log_format, out)
    logger.handlers = logging.getLogger(LOGGER_NAME).handlers[:]
    logger.setLevel("INFO")
    fields = {"job": "job-1", "handler": "mail.send", "attempt": 1}
    given = {"jobmaster_fields": fields, "job": "another", "attempt": 9, "logger": "false", "customer": 7}
    logger.info("sent", extra=given)
    line = out.getvalue()
    if log_format == "json":
        shown = json.loads(line)
        assert {name: shown[name] for name in fields} == fields
        assert (shown["logger"], shown["customer"]) == ("tests.log_fields", 7)
    else:
        assert line.rstrip().endswith("sent logger=tests.log_fields job=job-1 handler=mail.send attempt=1 customer=7")


@pytest.mark.usefixtures("quiet_afterwards")
def test_text_lines_quote_only_what_needs_it() -> None:
    out = io.StringIO()
    configure("info", "text", out)
    EventLog().info(Event.AGENT_STARTED, {"store": "default", "why": "two words"})
    assert out.getvalue().rstrip().endswith('agent_started store=default why="two words"')


@pytest.mark.usefixtures("quiet_afterwards")
def test_less_severe_lines_are_left_out_and_traces_are_kept() -> None:
    out = io.StringIO()
    configure("warning", "json", out)
    log = EventLog()
    log.info(Event.AGENT_STARTED)
    log.debug(Event.AGENT_STARTED)
    try:
        raise ValueError("broken")
    except ValueError:
        log.error(Event.PERIODIC_TASK_FAILED, trace=True)
    line = json.loads(out.getvalue())
    assert "ValueError: broken" in line["traceback"]
