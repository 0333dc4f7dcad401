"""A geocoding API of another company: it counts what each tenant asks for. ``python server.py [port]``; it listens on the
loopback only.

``GET /geocode/<tenant>/<place>`` answers a coordinate, ``POST /state/down`` and ``POST /state/up`` break and mend it,
``GET /counts`` returns what it has seen.
"""

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ANSWER_SECONDS = 0.05


class Counts:
    """What the API has seen of one tenant."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.at_once = self.most_at_once = 0

    def shown(self) -> dict[str, float]:
        first = self.times[0] if self.times else 0.0
        return {
            "requests": len(self.times),
            "most_at_once": self.most_at_once,
            "busiest_second": max((sum(at <= other < at + 1 for other in self.times) for at in self.times), default=0),
            "seconds": round(self.times[-1] - first, 2) if self.times else 0.0,
        }


lock = threading.Lock()
counts: dict[str, Counts] = {}
down = threading.Event()


class Requests(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/counts":
            with lock:
                self.answer(200, {tenant: each.shown() for tenant, each in sorted(counts.items())})
            return
        _, _, tenant, place = self.path.split("/", 3)
        with lock:
            if down.is_set():
                self.answer(503, {"error": "down"})
                return
            seen = counts.setdefault(tenant, Counts())
            seen.times.append(time.monotonic())
            seen.at_once += 1
            seen.most_at_once = max(seen.most_at_once, seen.at_once)
        time.sleep(ANSWER_SECONDS)
        with lock:
            seen.at_once -= 1
        self.answer(200, {"latitude": len(place) * 7 % 90, "longitude": sum(place.encode()) % 180})

    def do_POST(self) -> None:
        if self.path == "/state/down":
            down.set()
        else:
            down.clear()
        self.answer(200, {"down": down.is_set()})

    def answer(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Nothing: the counts are shown at the end."""


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1]) if sys.argv[1:] else 8123), Requests)
    print(f"listening on http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
