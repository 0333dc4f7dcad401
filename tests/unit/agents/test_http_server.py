"""The HTTP server of an agent process: its answers, the connections that it cuts, and when it is not ready."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
from collections.abc import AsyncIterator, Mapping
from types import SimpleNamespace

import msgspec
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from jobmaster.clock import new_id
from jobmaster.model.errors import ConfigError, Unavailable
from jobmaster.model.job import Priority
from jobmaster.monitoring.probe_address import port_of, url_of
from jobmaster.rules.lease import term
from jobmaster.settings.model import AgentSettings, ClusterSettings, Observability
from jobmaster.telemetry import Telemetry
from jobmaster_agents import http_server as serving_module
from jobmaster_agents.event_log import EventLog
from jobmaster_agents.http_server import CONNECTIONS_MAX, HEAD_BYTES_MAX, HttpServer, check_ports
from jobmaster_agents.probes import AgentLifecycle
from jobmaster_agents.state.ownership import Ownership
from tests.support.hand_clock import HandClock
from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import until

HOST = "127.0.0.1"


class HttpServerHarness:
    """A server, and the state of health that it shows."""

    def __init__(self) -> None:
        self.telemetry = Telemetry()
        self.why_not: str | None = None
        self.not_started: str | None = "it is starting"
        self.server = HttpServer(self.telemetry, self, EventLog())

    def why_not_started(self) -> str | None:
        return self.not_started

    def why_not_ready(self) -> str | None:
        return self.why_not

    def remark(self) -> str | None:
        return None

    def draining(self) -> Mapping[str, object]:
        return {"draining": True, "in_flight": 3}

    async def scale(self, lane: str | None, priority: Priority | None) -> Mapping[str, object]:
        if self.not_started is not None:
            raise Unavailable(self.not_started)
        return {"lane": lane, "priority": priority and priority.label}

    async def request(self, request: bytes) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of one raw request."""
        reader, writer = await asyncio.open_connection(HOST, self.server.port)
        writer.write(request)
        whole = await asyncio.wait_for(reader.read(), PATIENCE_SECONDS)
        writer.close()
        head, _, body = whole.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        return int(first.split()[1]), dict(line.split(": ", 1) for line in lines), body

    async def get(self, path: str) -> tuple[int, bytes]:
        status, headers, body = await self.request(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert headers["Content-Length"] == str(len(body))
        assert headers["Connection"] == "close"
        return status, body


@pytest.fixture
async def harness() -> AsyncIterator[HttpServerHarness]:
    made = HttpServerHarness()
    await made.server.start(HOST, 0)
    yield made
    await made.server.close()


# ---------------------------------------------------------------- answers


async def test_metrics_are_what_the_process_counts(harness: HttpServerHarness) -> None:
    harness.telemetry.jobs_started += 3
    status, headers, body = await harness.request(b"GET /metrics?name=x HTTP/1.1\r\n\r\n")
    assert (status, headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert b"jobmaster_jobs_started_total 3.0\n" in body


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        (b"application/openmetrics-text;version=1.0.0,text/plain;q=0.5", "application/openmetrics-text; version=1.0.0"),
        (b"application/openmetrics-text", "application/openmetrics-text; version=1.0.0"),
        (b"text/html", "text/plain; version=0.0.4"),
        (b"application/openmetrics-text;version=new", "text/plain; version=0.0.4"),
        (b"\xff\x00;;,=", "text/plain; version=0.0.4"),
    ],
    ids=["prometheus", "without a version", "a browser", "a strange version", "bytes"],
)
async def test_metrics_come_in_the_form_that_is_asked_for(
    harness: HttpServerHarness, accept: bytes, content_type: str
) -> None:
    status, headers, body = await harness.request(b"GET /metrics HTTP/1.1\r\nX: y\r\naccept:" + accept + b"\r\n\r\n")
    assert status == 200
    assert headers["Content-Type"].startswith(content_type)
    assert body.endswith(b"# EOF\n") == content_type.startswith("application")
    read = parse_openmetrics if content_type.startswith("application") else text_string_to_metric_families
    assert "jobmaster_jobs_started" in {family.name for family in read(body.decode())}


