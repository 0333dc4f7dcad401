"""A line to PostgreSQL that can be cut and mended: a proxy on a unix socket, with nothing of its own on the wire."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs, quote, urlsplit, urlunsplit


class CutProxy:
    """``dsn`` is the way to the same database through here."""

    def __init__(self, dsn: str) -> None:
        parts = urlsplit(dsn)
        query = parse_qs(parts.query)
        self._folder = tempfile.TemporaryDirectory(prefix="jm-cut-")
        name = f".s.PGSQL.{query['port'][0]}"
        self._target = Path(query["host"][0]) / name
        self._path = Path(self._folder.name) / name
        host = quote(self._folder.name, safe="/")
        self.dsn = urlunsplit(parts._replace(query=f"host={host}&port={query['port'][0]}"))
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_cut = False

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_unix_server(self._serve, self._path)
        self._path.chmod(0o777)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        self.cut()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._folder.cleanup()

    def cut(self) -> None:
        """Break every connection, and take no new one."""
        self._is_cut = True
        for task in self._tasks:
            task.cancel()

    def mend(self) -> None:
        """New connections pass again."""
        self._is_cut = False

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._is_cut:
            writer.close()
            return
        self._tasks.add(task)
        try:
            there_reader, there_writer = await asyncio.open_unix_connection(self._target)
            try:
                ways = {
                    asyncio.ensure_future(_pass(reader, there_writer)),
                    asyncio.ensure_future(_pass(there_reader, writer)),
                }
                try:
                    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for way in ways:
                        way.cancel()
            finally:
                there_writer.close()
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            self._tasks.discard(task)


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
