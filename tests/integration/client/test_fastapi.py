"""A cluster inside a FastAPI application: its lifespan, its routes, its responses and its errors."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import msgspec
import pytest
from fastapi import Depends, FastAPI, WebSocket
from fastapi.testclient import TestClient
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

import jobmaster
from jobmaster import Cluster, ConfigError, Handlers, JobMasterError, JobReceipt, JobView, SyncReceipt, call
from jobmaster.fastapi import get_cluster, handle_errors, jobmaster_lifespan
from jobmaster.model import errors
from jobmaster.settings.model import ClusterSettings
from tests.integration.client.fixture import ClientFixture, Size, handlers, resize

Jobs = Annotated[Cluster, Depends(get_cluster)]


@pytest.fixture
def settings(client: ClientFixture) -> ClusterSettings:
    """Of the test's cluster, which has two buckets."""
    master = msgspec.structs.replace(client.settings.master, dsn=client.dsn)
    return msgspec.structs.replace(client.settings, master=master)


@pytest.fixture
def app(settings: ClusterSettings) -> FastAPI:
    app = FastAPI(lifespan=jobmaster_lifespan(settings, handlers=handlers))
    handle_errors(app, retry_after=7)
    return app


@pytest.fixture
def web(app: FastAPI) -> Iterator[TestClient]:
    with TestClient(app, raise_server_exceptions=False) as web:
        yield web


def test_a_route_submits_and_its_receipt_is_the_response(app: FastAPI, web: TestClient) -> None:
    @app.post("/thumbnails", status_code=202)
    async def thumbnail(path: str, jobs: Jobs) -> JobReceipt[Size]:
        return await jobs.submit(call(resize, path))

    @app.get("/thumbnails/{job}")
    async def state(job: UUID, jobs: Jobs) -> JobView:
        return await jobs.get(job)

    @app.post("/untyped")
    async def untyped(jobs: Jobs):  # type: ignore[no-untyped-def]  # FastAPI then has no schema of the response
        receipt = await jobs.submit(call(resize, "b.png"))
        return {"job": receipt, "id": receipt.id}

    @app.get("/untyped/{job}")
    async def untyped_state(job: UUID, jobs: Jobs):  # type: ignore[no-untyped-def]
        return await jobs.get(job)

    loose = web.post("/untyped").json()
    assert loose["job"] == {"id": loose["id"], "level": "store", "duplicate": False, "unserved": False}
    answer = web.post("/thumbnails?path=a.png")
    assert answer.status_code == 202
    receipt = answer.json()
    assert receipt == {"id": str(UUID(receipt["id"])), "level": "store", "duplicate": False, "unserved": False}
    view = web.get(f"/thumbnails/{receipt['id']}").json()
    assert datetime.fromisoformat(view.pop("created_at")).tzinfo is not None
    assert view == {
        "id": receipt["id"], "state": "SAVE_PENDING", "handler": "images.resize", "lane": "default", "priority": "medium",
        "attempt": 0, "due_at": None, "started_at": None, "ended_at": None,
    }  # fmt: skip
    assert web.get(f"/untyped/{receipt['id']}").json()["priority"] == "medium"
    assert web.get(f"/thumbnails/{UUID(int=7)}").status_code == 404
    described = web.get("/openapi.json").json()["paths"]["/thumbnails"]["post"]["responses"]["202"]
    schema = described["content"]["application/json"]["schema"]
    assert schema["properties"]["id"] == {"type": "string", "format": "uuid", "title": "Id"}


