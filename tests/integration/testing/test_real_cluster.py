"""The fixture with a real cluster."""

from __future__ import annotations

import asyncio
import time

import pytest

from jobmaster import (
    ClusterSettings,
    ConfigError,
    Handlers,
    InputError,
    JobMasterError,
    WaitTimeout,
    call,
    connect_sync,
)
from jobmaster.testing import Drained, Jobs, RealCluster
from jobmaster.testing.embedded.agents import AgentTask
from tests.integration.testing import contract_jobs
from tests.support.patience import PATIENCE_SECONDS
from tests.unit.testing import app

held_up = Handlers()
_opened = asyncio.Event()


@held_up.job
async def until_opened() -> None:
    """Runs on the loop of the test, until the test lets it end."""
    await _opened.wait()


@pytest.fixture
def jobmaster_handlers() -> Handlers:
    handlers = Handlers()
    handlers.merge(app.handlers)
    handlers.merge(contract_jobs.handlers)
    handlers.merge(held_up)
    return handlers


async def test_an_agent_runs_what_was_submitted(jobmaster_cluster: RealCluster) -> None:
    receipt = await jobmaster_cluster.submit(call(app.numbers, 1))
    assert await jobmaster_cluster.drain(timeout=PATIENCE_SECONDS) == Drained(succeeded=1)
    assert await receipt.result(timeout=PATIENCE_SECONDS) == [1, 1]


async def test_the_next_test_has_an_empty_cluster_of_its_own(jobmaster_cluster: RealCluster) -> None:
    assert await jobmaster_cluster.drain() == Drained()
    await jobmaster_cluster.submit(call(app.send_mail, "ann"))
    assert (await jobmaster_cluster.drain(timeout=PATIENCE_SECONDS)).succeeded == 1


async def test_a_synchronous_cluster_that_is_connected_is_moved_to_memory_and_back(
    jobmaster_cluster: RealCluster,
) -> None:
    settings = jobmaster_cluster.settings
    held = connect_sync(settings, handlers=app.handlers)
    try:
        await asyncio.to_thread(held.submit, call(app.send_mail, "1"))
        kit = Jobs(settings, app.handlers)
        with kit.connected():
            await asyncio.to_thread(held.submit, call(app.send_mail, "2"))
        await asyncio.to_thread(held.submit, call(app.send_mail, "3"))
    finally:
        await asyncio.to_thread(held.close)
    assert [job.arguments for job in kit.all_submitted()] == [{"to": "2"}]
    assert (await jobmaster_cluster.drain(timeout=PATIENCE_SECONDS)).succeeded == 2


@pytest.mark.slow
async def test_an_agent_that_has_lost_its_lease_is_replaced(jobmaster_cluster: RealCluster) -> None:
    """A breakpoint holds the event loop for longer than the lease."""
    lease = jobmaster_cluster.settings.leases.lease_seconds
    time.sleep(1.2 * lease)
    await jobmaster_cluster.submit(call(app.send_mail, "ann"))
    assert (await jobmaster_cluster.drain(timeout=PATIENCE_SECONDS)).succeeded == 1


@pytest.mark.slow
async def test_a_failed_agent_is_named_by_drain(
    jobmaster_cluster: RealCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(_: AgentTask) -> None:
        raise JobMasterError("no second agent")

    monkeypatch.setattr(AgentTask, "_start_one", refused)
    await jobmaster_cluster.submit(call(app.send_mail, "ann"), after=3600)
    time.sleep(1.2 * jobmaster_cluster.settings.leases.lease_seconds)
    with pytest.raises(JobMasterError, match="no second agent"):
        await jobmaster_cluster.drain(held=True)


async def test_killing_needs_a_process(jobmaster_cluster: RealCluster) -> None:
    with pytest.raises(InputError, match="use_agent_process"):
        await jobmaster_cluster.kill_agent()


async def test_a_handler_that_no_worker_process_could_import_is_refused(jobmaster_cluster: RealCluster) -> None:
    """Its jobs would be put off again and again, and nothing would name the reason."""
    local = Handlers()

    @local.job(name="isolated", mode="process")
    def isolated() -> int:
        return 1

    @local.job(name="contract.in_process", mode="process")  # the name is in the module, the function is another
    def other() -> int:
        return 2

    local.merge(app.handlers)
    settings, directory = jobmaster_cluster.settings, jobmaster_cluster._directory
    with pytest.raises(ConfigError, match=r"'contract\.in_process', 'isolated': a handler of mode 'process'") as caught:
        await RealCluster.open(settings, local, directory)
    assert "declare it at the top of a module" in str(caught.value)
    assert (await jobmaster_cluster.drain()) == Drained(), "the agent of the test goes on"


async def test_a_handler_in_a_module_that_is_named_runs_in_a_worker_process(jobmaster_cluster: RealCluster) -> None:
    receipt = await jobmaster_cluster.submit(call(contract_jobs.in_process, "a"))
    assert await receipt.result(timeout=PATIENCE_SECONDS) == "A"


async def test_the_module_of_a_handler_is_found_by_the_handler(jobmaster_cluster: RealCluster) -> None:
    assert "tests.unit.testing.app" not in jobmaster_cluster.settings.handlers
    receipt = await jobmaster_cluster.submit(call(app.double, 3))
    assert await receipt.result(timeout=PATIENCE_SECONDS) == 6


async def test_jobs_that_do_not_end_in_time_are_named(jobmaster_cluster: RealCluster) -> None:
    _opened.clear()
    await jobmaster_cluster.submit(call(until_opened))
    with pytest.raises(WaitTimeout, match="1 jobs that are due have not ended within 0 s"):
        await jobmaster_cluster.drain(timeout=0)
    _opened.set()
    await jobmaster_cluster.submit(call(contract_jobs.steady, 2), after=3600)
    drained = await jobmaster_cluster.drain(timeout=PATIENCE_SECONDS)
    assert (drained.succeeded, drained.left) == (1, 1)


@pytest.fixture
def jobmaster_settings() -> ClusterSettings:
    """Agent processes import the handlers by name."""
    return ClusterSettings(handlers=["tests.integration.testing.contract_jobs"])


@pytest.mark.slow
@pytest.mark.cluster
async def test_jobs_of_a_killed_agent_are_rescued_and_end(
    jobmaster_cluster: RealCluster, jobmaster_settings: ClusterSettings
) -> None:
    await jobmaster_cluster.use_agent_process()
    receipts = [await jobmaster_cluster.submit(call(contract_jobs.steady, number)) for number in range(60)]
    await receipts[0].wait(timeout=PATIENCE_SECONDS)
    await jobmaster_cluster.kill_agent()
    drained = await jobmaster_cluster.drain(timeout=PATIENCE_SECONDS)
    assert (drained.succeeded, drained.left) == (60, 0)
    assert [await receipt.result(timeout=PATIENCE_SECONDS) for receipt in receipts] == list(range(60))
