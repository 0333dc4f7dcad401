"""What the start of an agent loads: each process that starts pays for it."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("jobmaster.server_addresses", ("asyncpg", "redis", "yaml")),  # the command, before it becomes the supervisor
        ("jobmaster_agents.supervisor.main", ("asyncpg", "redis", "yaml", "asyncio")),
        ("jobmaster_agents.run_agent", ("yaml", "jobmaster.settings.loader")),
    ],
)
def test_a_start_loads_no_more_than_it_uses(module: str, unwanted: tuple[str, ...]) -> None:
    code = f"import sys, {module}; print(*[name for name in {unwanted!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
