"""A migrated master and a store for the tests that drive agents call by call."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.conftest import MIGRATED_SCHEMA
from tests.integration.agents.fixture import DrivenCluster
from tests.integration.agents.freezing_fixture import Life, living


@pytest.fixture
async def driven(migrated_dsn: str, store_url: str, cluster_name: str) -> AsyncIterator[DrivenCluster]:
    driven = DrivenCluster(migrated_dsn, MIGRATED_SCHEMA, store_url, cluster_name)
    yield driven
    await driven.close()


@pytest.fixture
async def life(driven: DrivenCluster) -> AsyncIterator[Life]:
    """An agent with one bucket that an operator stops and lets go on."""
    async with living(driven) as made:
        yield made
