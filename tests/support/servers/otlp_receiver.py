"""A collector of traces: an HTTP server that reads OTLP requests (protobuf) as an OpenTelemetry collector does."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

_CODE_ERROR = 2


class ReceivedSpan(NamedTuple):
    """A span as it was received. Ids are hexadecimal; ``parent`` is empty for the beginning of a trace."""

    name: str
    kind: int
    """4: producer, 5: consumer."""
    trace: str
    id: str
    parent: str
    links: tuple[tuple[str, str], ...]
    """Trace and span of each."""
    failed: bool
    attributes: Mapping[str, Any]
    service: str


class OtlpReceiver:
    """A server of its own port; spans are in the order of their receipt.

    An exporter sends a request again when it has no answer in its time, so a span may come twice. It is kept once.

    Args:
        answers: ``False``: it accepts connections and requests, and never answers.
    """

    def __init__(self, *, answers: bool = True) -> None:
        self.spans: list[ReceivedSpan] = []
        self.requests = 0
        self._lock = threading.Lock()
        self._released = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.requests += 1
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if not answers:
                    receiver._released.wait()
                    return
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                assert self.path == "/v1/traces"
                with receiver._lock:
                    known = {span.id for span in receiver.spans}
                    receiver.spans += [span for span in read_spans(body) if span.id not in known]
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *args: object) -> None:
                """Nothing: the tests read the spans."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        """Without a path: the setting adds that of OTLP."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def named(self, name: str) -> list[ReceivedSpan]:
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> ReceivedSpan:
        found = self.named(name)
        assert len(found) == 1, (name, found)
        return found[0]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def read_spans(body: bytes) -> list[ReceivedSpan]:
    """The spans of one request."""
    found = []
    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        service = _plain(resource.resource.attributes)["service.name"]
        for scope in resource.scope_spans:
            found += [
                ReceivedSpan(
                    span.name,
                    span.kind,
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
                    span.status.code == _CODE_ERROR,
                    _plain(span.attributes),
                    service,
                )
                for span in scope.spans
            ]
    return found


def _plain(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
