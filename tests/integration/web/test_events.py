"""Events over HTTP: pages, and the stream of a real server."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from jobmaster.model.job import ErrorInfo, JobState
from jobmaster.rules.access import Role
from tests.integration.client.fixture import ClientFixture
from tests.integration.web.test_jobs import API, got
from tests.integration.web.test_server import WebProcess
from tests.support.patience import PATIENCE_SECONDS
from tests.support.web_callers import TOKENS


async def end_one(client: ClientFixture, path: str, *, error: ErrorInfo | None = None) -> str:
    """Submit a job, and record its end."""
    receipt = await client.cluster.submit("images.resize", {"path": path}, tags=["eu"])
    for bucket in client.agent.buckets[("default", 3)]:
        claimed = await client.agent.claim(bucket)
        state = JobState.SUCCEEDED if error is None else JobState.FAILED
        await client.agent.finish(bucket, claimed, state=state, result=None if error else b"null", error=error)
    return str(receipt.id)


async def test_events_are_read_page_by_page(
    client: ClientFixture, operator: httpx.AsyncClient, viewer: httpx.AsyncClient
) -> None:
    ids = [await end_one(client, "a"), await end_one(client, "b", error=ErrorInfo("KeyError", "secret 7"))]
    await client.cluster.pause(lane="payroll", timeout=0, actor="ann", force=True)
    jobs = {"kinds": "job_succeeded,job_failed", "tag": "eu"}
    first = await got(viewer, "/events", limit=1, **jobs)
    second = await got(viewer, "/events", after=first["cursor"], **jobs)
    seen = first["events"] + second["events"]
    assert [(event["kind"], event["id"]) for event in seen] == [("job_succeeded", ids[0]), ("job_failed", ids[1])]
    assert (first["more"], second["more"]) == (True, False)
    assert seen[1]["error"] == {"type": "KeyError", "reason": "error", "message": None, "traceback": None}
    assert (await got(viewer, "/events", after=second["cursor"], **jobs))["events"] == []
    (failed,) = (await got(operator, "/events", kinds="job_failed"))["events"]
    assert (failed["error"]["message"], failed["state"], failed["tags"]) == ("secret 7", "FAILED", ["eu"])
    (act,) = (await got(viewer, "/events", kinds="operator_acted"))["events"]
    assert (act["actor"], act["action"], "handler" in act) == ("ann", "pause", False)
    assert {event["kind"] for event in (await got(viewer, "/events"))["events"]} >= {"bucket_changed"}
    head = await viewer.head(f"{API}/events/stream")
    assert (head.status_code, head.headers["content-type"].partition(";")[0]) == (200, "text/event-stream")
    wrong = await viewer.get(f"{API}/events", params={"after": "nonsense"})
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (422, "input_error")


async def test_a_page_of_rare_events_ends_in_time_with_the_cursor_to_continue_from(
    client: ClientFixture, viewer: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for at in range(3):
        await end_one(client, str(at))
    last = await client.cluster.submit("images.resize", {"path": "b"}, tags=["rare"])
    await client.agent.work_off()
    monkeypatch.setattr("jobmaster.web.api.events.PAGE_SECONDS", 0.0)
    monkeypatch.setattr("jobmaster.web.api.events.PAGE_EVENTS", 2)
    found, pages = [], []
    cursor = "start"
    while True:
        page = await got(viewer, "/events", after=cursor, tag="rare")
        found += page["events"]
        pages.append(page)
        cursor = page["cursor"]
        if not page["more"]:
            break
    assert [event["id"] for event in found] == [str(last.id)]
    assert (pages[0]["events"], pages[0]["more"], len(pages) > 2) == ([], True, True)


class Watcher:
    """A caller of the stream inside this process, who leaves when the test says so."""

    def __init__(self, app: Starlette) -> None:
        self.status: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.left = asyncio.Event()
        self.task = asyncio.create_task(app(self._scope(), self._receive, self._send))

    def _scope(self) -> dict[str, Any]:
        headers = {"host": "127.0.0.1", "authorization": f"Bearer {TOKENS[Role.VIEWER]}"}
        return {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": "GET",
            "scheme": "http",
            "path": f"{API}/events/stream", "raw_path": b"", "query_string": b"", "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "client": ("127.0.0.1", 50_000), "server": ("127.0.0.1", 8020),
        }  # fmt: skip

    async def _receive(self) -> dict[str, Any]:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status.set_result(message["status"])
            await asyncio.sleep(0)

    async def leave(self) -> None:
        self.left.set()
        await self.task


async def test_streams_have_a_limit_that_no_race_passes_and_give_their_places_back(
    app: Starlette, viewer: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobmaster.web.api.events.STREAMS_MAX", 3)
    assert (await viewer.head(f"{API}/events/stream")).status_code == 200  # takes no place
    for _ in range(2):
        watchers = [Watcher(app) for _ in range(5)]
        statuses = [await each.status for each in watchers]
        assert sorted(statuses) == [200, 200, 200, 429, 429]
        for each in watchers:
            await each.leave()


@contextmanager
def streamed(url: str, **headers: str) -> Iterator[Iterator[dict[str, Any]]]:
    """The events of a stream: ``id``, ``event`` and ``data`` of each."""
    with httpx.stream("GET", url, headers=headers, timeout=PATIENCE_SECONDS) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-store"

        def events() -> Iterator[dict[str, Any]]:
            found: dict[str, Any] = {}
            for line in answer.iter_lines():
                name, _, value = line.partition(": ")
                if line and name:
                    found[name] = json.loads(value) if name == "data" else value
                elif "data" in found:
                    yield found
                    found = {}

        yield events()


@pytest.mark.slow
async def test_a_stream_goes_on_after_its_last_event_and_ends_with_the_server(
    client: ClientFixture, tmp_path: Path
) -> None:
    ids = [await end_one(client, str(at)) for at in range(3)]
    web = await asyncio.to_thread(WebProcess, client, tmp_path)
    with web:
        url = f"{web.url}{API}/events/stream?kinds=job_succeeded"

        def watch() -> tuple[list[str], list[str], int]:
            with streamed(f"{url}&after=start") as events:
                first = [next(events), next(events)]
            with streamed(f"{url}&after=start", **{"Last-Event-ID": first[-1]["id"]}) as events:
                third = next(events)
                code = web.stop(signal.SIGTERM)
                assert list(events) == []
            seen = [event["data"]["id"] for event in (*first, third)]
            return seen, [event["event"] for event in (*first, third)], code

        seen, kinds, code = await asyncio.to_thread(watch)
    assert (seen, kinds, code) == (ids, ["job_succeeded"] * 3, 0)
