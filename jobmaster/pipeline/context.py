"""The context of one call of the pipeline: settings, Spark session, connection to the master; and the result of a step.

The session is created on first use and shared by all steps of ``jobmaster pipeline run``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jobmaster.clock import Clock, SystemClock
from jobmaster.pipeline.driver_connection import DriverConnection
from jobmaster.pipeline.spark.session import SessionOptions, open_session
from jobmaster.server_addresses import data_directory, master_address
from jobmaster.settings.model import ClusterSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LAKE = "lake"
"""Default name of the lake in the data directory."""


class PipelineOptions(NamedTuple):
    """Options of every command of the pipeline."""

    session: SessionOptions = SessionOptions()
    lake: str | None = None
    """Directory or URL of the lake; ``None``: ``lake`` in the data directory. ``{cluster}`` is the name of the cluster."""
    dry_run: bool = False
    """Report what the step would do; change nothing."""


@dataclass(frozen=True)
class StepResult:
    """The result of one step; printed as its summary."""

    rows: int = 0
    """Rows processed; the summary divides them by the time."""
    summary: Mapping[str, Any] = field(default_factory=dict)
    """Names and values, in the order of the output."""
    failed: bool = False
    """A check found a violation: the program exits with 1."""
    note: str | None = None
    """One sentence for people."""
    items: Sequence[Mapping[str, Any]] | None = None
    """Rows of a table; all have the same keys."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Names and values for programs alone: part of the JSON output."""


@dataclass
class PipelineContext:
    """What the steps of one call share. The owner closes it."""

    settings: ClusterSettings
    options: PipelineOptions = field(default_factory=PipelineOptions)
    progress: Callable[[str], None] = lambda _: None
    """Prints one line of progress."""
    clock: Clock = field(default_factory=SystemClock)
    _session: SparkSession | None = None

    @property
    def dry_run(self) -> bool:
        return self.options.dry_run

    @property
    def lake(self) -> str:
        """Directory or URL of the lake."""
        if self.options.lake is None:
            return str(data_directory(self.settings) / LAKE)
        return self.options.lake.replace("{cluster}", self.settings.cluster)

    @property
    def lake_url(self) -> str:
        """The lake as a path or URL for Spark."""
        return self.lake if "://" in self.lake else str(self.lake_path.absolute())

    @property
    def lake_path(self) -> Path:
        """The lake as a local directory."""
        return self.local(self.lake)

    def local(self, path: str) -> Path:
        """A path or ``file://`` URL as a local path."""
        return Path(path.removeprefix("file://")).expanduser()

    @cached_property
    def dsn(self) -> str:
        """Address of the master."""
        return master_address(self.settings)

    @cached_property
    def connection(self) -> DriverConnection:
        """The driver's own connection to the master, opened when it is first used."""
        return DriverConnection(self.settings, self.dsn)

    @property
    def spark(self) -> SparkSession:
        """The session; created on first use (about 5 seconds)."""
        if self._session is None:
            self.progress(f"starting Spark on {self.options.session.master}")
            self._session = open_session(self.options.session, os.environ)
        return self._session

    def source_options(self) -> dict[str, str]:
        """Options of the data source ``jobmaster`` that name this cluster."""
        return {"url": self.dsn, "schema": self.settings.schema_name()}

    def reading_options(self) -> dict[str, str]:
        """The same for a read: of the standby, if the configuration names one."""
        standby = self.settings.master.read_dsn
        return self.source_options() | ({} if standby is None else {"readUrl": standby})

    def read(self, table: str, options: Mapping[str, str] | None = None) -> DataFrame:
        """One of the tables of the data source (``jobs``, ``ledger``, ``attempts``, ``buckets``, ``events``). It is read as
        fast as it can be, unless the options have a rate: steps hold one snapshot, which a slow read would keep for hours.

        Args:
            options: of the data source: ``columns``, ``since``, ``states``, ``snapshot`` ...
        """
        from jobmaster.pipeline.datasource.read_options import RATE, WITHOUT_LIMIT

        given = {**self.reading_options(), "table": table, RATE: WITHOUT_LIMIT, **(options or {})}
        return self.spark.read.format("jobmaster").options(**given).load()

    @contextmanager
    def snapshot(self) -> Iterator[str]:
        """A snapshot of the master for all tasks: its name, valid as option ``snapshot`` while the context is open."""
        with self.connection.snapshot() as name:
            yield name

    def close(self) -> None:
        """Stop Spark, close the connection."""
        if "connection" in self.__dict__:
            self.connection.close()
        if self._session is not None:
            self._session.stop()
            self._session = None
