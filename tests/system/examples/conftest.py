"""The examples as their pages start them: ``jobmaster dev`` in the folder of the example, and the programs beside it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import wait_until
from tests.system.cli.conftest import REPOSITORY, Terminal


@pytest.fixture(scope="module")
def example(request: pytest.FixtureRequest, server_root: Path) -> Iterator[Terminal]:
    """A terminal in the folder of the example that the test module is named after; servers and an agent run."""
    folder = REPOSITORY / "examples" / request.module.__name__.rpartition(".")[2].removeprefix("test_")
    terminal = Terminal(server_root / f"dev-{uuid4().hex[:6]}", folder)
    process = terminal.start("dev", "--handlers", "tasks")
    try:
        wait_until(lambda: '"alive": 1' in terminal.call("status", "-o", "json").out, 60, "the agent of jobmaster dev")
        yield terminal
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 0
        wait_until(lambda: not terminal.processes(), 20, lambda: f"the end of {terminal.processes()}")