async def test_scale_takes_a_lane_and_a_priority_and_says_what_it_does_not_know(harness: HttpServerHarness) -> None:
    status, body = await harness.get("/scale")
    assert (status, json.loads(body)) == (503, {"error": "it is starting"})
    harness.not_started = None
    assert json.loads((await harness.get("/scale"))[1]) == {"lane": None, "priority": None}
    status, body = await harness.get("/scale?lane=a%20b&priority=high")
    assert (status, json.loads(body)) == (200, {"lane": "a b", "priority": "high"})
    status, body = await harness.get("/scale?priority=urgent")
    assert status == 400
    assert b"unknown priority 'urgent'; valid are very_low" in body
    status, body = await harness.get("/scale?queue=x")
    assert (status, json.loads(body)["error"]) == (400, "unknown queue; known are lane, priority")


async def test_ready_gives_its_reason_in_one_line_of_json_and_live_does_not_change(harness: HttpServerHarness) -> None:
    assert await harness.get("/ready") == (200, b'{"ready": true}\n')
    harness.why_not = "it is leaving"
    status, body = await harness.get("/ready")
    assert (status, json.loads(body)) == (503, {"ready": False, "reason": "it is leaving"})
    assert body.count(b"\n") == 1
    assert await harness.get("/live") == (200, b'{"live": true}\n')


async def test_a_head_request_has_no_body(harness: HttpServerHarness) -> None:
    status, headers, body = await harness.request(b"HEAD /live HTTP/1.1\r\n\r\n")
    assert (status, headers["Content-Length"], body) == (200, "15", b"")


@pytest.mark.parametrize(
    ("request_", "status", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 404, b"/metrics, /live, /startup, /ready, /drain, /scale"),
        (b"GET /metrics/x HTTP/1.0\r\n\r\n", 404, b"Not Found"),
        (b"POST /live HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", 405, b"GET and HEAD"),
        (b"hello\r\n\r\n", 400, b"Bad Request"),
        (b"GET /live SPDY/9\r\n\r\n", 400, b"Bad Request"),
        (b"\xff\xfe\x00 /live HTTP/1.1\r\n\r\n", 405, b"GET and HEAD"),
        (b"GET /live HTTP/1.1\r\nX: " + b"x" * 2 * HEAD_BYTES_MAX + b"\r\n\r\n", 431, b"Too Large"),
    ],
    ids=["root", "below", "post", "no HTTP", "other protocol", "bytes", "long head"],
)
async def test_what_is_not_served_is_refused(
    harness: HttpServerHarness, request_: bytes, status: int, reason: bytes
) -> None:
    found, _, body = await harness.request(request_)
    assert found == status
    assert reason in body
    assert (await harness.get("/live"))[0] == 200


# ---------------------------------------------------------------- bad company


async def test_a_silent_connection_is_closed(harness: HttpServerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving_module, "REQUEST_SECONDS", 0.05)
    reader, writer = await asyncio.open_connection(HOST, harness.server.port)
    writer.write(b"GET /live HT")
    assert await asyncio.wait_for(reader.read(), PATIENCE_SECONDS) == b""
    writer.close()


async def test_there_are_only_so_many_at_once_and_room_comes_back(harness: HttpServerHarness) -> None:
    idle = [await asyncio.open_connection(HOST, harness.server.port) for _ in range(CONNECTIONS_MAX)]
    for _, writer in idle:
        writer.write(b"GET ")
        await writer.drain()
    await until(lambda: len(harness.server._connections) == CONNECTIONS_MAX)
    reader, writer = await asyncio.open_connection(HOST, harness.server.port)
    assert await asyncio.wait_for(reader.read(), PATIENCE_SECONDS) == b"", "one too many"
    writer.close()
    idle[0][1].write(b"/live HTTP/1.1\r\n\r\n")
    assert b"200 OK" in await asyncio.wait_for(idle[0][0].read(), PATIENCE_SECONDS)
    await until(lambda: len(harness.server._connections) < CONNECTIONS_MAX)
    assert (await harness.get("/live"))[0] == 200
    for _, writer in idle:
        writer.close()


