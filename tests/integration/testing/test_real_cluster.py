"""The fixture with a real cluster."""

from __future__ import annotations

import pytest

from jobmaster import Handlers, InputError, call
from jobmaster.testing import Drained, RealCluster
from tests.unit.testing import app


@pytest.fixture
def jobmaster_handlers() -> Handlers:
    return app.handlers


async def test_an_agent_runs_what_was_submitted(jobmaster_cluster: RealCluster) -> None:
    receipt = await jobmaster_cluster.submit(call(app.numbers, 1))
    assert await jobmaster_cluster.drain() == Drained(succeeded=1)
    assert await receipt.result(timeout=5) == [1, 1]


async def test_the_next_test_has_an_empty_cluster_of_its_own(jobmaster_cluster: RealCluster) -> None:
    assert await jobmaster_cluster.drain() == Drained()
    await jobmaster_cluster.submit(call(app.send_mail, "ann"))
    assert (await jobmaster_cluster.drain()).succeeded == 1


async def test_killing_needs_a_process(jobmaster_cluster: RealCluster) -> None:
    with pytest.raises(InputError, match="use_agent_process"):
        await jobmaster_cluster.kill_agent()
    with pytest.raises(InputError, match="jobmaster_handlers"):
        await jobmaster_cluster.use_agent_process()
