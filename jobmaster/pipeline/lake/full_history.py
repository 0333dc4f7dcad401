"""The full history: archived ranges from the lake, all other jobs from the master under one snapshot.

A range in both places (published, not yet dropped) is read from the master. While the history is open, no range can leave the
master: a lock on the tables, as light as that of any reader, blocks retirement and drops. Without it, a range dropped during
a read would be in neither place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from jobmaster.master.driver.connection import rows_of
from jobmaster.master.history.export import open_scan, replica_age
from jobmaster.model.archive import LakeFile
from jobmaster.model.errors import Refused
from jobmaster.model.ids import text
from jobmaster.pipeline.context import PipelineContext
from jobmaster.pipeline.lake.lake import FORMAT, Lake
from jobmaster.pipeline.lake.schema import SCHEMAS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SNAPSHOT_SECONDS = 6 * 3600
"""How long a step may hold its snapshot: it keeps vacuum of the master waiting."""
_FILES = msgspec.json.Decoder(tuple[LakeFile, ...])


class LakeRange(NamedTuple):
    """An archived range that is only in the lake."""

    name: str
    run_id: str
    files: tuple[LakeFile, ...]
    first: datetime
    """Earliest creation or end time in the range."""
    last: datetime
    """Latest creation or end time in the range."""

    def paths(self, dataset: str) -> list[str]:
        return [file.path for file in self.files if file.dataset == dataset]

    def rows(self, dataset: str) -> int:
        return sum(file.rows for file in self.files if file.dataset == dataset)


class FullHistory:
    """DataFrames of one moment, valid while the context of ``open_history`` is open."""

    def __init__(
        self,
        context: PipelineContext,
        lake: Lake,
        archived: Sequence[LakeRange],
        discarded_since: datetime | None,
        snapshot: str,
        as_of: datetime,
    ) -> None:
        self._context = context
        self._snapshot = snapshot
        self.lake = lake
        self.archived = archived
        self.discarded_since = discarded_since
        """Jobs created since then may be missing: their range was dropped without a copy. ``None``: no range was."""
        self.as_of = as_of
        """No transaction that wrote before that time was open."""

    def archived_frame(
        self, dataset: str, columns: Sequence[str], ranges: Sequence[LakeRange] | None = None
    ) -> DataFrame:
        """Columns of ``jobs`` or ``attempts`` from the lake.

        Args:
            ranges: some of ``archived``; ``None``: all of them.
        """
        spark, schema = self._context.spark, SCHEMAS[dataset]
        paths = [
            self.lake.url(path) for one in (self.archived if ranges is None else ranges) for path in one.paths(dataset)
        ]
        frame = spark.read.schema(schema).parquet(*paths) if paths else spark.createDataFrame([], schema)
        return frame.select(*columns)

    def live_frame(self, table: str, columns: Sequence[str], options: dict[str, str] | None = None) -> DataFrame:
        """Columns of a table of the master."""
        names = {"columns": ",".join(columns), "snapshot": self._snapshot, **(options or {})}
        return self._context.read(table, names).select(*columns)

    def jobs(self, columns: Sequence[str]) -> DataFrame:
        """Every job."""
        return self.archived_frame("jobs", columns).unionByName(self.live_frame("jobs", columns))

    def attempts(self, columns: Sequence[str]) -> DataFrame:
        """Every attempt that did not conclude its job."""
        return self.archived_frame("attempts", columns).unionByName(self.live_frame("attempts", columns))

    def owners(self) -> DataFrame:
        """``bucket_id, bucket_epoch, agent``: the owner of a bucket in each epoch."""
        rows = self._context.connection.fetch("export/bucket_owners")
        values = [(text(row["bucket_id"]), row["bucket_epoch"], row["agent"]) for row in rows]
        return self._context.spark.createDataFrame(values, "bucket_id string, bucket_epoch bigint, agent string")

    def ended_batches(self) -> DataFrame:
        """``id, ranges, complete, succeeded, failed, cancelled, expired``: batches that had ended with their last job.

        ``ranges``: the first 28 characters of the ids of their jobs. ``complete``: no job of theirs was discarded.
        """
        rows = self._context.connection.fetch("export/ended_batches", round(self.as_of.timestamp() * 1e6))
        since = self.discarded_since
        values = [
            (
                text(row["id"]),
                [text(lowest)[:28] for lowest in row["ranges"]],
                since is None or _moment(row["created_us"]) < since,
                *(row[name] for name in ("succeeded", "failed", "cancelled", "expired")),
            )
            for row in rows
        ]
        schema = (
            "id string, ranges array<string>, complete boolean, succeeded bigint, failed bigint, cancelled bigint, "
            "expired bigint"
        )
        return self._context.spark.createDataFrame(values, schema)


@contextmanager
def open_history(context: PipelineContext) -> Iterator[FullHistory]:
    """The history of the current moment.

    Raises:
        Refused: the lake belongs to another cluster or a newer version, or a range is in another lake.
        Unavailable: the master cannot be reached.
    """
    lake = Lake(context.lake)
    lake.check(text(context.connection.master.cluster.uid), create=not context.dry_run)
    _ = context.spark  # first: it takes some seconds in which ranges need no lock, and expressions need it
    wait = context.connection.run
    connection = wait(open_scan(context.connection.reading_factory, seconds=SNAPSHOT_SECONDS))
    try:
        age_seconds = wait(replica_age(connection))
        if age_seconds is not None:
            context.progress(f"the history is read from a standby, which is {age_seconds:.0f} s behind")
        # The lock comes first: a snapshot taken before it could miss a range that was just retired.
        wait(rows_of(connection, "export/block_retirement"))
        wait(rows_of(connection, "export/block_attempts_retirement"))
        snapshot, as_of = wait(rows_of(connection, "export/export_snapshot"))[0]
        rows = wait(rows_of(connection, "export/archived"))
        archived = [
            LakeRange(
                row["name"],
                row["run_id"],
                _FILES.decode(row["files"]),
                *map(_moment, (row["first_us"], row["last_us"])),
            )
            for row in rows
        ]
        (discarded_us,) = wait(rows_of(connection, "export/discarded"))[0]
        _refuse_other_lake(lake, [(row["name"], row["lake"], row["format"]) for row in rows])
        discarded_since = None if discarded_us is None else _moment(discarded_us)
        yield FullHistory(context, lake, archived, discarded_since, snapshot, _moment(as_of))
    finally:
        connection.terminate()


def _moment(microseconds: int) -> datetime:
    return datetime.fromtimestamp(microseconds / 1e6, UTC)


def _refuse_other_lake(lake: Lake, ranges: Sequence[tuple[str, str, int]]) -> None:
    for name, where, format_ in ranges:
        if where != lake.root:
            raise Refused(f"range {name} lies in the lake {where}, not in {lake.root}", hint=f"give --lake {where}")
        if format_ > FORMAT:
            raise Refused(
                f"range {name} was exported by a newer version (layout {format_}, ours is {FORMAT})",
                hint="update this program",
            )


def union_all(frames: Sequence[DataFrame]) -> DataFrame:
    """The union of all frames."""
    return reduce(lambda one, other: one.unionByName(other), frames)
