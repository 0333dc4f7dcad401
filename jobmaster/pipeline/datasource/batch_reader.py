"""Batch reads: each range of ids is a task, each task is one COPY."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from pyspark.sql.datasource import DataSourceReader, InputPartition

from jobmaster.master.history.export import bounds, open_scan
from jobmaster.pipeline.datasource.cluster_ref import ClusterRef
from jobmaster.pipeline.datasource.pacing import UNLIMITED, Pace
from jobmaster.pipeline.datasource.range_scan import RangeScan, TransactionWindow
from jobmaster.pipeline.datasource.selection import Selection
from jobmaster.pipeline.datasource.tables import Partitioning, table_of

if TYPE_CHECKING:
    import pyarrow as pa

_SAMPLE_PAGES = 400


class StreamStart(NamedTuple):
    """Where a stream begins that has no checkpoint yet: by default with the first recorded row."""

    offset: Mapping[str, Any] | None = None
    """An end offset of another stream."""
    from_now: bool = False
    """Skip rows recorded before it began."""


class ReadPlan(NamedTuple):
    """How a table is read."""

    cluster: ClusterRef
    selection: Selection
    tasks: int
    """Number of ranges, and so the maximum of tasks at once."""
    block_bytes: int
    snapshot: str | None
    statement_seconds: int
    """Of one statement, and so of the snapshot of a task."""
    pace: Pace = UNLIMITED
    rows_per_batch: int | None = None
    """Of a stream; ``None``: no limit."""
    start: StreamStart = StreamStart()
    """Of a stream without a checkpoint."""
    archived: str | None = None
    """Of the table ``history``: digest of the archived ranges, which something else reads; ``None``: they are read, too."""


class IdRange(InputPartition):
    """Ids from ``low`` (inclusive) to ``high`` (exclusive); of a stream, only rows that ``window`` recorded."""

    def __init__(self, low: UUID, high: UUID, window: TransactionWindow | None = None) -> None:
        super().__init__(None)
        self.low = low
        self.high = high
        self.window = window


class JobMasterReader(DataSourceReader):
    """Reads what the options select."""

    def __init__(self, plan: ReadPlan) -> None:
        self.plan = plan

    def partitions(self) -> Sequence[InputPartition]:
        """Ranges with about as many jobs each."""
        return [IdRange(low, high) for low, high in ranges(self.plan)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One range."""
        return read_range(self.plan, partition)


def ranges(plan: ReadPlan) -> list[tuple[UUID, UUID]]:
    """Ranges of ids with about as many jobs each; one for a table that is not partitioned by id, and for an empty period.

    There is always one: Spark would replace an empty list by a partition of its own.
    """
    selection = plan.selection
    empty = selection.low >= selection.high
    if empty or table_of(selection.table).partitioning is not Partitioning.JOB_ID or plan.tasks == 1:
        return [(selection.low, selection.high)]
    boundaries = asyncio.run(_boundaries(plan))
    edges = [selection.low, *(cut for cut in boundaries if selection.low < cut < selection.high), selection.high]
    return list(pairwise(edges))


def read_range(plan: ReadPlan, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The rows of one task."""
    assert isinstance(partition, IdRange)
    scan = RangeScan(
        plan.cluster,
        plan.selection,
        plan.block_bytes,
        seconds=plan.statement_seconds,
        snapshot=plan.snapshot,
        window=partition.window,
        pace=plan.pace,
    )
    return scan.batches(partition.low, partition.high)


async def _boundaries(plan: ReadPlan) -> list[UUID]:
    connection = await open_scan(plan.cluster.reading_factory(), seconds=plan.statement_seconds)
    try:
        return await bounds(connection, plan.selection.low, plan.selection.high, plan.tasks, _SAMPLE_PAGES)
    finally:
        connection.terminate()
