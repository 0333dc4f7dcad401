"""The examples as their pages start them: ``jobmaster dev`` in the folder of the example, and the programs beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.system.cli.conftest import REPOSITORY, Terminal, running_dev


@pytest.fixture(scope="module")
def example(request: pytest.FixtureRequest, server_root: Path) -> Iterator[Terminal]:
    """A terminal in the folder of the example that the test module is named after; servers and an agent run."""
    folder = REPOSITORY / "examples" / request.module.__name__.rpartition(".")[2].removeprefix("test_")
    with running_dev(Terminal(server_root / f"dev-{uuid4().hex[:6]}", folder), "tasks") as terminal:
        yield terminal
