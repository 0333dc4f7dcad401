"""Batches, workflows, schedules, pauses, limits, breakers, tenants and locks over HTTP, with their lines in the log."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import httpx
import pytest

from jobmaster import call, chain
from jobmaster.model.errors import Unavailable
from tests.integration.client.fixture import ClientFixture, pay, resize
from tests.integration.web.test_jobs import acts, got, posted

API = "/api/v1"


async def sent(caller: httpx.AsyncClient, method: str, path: str, body: Any = None) -> Any:
    answer = await caller.request(method, API + path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_batches_over_http(client: ClientFixture, operator: httpx.AsyncClient) -> None:
    body = {
        "name": "thumbnails", "jobs": [{"handler": "images.resize", "args": {"path": str(at)}} for at in range(3)],
        "on_complete": {"handler": "pay", "args": {"employee": 1}}, "key": "monday", "tags": ["eu"],
    }  # fmt: skip
    made = await posted(operator, "/batches", body, 201)
    assert (made["state"], made["size"], made["name"]) == ("CLOSED", 3, "thumbnails")
    counted = await got(operator, f"/batches/{made['id']}", count=True)
    assert counted["counts"]["missing"] == 3
    assert [each["id"] for each in (await got(operator, "/batches", key="monday"))["batches"]] == [made["id"]]
    waited = await got(operator, f"/batches/{made['id']}/wait", timeout=0)
    assert (waited["ended"], waited["batch"]["state"]) == (False, "CLOSED")
    assert (await posted(operator, f"/batches/{made['id']}/retry", status=409))["error"]["code"] == "conflict"
    await posted(operator, f"/batches/{made['id']}/cancel")
    assert ("operator@web", "batch cancel", made["id"]) in await acts(client)


async def test_a_retry_has_one_line_in_the_log_though_the_first_try_to_write_it_fails(
    client: ClientFixture, operator: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = client.cluster
    by_api, by_page = [await cluster.submit("pay", {"employee": 1}, after=3600.0) for _ in range(2)]
    for job in (by_api, by_page):
        await job.cancel()
    body = {"name": "night", "jobs": [{"handler": "pay", "args": {"employee": 1}}], "after": 3600.0}
    first, second = [(await posted(operator, "/batches", body, 201))["id"] for _ in range(2)]
    for batch in (first, second):
        await posted(operator, f"/batches/{batch}/cancel")
        await client.master.batches.conclude(UUID(batch).bytes)  # as the leader does
    before = len(await acts(client))
    requests = {
        f"{API}/jobs/{by_api.id}/retry": 201, f"/jobs/{by_page.id}/retry": 303,
        f"{API}/batches/{first}/retry": 201, f"/batches/{second}/retry": 303,
    }  # fmt: skip

    async def away(*_: object) -> None:
        raise Unavailable("the master is away")

    with monkeypatch.context() as patched:
        patched.setattr(client.master.requests, "note_once", away)
        assert [(await operator.post(path)).status_code for path in requests] == [503] * 4
    assert len(await acts(client)) == before
    monkeypatch.setattr("jobmaster.client.batches.batches.SILENT_SECONDS", 0.05)
    assert [(await operator.post(path)).status_code for path in requests] == [*requests.values()]
    assert [(await operator.post(path)).status_code for path in requests][:2] == [201, 303]  # the same new jobs
    assert sorted((await acts(client))[before:]) == sorted(
        ("operator@web", f"{kind} retry", str(subject))
        for kind, subject in (("job", by_api.id), ("job", by_page.id), ("batch", first), ("batch", second))
    )


async def test_workflows_over_http(client: ClientFixture, operator: httpx.AsyncClient) -> None:
    started = await client.cluster.workflows.start("order", chain(call(resize, "a.png"), call(pay, 1)))
    seen = await got(operator, f"/workflows/{started}")
    assert (seen["state"], seen["steps_total"], [step["state"] for step in seen["steps"]]) == (
        "RUNNING", 2, ["STARTED", "PENDING"],
    )  # fmt: skip
    (listed,) = (await got(operator, "/workflows", state="running"))["workflows"]
    assert (listed["id"], listed["steps"]) == (str(started), [])
    assert (await got(operator, f"/workflows/{started}/wait", timeout=0))["ended"] is False
    await posted(operator, f"/workflows/{started}/cancel")
    assert (await got(operator, f"/workflows/{started}"))["state"] == "CANCELLED"
    assert (await posted(operator, f"/workflows/{started}/retry"))["state"] == "RUNNING"
    actors = {(actor, action) for actor, action, subject in await acts(client) if subject == str(started)}
    assert actors == {("operator@web", "workflow cancel"), ("operator@web", "workflow retry")}


async def test_a_workflow_is_started_over_http_once_for_its_id(
    client: ClientFixture, operator: httpx.AsyncClient, viewer: httpx.AsyncClient
) -> None:
    body: dict[str, Any] = {
        "name": "order", "workflow_id": str(client.cluster.workflows.new_id()),
        "steps": [
            {"name": "ship", "handler": "images.resize", "args": {"path": "a"},
             "results": {"width": {"step": "small", "path": ["width"]}}},
            {"name": "small", "handler": "images.resize", "args": {"path": "b"}, "priority": "high"},
        ],
    }  # fmt: skip
    for _ in range(2):
        assert await posted(operator, "/workflows", body, 201) == {"id": body["workflow_id"]}
    assert (await viewer.post(f"{API}/workflows", json=body)).status_code == 403
    assert (await posted(operator, "/workflows", {**body, "name": "other"}, 409))["error"]["code"] == "conflict"
    seen = await got(operator, f"/workflows/{body['workflow_id']}")
    assert [(step["name"], step["state"], step["parents"]) for step in seen["steps"]] == [
        ("small", "STARTED", []), ("ship", "PENDING", [1]),
    ]  # fmt: skip
    again = await posted(operator, "/workflows", {**body, "workflow_id": None}, 201)
    assert {each["id"] for each in (await got(operator, "/workflows"))["workflows"]} == {again["id"], seen["id"]}


async def test_schedules_over_http(
    client: ClientFixture, operator: httpx.AsyncClient, viewer: httpx.AsyncClient
) -> None:
    definition = {
        "when": "0 3 * * *",
        "handler": "pay",
        "args": {"employee": 1},
        "zone": "Europe/Berlin",
        "tags": ["eu"],
        "tenant": "acme",
    }
    made = await sent(operator, "PUT", "/schedules/reports/nightly", definition)
    assert (made["name"], made["zone"], made["arguments"]) == ("reports/nightly", "Europe/Berlin", {"employee": 1})
    assert made["tenant"] == "acme"
    (listed,) = await got(viewer, "/schedules", tag="eu")
    assert (listed["name"], listed["arguments"], listed["state"]) == ("reports/nightly", None, "active")
    assert len(await got(viewer, "/schedules/reports/nightly/next", limit=3)) == 3
    assert await posted(operator, "/schedules/reports/nightly/pause", {"reason": "audit"}) == {
        "names": ["reports/nightly"]
    }
    assert (await got(viewer, "/schedules/reports/nightly"))["paused_by"] == "operator@web"
    assert await posted(operator, "/schedules/reports/nightly/resume") == {"names": ["reports/nightly"]}
    receipt = await posted(operator, "/schedules/reports/nightly/run", status=201)
    (fire,) = await got(viewer, "/schedules/reports/nightly/fires")
    assert (fire["job_id"], fire["manual"]) == (receipt["id"], True)
    assert await sent(operator, "DELETE", "/schedules/reports/nightly") == {"names": ["reports/nightly"]}
    actions = [action for actor, action, subject in await acts(client) if subject == "reports/nightly"]
    assert actions == ["schedule put", "schedule pause", "schedule resume", "schedule run", "schedule remove"]


async def test_pauses_limits_breakers_tenants_and_locks_over_http(
    client: ClientFixture, operator: httpx.AsyncClient, viewer: httpx.AsyncClient, admin: httpx.AsyncClient
) -> None:
    pause = {"kind": "handler", "value": "images.resize", "until": 3600, "reason": "charges twice", "timeout": 0}
    paused = await posted(operator, "/pauses", pause)
    assert (paused["changed"], paused["confirmed"], paused["agents"], paused["obeying"]) == (True, False, 1, 0)
    unconfirmed = await posted(operator, "/pauses", {**pause, "timeout": 0.05})
    assert (unconfirmed["confirmed"], unconfirmed["agents"]) == (False, None)
    (listed,) = await got(viewer, "/pauses")
    assert (listed["actor"], listed["reason"], listed["left_seconds"] > 3000) == ("operator@web", "charges twice", True)
    resumed = await sent(operator, "DELETE", "/pauses/handler/images.resize?timeout=0&reason=mended")
    assert resumed["changed"] is True
    assert (await sent(operator, "DELETE", "/pauses/handler/images.resize?timeout=0"))["changed"] is False
    assert (await posted(operator, "/pauses", {**pause, "value": "none"}, 422))["error"]["code"] == "unknown_handler"

    limit = await sent(operator, "PUT", "/limits/stripe/eu", {"running": 3, "rate": "50/s", "force": True})
    assert (limit["name"], limit["running"], limit["rate"], limit["set_by"]) == ("stripe/eu", 3, 50.0, "operator@web")
    assert [each["name"] for each in await got(viewer, "/limits")] == ["stripe/eu"]
    assert await sent(operator, "DELETE", "/limits/stripe/eu") == {"changed": True}
    assert (await viewer.get(f"{API}/limits/stripe/eu")).status_code == 404

    assert await got(viewer, "/breakers") == []
    assert (await posted(operator, "/breakers/stripe/open", {}, 404))["error"]["code"] == "not_found"

    await client.cluster.submit("images.resize", {"path": "a"}, tenant="acme", durability="master", after=0)
    assert {each["name"] for each in await got(viewer, "/tenants")} <= {"acme", ""}
    assert (await got(viewer, "/signals"))["kept"] == []
    await posted(operator, "/signals", {"key": "order:17", "payload": 1, "keep_for": 60})
    (kept,) = (await got(viewer, "/signals", key="order:17"))["kept"]
    assert (kept["actor"], kept["delivered"]) == ("operator@web", 0)

    async with client.cluster.lock("import", ttl=30) as held:
        (lock,) = await got(viewer, "/locks")
        assert (lock["name"], lock["fence"]) == ("import", held.fence)
        assert (await operator.delete(f"{API}/locks/import")).status_code == 403
        released = await sent(admin, "DELETE", "/locks/import")
        assert released["released"]["name"] == "import"
    assert await sent(admin, "DELETE", "/locks/import") == {"released": None}
    assert await got(viewer, "/once") == []
    done = {(actor, action) for actor, action, _ in await acts(client)}
    assert done == {
        *(("operator@web", action) for action in ("pause", "resume", "limit set", "limit reset")),
        ("admin@web", "lock release"),
    }


async def test_bulk_operations_over_http(
    client: ClientFixture, operator: httpx.AsyncClient, viewer: httpx.AsyncClient
) -> None:
    for at in range(3):
        await client.cluster.submit("images.resize", {"path": str(at)}, after=3600.0, tags=["eu"])
    body = {"kind": "cancel", "filters": {"tag": "eu", "state": ["held"]}, "reason": "wrong size"}
    preview = await posted(operator, "/bulk/preview", body)
    assert (preview["eligible"], preview["skipped"]) == (3, {})
    older = {"kind": "cancel", "filters": {"until": "1960-01-01T00:00:00Z"}}
    assert (await posted(operator, "/bulk/preview", older))["eligible"] == 0
    assert (await posted(operator, "/bulk", older, 202))["changed"] == 0
    started = await posted(operator, "/bulk", body, 202)
    assert (started["kind"], started["state"], started["actor"]) == ("cancel", "WAITING", "operator@web")
    assert started["filter"]["tag"] == "eu"
    assert (await got(viewer, f"/bulk/{started['id']}/wait", timeout=0))["ended"] is False
    waiting = (await got(viewer, "/bulk", state="waiting", limit=1))["operations"]
    assert [each["id"] for each in waiting] == [started["id"]]
    assert (await posted(operator, f"/bulk/{started['id']}/cancel"))["state"] == "CANCELLED"
    assert (await posted(operator, "/bulk", {**body, "kind": "delete"}, 403))["error"]["code"] == "forbidden"
    assert (await posted(operator, "/bulk", {"kind": "cancel", "filters": {}}, 422))["error"]["code"] == "input_error"
    assert {actor for actor, action, _ in await acts(client) if action.startswith("bulk")} == {"operator@web"}


async def test_agents_and_buckets_over_http(
    client: ClientFixture, operator: httpx.AsyncClient, admin: httpx.AsyncClient
) -> None:
    (first, _) = (UUID(bytes=bucket.id) for bucket in client.agent.buckets[("default", 3)])
    body = {"buckets": [str(first)], "reason": "charges twice"}
    assert (await posted(operator, "/buckets/freeze", body, 403))["error"]["code"] == "forbidden"
    frozen = await posted(admin, "/buckets/freeze", body)
    assert [(each["id"], each["state"], each["priority"]) for each in frozen["buckets"]] == [
        (str(first), "FROZEN", "medium")
    ]
    assert (await posted(admin, "/buckets/freeze", {"reason": "x"}, 422))["error"]["code"] == "input_error"
    (thawed,) = (await posted(admin, "/buckets/unfreeze", {"every": True}))["buckets"]
    assert (thawed["state"], thawed["epoch"]) == ("ACTIVE", 2)
    agent = UUID(bytes=client.agent.id)
    assert await posted(admin, f"/agents/{agent}/drain") == {"id": str(agent), "drain_requested": True}
    assert (await posted(admin, f"/agents/{first}/drain", status=404))["error"]["code"] == "not_found"
    done = [(actor, action) for actor, action, _ in await acts(client)]
    assert done == [("admin@web", f"{name}") for name in ("bucket freeze", "bucket unfreeze", "agent drain")]


async def test_a_unique_key_over_http_answers_as_in_python_and_is_listed_and_released(
    client: ClientFixture, operator: httpx.AsyncClient, viewer: httpx.AsyncClient
) -> None:
    def body(path: str, **unique: Any) -> Any:
        return {"handler": "images.resize", "args": {"path": path}, "after": 600, "unique": unique}

    first = await posted(operator, "/jobs", body("a", key="a/b"), 201)
    again = await posted(operator, "/jobs", body("b", key="a/b"), 201)
    assert (first["answer"], again["answer"], again["id"]) == ("created", "existing", first["id"])
    refused = (await posted(operator, "/jobs", body("c", key="a/b", on_conflict="reject"), 409))["error"]
    assert (refused["code"], refused["holder"]) == ("not_unique", first["id"])
    other = await posted(operator, "/jobs", body("d", key="a/b", on_conflict="replace"), 201)
    assert (other["answer"], other["id"] != first["id"]) == ("replaced", True)
    await posted(operator, "/jobs", body("e", args=["path"], debounce=3600), 201)
    moved = await posted(operator, "/jobs", {**body("e", args=["path"], debounce=3600), "after": 900}, 201)
    assert moved["answer"] == "debounced"
    wrong = await posted(operator, "/jobs", body("e", key="k", window=1, throttle=1), 422)
    assert wrong["error"]["code"] == "input_error"

    held = await got(viewer, "/unique-keys", handler="images.resize")
    assert {(each["key"], each["job"], each["state"], each["term"]) for each in held} == {
        ("a/b", other["id"], "HELD", "live"), ('{"path":"e"}', moved["id"], "HELD", "waiting"),
    }  # fmt: skip
    assert [each["key"] for each in await got(viewer, "/unique-keys", key="a/b")] == ["a/b"]
    path = "/unique-keys?handler=images.resize&key=a/b"
    assert (await viewer.delete(API + path)).status_code == 403
    assert await sent(operator, "DELETE", path) == {"handler": "images.resize", "key": "a/b"}
    assert (await operator.delete(API + path)).json()["error"]["code"] == "not_found"
    assert ("operator@web", "unique release", "images.resize") in await acts(client)
    assert (await posted(operator, "/jobs", body("f", key="a/b"), 201))["answer"] == "created"
