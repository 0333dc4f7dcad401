"""The table ``history``: every job once, from the lake and from the master. Each file of the lake is a task, too.

The manifest in the master names the files; those of days that are not asked for are not opened. A range is in the master or
in the list of files that the driver has read. Every task of the master locks the ranges and reads the manifest again: if a
range has left since the driver read it, its rows would be in neither place, and the query ends with an error.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime, time, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from uuid import UUID

import msgspec
from pyspark.sql.datasource import InputPartition

from jobmaster.master.driver.connection import Connection, Row, rows_of
from jobmaster.master.history.export import open_scan
from jobmaster.model.archive import LakeFile
from jobmaster.model.errors import Refused, Unavailable
from jobmaster.pipeline.datasource.batch_reader import IdRange, JobMasterReader, ReadPlan, ranges
from jobmaster.pipeline.datasource.file_systems import file_system_of
from jobmaster.pipeline.datasource.range_scan import RangeScan, arrow_schema, conformed
from jobmaster.pipeline.datasource.selection import Selection
from jobmaster.pipeline.datasource.tables import FilterOption

if TYPE_CHECKING:
    import pyarrow as pa

_FILES = msgspec.json.Decoder(tuple[LakeFile, ...])
_DAY = "/day="
COLUMN_OF_FILTER = {
    FilterOption.STATES: "state",
    FilterOption.HANDLERS: "handler",
    FilterOption.LANES: "lane",
    FilterOption.PRIORITIES: "priority",
    FilterOption.BUCKETS: "bucket_id",
}
_T = TypeVar("_T")


class FileOfLake(InputPartition):
    """A file of jobs."""

    def __init__(self, lake: str, path: str) -> None:
        super().__init__(None)
        self.lake = lake
        self.path = path


class LiveRange(IdRange):
    """A range of ids in the master, and the names of the ranges that are read from the lake."""

    def __init__(self, low: UUID, high: UUID, archived: frozenset[str]) -> None:
        super().__init__(low, high)
        self.archived = archived


class ManifestLine(NamedTuple):
    """A range whose jobs are in the lake alone."""

    name: str
    lake: str
    files: tuple[LakeFile, ...]


class HistoryReader(JobMasterReader):
    """Reads lake and master."""

    def partitions(self) -> Sequence[InputPartition]:
        """Files of the days that are asked for, and ranges of ids in the master."""
        plan = self.plan
        archived = asyncio.run(_on_connection(plan, _manifest))
        names = frozenset(one.name for one in archived)
        live = [LiveRange(low, high, names) for low, high in ranges(_of_jobs(plan))]
        if plan.archived is None:
            return [*_files(archived, plan.selection), *live]
        if plan.archived != _digest(archived):
            raise Refused("a range has left the master since the DataFrame was made", hint="make the DataFrame anew")
        return live

    async def archived_files(self) -> tuple[list[FileOfLake], str]:
        """Files of the days that are asked for, and a digest of all archived ranges, for a plan that reads the others."""
        archived = await _on_connection(self.plan, _manifest)
        return _files(archived, self.plan.selection), _digest(archived)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One file or one range."""
        if isinstance(partition, FileOfLake):
            return read_file(partition, self.plan.selection)
        assert isinstance(partition, LiveRange)
        return self._live(partition)

    def _live(self, part: LiveRange) -> Iterator[pa.RecordBatch]:
        plan = _of_jobs(self.plan)

        async def check(connection: Connection) -> None:
            left = [one.name for one in await _manifest(connection) if one.name not in part.archived]
            if left:
                raise Refused(
                    f"{left[0]} has left the master while the query ran: its jobs are in the lake now",
                    hint="run the query again",
                )

        scan = RangeScan(
            plan.cluster,
            plan.selection,
            plan.block_bytes,
            seconds=plan.statement_seconds,
            snapshot=plan.snapshot,
            pace=plan.pace,
        )
        return scan.batches(part.low, part.high, check)


def _files(archived: Sequence[ManifestLine], selection: Selection) -> list[FileOfLake]:
    return [
        FileOfLake(one.lake, file.path)
        for one in archived
        for file in one.files
        if file.dataset == "jobs" and _asked_for(file.path, selection)
    ]


def _digest(archived: Sequence[ManifestLine]) -> str:
    return hashlib.sha256("\n".join(sorted(one.name for one in archived)).encode()).hexdigest()


def read_file(part: FileOfLake, selection: Selection) -> Iterator[pa.RecordBatch]:
    """The selected rows and columns of a file.

    Raises:
        Unavailable: the file is not there, or cannot be read.
    """
    from pyarrow import parquet

    wanted = arrow_schema(selection)
    columns = list(dict.fromkeys([*wanted.names, "id", *(COLUMN_OF_FILTER[one] for one in selection.filters)]))
    try:
        with _open(part) as stream:
            for batch in parquet.ParquetFile(stream).iter_batches(columns=columns, use_threads=False):
                rows = batch.filter(_chosen(batch, selection))
                if len(rows):
                    yield conformed(rows, wanted)
    except OSError as error:
        raise Unavailable(
            f"{part.path} of the lake {part.lake} cannot be read: {error}",
            hint="the file must be reached by every machine of Spark; if it was rewritten just now, run the query again",
        ) from error


def _chosen(batch: pa.RecordBatch, selection: Selection) -> pa.Array:
    import pyarrow as pa
    from pyarrow import compute as pc

    ids = batch.column("id")
    # Ids in text form have the order of the ids.
    chosen = pc.and_(pc.greater_equal(ids, str(selection.low)), pc.less(ids, str(selection.high)))
    for option, words in selection.filters.items():
        chosen = pc.and_(chosen, pc.is_in(batch.column(COLUMN_OF_FILTER[option]), pa.array(words, pa.string())))
    return chosen


@contextmanager
def _open(part: FileOfLake) -> Iterator[Any]:
    system, base = file_system_of(part.lake)
    with system.open_input_file(f"{base}/{part.path}") as stream:
        yield stream


def _asked_for(path: str, selection: Selection) -> bool:
    """Whether the file's day of creation is one of those that the options select."""
    first = datetime.combine(date.fromisoformat(path.split(_DAY)[1][:10]), time(), selection.since.tzinfo)
    return first < selection.until and first + timedelta(days=1) > selection.since


def _of_jobs(plan: ReadPlan) -> ReadPlan:
    return plan._replace(selection=plan.selection._replace(table="jobs"))


async def _manifest(connection: Connection) -> list[ManifestLine]:
    """Ranges that are in the lake alone. None can leave until the connection's transaction ends."""
    # The lock comes first: a snapshot taken before it could miss a range that was just dropped.
    await rows_of(connection, "export/block_retirement")
    rows: list[Row] = await rows_of(connection, "export/archived")
    return [ManifestLine(row["name"], row["lake"], _FILES.decode(row["files"])) for row in rows]


async def _on_connection(plan: ReadPlan, query: Callable[[Connection], Coroutine[Any, Any, _T]]) -> _T:
    connection = await open_scan(plan.cluster.reading_factory(), seconds=plan.statement_seconds)
    try:
        return await query(connection)
    finally:
        connection.terminate()
