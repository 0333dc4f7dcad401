"""What operators see, over HTTP."""

from __future__ import annotations

from uuid import UUID

import httpx
import pytest

from jobmaster.codec import encode_error
from jobmaster.model.job import ErrorInfo
from tests.integration.client.fixture import ClientFixture
from tests.integration.web.test_events import end_one
from tests.integration.web.test_jobs import got, posted


async def test_operators_see_the_cluster_over_http(
    client: ClientFixture, viewer: httpx.AsyncClient, operator: httpx.AsyncClient, admin: httpx.AsyncClient
) -> None:
    bucket = client.agent.buckets[("default", 3)][0]
    waiting = await client.cluster.submit("images.resize", {"path": "a"})
    late = await client.cluster.submit("images.resize", {"path": "b"}, after=3600.0)
    overview = await got(viewer, "/overview")
    (group,) = [each for each in overview["backlog"] if each["lane"] == "default" and each["buckets"]]
    assert (group["priority"], group["buckets"], group["pending"], group["held"]) == ("medium", 2, 1, 1)
    assert (overview["agents_known"], overview["buckets"]) == (1, {"ACTIVE": 2})
    scale = await got(viewer, "/scale", lane="default", priority="medium")
    assert (scale["backlog_jobs"], scale["pending"], scale["held_jobs"]) == (1, 1, 1)
    assert (await got(viewer, "/scale", lane="payroll"))["backlog_jobs"] == 0
    (agent,) = await got(viewer, "/agents")
    assert (agent["id"], agent["state"], agent["buckets"]) == (str(UUID(bytes=client.agent.id)), "ACTIVE", 2)
    assert [host["host"] for host in await got(viewer, "/hosts")] == ["here"]
    buckets = await got(viewer, "/buckets", lane="default")
    assert sum(each["pending"] for each in buckets["buckets"]) == 1
    assert (buckets["silent"], {each["priority"] for each in buckets["buckets"]}) == ([], {"medium"})
    assert (await got(viewer, "/buckets", lane="none"))["buckets"] == []
    causes = [(await got(viewer, f"/jobs/{job.id}/explanation"))["causes"][0]["cause"] for job in (waiting, late)]
    assert causes == ["bucket", "due_later"]
    await posted(admin, "/buckets/freeze", {"buckets": [str(UUID(bytes=bucket.id))], "reason": "charges twice"})
    history = await got(viewer, f"/buckets/{UUID(bytes=bucket.id)}/history")
    assert [each["to_state"] for each in history] == ["ACTIVE", "FROZEN"]
    (act,) = await got(viewer, "/log", actor="admin", subject=str(UUID(bytes=bucket.id))[:8])
    assert (act["action"], act["actor"]) == ("bucket freeze", "admin@web")
    assert await got(viewer, "/rescues") == []
    await posted(admin, "/buckets/unfreeze", {"every": True})


async def test_what_a_handler_has_written_needs_a_scope_everywhere(
    client: ClientFixture, viewer: httpx.AsyncClient, operator: httpx.AsyncClient
) -> None:
    failed = await end_one(client, "a", error=ErrorInfo("KeyError", "secret 7", "timeout"))
    waits = (await client.cluster.submit("images.resize", {"path": "b"}, after=3600.0)).id
    connection = await client.connect()
    try:
        error = encode_error(ErrorInfo("KeyError", "secret 7"))
        await connection.execute("UPDATE job SET attempt = 1, error = $2 WHERE id = $1", waits, error)
        report = "INSERT INTO run_progress (job_id, token, done, total, text) VALUES ($1, 1, 3, 7, 'secret 7')"
        await connection.execute(report, waits)
    finally:
        await connection.close()

    async def load() -> None:
        raise KeyError("secret 7")

    with pytest.raises(KeyError):
        await client.cluster.once("load-rates", "1", load)
    paths = [f"/jobs/{job}{more}" for job in (failed, waits) for more in ("", "/explanation", "/attempts")]
    for path in (*paths, "/once", "/jobs", "/events", "/failures"):
        assert "secret 7" not in (await viewer.get(f"/api/v1{path}")).text, path
    for path in (f"/jobs/{failed}", f"/jobs/{waits}", "/once"):
        assert "secret 7" in (await operator.get(f"/api/v1{path}")).text, path
    (ended,) = (await got(viewer, f"/jobs/{failed}/explanation"))["causes"]
    assert ended["text"] == "it has ended as FAILED: KeyError [timeout]"


async def test_failures_are_grouped_and_their_lines_need_a_scope(
    client: ClientFixture, viewer: httpx.AsyncClient, operator: httpx.AsyncClient
) -> None:
    for at in range(2):
        failed = await end_one(client, str(at), error=ErrorInfo("KeyError", f"secret {at}"))
    (group,) = (await got(operator, "/failures"))["groups"]
    assert (group["error_type"], group["line"], group["jobs"], group["sample"]) == ("KeyError", "secret #", 2, failed)
    (hidden,) = (await got(viewer, "/failures", handler="images.resize"))["groups"]
    assert hidden == {**group, "line": ""}
    assert len((await got(viewer, "/jobs", error=group["fingerprint"]))["jobs"]) == 2
