"""Lifespans, middleware and log lines in worker processes."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from uuid import UUID

import pytest

from jobmaster_agents.execute.attempt_result import ResultKind
from jobmaster_agents.execute.process_pool.pool import ProcessPool
from jobmaster_agents.execute.process_pool.worker_output import EXTRA_BYTES, LoggedLine, WorkerLines, split_logged
from jobmaster_agents.execute.process_pool.worker_process import WorkerLimits
from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import until
from tests.unit.agents.execute.process_pool.process_pool_fixture import Make, make_job, value

LIFE = ("tests.unit.agents.execute.process_pool.life_handlers",)
LIMITS = WorkerLimits(lifespan_seconds=PATIENCE_SECONDS)


async def test_a_worker_enters_the_lifespan_once_and_keeps_it_from_job_to_job(
    make_pool: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LIFE_LEFT", str(tmp_path / "left"))
    pool = make_pool(1, LIMITS, LIFE)
    got = [await value(pool, name) for name in ("async", "plain", "async")]
    assert len({pid for pid, _, _ in got}) == 1, "its task group is no reason to replace the worker"
    assert [rest for _, *rest in got] == [["lifespan", 2]] * 3
    await pool.close()
    assert (tmp_path / "left").read_text() == "left"


async def test_a_lifespan_that_fails_in_a_worker_starts_no_job(
    make_pool: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIFE_FAILS", "1")
    ended = await make_pool(1, LIMITS, LIFE).run(make_job("plain"))
    assert ended.kind is ResultKind.NOT_STARTED
    assert ended.error is not None
    assert "lifespan failed: OSError: no route" in ended.error.message
    assert "life_handlers.py" in ended.error.message


async def test_a_plain_handler_in_middleware_is_interrupted(make_pool: Make, tmp_path: Path) -> None:
    pool = make_pool(1, WorkerLimits(kill_grace_seconds=2 * PATIENCE_SECONDS, lifespan_seconds=PATIENCE_SECONDS), LIFE)
    job = make_job("sleeps", began=str(tmp_path / "began"))
    run = asyncio.ensure_future(pool.run(job))
    await until((tmp_path / "began").exists)
    await pool.stop_running(job)
    ended = await run
    assert ended.kind is ResultKind.CANCELLED
    assert await value(pool, "plain"), "the worker lives on"
    assert pool.ended_processes == 0


async def test_lines_of_the_root_logger_are_separated_from_printed_lines(make_pool: Make) -> None:
    lines: list[str] = []
    pool: ProcessPool = make_pool(1, LIMITS, LIFE, lambda line, pid, job: lines.append(line))
    pool.set_log_level("info")
    await value(pool, "plain")
    seen = [split_logged(line) for line in lines]
    assert [logged for _, logged in seen if logged is not None] == [
        LoggedLine("INFO", "shop", "two\\nlines of iso.plain", {"order": 7, "paid": True}),
        LoggedLine("ERROR", "shop", "trouble"),
        LoggedLine("INFO", "shop", "ended iso.plain"),
    ]
    printed = [text for text, logged in seen if logged is None]
    assert printed[0] == "printed"
    assert printed[-1] == "ValueError: broken"


def test_a_logged_line_may_follow_a_print_without_an_end() -> None:
    assert split_logged("50 %\x1eINFO a.b: x: y") == ("50 %", LoggedLine("INFO", "a.b", "x: y"))
    assert split_logged("\x1e") == ("", LoggedLine("", "", ""))


def formatted(**extra: object) -> str:
    record = logging.makeLogRecord({"name": "shop", "levelname": "INFO", "msg": "sent", **extra})
    return WorkerLines().format(record)


def test_extra_fields_come_with_their_line() -> None:
    ids = UUID(int=5)
    line = formatted(order=7, total=1.23456, texts=["a\n", "\x1e\x1f"], nothing=None, id=ids)
    assert "\n" not in line
    expected = {"order": 7, "total": 1.235, "texts": ["a\n", "\x1e\x1f"], "nothing": None, "id": str(ids)}
    assert split_logged(line) == ("", LoggedLine("INFO", "shop", "sent", expected))


def test_extra_fields_are_bounded_and_the_rest_is_counted() -> None:
    """The message is not pushed out of the part of a line that is read."""
    line = formatted(small=1, text="x" * 10_000, **{f"field{number}": "y" * 30 for number in range(1000)}, last=2)
    _, logged = split_logged(line[: EXTRA_BYTES + 60])
    assert logged is not None
    assert (logged.level, logged.logger, logged.message) == ("INFO", "shop", "sent")
    assert logged.extra["small"] == 1
    assert "text" not in logged.extra
    assert len(json.dumps(logged.extra)) <= EXTRA_BYTES
    assert logged.extra["extra_left_out"] == 1003 - (len(logged.extra) - 1)


@pytest.mark.parametrize("printed", ["{", "{}", "[1]", '{"a": 1', '{"a": 1}', "{" * 900, '{"a": NaN}\x1f', "{[1]}\x1f"])
def test_a_printed_line_that_looks_like_a_logged_one_breaks_nothing(printed: str) -> None:
    _, logged = split_logged(f"\x1e{printed}")
    assert logged is not None
    assert isinstance(logged.extra, Mapping)
