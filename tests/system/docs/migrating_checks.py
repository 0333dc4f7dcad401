"""What our half of the guides for moving takes for granted, and what it has to have done. The other half is compiled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from jobmaster import JobState
from jobmaster.testing import Jobs, RealCluster
from tests.support.patience import PATIENCE_SECONDS
from tests.system.docs.recipe_checks import Check, Names, add_table, states


class OldSystem:
    """Records what the other system would have got."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, dict[str, Any]]] = []

    def send(self, name: str, **arguments: Any) -> None:
        self.sent.append((name, arguments))


def ready_at_second() -> Callable[[str], bool]:
    """Something that is not ready when it is asked for the first time."""
    asked: list[str] = []

    def is_ready(what: str) -> bool:
        asked.append(what)
        return len(asked) > 1

    return is_ready


async def in_memory(cluster: RealCluster, names: dict[str, Any], test: str) -> None:
    """The page's own test passes."""
    kit = Jobs(cluster.settings, names["handlers"])
    with kit.connected():
        await names[test](kit)


# ---------------------------------------------------------------- what they take for granted

NAMES: dict[str, Names] = {
    "side-by-side": lambda: {"old": OldSystem()},
    "celery": lambda: {"is_ready": ready_at_second(), "load": str.upper, "urls": ["a", "bc"]},
    "rq": lambda: {"is_ready": ready_at_second(), "paths": ["a.png", "b.png"]},
    "arq-saq": lambda: {"is_ready": ready_at_second(), "paths": ["a.png", "b.png"]},
}
BEFORE: dict[str, Check] = {
    "procrastinate": lambda cluster, names: add_table(
        cluster, names, "DROP TABLE IF EXISTS orders CASCADE; CREATE TABLE orders (id int)"
    ),
}


# ---------------------------------------------------------------- what they have to have done


async def side_by_side(cluster: RealCluster, names: dict[str, Any]) -> None:
    await cluster.drain(timeout=PATIENCE_SECONDS)
    old, moved = names["old"], names["is_moved"]
    here = [user for user in range(100) if moved("mail.welcome", f"user {user}")]
    assert 0 < len(here) < 30
    assert (await states(cluster, "mail.welcome")).count("SUCCEEDED") == len(here)
    *there, given_back = old.sent
    assert [arguments["user"] for _, arguments in there] == [user for user in range(100) if user not in here]
    assert given_back == ("mail.welcome", {"user": 1000})


async def celery(cluster: RealCluster, names: dict[str, Any]) -> None:
    await cluster.workflows.wait(names["first"], timeout=PATIENCE_SECONDS)
    fetched = [job for job in await cluster.jobs(handler="shop.fetch") if job.id != names["soon"].id]  # due in a minute
    assert [job.state for job in fetched].count(JobState.SUCCEEDED) == 4
    assert await cluster.state(names["later"]) is JobState.HELD
    assert await states(cluster, "shop.store") == await states(cluster, "shop.total") == ["SUCCEEDED"]
    (poll,) = await cluster.jobs(handler="shop.poll")
    assert (poll.result_value, poll.attempt) == ("MAY", 1)
    await asyncio.to_thread(names["test_total"])


async def rq(cluster: RealCluster, names: dict[str, Any]) -> None:
    await cluster.drain(timeout=PATIENCE_SECONDS)
    assert sorted(set(await states(cluster, "images.resize"))) == ["HELD", "SUCCEEDED"]
    (load,) = await cluster.jobs(handler="images.load")
    assert (load.state, load.attempt) == ("SUCCEEDED", 2)


async def dramatiq(cluster: RealCluster, names: dict[str, Any]) -> None:
    assert [view.state for view in names["ended"]] == ["SUCCEEDED"] * 2
    assert sorted(job.result_value for job in await cluster.jobs(handler="numbers.add")) == [3, 3, 3, 6, 7]
    await in_memory(cluster, names, "test_charge")


async def arq_saq(cluster: RealCluster, names: dict[str, Any]) -> None:
    (download,) = await cluster.jobs(handler="web.download")
    assert (download.state, download.attempt) == ("SUCCEEDED", 2)
    assert names["two"].answer == "existing"
    await cluster.wait(names["late"], timeout=PATIENCE_SECONDS)
    assert (await states(cluster, "images.resize")).count("CANCELLED") == 1
    await in_memory(cluster, names, "test_resize")


async def procrastinate(cluster: RealCluster, names: dict[str, Any]) -> None:
    connection = names["connection"]
    assert await connection.fetchval("SELECT count(*) FROM orders") == 1
    await connection.execute("DROP TABLE orders")
    await connection.close()
    (rename,) = await cluster.jobs(handler="customer.rename")
    assert rename.unique_key == "rename 7"


async def hangfire(cluster: RealCluster, names: dict[str, Any]) -> None:
    await cluster.drain(timeout=PATIENCE_SECONDS)
    assert await states(cluster, "audit.sent") == ["SUCCEEDED"]
    assert await cluster.schedules.list() == []
    assert await states(cluster, "files.import") == ["SUCCEEDED"] * 2


async def jobmaster_net(cluster: RealCluster, names: dict[str, Any]) -> None:
    # By their receipts: the schedule of the page fires at every multiple of five minutes, so also during this test.
    ended = [await cluster.state(names[one]) for one in ("receipt", "later")]
    assert ended == [JobState.SUCCEEDED, JobState.CANCELLED]
    assert {view.name for view in await cluster.schedules.list()} == {"maintenance.backup", "image.5m"}


CHECKS: dict[str, Check] = {
    "side-by-side": side_by_side,
    "celery": celery,
    "rq": rq,
    "dramatiq": dramatiq,
    "arq-saq": arq_saq,
    "procrastinate": procrastinate,
    "hangfire": hangfire,
    "jobmaster-net": jobmaster_net,
}
