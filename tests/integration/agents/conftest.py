"""A migrated master and a store for the tests that drive agents call by call."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from jobmaster.master.migrate import migrate
from jobmaster.settings.model import MasterSettings
from tests.integration.agents.fixture import Stage
from tests.integration.agents.freezing_fixture import Life, living

SCHEMA = "jobmaster_test"


@pytest.fixture
async def stage(master_dsn: str, store_url: str, cluster_name: str) -> AsyncIterator[Stage]:
    await migrate(dsn=master_dsn, schema=SCHEMA, cluster=cluster_name, settings=MasterSettings())
    stage = Stage(master_dsn, SCHEMA, store_url, cluster_name)
    yield stage
    await stage.close()


@pytest.fixture
async def life(stage: Stage) -> AsyncIterator[Life]:
    """An agent with one bucket that an operator stops and lets go on."""
    async with living(stage) as made:
        yield made
