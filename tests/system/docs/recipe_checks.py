"""What the recipes take for granted, and what each of them has to have done."""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
from base64 import b64encode
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import asyncpg
from fastapi.testclient import TestClient

from jobmaster import Handlers, JobContext, JobState, JobView
from jobmaster.testing import Jobs, RealCluster
from tests.support.pages.page_programs import configured
from tests.support.patience import PATIENCE_SECONDS

Check = Callable[[RealCluster, dict[str, Any]], Awaitable[None]]
Names = Callable[[], dict[str, Any]]

# ---------------------------------------------------------------- what they take for granted


class Mail:
    """A mail service that knows keys."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str, str | None]] = []

    async def send(self, to: str, text: str, key: str | None = None) -> None:
        self.sent.append((to, text, key))


class Places:
    """A table of places."""

    def __init__(self) -> None:
        self.saved: dict[str, int] = {}

    async def get(self, key: str, default: int) -> int:
        return self.saved.get(key, default)

    async def set(self, key: str, value: int) -> None:
        self.saved[key] = value


def a_report() -> dict[str, Any]:
    """A handler that goes on until its progress was seen."""
    seen = threading.Event()

    async def make_report(ctx: JobContext, month: str) -> str:
        while not seen.is_set():
            ctx.progress(1, 15)
            await asyncio.sleep(0.05)
        return f"report of {month}"

    return {"make_report": make_report, "seen": seen}


def _with_key() -> dict[str, Any]:
    os.environ["ENCRYPTION_KEY"] = b64encode(bytes(range(32))).decode()
    return {}


async def add_table(cluster: RealCluster, names: dict[str, Any], text: str) -> None:
    """A table of the application in the master's database, and a connection to it."""
    names["connection"] = connection = await asyncpg.connect(cluster.settings.master.dsn)
    await connection.execute(text)


BEFORE: dict[str, Check] = {
    "Change your tables exactly once": lambda cluster, names: add_table(
        cluster,
        names,
        "DROP TABLE IF EXISTS account; CREATE TABLE account (id int, cents int); INSERT INTO account VALUES (1, 100)",
    ),
    "Outbox: a job if and only if a row is committed": lambda cluster, names: add_table(
        cluster, names, "DROP TABLE IF EXISTS orders CASCADE; CREATE TABLE orders (id int, email text)"
    ),
}
"""What needs the cluster: called when it is open."""
NAMES: dict[str, Names] = {
    "Wait while a service is down": lambda: {"asyncio": asyncio},
    "Send a mail once": lambda: {"mail": Mail()},
    "A long job that can be followed and resumed": lambda: {"places": Places()},
    "Arguments that the servers cannot read": _with_key,
    "Big payloads by reference": lambda: {"folder": Path(tempfile.mkdtemp(prefix="jobmaster-recipe-"))},
    "From a request to its result, with server-sent events": a_report,
}


# ---------------------------------------------------------------- what they have to have done


async def jobs_of(cluster: RealCluster, handler: str) -> list[JobView]:
    """All that have a row, the oldest first."""
    return list(reversed(await cluster.jobs(handler=handler)))


async def states(cluster: RealCluster, handler: str) -> list[str]:
    return [job.state.value for job in await jobs_of(cluster, handler)]


async def fan_out(cluster: RealCluster, names: dict[str, Any]) -> None:
    assert (names["view"].state, names["view"].counts.succeeded) == ("SUCCEEDED", 3)
    await cluster.drain(timeout=PATIENCE_SECONDS)
    (report,) = await jobs_of(cluster, "pages.report")
    assert report.headers.metadata["batch"] == str(names["batch"].id)


async def saga(cluster: RealCluster, names: dict[str, Any]) -> None:
    assert names["ended"].state == "FAILED"
    (refund,) = await jobs_of(cluster, "order.refund")
    assert (refund.state, refund.arguments) == (JobState.SUCCEEDED, {"payment": "payment of A7"})


async def ordered(cluster: RealCluster, names: dict[str, Any]) -> None:
    first, second, _ = await jobs_of(cluster, "customer.change")
    assert first.ended_at is not None
    assert second.started_at is not None
    assert first.ended_at <= second.started_at
    assert first.headers.ordering_key == second.headers.ordering_key == "customer:7"


async def rates(cluster: RealCluster, names: dict[str, Any]) -> None:
    assert await states(cluster, "geo.locate") == ["SUCCEEDED"] * 10
    (limit,) = await cluster.limits.list()
    assert (limit.name, limit.running, limit.taken) == ("geocoder", 2, 0)


async def breaker(cluster: RealCluster, names: dict[str, Any]) -> None:
    assert names["view"].state == "OPEN"
    assert "SUCCEEDED" not in await states(cluster, "mail.send")


async def mail_once(cluster: RealCluster, names: dict[str, Any]) -> None:
    (invoice,) = await jobs_of(cluster, "mail.invoice")
    (code,) = await jobs_of(cluster, "mail.code")
    assert code.state is JobState.SUCCEEDED
    assert sorted(names["mail"].sent) == [
        ("a@example.org", "4711", None),
        ("b@example.org", "your invoice", str(invoice.id)),
    ]


async def exactly_once(cluster: RealCluster, names: dict[str, Any]) -> None:
    connection = names["connection"]
    assert await connection.fetchval("SELECT cents FROM account") == 350
    await connection.execute("DROP TABLE account")
    await connection.close()


