"""The proxy as a process of its own, told what to do by JSON lines: ``python -m tests.chaos.proxy_process``.

It ends when its standard input does, so it never outlives whoever started it.
"""

from __future__ import annotations

import asyncio
import fnmatch
import json
import random
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec

from tests.chaos.proxy import HEALTHY, Fault, Route, Speech

REPOSITORY = Path(__file__).parents[2]


class ProxyProcess:
    """Our side: every call waits for the answer, so a fault holds when the call returns."""

    def __init__(self, seed: int) -> None:
        self._turn = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.proxy_process", str(seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def add(self, name: str, speech: Speech, upstream: str) -> int:
        """A new route; its port on 127.0.0.1. ``upstream`` is the path of a unix socket, or host:port."""
        return int(self._ask({"do": "add", "name": name, "speech": speech.value, "upstream": upstream}))

    def set(self, routes: str, fault: Fault = HEALTHY) -> int:
        """A fault on every route whose name matches; their number."""
        return int(self._ask({"do": "set", "routes": routes, "fault": msgspec.to_builtins(fault)}))

    def reset(self, routes: str) -> int:
        """RST to every open connection of the routes."""
        return int(self._ask({"do": "reset", "routes": routes}))

    def lead(self, routes: str, upstream: str) -> int:
        """New connections of the routes go elsewhere; the open ones are reset."""
        return int(self._ask({"do": "lead", "routes": routes, "upstream": upstream}))

    def counts(self) -> dict[str, int]:
        """Connections, resets, and replies dropped, of all routes."""
        found: dict[str, int] = self._ask({"do": "counts"})
        return found

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(20)
        self._process.stdout.close()

    def _ask(self, order: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._turn:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the proxy ended (exit code {self._process.poll()}) at {order}")
        return json.loads(line)["answer"]


class _Desk:
    """Its own side: the routes by name."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._routes: dict[str, Route] = {}

    async def close(self) -> None:
        """Close every route."""
        await asyncio.gather(*(route.close() for route in self._routes.values()))

    async def obey(self, order: dict[str, Any]) -> Any:
        """One order; the answer."""
        if order["do"] == "add":
            route = Route(order["name"], Speech(order["speech"]), order["upstream"], self._rng)
            self._routes[route.name] = route
            return await route.listen()
        if order["do"] == "counts":
            return {
                key: sum(route.counts[key] for route in self._routes.values())
                for key in ("connections", "replies_dropped", "resets")
            }
        matched = [route for name, route in self._routes.items() if fnmatch.fnmatch(name, order["routes"])]
        for route in matched:
            if order["do"] == "set":
                fault = msgspec.convert(order["fault"], Fault)
                route.set(HEALTHY if fault == HEALTHY else fault)
            elif order["do"] == "lead":
                route.upstream = order["upstream"]
                route.reset()
            else:
                route.reset()
        return len(matched)


async def serve(seed: int) -> None:
    """Obey until standard input ends."""
    loop = asyncio.get_running_loop()
    orders = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    desk = _Desk(seed)
    while line := await orders.readline():
        answer = await desk.obey(json.loads(line))
        sys.stdout.write(json.dumps({"answer": answer}) + "\n")
        sys.stdout.flush()
    await desk.close()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