def test_wrong_input_of_a_request_is_status_422_with_the_place(app: FastAPI, web: TestClient) -> None:
    @app.post("/resize")
    async def post(args: dict[str, Any], jobs: Jobs) -> JobReceipt[Any]:
        return await jobs.submit("images.resize", args)

    @app.get("/jobs/{job}")
    async def get(job: str, jobs: Jobs) -> str:
        return (await jobs.get(job)).state

    answer = web.post("/resize", json={"path": 3})
    assert answer.status_code == 422
    assert answer.json() == {"detail": "handler 'images.resize': argument 'path': expected str, got int"}
    assert web.get("/jobs/nonsense").status_code == 422


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (errors.InvalidDueTime("too late"), 422, "too late"),
        (errors.NotFound("no job"), 404, "no job"),
        (errors.Conflict("another payload"), 409, "another payload"),
        (errors.WaitTimeout("it takes long"), 504, "the job has not ended in time; it goes on"),
        (errors.Unavailable("10.0.0.7:5432 is away"), 503, "the job cannot be taken now; send the request again later"),
        (errors.BucketsFull("all are full"), 503, "the job cannot be taken now; send the request again later"),
        (errors.Unserved("lane x of host y"), 503, "the job cannot be taken now; send the request again later"),
        (errors.OutcomeUnknown("10.0.0.7:6379 is lost"), 503, "whether the job was taken is not known"),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, Exception) else None,
)
def test_an_error_has_its_status_and_names_no_server(
    app: FastAPI, web: TestClient, error: JobMasterError, status: int, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    @app.get("/fails")
    async def fails() -> None:
        raise error

    answer = web.get("/fails")
    assert (answer.status_code, answer.json()) == (status, {"detail": words})
    assert answer.headers.get("Retry-After") == ("7" if status == 503 else None)
    logged = [record.getMessage() for record in caplog.records if record.name == "jobmaster.fastapi"]
    assert logged == ([f"GET /fails: {error}"] if status >= 500 else [])


@pytest.mark.parametrize(
    "error",
    [
        errors.UnknownHandler("no handler"),
        errors.UnknownLane("no lane"),
        errors.SchemaMismatch("old"),
        errors.JobFailed("x"),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_mistake_of_the_application_stays_an_error_of_the_server(app: FastAPI, error: JobMasterError) -> None:
    @app.get("/fails")
    async def fails() -> None:
        raise error

    with TestClient(app) as web, pytest.raises(type(error)):
        web.get("/fails")
    with TestClient(app, raise_server_exceptions=False) as web:
        assert web.get("/fails").status_code == 500


def test_a_web_socket_has_the_cluster_and_its_errors_unchanged(app: FastAPI, web: TestClient) -> None:
    @app.websocket("/ws")
    async def socket(socket: WebSocket, jobs: Jobs) -> None:
        await socket.accept()
        receipt = await jobs.submit(call(resize, "a.png"))
        await socket.send_text(str(receipt))
        raise errors.Unavailable("away")

    with pytest.raises(errors.Unavailable), web.websocket_connect("/ws") as connection:
        assert UUID(connection.receive_text()).version == 7


def test_the_lifespan_of_the_application_runs_inside(settings: ClusterSettings) -> None:
    seen: list[str] = []

    @asynccontextmanager
    async def own(app: FastAPI) -> AsyncIterator[dict[str, Any]]:
        seen.append(type(app.state.jobmaster_cluster).__name__)
        await app.state.jobmaster_cluster.submit(call(resize, "b.png"))
        yield {"greeting": "hello"}
        await app.state.jobmaster_cluster.submit(call(resize, "c.png"))
        seen.append("ended before the cluster was closed")

    app = FastAPI(lifespan=jobmaster_lifespan(settings, handlers=handlers, inner=own))

    @app.get("/")
    async def root(request: Request, jobs: Jobs) -> dict[str, Any]:
        return {"greeting": request.state.greeting, "handlers": jobs.handlers.names()}

    with TestClient(app) as web:
        assert web.get("/").json() == {"greeting": "hello", "handlers": ["images.resize", "outbox.webhooks", "pay"]}
    assert seen == ["Cluster", "ended before the cluster was closed"]


def test_a_mounted_application_and_starlette_itself_have_the_cluster(settings: ClusterSettings) -> None:
    inner = FastAPI()

    @inner.post("/resize")
    async def post(jobs: Jobs) -> JobReceipt[Size]:
        return await jobs.submit(call(resize, "a.png"))

    async def plain(request: Request) -> JSONResponse:
        receipt = await get_cluster(request).submit(call(resize, "a.png"))
        return JSONResponse({"job": str(receipt)})

    routes = [Route("/plain", plain, methods=["POST"]), Mount("/api", inner)]
    with TestClient(Starlette(routes=routes, lifespan=jobmaster_lifespan(settings, handlers=handlers))) as web:
        assert UUID(web.post("/plain").json()["job"]).version == 7
        assert web.post("/api/resize").json()["level"] == "store"


def test_a_route_without_the_lifespan_names_the_mend() -> None:
    app = FastAPI()

    @app.get("/")
    async def root(jobs: Jobs) -> None: ...

    with pytest.raises(ConfigError, match=r"no cluster \(give it lifespan=jobmaster_lifespan"):
        TestClient(app).get("/")


def test_an_application_whose_master_is_away_does_not_start(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    env = {
        "JOBMASTER_MASTER__DSN": "postgresql://x@127.0.0.1:1/x",
        "JOBMASTER_STORES__DEFAULT__URL": "redis://127.0.0.1:1",
    }
    app = FastAPI(lifespan=jobmaster_lifespan(handlers=Handlers(), env=env))
    with pytest.raises(errors.Unavailable), TestClient(app):
        pass


@pytest.mark.parametrize(
    ("absent", "ends"),
    [
        ("starlette", 'jobmaster.fastapi needs Starlette (pip install "jobmaster-cluster[fastapi]")'),
        ("fastapi", "imported"),  # an application of Starlette alone
    ],
)
def test_what_is_not_installed_is_one_sentence_with_the_command(absent: str, ends: str) -> None:
    code = f"import sys; sys.modules[{absent!r}] = None; import jobmaster.fastapi; print('imported', file=sys.stderr)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.stderr.strip().endswith(ends), ran.stderr


def test_a_synchronous_route_returns_its_receipt(settings: ClusterSettings) -> None:
    app = FastAPI()
    with jobmaster.connect_sync(settings, handlers=handlers) as cluster:

        @app.post("/resize")
        def post() -> SyncReceipt[Size]:
            return cluster.submit(call(resize, "a.png"))

        assert TestClient(app).post("/resize").json()["level"] == "store"
