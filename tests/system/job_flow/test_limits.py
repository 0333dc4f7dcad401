"""Limits on real agents: never exceeded, as the handlers themselves see it; also when agents are killed."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import pytest

from jobmaster.client.cluster import Cluster
from jobmaster.model.errors import InputError, InvalidArguments, NotFound
from jobmaster.model.job import JobState
from jobmaster.wiring import open_cluster
from tests.support.deployment import Deployment
from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import eventually
from tests.system.handlers.limited_jobs import (
    free,
    handlers,
    keyed,
    meeting,
    most_at_once,
    note,
    ordered,
    paced,
    shared,
    shared_process,
    shared_thread,
    tenant,
)

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


async def states(deployment: Deployment) -> Counter[str]:
    return Counter(await deployment.states())


@pytest.fixture
def limited(deployment: Deployment) -> Deployment:
    deployment.document["handlers"] = ["tests.system.handlers.limited_jobs"]
    return deployment


async def test_a_shared_limit_is_reached_and_never_exceeded_over_agents_and_kinds_of_handlers(
    limited: Deployment,
) -> None:
    await limited.start_agent()
    await limited.start_agent()
    path = limited.path("w")
    async with await open_cluster(limited.settings, handlers) as cluster:
        receipts = []
        for each in (shared, shared_thread, shared_process):
            receipts += [await cluster.submit(each, {"path": str(path)}) for _ in range(60)]
        # Each of these runs until the limit is reached: whether five short runs meet is for the load of the machine to say.
        receipts += [await cluster.submit(meeting, {"path": str(path), "runs": 5}) for _ in range(5)]
        assert {await receipt.wait(timeout=PATIENCE_SECONDS) for receipt in receipts} == {JobState.SUCCEEDED}
        (view,) = [view for view in await cluster.limits.list() if view.name == "shared"]
        assert (view.running, view.declared) == (5, True)

        async def returned() -> bool:
            return all(each.taken == 0 for each in await cluster.limits.list() if each.name == "shared")

        await eventually(returned, PATIENCE_SECONDS, "no permit, also no lent one, is taken")
    assert most_at_once(path) == {"shared": 5}
    attempts = await limited.fetch("SELECT DISTINCT attempt, rescues FROM job")
    assert [tuple(row) for row in attempts] == [(1, 0)], "waiting for a permit uses up no attempt"


async def test_a_killed_agent_frees_its_permits_with_its_rescue_and_the_limit_is_not_exceeded(
    limited: Deployment,
) -> None:
    limited.shorten_lease()
    victim = await limited.start_agent()
    path = limited.path("w")
    async with await open_cluster(limited.settings, handlers) as cluster:
        receipts = [await cluster.submit(shared, {"path": str(path), "seconds": 0.3}) for _ in range(40)]

        async def began() -> bool:
            return path.exists() and most_at_once(path)["shared"] == 5

        await eventually(began, 20, "five runs")
        other = await limited.start_agent()
        pids = victim.children()
        victim.kill_all()
        for pid in pids:
            note(str(path), "dead", str(pid))
        assert {await receipt.wait(timeout=PATIENCE_SECONDS) for receipt in receipts} == {JobState.SUCCEEDED}
    assert most_at_once(path) == {"shared": 5}
    assert other.process.poll() is None


async def test_keys_wait_for_themselves_and_others_are_not_held_up(limited: Deployment) -> None:
    limited.document["agents"]["default"] |= {"slots": 4}
    await limited.start_agent()
    path = limited.path("w")
    async with await open_cluster(limited.settings, handlers) as cluster:
        for _ in range(50):
            await cluster.submit(tenant, {"path": str(path), "tenant": "busy", "seconds": 30.0})
        others = [await cluster.submit(tenant, {"path": str(path), "tenant": "quiet"}) for _ in range(6)]
        others += [await cluster.submit(free, {"path": str(path)}) for _ in range(6)]
        assert {await one.wait(timeout=PATIENCE_SECONDS) for one in others} == {JobState.SUCCEEDED}

        async def two_are_busy() -> bool:
            return most_at_once(path)["busy"] == 2

        await eventually(two_are_busy, PATIENCE_SECONDS, "two runs of the busy key")
    most = most_at_once(path)
    assert most["busy"] == 2
    assert most["quiet"] <= 2


async def test_a_rate_is_kept_over_all_agents(limited: Deployment) -> None:
    await limited.start_agent()
    await limited.start_agent()
    path = str(limited.path("w"))
    async with await open_cluster(limited.settings, handlers) as cluster:
        began = time.monotonic()
        receipts = [await cluster.submit(paced, {"path": path}) for _ in range(45)]
        assert {await one.wait(timeout=PATIENCE_SECONDS) for one in receipts} == {JobState.SUCCEEDED}
        assert time.monotonic() - began >= 1.9, "5 at once, then 20 a second"


async def test_a_limit_is_changed_at_run_time(limited: Deployment) -> None:
    await limited.start_agent()
    path = limited.path("w")
    async with await open_cluster(limited.settings, handlers) as cluster:
        for _ in range(30):
            await cluster.submit(shared, {"path": str(path), "seconds": 60.0})

        async def running(count: int) -> None:
            async def reached() -> bool:
                return path.exists() and most_at_once(path)["shared"] == count

            await eventually(reached, PATIENCE_SECONDS, f"{count} runs")

        await running(5)
        view = await cluster.limits.set("shared", 9, reason="more", actor="ann")
        assert (view.running, view.declared_running, view.set_by, view.set_reason) == (9, 5, "ann", "more")
        await running(9)
        assert (await cluster.limits.get("shared")).taken == 9
        assert await cluster.limits.reset("shared") is True
        assert await cluster.limits.reset("shared") is False
        with pytest.raises(NotFound, match="there is no limit 'sharde'"):
            await cluster.limits.set("sharde", 3)


async def test_jobs_beyond_what_an_agent_keeps_wait_in_the_master_and_the_master_is_asked_seldom(
    limited: Deployment,
) -> None:
    """4,000 jobs wait for a full limit: the agent keeps some of them, and asks a few times a second, however many wait."""
    await limited.start_agent()
    path = limited.path("w")
    async with await open_cluster(limited.settings, handlers) as cluster:
        await cluster.submit_many(({"path": str(path), "seconds": 600.0} for _ in range(4000)), handler=shared)

        async def settled() -> bool:
            found = await states(limited)
            return found["HELD"] >= 1500 and found["PROCESSING"] == 5

        await eventually(settled, PATIENCE_SECONDS, "most of them HELD")
        last = await cluster.submit(free, {"path": str(path)})
        assert await last.wait(timeout=PATIENCE_SECONDS) is JobState.SUCCEEDED, "others are not held up"
        before, began = await _changes(limited), time.monotonic()
        await asyncio.sleep(5)
        assert await _changes(limited) - before <= 10 * (time.monotonic() - began), "writes of admissions, each second"


async def _changes(deployment: Deployment) -> int:
    """Writes of limit_state: one for each admission."""
    rows = await deployment.fetch("SELECT pg_stat_force_next_flush()")
    rows = await deployment.fetch(
        "SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'limit_state' AND schemaname = current_schema()"
    )
    return int(rows[0][0])


async def test_a_key_that_cannot_be_computed_is_refused_at_submit_and_fails_a_job_of_another_program(
    limited: Deployment, cluster: Cluster
) -> None:
    await limited.start_agent()
    async with await open_cluster(limited.settings, handlers) as opened:
        with pytest.raises(InvalidArguments, match="the key of limit 'keyed' cannot be computed: IndexError"):
            await opened.submit(keyed, {"parts": []})
        with pytest.raises(InputError, match="has a limit, which cannot count a slow run"):
            await opened.submit(keyed, {"parts": ["a"]}, complete_time=5)
        assert await (await opened.submit(keyed, {"parts": ["a"]})).result(timeout=PATIENCE_SECONDS) == "a"
    receipt = await cluster.submit("keyed", {"parts": []})
    assert await receipt.wait(timeout=PATIENCE_SECONDS) is JobState.FAILED
    view = await receipt.get()
    assert view is not None
    assert view.error is not None
    assert view.error.reason == "arguments"


async def test_jobs_of_an_ordering_key_run_one_at_a_time_in_order_over_agents_and_priorities(
    limited: Deployment,
) -> None:
    await limited.start_agent()
    await limited.start_agent()
    path = limited.path("w")
    async with await open_cluster(limited.settings, handlers) as cluster:
        receipts = []
        for n in range(12):
            for key in ("a", "b", "c"):
                receipts.append(
                    await cluster.submit(
                        ordered, {"path": str(path), "key": key, "number": n}, ordering_key=key,
                        priority="high" if n % 2 else "low",
                    )
                )  # fmt: skip
        assert {await one.wait(timeout=PATIENCE_SECONDS) for one in receipts} == {JobState.SUCCEEDED}
        with pytest.raises(InputError, match="needs a row in the master"):
            await cluster.submit(ordered, {"path": "", "key": "", "number": 1}, ordering_key="a", durability="store")
    for key in ("a", "b", "c"):
        seen = [line.split()[0] for line in path.read_text().splitlines() if line.split()[1] == key]
        assert seen == [word for n in range(12) for word in (f"+{n}", f"-{n}")]
