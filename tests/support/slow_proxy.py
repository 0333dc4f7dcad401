"""A proxy between a store and its clients that passes bytes in small portions, late, or not at all."""

from __future__ import annotations

import asyncio
import random
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self


class SlowProxy:
    """Listens on a unix socket of its own; ``url`` is what clients connect to."""

    def __init__(self, target: Path, *, seed: int) -> None:
        self._target = target
        self._chance = random.Random(seed)
        self._folder = tempfile.TemporaryDirectory(prefix="jm-proxy-")
        self._path = Path(self._folder.name) / "proxy.sock"
        self._tasks: set[asyncio.Task[None]] = set()
        self.answers_pass = asyncio.Event()
        """Cleared: what clients send still arrives, and nothing comes back."""
        self.answers_pass.set()
        self.connections = 0

    @property
    def url(self) -> str:
        return f"unix://{self._path}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_unix_server(self._serve, self._path)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._folder.cleanup()

    def cut(self) -> None:
        """Break every connection."""
        for task in self._tasks:
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            upstream_reader, upstream_writer = await asyncio.open_unix_connection(self._target)
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._pass(reader, upstream_writer, answers=False))
                    group.create_task(self._pass(upstream_reader, writer, answers=True))
            finally:
                upstream_writer.transport.abort()
        except* (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool) -> None:
        while data := await reader.read(self._chance.randint(1, 2000)):
            if answers:
                await self.answers_pass.wait()
            await asyncio.sleep(self._chance.random() * 0.002)
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError
