"""A bucket worker with the handlers of ``worker_handlers``, for all tests of its parts."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from jobmaster_agents import call_retry
from jobmaster_agents.outcomes import kept
from tests.support.bucket_worker_fixture import WorkerHarness
from tests.unit.agents import worker_handlers


@pytest.fixture
def no_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeated calls wait for no back-off, and nothing is left of the last test."""
    monkeypatch.setattr(call_retry, "BACKOFF_SECONDS", 0.0)
    monkeypatch.setattr(kept, "_LOOK_SECONDS", 0.0)
    worker_handlers.reset()


@pytest.fixture
async def harness(no_delays: None) -> AsyncIterator[WorkerHarness]:
    """A bucket worker with the usual settings."""
    async with WorkerHarness(worker_handlers.handlers) as made:
        yield made
