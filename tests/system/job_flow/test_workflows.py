"""Workflows with real agents: results passed on, compensations, cancel, retry, and agents that are killed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from jobmaster.client.cluster import Cluster
from jobmaster.client.signals.wait import signal
from jobmaster.client.workflows.definition import branch, chain, group, previous, result_of, step
from jobmaster.handlers import call
from jobmaster.model.errors import Conflict, InputError, NotFound, WaitTimeout
from jobmaster.model.flow.workflow import StepState, WorkflowState, WorkflowView
from jobmaster.wiring import open_cluster
from tests.support.deployment import Deployment
from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import eventually
from tests.system.handlers.workflow_jobs import (
    charge,
    handlers,
    is_large,
    pack,
    pass_on,
    refund,
    send,
    send_unless,
    unpack,
    wait_for,
)

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
HANDLERS = ("--handlers", "tests.system.handlers.workflow_jobs")


@pytest.fixture
async def cluster(deployment: Deployment) -> AsyncIterator[Cluster]:
    async with await open_cluster(deployment.settings, handlers) as opened:
        yield opened


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "words")


def words(path: str) -> list[str]:
    """What ran, in order."""
    return [line.split()[4] for line in Path(path).read_text().splitlines()] if Path(path).exists() else []


def states(view: WorkflowView) -> dict[str, str]:
    return {one.name: one.state.value for one in view.steps}


async def test_results_go_from_step_to_step(deployment: Deployment, cluster: Cluster, path: str) -> None:
    await deployment.start_agent(*HANDLERS)
    pay = step(call(charge, path, "lamp"))
    flow = chain(
        group(pay, call(pack, path, "lamp")),
        branch(
            call(is_large, result_of(pay).number),
            {True: call(send, path, "large", [result_of(pay), 1]), False: call(send, path, "small", [])},
        ),
        step(call(pass_on, path, 41), name="last"),
    )
    view = await cluster.workflows.wait(await cluster.workflows.start("order", flow), timeout=PATIENCE_SECONDS)
    assert view.state is WorkflowState.SUCCEEDED
    assert states(view) == {
        "charge": "SUCCEEDED", "pack": "SUCCEEDED", "is_large": "SUCCEEDED", "send": "SUCCEEDED", "send 2": "SKIPPED",
        "last": "SUCCEEDED",
    }  # fmt: skip
    assert sorted(words(path)) == ["charge-lamp", "pack-lamp", "send-large-2", "value-41"]
    last = view.step("last").job
    assert last is not None
    assert await cluster.result(last) == 42
    (listed,) = await cluster.workflows.list(state="succeeded", name="order")
    assert (listed.id, listed.steps_total, listed.steps_ended, listed.steps_failed) == (view.id, 6, 6, 0)
    with pytest.raises(Conflict):
        await cluster.workflows.cancel(view)
    with pytest.raises(Conflict):
        await cluster.workflows.retry(view)
    with pytest.raises(NotFound):
        await cluster.workflows.get(cluster.workflows.new_id())


async def test_a_failed_order_is_undone_in_reverse(deployment: Deployment, cluster: Cluster, path: str) -> None:
    await deployment.start_agent(*HANDLERS)
    flow = chain(
        step(call(charge, path, "lamp"), undo=call(refund, path, previous)),
        step(call(pack, path, "lamp"), undo=call(unpack, path, previous)),
        call(send_unless, path, "/nowhere"),
        call(pass_on, path, 1),
    ).on_failure(call(pass_on, path, 99))
    view = await cluster.workflows.wait(await cluster.workflows.start("order", flow), timeout=PATIENCE_SECONDS)
    assert view.state is WorkflowState.FAILED
    assert words(path) == ["charge-lamp", "pack-lamp", "value-99", "unpack-pack_of_lamp", "refund-lamp-4"]
    assert (view.step("send_unless").state, view.step("pass_on").state) == (StepState.FAILED, StepState.BLOCKED)


async def test_a_retry_resumes_at_the_step_that_failed(
    deployment: Deployment, cluster: Cluster, path: str, tmp_path: Path
) -> None:
    await deployment.start_agent(*HANDLERS)
    gate = tmp_path / "gate"
    flow = chain(call(pack, path, "a"), call(send_unless, path, str(gate)), call(pass_on, path, 1))
    view = await cluster.workflows.wait(await cluster.workflows.start("order", flow), timeout=PATIENCE_SECONDS)
    assert (view.state, words(path)) == (WorkflowState.FAILED, ["pack-a"])
    gate.touch()
    await cluster.workflows.retry(view)
    view = await cluster.workflows.wait(view, timeout=PATIENCE_SECONDS)
    assert (view.state, words(path)) == (WorkflowState.SUCCEEDED, ["pack-a", "sent", "value-1"])
    assert [one.tries for one in view.steps] == [1, 2, 1]


async def test_a_cancel_stops_what_runs_and_undoes_what_was_done(
    deployment: Deployment, cluster: Cluster, path: str
) -> None:
    await deployment.start_agent(*HANDLERS)
    flow = chain(
        step(call(charge, path, "lamp"), undo=call(refund, path, previous)),
        call(wait_for, path),
        call(pass_on, path, 1),
    )
    started = await cluster.workflows.start("order", flow)

    async def runs() -> bool:
        return "began" in words(path)

    await eventually(runs, PATIENCE_SECONDS, "the step that waits")
    with pytest.raises(WaitTimeout):
        await cluster.workflows.wait(started, timeout=0.01)
    await cluster.workflows.cancel(started)
    view = await cluster.workflows.wait(started, timeout=PATIENCE_SECONDS)
    assert view.state is WorkflowState.CANCELLED
    assert states(view) == {
        "charge": "SUCCEEDED", "wait_for": "CANCELLED", "pass_on": "CANCELLED", "undo charge": "SUCCEEDED",
    }  # fmt: skip
    assert words(path) == ["charge-lamp", "began", "refund-lamp-4"]


async def test_a_submit_has_callbacks(deployment: Deployment, cluster: Cluster, path: str) -> None:
    await deployment.start_agent(*HANDLERS)
    receipt = await cluster.submit(
        call(pass_on, path, 1),
        on_success=call(pass_on, path, previous),
        on_failure=call(pack, path, "a"),
        priority="high",
    )
    assert await receipt.result(timeout=PATIENCE_SECONDS) == 2
    (found,) = await cluster.workflows.list()
    view = await cluster.workflows.wait(found, timeout=PATIENCE_SECONDS)
    assert states(view) == {"pass_on": "SUCCEEDED", "pass_on 2": "SUCCEEDED", "pack": "SKIPPED"}
    assert view.steps[0].job == receipt.id
    assert words(path) == ["value-1", "value-2"]
    with pytest.raises(InputError, match="has no option 'idempotency_key'"):
        await cluster.submit(call(pass_on, path, 1), on_success=call(pack, path, "a"), idempotency_key="x")
    with pytest.raises(InputError, match="belong to a plain submit"):
        cluster.statement(call(pass_on, path, 1), on_success=call(pack, path, "a"))


async def test_a_step_waits_for_a_signal(deployment: Deployment, cluster: Cluster, path: str) -> None:
    await deployment.start_agent(*HANDLERS)
    waits = step(call(pass_on, path, previous), wait_for=signal("paid:17"))
    of = await cluster.workflows.start("order", chain(call(pass_on, path, 1), waits, call(pass_on, path, previous)))

    async def is_waiting() -> bool:
        return bool(await cluster.signals.waiting(key="paid:17"))

    await eventually(is_waiting, PATIENCE_SECONDS, "the second step")
    assert words(path) == ["value-1"]
    assert (await cluster.signals.send("paid:17")).delivered == 1
    view = await cluster.workflows.wait(of, timeout=PATIENCE_SECONDS)
    assert (view.state, words(path)) == (WorkflowState.SUCCEEDED, ["value-1", "value-2", "value-3"])


async def test_a_start_that_is_sent_again_starts_nothing(deployment: Deployment, cluster: Cluster, path: str) -> None:
    await deployment.start_agent(*HANDLERS)
    of = cluster.workflows.new_id()
    for _ in range(2):
        assert await cluster.workflows.start("order", call(pack, path, "a"), workflow_id=of) == of
    await cluster.workflows.wait(of, timeout=PATIENCE_SECONDS)
    assert words(path) == ["pack-a"]


async def test_workflows_survive_agents_that_are_killed(deployment: Deployment, cluster: Cluster, path: str) -> None:
    """Every step has one job, whatever was under way at a kill."""
    deployment.shorten_lease()
    await deployment.start_agent(*HANDLERS)
    started = []
    for number in range(20):
        one, two, three = (step(call(pass_on, path, number * 100 + at)) for at in range(3))
        flow = chain(one, group(two, three), call(send, path, f"{number}", previous), *[call(pass_on, path, 7)] * 3)
        started.append(await cluster.workflows.start("order", flow))
    for _ in range(3):
        victim = await deployment.start_agent(*HANDLERS)
        await asyncio.sleep(0.3)
        victim.kill_all()
    for of in started:
        view = await cluster.workflows.wait(of, timeout=PATIENCE_SECONDS)
        assert view.state is WorkflowState.SUCCEEDED
        assert [one.tries for one in view.steps] == [1] * 7
    assert await deployment.states() == {"SUCCEEDED": 140}
