"""Jobs over HTTP, as callers of each role see and change them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import httpx
import msgspec
import pytest

from jobmaster import Handlers
from jobmaster.clock import new_job_id
from jobmaster.model.job import ErrorInfo, JobState
from jobmaster.rules.access import Role
from jobmaster.settings.model import Observability, TraceExporter, Traces
from jobmaster.tracing.tracing import Tracing
from jobmaster.web.app import create_app
from tests.integration.client.conftest import OpenCluster
from tests.integration.client.fixture import ClientFixture
from tests.support.web_callers import WEB

API = "/api/v1"


async def posted(caller: httpx.AsyncClient, path: str, body: Any = None, status: int = 200) -> Any:
    answer = await caller.post(API + path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


async def got(caller: httpx.AsyncClient, path: str, **query: Any) -> Any:
    answer = await caller.get(API + path, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def acts(client: ClientFixture) -> list[tuple[str, str, str]]:
    """Actor, action and subject of each line of the operator log."""
    connection = await client.connect()
    try:
        return [
            tuple(row) for row in await connection.fetch("SELECT actor, action, subject FROM operator_log ORDER BY seq")
        ]
    finally:
        await connection.close()


async def test_a_job_is_submitted_followed_and_read_over_http(
    client: ClientFixture, operator: httpx.AsyncClient, viewer: httpx.AsyncClient
) -> None:
    body = {"handler": "images.resize", "args": {"path": "a.png"}, "tags": ["eu"], "metadata": {"of": "ann"}}
    receipt = await posted(operator, "/jobs", body, 201)
    assert (receipt["level"], receipt["duplicate"], receipt["answer"]) == ("store", False, "created")
    path = f"/jobs/{receipt['id']}"
    waiting = await got(operator, path)
    assert (waiting["state"], waiting["arguments"], waiting["tags"]) == ("SAVE_PENDING", {"path": "a.png"}, ["eu"])
    assert await got(operator, f"{path}/wait", timeout=0) == {"ended": False, "job": waiting}
    await client.agent.work_off(result=b'{"width": 800, "height": 1}')
    ended = await got(operator, f"{path}/wait", timeout=10)
    assert (ended["ended"], ended["job"]["state"]) == (True, "SUCCEEDED")
    assert ended["job"]["result"] == {"width": 800, "height": 1}
    assert datetime.fromisoformat(ended["job"]["ended_at"]).tzinfo is not None
    (line,) = await got(viewer, f"{path}/attempts")
    assert (line["concluding"], line["outcome"]) == (True, "SUCCEEDED")
    seen = await got(viewer, path)
    assert (seen["arguments"], seen["result"], seen["state"]) == (None, None, "SUCCEEDED")
    assert (await viewer.get(f"{API}{path}/logs")).status_code == 403
    assert await got(operator, f"{path}/logs") == []


async def test_lists_have_filters_and_pages(client: ClientFixture, viewer: httpx.AsyncClient) -> None:
    receipts = [await client.cluster.submit("images.resize", {"path": "a"}, durability="master") for _ in range(5)]
    await client.cluster.submit("pay", {"employee": 1}, after=3600.0, tags=["eu"], metadata={"of": "ann, ben"})
    first = await got(viewer, "/jobs", handler="images.resize", limit=3)
    second = await got(viewer, "/jobs", handler="images.resize", limit=3, after=first["next"])
    listed = [job["id"] for job in first["jobs"] + second["jobs"]]
    assert listed == [str(receipt.id) for receipt in reversed(receipts)]
    assert second["next"] is None
    (late,) = (await got(viewer, "/jobs", state="held,WAITING", tag="eu", since=60))["jobs"]
    assert (late["handler"], late["lane"], late["priority"]) == ("pay", "payroll", "high")
    assert (await got(viewer, "/jobs", until="2020-01-01T00:00:00Z"))["jobs"] == []
    held = {"due_after": 1800, "due_before": 7200, "metadata": ["of=ann, ben"]}
    assert (await got(viewer, "/jobs", **held))["jobs"] == [late]
    assert await got(viewer, "/jobs/count", **held) == {"count": 1, "exact": True}
    assert await got(viewer, "/jobs/count", handler="images.resize", at_most=2) == {"count": 2, "exact": False}


async def test_a_job_belongs_to_the_trace_of_the_request(
    open_cluster: OpenCluster, client: ClientFixture, callers: Any
) -> None:
    settings = Traces(exporter=TraceExporter.CONSOLE, sample=0.0, link="https://traces.example.org/{trace_id}")
    observability = Observability(traces=settings)
    tracing = Tracing(settings, service="web", instance="1")
    server = msgspec.structs.replace(client.settings.master, dsn=client.dsn)
    shown = msgspec.structs.replace(client.settings, observability=observability, master=server)
    cluster = await open_cluster(traces=tracing, settings=shown)
    operator: httpx.AsyncClient = callers(create_app(cluster, WEB))(Role.OPERATOR)
    job = {"handler": "images.resize", "args": {"path": "a.png"}}
    operator.headers["traceparent"] = f"00-{'a' * 32}-{'b' * 16}-00"
    one = await posted(operator, "/jobs", job, 201)
    (of_many,) = (await posted(operator, "/jobs/bulk", {"jobs": [job]}, 201))["ids"]
    named = await posted(operator, "/jobs", {**job, "traceparent": f"00-{'c' * 32}-{'d' * 16}-00"}, 201)
    traces = [(await got(operator, f"/jobs/{each}"))["trace_id"] for each in (one["id"], of_many, named["id"])]
    assert traces == ["a" * 32, "a" * 32, "c" * 32]
    page = (await operator.get(f"/jobs/{one['id']}")).text
    assert f'href="https://traces.example.org/{"a" * 32}"' in page
    await tracing.close()


async def test_a_submit_takes_the_options_of_the_library(client: ClientFixture, operator: httpx.AsyncClient) -> None:
    job_id = str(new_job_id())
    at = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    body: dict[str, Any] = {
        "handler": "pay", "args": {"employee": 7}, "job_id": job_id, "at": at, "priority": "critical", "lane": "default",
        "max_attempts": 2, "timeout": 5.5, "expires": 7200.0, "tenant": "acme", "durability": "master",
    }  # fmt: skip
    assert (await posted(operator, "/jobs", body, 201))["id"] == job_id
    assert (await posted(operator, "/jobs", body, 201))["duplicate"] is True
    view = await client.cluster.get(job_id)
    assert (view.priority.label, view.lane, view.state) == ("critical", "default", JobState.HELD)
    assert (view.headers.timeout_seconds, view.headers.max_attempts, view.headers.tenant) == (5.5, 2, ("acme",))
    keyed = {"handler": "pay", "args": {"employee": 7}, "unique": {"key": "7", "on_conflict": "reject"}}
    await posted(operator, "/jobs", keyed, 201)
    assert (await posted(operator, "/jobs", keyed, 409))["error"]["code"] == "not_unique"
    waits = {"handler": "pay", "args": {"employee": 7}, "wait_for": {"key": "order:17", "timeout": 60}}
    waiting = await posted(operator, "/jobs", waits, 201)
    assert (await got(operator, f"/jobs/{waiting['id']}"))["state"] == "WAITING"
    sent = await posted(operator, "/signals", {"key": "order:17", "payload": {"paid": True}})
    assert sent["delivered"] == 1
    many = {"jobs": [{"handler": "images.resize", "args": {"path": str(at)}} for at in range(20)], "tags": ["many"]}
    bulk = await posted(operator, "/jobs/bulk", many, 201)
    assert (bulk["submitted"], len(set(bulk["ids"])), bulk["by_level"]) == (20, 20, {"store": 20})


WRONG: list[tuple[bytes, int, str, str]] = [
    (b"", 422, "input_error", "missing required field `handler`"),
    (b"{", 400, "bad_request", "not JSON"),
    (b'{"handler": "images.resize", "args": {"path": "a"}, "prio": 1}', 422, "input_error", "prio"),
    (b'{"handler": "images.resize", "args": {"path": 3}}', 422, "invalid_arguments", "'path': expected str"),
    (b'{"handler": "images.resize", "args": [1]}', 422, "input_error", "Expected `object`"),
    (b'{"handler": "no.such", "args": {}}', 422, "unknown_handler", "no.such"),
    (b'{"handler": "pay", "args": {"employee": 1}, "lane": "none"}', 422, "unknown_lane", "none"),
    (b'{"handler": "pay", "args": {"employee": 1}, "at": "2030-01-01T00:00:00"}', 422, "input_error", "at"),
    (b'{"handler": "pay", "args": {"employee": 1e999}}', 422, "input_error", "out of range"),
    (b"[" * 100_000, 422, "input_error", "Expected `object`"),
    (b'{"handler": "pay", "args": ' + b'{"a":' * 2000 + b"1" + b"}" * 2000 + b"}", 400, "bad_request", "deeply"),
    (b'{"handler": "\\u0000"}', 422, "input_error", "handler"),
    (b'{"handler": "\\ud800"}', 400, "bad_request", "not JSON"),
    (b"\xff\xfe", 400, "bad_request", "not JSON"),
]


async def test_a_wrong_submit_is_one_sentence_and_stores_nothing(
    client: ClientFixture, operator: httpx.AsyncClient
) -> None:
    for body, status, code, words in WRONG:
        answer = await operator.post(f"{API}/jobs", content=body, headers={"Content-Type": "application/json"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text
        assert words in answer.json()["error"]["message"]
    assert await client.rows() == {}
    assert await client.waiting() == {}


async def test_jobs_are_cancelled_changed_and_retried_with_the_caller_in_the_log(
    client: ClientFixture, operator: httpx.AsyncClient, viewer: httpx.AsyncClient, admin: httpx.AsyncClient
) -> None:
    late = await client.cluster.submit("images.resize", {"path": "late.png"}, after=3600.0)
    changed = await posted(operator, f"/jobs/{late.id}/change", {"priority": "high", "after": 7200})
    assert (changed["changed"], changed["effect"], changed["priority"]) == (True, "CHANGED", "high")
    assert (await posted(operator, f"/jobs/{late.id}/change", {}, 422))["error"]["code"] == "input_error"
    assert await posted(operator, f"/jobs/{late.id}/cancel") == {"id": str(late.id), "state": "CANCELLED"}
    again = await posted(operator, f"/jobs/{late.id}/retry", status=201)
    twice = await posted(operator, f"/jobs/{late.id}/retry", status=201)
    assert (twice["id"], twice["duplicate"], twice["answer"]) == (again["id"], True, "existing")
    assert (await posted(operator, f"/jobs/{again['id']}/retry", status=409))["error"]["code"] == "conflict"
    assert (await posted(operator, f"/jobs/{uuid4()}/cancel", status=404))["error"]["code"] == "not_found"
    assert (await viewer.post(f"{API}/jobs/{late.id}/cancel")).status_code == 403
    assert await acts(client) == [
        ("operator@web", "job change", str(late.id)),
        ("operator@web", "job cancel", str(late.id)),
        ("operator@web", "job retry", str(late.id)),
    ]
    failed = await client.cluster.submit("images.resize", {"path": "b.png"})
    error = ErrorInfo("KeyError", "secret 7", traceback="line of code")
    for bucket in client.agent.buckets[("default", 3)]:
        claimed = await client.agent.claim(bucket)
        await client.agent.finish(bucket, claimed, state=JobState.FAILED, error=error)
    seen = [(await got(who, f"/jobs/{failed.id}"))["error"] for who in (viewer, operator, admin)]
    assert seen == [
        {"type": "KeyError", "reason": "error", "message": None, "traceback": None},
        {"type": "KeyError", "reason": "error", "message": "secret 7", "traceback": None},
        {"type": "KeyError", "reason": "error", "message": "secret 7", "traceback": "line of code"},
    ]
    for who in (viewer, operator):
        (row,) = (await got(who, "/jobs", state="FAILED"))["jobs"]
        assert UUID(row["id"]) == failed.id


@pytest.mark.slow
async def test_a_change_that_is_cut_off_is_unknown_and_names_its_job(
    client: ClientFixture, operator: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = await client.cluster.submit("images.resize", {"path": "late.png"}, after=3600.0)
    body = {"handler": "images.resize", "args": {"path": "a"}, "durability": "master"}
    await posted(operator, "/jobs", body, 201)
    blocker = await client.connect()
    try:
        async with blocker.transaction():
            await blocker.execute("LOCK TABLE job")
            with monkeypatch.context() as patched:
                patched.setattr("jobmaster.web.api.operation.CALL_SECONDS", 1.0)  # half of lock_timeout
                answers = [
                    await operator.post(f"{API}/jobs", json=body),
                    await operator.post(f"{API}/jobs/{late.id}/cancel"),
                    await operator.get(f"{API}/jobs/{late.id}"),
                ]
    finally:
        await blocker.close()
    submitted, cancelled, read = (answer.json()["error"] for answer in answers)
    assert [answer.status_code for answer in answers] == [503] * 3
    assert [each["code"] for each in (submitted, cancelled, read)] == ["outcome_unknown", "outcome_unknown", "timeout"]
    assert ["Retry-After" in answer.headers for answer in answers] == [False, False, True]
    assert "look whether it was done" in cancelled["hint"]
    (job_id,) = submitted["job_ids"]
    assert (await posted(operator, "/jobs", {**body, "job_id": job_id}, 201))["id"] == job_id


async def test_a_body_over_the_limit_is_refused_before_it_is_read(
    operator: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobmaster.web.guard.BODY_BYTES_MAX", 1000)
    headers = {"Content-Type": "application/json"}
    answer = await operator.post(f"{API}/jobs", content=b" " * 1001, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
    plain = await operator.post(f"{API}/jobs", content=b"{}", headers={"Content-Type": "text/plain"})
    assert (plain.status_code, plain.json()["error"]["code"]) == (415, "unsupported_media_type")


async def test_secret_arguments_are_shown_to_no_caller(
    client: ClientFixture, open_cluster: OpenCluster, callers: Any
) -> None:
    registry = Handlers()

    @registry.job(name="charge", secret=("card",))
    async def charge(card: str, amount: int) -> None: ...

    cluster = await open_cluster(handlers=registry)
    admin = callers(create_app(cluster, WEB))(Role.ADMIN)
    receipt = await cluster.submit(charge, {"card": "4111-1111", "amount": 7}, after=3600.0)
    await cluster.schedules.put("monthly", "0 3 1 * *", charge, {"card": "4111-1111", "amount": 7})
    shown = {"card": "***", "amount": 7}
    assert (await got(admin, f"/jobs/{receipt.id}"))["arguments"] == shown
    assert (await got(admin, "/schedules/monthly"))["arguments"] == shown
    assert [each["arguments"] for each in await got(admin, "/schedules")] == [shown]
