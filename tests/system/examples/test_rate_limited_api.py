"""``examples/rate_limited_api``: no tenant exceeds its rate, none delays another, and jobs wait while the API is down."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import wait_until
from tests.system.cli.conftest import Terminal

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
RATE, BURST, AT_ONCE = 10, 2, 2


@pytest.fixture(scope="module")
def api(example: Terminal) -> Iterator[str]:
    """Address of the API, which runs beside the agent."""
    command = [sys.executable, "server.py", "0"]
    with subprocess.Popen(
        command, cwd=example.folder, env=example.environment, stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            found = re.search(r"http://\S+", server.stdout.readline())
            assert found is not None
            yield found[0]
        finally:
            server.kill()


def locate(example: Terminal, api: str, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "locate.py", *words],
        cwd=example.folder,
        env={**os.environ, **example.environment, "GEOCODER": api},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> str:
    out, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, errors
    return out


def seen(api: str) -> dict[str, Any]:
    found: dict[str, Any] = httpx2.get(f"{api}/counts", timeout=PATIENCE_SECONDS).json()
    return found


@pytest.mark.long
def test_no_tenant_exceeds_its_rate_and_none_delays_another(example: Terminal, api: str) -> None:
    out = ended(locate(example, api, "acme=42", "globex=4"))
    assert re.search(r"^46 places in [0-9.]+ s$", out, re.MULTILINE), out
    counts = seen(api)
    assert {tenant: each["requests"] for tenant, each in counts.items()} == {"acme": 42, "globex": 4}
    assert max(each["most_at_once"] for each in counts.values()) <= AT_ONCE
    took = float(out.split()[3])
    assert took >= (42 - BURST) / RATE, "the last start is not admitted before that"
    assert counts["globex"]["seconds"] < counts["acme"]["seconds"]
    (limit,) = example.call("limit", "list", "-o", "json").json
    assert (limit["name"], limit["running"], limit["rate"], limit["taken"]) == ("geocoder", AT_ONCE, RATE, 0)


def test_jobs_wait_while_the_api_is_down_and_run_afterwards(example: Terminal, api: str) -> None:
    def breaker() -> str:
        return str(example.call("breaker", "show", "geocoder", "-o", "json").json["state"])

    httpx2.post(f"{api}/state/down", timeout=PATIENCE_SECONDS)
    process = locate(example, api, "initech=6")
    try:
        wait_until(lambda: breaker() != "CLOSED", 60, "the breaker opens")
        assert "initech" not in seen(api)
        httpx2.post(f"{api}/state/up", timeout=PATIENCE_SECONDS)
        out = ended(process)
    finally:
        process.kill()
        process.wait(PATIENCE_SECONDS)
    assert out.startswith("6 places"), out
    assert seen(api)["initech"]["requests"] == 6
