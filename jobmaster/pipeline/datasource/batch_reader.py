"""Batch read: ranges become tasks, a task is one COPY."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from jobmaster.master.export import bounds, open_scan
from jobmaster.pipeline.datasource.cluster_ref import ClusterRef
from jobmaster.pipeline.datasource.range_scan import RangeScan, TransactionWindow
from jobmaster.pipeline.datasource.selection import Selection, push_down
from jobmaster.pipeline.datasource.tables import Partitioning, table_of

if TYPE_CHECKING:
    import pyarrow as pa

_SAMPLE_PAGES = 400


class ReadPlan(NamedTuple):
    """How a table is read."""

    cluster: ClusterRef
    selection: Selection
    tasks: int
    """How many ranges are read apart, and so the most connections at once."""
    block_bytes: int
    snapshot: str | None
    rows_per_batch: int | None = None
    """Of a stream."""
    from_now: bool = False
    """Of a stream: what was recorded before it began is not wanted."""


class IdRange(InputPartition):
    """Ids from ``low``, below ``high``; of a stream, what the transactions of ``window`` recorded of them."""

    def __init__(self, low: UUID, high: UUID, window: TransactionWindow | None = None) -> None:
        super().__init__(None)
        self.low = low
        self.high = high
        self.window = window


class JobMasterReader(DataSourceReader):
    """Reads without looking at Spark's filters."""

    def __init__(self, plan: ReadPlan) -> None:
        self.plan = plan

    def partitions(self) -> Sequence[InputPartition]:
        """Ranges with about as many jobs each."""
        return [IdRange(low, high) for low, high in ranges(self.plan)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One range."""
        return read_range(self.plan, partition)


class FilteringReader(JobMasterReader):
    """Takes Spark's filters to read less. With the push-down of Python sources off, Spark refuses such a reader."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Narrow the selection; every filter goes back to Spark, too."""
        selection: Any = self.plan.selection
        for one in filters:
            selection = push_down(selection, one)
        self.plan = self.plan._replace(selection=selection)
        return filters


def ranges(plan: ReadPlan) -> list[tuple[UUID, UUID]]:
    """Ranges of ids with about as many jobs each; one for a table that is not cut."""
    selection = plan.selection
    if selection.low >= selection.high:
        return []
    if table_of(selection.table).partitioning is not Partitioning.JOB_ID or plan.tasks == 1:
        return [(selection.low, selection.high)]
    boundaries = asyncio.run(_boundaries(plan))
    edges = [selection.low, *(cut for cut in boundaries if selection.low < cut < selection.high), selection.high]
    return list(pairwise(edges))


def read_range(plan: ReadPlan, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The rows of one task."""
    assert isinstance(partition, IdRange)
    scan = RangeScan(plan.cluster, plan.selection, plan.block_bytes, snapshot=plan.snapshot, window=partition.window)
    return scan.batches(partition.low, partition.high)


async def _boundaries(plan: ReadPlan) -> list[UUID]:
    connection = await open_scan(plan.cluster.opener())
    try:
        return await bounds(connection, plan.selection.low, plan.selection.high, plan.tasks, _SAMPLE_PAGES)
    finally:
        connection.terminate()
