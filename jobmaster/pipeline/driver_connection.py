"""The connection of Spark's driver to the master, with a synchronous interface: the driver has no event loop.

It runs an event loop of its own, one call at a time. Executors open their own connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from jobmaster.master.driver.connection import ConnectionFactory, Row
from jobmaster.master.history.export import open_snapshot
from jobmaster.master.master import Master
from jobmaster.settings.model import ClusterSettings

APPLICATION_NAME = "jobmaster-pipeline"
T = TypeVar("T")


class DriverConnection:
    """Calls to the master from the driver."""

    def __init__(self, settings: ClusterSettings, dsn: str) -> None:
        self._settings = settings
        schema, master = settings.schema_name(), settings.master
        self.connection_factory = ConnectionFactory(dsn, schema, master, APPLICATION_NAME)
        self.reading_factory = ConnectionFactory(master.read_dsn or dsn, schema, master, APPLICATION_NAME)
        """For scans: the standby, if the configuration names one."""
        self._runner = asyncio.Runner()
        self._master: Master | None = None

    @property
    def master(self) -> Master:
        """The master; connected, and its schema checked, on first use."""
        if self._master is None:
            connection_factory = self.connection_factory
            self._master = self.run(
                Master.connect(
                    dsn=connection_factory.dsn,
                    schema=connection_factory.schema,
                    settings=self._settings.master,
                    application_name=APPLICATION_NAME,
                )
            )
        return self._master

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the connection's loop and return its result."""
        return self._runner.run(work)

    def fetch(self, name: str, *args: Any) -> list[Row]:
        """Rows of a read-only statement ``group/file``. Ids are 16 bytes; see ``connection.to_us`` for times."""
        return self.run(self.master.statements.read(name, *args))

    def execute(self, name: str, *args: Any) -> list[Row]:
        """Rows of a writing statement ``group/file``, in a transaction of its own."""
        return self.run(self.master.statements.write(name, *args))

    @contextmanager
    def snapshot(self) -> Iterator[str]:
        """A snapshot that other connections can import while the context is open. It delays vacuum for that time."""
        connection, name = self.run(open_snapshot(self.reading_factory))
        try:
            yield name
        finally:
            connection.terminate()

    def close(self) -> None:
        """Close the connection and the loop."""
        if self._master is not None:
            self.run(self._master.close())
        self._runner.close()
