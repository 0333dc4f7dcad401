"""The driver's connection to the master, for programs without an event loop (Spark's driver has none).

It runs a loop of its own, one call at a time. Executors never use it: they open their own connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from jobmaster.master.connection import Opener, Row
from jobmaster.master.export import open_snapshot
from jobmaster.master.master import Master
from jobmaster.settings.model import ClusterSettings

APPLICATION_NAME = "jobmaster-pipeline"
T = TypeVar("T")


class DriverConnection:
    """Calls to the master from the driver."""

    def __init__(self, settings: ClusterSettings, dsn: str) -> None:
        self._settings = settings
        self.opener = Opener(dsn, settings.schema_name(), settings.master, APPLICATION_NAME)
        self._runner = asyncio.Runner()
        self._master: Master | None = None

    @property
    def master(self) -> Master:
        """The master; connected, and its schema checked, when it is first asked for."""
        if self._master is None:
            opener = self.opener
            self._master = self.run(
                Master.connect(
                    dsn=opener.dsn,
                    schema=opener.schema,
                    settings=self._settings.master,
                    application_name=APPLICATION_NAME,
                )
            )
        return self._master

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run some work on the link's loop and wait for it."""
        return self._runner.run(work)

    def fetch(self, name: str, *args: Any) -> list[Row]:
        """Rows of a statement ``group/file`` that changes nothing. Ids are 16 bytes; see ``connection.to_us`` for times."""
        return self.run(self.master.calls.ask(name, *args))

    def execute(self, name: str, *args: Any) -> list[Row]:
        """Rows of a statement ``group/file`` that writes, in a transaction of its own."""
        return self.run(self.master.calls.tell(name, *args))

    @contextmanager
    def snapshot(self) -> Iterator[str]:
        """A snapshot that other connections can import while this is open. It holds up vacuum for as long."""
        connection, name = self.run(open_snapshot(self.opener))
        try:
            yield name
        finally:
            connection.terminate()

    def close(self) -> None:
        """Close every connection, end the loop."""
        if self._master is not None:
            self.run(self._master.close())
        self._runner.close()
