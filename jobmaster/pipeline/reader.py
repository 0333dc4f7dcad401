"""Batch read: ranges become tasks, a task is one COPY."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from jobmaster.master.export import bounds, open_scan
from jobmaster.pipeline.narrowing import narrow
from jobmaster.pipeline.place import Place
from jobmaster.pipeline.scanning import Scan
from jobmaster.pipeline.selection import Selection
from jobmaster.pipeline.tables import Cut, table_of

if TYPE_CHECKING:
    import pyarrow as pa

_SAMPLE_PAGES = 400


class ReadPlan(NamedTuple):
    """How a table is read."""

    place: Place
    selection: Selection
    tasks: int
    """How many ranges are read apart, and so the most connections at once."""
    block_bytes: int
    snapshot: str | None


class IdRange(InputPartition):
    """Ids from ``low``, below ``high``."""

    def __init__(self, low: UUID, high: UUID) -> None:
        super().__init__(None)
        self.low = low
        self.high = high


class JobMasterReader(DataSourceReader):
    """Reads without looking at Spark's filters."""

    def __init__(self, plan: ReadPlan) -> None:
        self.plan = plan

    def partitions(self) -> Sequence[InputPartition]:
        """Ranges with about as many jobs each."""
        selection = self.plan.selection
        whole = [IdRange(selection.low, selection.high)]
        if selection.low >= selection.high:
            return []
        if table_of(selection.table).cut is not Cut.JOB_ID or self.plan.tasks == 1:
            return whole
        cuts = asyncio.run(self._cuts(selection))
        edges = [selection.low, *(cut for cut in cuts if selection.low < cut < selection.high), selection.high]
        return [IdRange(low, high) for low, high in pairwise(edges)]

    async def _cuts(self, selection: Selection) -> list[UUID]:
        connection = await open_scan(self.plan.place.opener())
        try:
            return await bounds(connection, selection.low, selection.high, self.plan.tasks, _SAMPLE_PAGES)
        finally:
            connection.terminate()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One range."""
        assert isinstance(partition, IdRange)
        plan = self.plan
        return Scan(plan.place, plan.selection, plan.snapshot, plan.block_bytes).batches(partition.low, partition.high)


class FilteringReader(JobMasterReader):
    """Takes Spark's filters to read less. With the push-down of Python sources off, Spark refuses such a reader."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Narrow the selection; every filter goes back to Spark, too."""
        selection: Any = self.plan.selection
        for one in filters:
            selection = narrow(selection, one)
        self.plan = self.plan._replace(selection=selection)
        return filters
