"""A deployment, one agent and a client for each test of the system."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator
from pathlib import Path

import pytest

from jobmaster.client.cluster import Cluster
from jobmaster.wiring import open_cluster
from tests.conftest import MIGRATED_SCHEMA
from tests.support.deployment import AgentProcess, Deployment
from tests.system.jobs import handlers


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Function, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add what the agents logged as a warning or an error to the report of a failure."""
    report = yield
    deployment = item.funcargs.get("deployment")
    if call.when == "call" and report.failed and isinstance(deployment, Deployment):
        report.sections += [(f"warnings of {agent.log.name}", agent.warnings()) for agent in deployment.agents]
    return report


@pytest.fixture
async def deployment(tmp_path: Path, migrated_dsn: str, store_url: str, cluster_name: str) -> AsyncIterator[Deployment]:
    made = Deployment(tmp_path, migrated_dsn, store_url, cluster_name)
    made.document["master"]["schema"] = MIGRATED_SCHEMA
    yield made
    await made.close()


@pytest.fixture
def long_lease(deployment: Deployment) -> None:
    """Leases and a grace time that outlast every delay of a loaded machine: an agent ends when the test ends it, or kills it,
    and for no other reason. For ``usefixtures``, which comes before the agent."""
    deployment.document["leases"] = {"lease": "300s", "renew": "0.8s", "grace": "300s"}


@pytest.fixture
async def agent(deployment: Deployment) -> AgentProcess:
    """One agent with one process, up and serving."""
    return await deployment.start_agent()


@pytest.fixture
async def cluster(deployment: Deployment) -> AsyncIterator[Cluster]:
    """A client of the rig's cluster."""
    async with await open_cluster(deployment.settings, handlers) as opened:
        yield opened