async def transaction(cluster: RealCluster, names: dict[str, Any]) -> None:
    connection = names["connection"]
    assert await connection.fetchval("SELECT count(*) FROM orders") == 1
    assert names["receipt"].level == "transaction"
    await connection.execute("DROP TABLE orders")
    await connection.close()


async def idempotent(cluster: RealCluster, names: dict[str, Any]) -> None:
    assert await cluster.count(handler="bill.make") == (1, True)


async def debounced(cluster: RealCluster, names: dict[str, Any]) -> None:
    assert names["answers"] == ["created", "debounced", "debounced"]


async def nightly(cluster: RealCluster, names: dict[str, Any]) -> None:
    assert (await names["receipt"].result()).startswith("report of 20")
    view = await cluster.schedules.get("report.nightly")
    assert (view.misfire, view.overlap) == ("all", "queue")


async def resumable(cluster: RealCluster, names: dict[str, Any]) -> None:
    (job,) = await jobs_of(cluster, "rows.import")
    assert names["places"].saved == {str(job.id): 900}
    assert job.result_value == 1_000


async def tree(cluster: RealCluster, names: dict[str, Any]) -> None:
    assert await states(cluster, "tree.leaf") == ["CANCELLED"] * 4
    assert [view.state for view in await cluster.batches.list()] == ["CANCELLED"] * 2


async def poison(cluster: RealCluster, names: dict[str, Any]) -> None:
    (group,) = names["failures"].groups
    assert (group.jobs, group.handler) == (1, "file.read")
    assert sorted(await states(cluster, "file.read")) == ["FAILED", "SUCCEEDED"]
    assert {job.attempt for job in await jobs_of(cluster, "file.read")} == {1}


async def bulk(cluster: RealCluster, names: dict[str, Any]) -> None:
    assert (names["preview"].eligible, names["operation"].changed) == (10, 10)
    await cluster.drain(timeout=PATIENCE_SECONDS)
    assert sorted(await states(cluster, "image.resize")) == ["FAILED"] * 10 + ["SUCCEEDED"] * 10


async def payroll(cluster: RealCluster, names: dict[str, Any]) -> None:
    (job,) = await jobs_of(cluster, "salary.pay")
    assert (job.lane, job.priority.label, job.result_value) == ("payroll", "critical", "paid 17")


async def paused(cluster: RealCluster, names: dict[str, Any]) -> None:
    assert await states(cluster, "stock.book") == ["SUCCEEDED"]
    assert await cluster.pauses() == []


async def two_versions(cluster: RealCluster, names: dict[str, Any]) -> None:
    assert [job.result_value for job in await jobs_of(cluster, "bill.make")] == ["7 EUR", "8 PEN"]


async def sealed(cluster: RealCluster, names: dict[str, Any]) -> None:
    connection = await asyncpg.connect(cluster.settings.master.dsn)
    try:
        schema = cluster.settings.schema_name()
        stored = await connection.fetch(f'SELECT args, result FROM "{schema}".job')
    finally:
        await connection.close()
    assert [b"4111" in row["args"] or b"1234" in row["result"] for row in stored] == [False]
    assert (await cluster.redacted(await names["receipt"].get())).arguments["card"] == "***"


async def by_reference(cluster: RealCluster, names: dict[str, Any]) -> None:
    (job,) = await jobs_of(cluster, "text.count")
    assert job.result_value == 3
    names["file"].unlink()
    names["folder"].rmdir()


async def approval(cluster: RealCluster, names: dict[str, Any]) -> None:
    assert await names["receipt"].result() == "approved by Ada"


async def events(cluster: RealCluster, names: dict[str, Any]) -> None:
    def browser() -> list[str]:
        with TestClient(names["app"]) as client:
            job = client.post("/reports", params={"month": "May"}).json()["id"]
            with client.stream("GET", f"/reports/{job}/events") as answer:
                lines = []
                for line in answer.iter_lines():
                    lines += [line] if line else []
                    if line == "event: progress":
                        names["seen"].set()
                return lines

    with tempfile.TemporaryDirectory() as folder, configured(cluster.settings, Path(folder)):
        lines = await asyncio.to_thread(browser)
    assert lines[0] == "event: progress"
    assert lines[-2:] == ["event: end", "data: SUCCEEDED"]


async def in_tests(cluster: RealCluster, names: dict[str, Any]) -> None:
    handlers: Handlers = names["handlers"]
    kit = Jobs(cluster.settings, handlers)
    with kit.connected():
        await names["test_sign_up"](kit)


CHECKS: dict[str, Check] = {
    "Fan out, and join the results": fan_out,
    "Pass results from step to step, and undo them": saga,
    "One job at a time for each customer": ordered,
    "A rate for each tenant of an API": rates,
    "Wait while a service is down": breaker,
    "Send a mail once": mail_once,
    "Change your tables exactly once": exactly_once,
    "Outbox: a job if and only if a row is committed": transaction,
    "A request that is sent twice": idempotent,
    "Debounce: once after the last change": debounced,
    "A nightly report that is made up for": nightly,
    "A long job that can be followed and resumed": resumable,
    "Cancel a tree of jobs": tree,
    "A poison job": poison,
    "Run everything again after an outage": bulk,
    "Payroll never waits behind reports": payroll,
    "Hold one handler during a deployment": paused,
    "A deployment without a gap": two_versions,
    "Arguments that the servers cannot read": sealed,
    "Big payloads by reference": by_reference,
    "Wait for a decision of a person": approval,
    "From a request to its result, with server-sent events": events,
    "Jobs in tests": in_tests,
}
