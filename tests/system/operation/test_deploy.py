"""A deploy that is taken back while agents of both versions live: a schedule changes once, and once back."""

from __future__ import annotations

import msgspec
import pytest

from jobmaster.codec import decode_headers
from jobmaster.model.schedule import Schedule
from tests.support.deployment import AgentProcess, Deployment
from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.usefixtures("long_lease")]
OLDER, NEWER = ("3600s", 60.0), ("7200s", 90.0)


async def start(deployment: Deployment, version: str) -> AgentProcess:
    deployment.document["handlers"] = [f"tests.system.handlers.deploy_jobs:{version}"]
    return await deployment.start_agent()


async def definition(deployment: Deployment) -> tuple[tuple[str, float | None], int]:
    """Recurrence and time limit; how many definitions there have been."""
    [row] = await deployment.fetch(
        "SELECT convert_from(definition, 'UTF8') AS definition, revision FROM schedule WHERE name = 'deploy-report'"
    )
    schedule = msgspec.json.decode(row["definition"], type=Schedule)
    return (schedule.expression, decode_headers(schedule.headers).timeout_seconds), row["revision"]


async def test_a_deploy_that_is_taken_back_changes_the_definition_once_and_once_back(deployment: Deployment) -> None:
    await deployment.fetch("DELETE FROM schedule WHERE name = 'deploy-report'")
    oldest = await start(deployment, "older")
    assert await definition(deployment) == (OLDER, 1)
    new = await start(deployment, "newer")
    assert await definition(deployment) == (NEWER, 2)
    older = await start(deployment, "older")
    assert (await older.wait_event("schedule_not_put"))["schedule"] == "deploy-report"
    assert await oldest.terminate(PATIENCE_SECONDS) == 0
    restarted = await start(deployment, "older")
    await restarted.wait_event("schedule_not_put")
    assert await definition(deployment) == (NEWER, 2), "as long as an agent of the newer program lives"

    assert await new.terminate(PATIENCE_SECONDS) == 0

    async def taken_back() -> bool:
        return (await definition(deployment))[0] == OLDER

    await eventually(taken_back, PATIENCE_SECONDS, "the definition of the agents that are left")
    assert await older.terminate(PATIENCE_SECONDS) == 0
    await start(deployment, "older")
    assert await definition(deployment) == (OLDER, 3), "it has changed twice"