async def test_closing_waits_for_no_connection() -> None:
    harness = HttpServerHarness()
    await harness.server.start(HOST, 0)
    reader, writer = await asyncio.open_connection(HOST, harness.server.port)
    writer.write(b"GET ")
    await writer.drain()
    await until(lambda: bool(harness.server._connections))
    await asyncio.wait_for(harness.server.close(), PATIENCE_SECONDS)
    # Reset if the server had not read the four bytes by then, as with Python 3.12 and later.
    with contextlib.suppress(ConnectionResetError):
        assert await reader.read() == b""
    writer.close()
    with pytest.raises(OSError):
        await asyncio.open_connection(HOST, harness.server.port)


# ---------------------------------------------------------------- ports


def with_port(port: int | None) -> ClusterSettings:
    return msgspec.structs.replace(ClusterSettings(), observability=Observability(metrics_port=port))


def test_every_process_has_its_port() -> None:
    assert [port_of(with_port(9464), "default", index) for index in range(3)] == [9464, 9465, 9466]
    assert [port_of(with_port(0), "default", index) for index in range(2)] == [0, 0]
    assert port_of(with_port(None), "default", 1) is None


def test_kinds_of_agents_on_one_machine_have_ports_of_their_own() -> None:
    kinds = {"east": AgentSettings(), "west": AgentSettings(metrics_port=9500), "quiet": AgentSettings(metrics_port=0)}
    settings = msgspec.structs.replace(with_port(9464), agents=kinds)
    assert [port_of(settings, name, 1) for name in kinds] == [9465, 9501, 0]
    alone = msgspec.structs.replace(with_port(None), agents=kinds)
    assert [port_of(alone, name, 0) for name in kinds] == [None, 9500, 0]


async def test_it_is_served_on_the_address_that_is_configured() -> None:
    harness = HttpServerHarness()
    await harness.server.start("0.0.0.0", 0)
    reader, writer = await asyncio.open_connection("127.0.0.2", harness.server.port)
    writer.write(b"GET /live HTTP/1.1\r\n\r\n")
    assert b"200 OK" in await asyncio.wait_for(reader.read(), PATIENCE_SECONDS)
    writer.close()
    await harness.server.close()
    await harness.server.start(HOST, 0)
    with pytest.raises(OSError):
        await asyncio.open_connection("127.0.0.2", harness.server.port)
    await harness.server.close()


def test_an_address_that_is_not_this_machines_is_one_clear_error() -> None:
    observed = Observability(metrics_host="192.0.2.1", metrics_port=9464)
    elsewhere = msgspec.structs.replace(ClusterSettings(), observability=observed)
    with pytest.raises(ConfigError, match=r"on 192\.0\.2\.1 port 9464: cannot assign.*observability\.metrics_host"):
        check_ports(elsewhere, "default", 1)


def test_the_url_of_a_wildcard_address_is_the_loopback() -> None:
    assert url_of("127.0.0.1", 1) == url_of("0.0.0.0", 1) == "http://127.0.0.1:1"
    assert url_of("::", 1) == url_of("::1", 1) == "http://[::1]:1"
    assert url_of("pod-1", 1) == "http://pod-1:1"


async def test_startup_is_503_until_the_start_is_over_and_drain_counts_jobs_in_flight(
    harness: HttpServerHarness,
) -> None:
    status, body = await harness.get("/startup")
    assert (status, json.loads(body)) == (503, {"started": False, "reason": "it is starting"})
    harness.not_started = None
    assert await harness.get("/startup") == (200, b'{"started": true}\n')
    assert await harness.get("/drain") == (200, b'{"draining": true, "in_flight": 3}\n')


async def test_a_taken_port_is_one_clear_error() -> None:
    with socket.socket() as other:
        other.bind((HOST, 0))
        other.listen()
        port = other.getsockname()[1]
        sentence = f"port {port}: address already in use"
        with pytest.raises(Unavailable, match=sentence):
            await HttpServerHarness().server.start(HOST, port)
        # Another process may have the port before it.
        with pytest.raises(ConfigError, match=rf"port ({port - 1}|{port}): address already in use"):
            check_ports(with_port(port - 1), "default", 2)
    check_ports(with_port(0), "default", 500)
    check_ports(with_port(None), "default", 500)


