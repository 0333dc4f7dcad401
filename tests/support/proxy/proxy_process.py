"""Many proxies in a process of their own, with commands as JSON lines: ``python -m tests.support.proxy.proxy_process``.

The process ends when its standard input does, so it never outlives the process that started it. A *route* is a proxy with a
name; commands choose routes by a pattern of names.
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

from tests.support.patience import PATIENCE_SECONDS
from tests.support.proxy.tcp_proxy import HEALTHY, Fault, TcpProxy, WireProtocol

REPOSITORY = Path(__file__).parents[3]


class ProxyProcess:
    """The side of the caller: every call waits for the answer, so a fault holds when the call returns."""

    def __init__(self, seed: int) -> None:
        self._turn = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.proxy.proxy_process", str(seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def add(self, name: str, protocol: WireProtocol, upstream: str) -> int:
        """A new route; its port on 127.0.0.1. ``upstream`` is the path of a unix socket, or host:port."""
        return int(self._call({"do": "add", "name": name, "protocol": protocol.value, "upstream": upstream}))

    def set(self, routes: str, fault: Fault = HEALTHY) -> int:
        """A fault on every route whose name matches; their number."""
        return int(self._call({"do": "set", "routes": routes, "fault": msgspec.to_builtins(fault)}))

    def reset(self, routes: str) -> int:
        """RST to every open connection of the routes."""
        return int(self._call({"do": "reset", "routes": routes}))

    def lead(self, routes: str, upstream: str) -> int:
        """New connections of the routes go elsewhere; the open ones are reset."""
        return int(self._call({"do": "lead", "routes": routes, "upstream": upstream}))

    def counts(self) -> dict[str, int]:
        """Connections, resets, and replies dropped, of all routes."""
        found: dict[str, int] = self._call({"do": "counts"})
        return found

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE_SECONDS)
        self._process.stdout.close()

    def _call(self, command: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._turn:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the proxy ended (exit code {self._process.poll()}) at {command}")
        return json.loads(line)["answer"]


class _Routes:
    """The side of the process: the proxies by name."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._routes: dict[str, TcpProxy] = {}

    async def close(self) -> None:
        """Close every route."""
        await asyncio.gather(*(route.close() for route in self._routes.values()))

    async def answer(self, command: dict[str, Any]) -> Any:
        """Do what one command asks for; its answer."""
        if command["do"] == "add":
            route = TcpProxy(WireProtocol(command["protocol"]), command["upstream"], self._rng)
            self._routes[command["name"]] = route
            return await route.listen()
        if command["do"] == "counts":
            return {
                key: sum(route.counts[key] for route in self._routes.values())
                for key in ("connections", "replies_dropped", "resets")
            }
        matched = [route for name, route in self._routes.items() if fnmatch.fnmatch(name, command["routes"])]
        for route in matched:
            if command["do"] == "set":
                fault = msgspec.convert(command["fault"], Fault)
                route.set(HEALTHY if fault == HEALTHY else fault)
            elif command["do"] == "lead":
                route.upstream = command["upstream"]
                route.reset()
            else:
                route.reset()
        return len(matched)


async def serve(seed: int) -> None:
    """Answer commands until standard input ends."""
    loop = asyncio.get_running_loop()
    commands = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    routes = _Routes(seed)
    while line := await commands.readline():
        answer = await routes.answer(json.loads(line))
        sys.stdout.write(json.dumps({"answer": answer}) + "\n")
        sys.stdout.flush()
    await routes.close()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
