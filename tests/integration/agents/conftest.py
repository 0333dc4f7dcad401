"""A migrated master and a store for the tests that drive agents call by call."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.conftest import MIGRATED_SCHEMA
from tests.integration.agents.fixture import Stage
from tests.integration.agents.freezing_fixture import Life, living


@pytest.fixture
async def stage(migrated_dsn: str, store_url: str, cluster_name: str) -> AsyncIterator[Stage]:
    stage = Stage(migrated_dsn, MIGRATED_SCHEMA, store_url, cluster_name)
    yield stage
    await stage.close()


@pytest.fixture
async def life(stage: Stage) -> AsyncIterator[Life]:
    """An agent with one bucket that an operator stops and lets go on."""
    async with living(stage) as made:
        yield made
