"""``jobmaster health`` against the HTTP server of an agent."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from jobmaster.cli.main import run
from jobmaster.telemetry import Telemetry
from jobmaster_agents.event_log import EventLog
from jobmaster_agents.http_server import HttpServer
from tests.unit.agents.test_http_server import HttpServerHarness

ROOT = Path(__file__).parents[3]
Out = pytest.CaptureFixture[str]


@pytest.fixture
async def agent() -> AsyncIterator[HttpServerHarness]:
    made = HttpServerHarness()
    made.server = HttpServer(Telemetry(), made, EventLog())
    await made.server.start("127.0.0.1", 0)
    yield made
    await made.server.close()


async def asked(agent: HttpServerHarness, *words: str) -> int:
    url = f"http://127.0.0.1:{agent.server.port}"
    return await asyncio.to_thread(run, ["health", "--url", url, *words])


async def test_the_exit_code_is_that_of_the_probe_and_the_reason_is_printed(
    agent: HttpServerHarness, capsys: Out
) -> None:
    assert await asked(agent) == 0
    assert capsys.readouterr().out == "ready\n"
    agent.why_not = "it is leaving: SIGTERM"
    assert await asked(agent) == await asked(agent, "--ready") == 1
    assert capsys.readouterr().out == "not ready: it is leaving: SIGTERM\n" * 2
    assert await asked(agent, "--live") == 0
    assert capsys.readouterr().out == "live\n"
    assert await asked(agent, "-o", "json") == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], found["status"], found["reason"]) == (False, 503, agent.why_not)


async def test_a_server_that_does_not_answer_and_a_wrong_address_are_errors(
    agent: HttpServerHarness, capsys: Out
) -> None:
    await agent.server.close()
    assert await asked(agent, "--timeout", "1") == 69
    assert "does not answer" in capsys.readouterr().err
    for url in ("ftp://x", "127.0.0.1:1", "http://[", "http://x:port"):
        assert run(["health", "--url", url]) == 2, url
        assert "is not a URL of http or https" in capsys.readouterr().err


def test_the_address_comes_from_the_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["health"]) == 78
    assert "has no probes on a known port" in capsys.readouterr().err
    (tmp_path / "c.yaml").write_text("agents: {one: {}, two: {metrics_port: 1}}\n")
    assert run(["--config", "c.yaml", "health"]) == 78
    assert "several agents are configured: one, two" in capsys.readouterr().err
    assert run(["--config", "c.yaml", "health", "--name", "two", "--timeout", "5"]) == 69
    assert "http://127.0.0.1:1/ready does not answer" in capsys.readouterr().err


def test_a_probe_imports_no_driver_and_no_event_loop() -> None:
    script = (
        "import sys, jobmaster.cli.main as m; m.run(['health', '--url', 'http://127.0.0.1:1', '-q']);"
        "print([n for n in ('asyncpg', 'redis', 'yaml', 'prometheus_client', 'asyncio', 'msgspec') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), "does not answer" in done.stderr) == ("[]", True)