def test_there_must_be_a_port_for_each_process() -> None:
    with pytest.raises(ConfigError, match="no port 65536"):
        check_ports(with_port(65535), "default", 2)


# ---------------------------------------------------------------- why it is not ready


class RegisteredAgent:
    """What the probe looks at of an agent that owns its buckets."""

    def __init__(self) -> None:
        self.ownership = Ownership(new_id())
        self.stop_requested = asyncio.Event()
        self.bucket_worker = SimpleNamespace(
            threads_exhausted=asyncio.Event(),
            job_table=[1, 2, 3],
            executor=SimpleNamespace(running=2),
            outcome_writer=SimpleNamespace(backlog=1),
        )


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def bucket_worker(clock: HandClock) -> tuple[AgentLifecycle, RegisteredAgent]:
    """An agent that is ready."""
    lifecycle, runtime = AgentLifecycle(clock), RegisteredAgent()
    assert lifecycle.why_not_ready() == "it is starting"
    runtime.ownership.trust(term(clock.now, 10.0))
    lifecycle.serving = runtime  # type: ignore[assignment]
    assert lifecycle.why_not_ready() is None
    return lifecycle, runtime


BucketWorker = tuple[AgentLifecycle, RegisteredAgent]


def test_it_is_not_ready_from_the_signal_on(bucket_worker: BucketWorker) -> None:
    """Not a turn of the loop later: no bucket can have been closed to new jobs yet."""
    lifecycle, _ = bucket_worker
    lifecycle.on_signal(signal.SIGTERM)
    assert lifecycle.why_not_ready() == "it is leaving: SIGTERM"


def test_once_started_it_has_started_for_good(bucket_worker: BucketWorker) -> None:
    lifecycle, runtime = bucket_worker
    assert lifecycle.why_not_started() is None
    lifecycle.on_signal(signal.SIGTERM)
    runtime.ownership.fence("a certificate")
    assert lifecycle.why_not_started() is None
    assert AgentLifecycle(HandClock()).why_not_started() == "it is starting"


def test_the_drain_probe_shows_what_is_left_and_for_how_long(bucket_worker: BucketWorker, clock: HandClock) -> None:
    lifecycle, _ = bucket_worker
    left = {"in_flight": 3, "running": 2, "outcomes_waiting": 1, "buckets": 0}
    assert lifecycle.draining() == {"draining": False, **left, "seconds_left": None}
    lifecycle.on_signal(signal.SIGTERM)
    assert lifecycle.draining()["draining"] is True
    lifecycle.begin_exit(25.0)
    clock.now += 5.0
    assert lifecycle.draining() == {"draining": True, **left, "seconds_left": 20.0}
    clock.now += 30.0
    assert lifecycle.draining()["seconds_left"] == 0.0


def test_it_is_not_ready_when_an_operator_drains_it(bucket_worker: BucketWorker) -> None:
    lifecycle, runtime = bucket_worker
    runtime.stop_requested.set()
    assert lifecycle.why_not_ready() == "it is leaving: drain requested"


def test_it_is_not_ready_past_half_its_lease(bucket_worker: BucketWorker, clock: HandClock) -> None:
    lifecycle, runtime = bucket_worker
    clock.now += 4.9
    assert lifecycle.why_not_ready() is None
    clock.now += 0.2
    assert "starts nothing" in str(lifecycle.why_not_ready())
    runtime.ownership.trust(term(clock.now, 10.0))
    assert lifecycle.why_not_ready() is None


def test_it_is_not_ready_once_it_is_fenced_or_orphaned(bucket_worker: BucketWorker) -> None:
    lifecycle, runtime = bucket_worker
    runtime.ownership.fence("a certificate")
    assert lifecycle.why_not_ready() == "it is fenced: a certificate"
    lifecycle.orphaned.set()
    assert lifecycle.why_not_ready() == "its supervisor died"
