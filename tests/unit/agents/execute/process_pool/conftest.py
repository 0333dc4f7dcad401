"""Pools of worker processes for every test of them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.unit.agents.execute.process_pool.process_pool_fixture import KeptPools, Make, pools


@pytest.fixture(scope="module")
async def kept_pools() -> AsyncIterator[KeptPools]:
    kept = KeptPools()
    yield kept
    await kept.close()


@pytest.fixture
async def make_pool(kept_pools: KeptPools) -> AsyncIterator[Make]:
    async with pools(kept_pools) as make:
        yield make
