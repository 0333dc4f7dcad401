"""Writes, of batches and of streams: rows become jobs of the master, HELD until they are due.

A task may die at any point and run again, and two copies of it may run at once. Ids are made from the rows, so a job that
exists is not inserted again, and rows are counted in the transaction that inserts them.

A streaming query has one batch for each of its micro-batches, with the time at which the first task of it began. Only tasks
know the number, from Spark's local properties, so each of them asks the master for that time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from jobmaster.clock import new_id
from jobmaster.master.driver.connection import ConnectionPool, StatementRunner
from jobmaster.master.history.bulk_insert import Importer, Part
from jobmaster.model.errors import Conflict, InputError, Unavailable
from jobmaster.model.job import NewJob
from jobmaster.pipeline.datasource.cluster_ref import ClusterRef
from jobmaster.pipeline.datasource.rows.plain_rows import PlainRows
from jobmaster.pipeline.datasource.rows.rejects_file import (
    RejectsFile,
    discard,
    prepare,
    publish,
    require_prepared,
    shared_path,
)
from jobmaster.pipeline.datasource.rows.row_parser import RejectedRow, RowParser
from jobmaster.pipeline.datasource.source_files import FileTracker, FinishedFile
from jobmaster.pipeline.datasource.write_options import StreamBatch, WritePlan, stream_plan

if TYPE_CHECKING:
    import pyarrow as pa

_QUERY, _MICRO_BATCH = "sql.streaming.queryId", "streaming.sql.batchId"
"""Local properties that Spark sets for the tasks of a micro-batch."""


@dataclass
class TaskResult(WriterCommitMessage):
    """Counts of one task."""

    offered: int
    inserted: int
    rejected: int
    rejects_name: str | None
    batch: str
    run_id: str


class JobMasterWriter(DataSourceArrowWriter):
    """Writes DataFrames as jobs. Created once, by the driver; every task gets a copy."""

    def __init__(self, plan: WritePlan) -> None:
        self.plan = plan
        if plan.rejects is not None:
            prepare(plan.rejects, plan.run_id)
        begun = plan.run_id, plan.batch, plan.name, plan.finished_rows
        asyncio.run(_call(plan.cluster, "pipeline/begin_write", *begun))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        """One task."""
        context = TaskContext.get()
        number = context.partitionId() if context is not None else 0
        if self.plan.rejects is not None:
            require_prepared(self.plan.rejects, self.plan.run_id)
        with asyncio.Runner() as runner:
            return runner.run(_Task(self.plan, number).run(iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish the rejected rows and record the end of the write: all tasks have succeeded."""
        plan = self.plan
        total = _Total.of(messages)
        if plan.rejects is not None:
            publish(plan.rejects, plan.run_id, total.rejects_names)
        asyncio.run(_call(plan.cluster, "pipeline/end_write", plan.run_id, total.offered, total.rejected))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Discard the files of rejected rows: a task has failed. Inserted jobs stay; a repeated write completes the batch."""
        if self.plan.rejects is not None:
            discard(self.plan.rejects, self.plan.run_id)


class JobMasterStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a streaming query as jobs, each row once. Created for every micro-batch, by the driver.

    Args:
        cluster: found by the driver; executors may lack its environment.
    """

    def __init__(self, options: Mapping[str, str], cluster: ClusterRef) -> None:
        self._options = options
        self._cluster = cluster
        self._rejects = shared_path(options["rejects"]) if options.get("rejects") else None

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        """One task."""
        context = TaskContext.get()
        assert context is not None
        query, number = (context.getLocalProperty(name) for name in (_QUERY, _MICRO_BATCH))
        if query is None or number is None:
            raise Unavailable(
                "Spark does not name the query and the micro-batch of this task", hint="run Spark 4.1 or later"
            )
        plan = stream_plan(self._options, self._cluster, StreamBatch(query, int(number)))._replace(
            rejects=self._rejects
        )
        asyncio.run(_call(plan.cluster, "pipeline/begin_write", plan.run_id, plan.batch, plan.name, 0))
        with asyncio.Runner() as runner:
            return runner.run(_Task(plan, context.partitionId()).run(iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Publish the rejected rows and record the end. Spark may repeat a micro-batch that is committed."""
        total = _Total.of(messages)
        if total.run_id is None:
            return  # no row came
        if self._rejects is not None and total.rejects_names:
            publish(self._rejects, total.run_id, total.rejects_names)
        asyncio.run(
            _call(
                self._cluster,
                "pipeline/end_stream_batch",
                *(total.run_id, total.offered, total.rejected, total.batch),
            )
        )

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Discard the files of rejected rows of the tasks that ended. The micro-batch runs again with the next start."""
        run_id = _Total.of(messages).run_id
        if self._rejects is not None and run_id is not None:
            discard(self._rejects, run_id)


class _Total(NamedTuple):
    """What all tasks of a run have done."""

    offered: int
    rejected: int
    rejects_names: list[str]
    batch: str | None
    run_id: str | None
    """``None``: there was no task."""

    @classmethod
    def of(cls, messages: list[WriterCommitMessage | None]) -> _Total:
        done = [message for message in messages if isinstance(message, TaskResult)]
        return cls(
            sum(message.offered for message in done),
            sum(message.rejected for message in done),
            [message.rejects_name for message in done if message.rejects_name is not None],
            done[0].batch if done else None,
            done[0].run_id if done else None,
        )


async def _call(cluster: ClusterRef, name: str, *values: object) -> None:
    connections = ConnectionPool(cluster.connection_factory(), 1)
    try:
        await StatementRunner(connections).write(name, *values)
    finally:
        await connections.close()


class _Task:
    """One task: parses batches and inserts jobs in chunks."""

    def __init__(self, plan: WritePlan, number: int) -> None:
        self._plan = plan
        self._rows = RowParser(plan.rules)
        factory, part = plan.cluster.connection_factory(), Part(plan.run_id, number)
        self._importer = Importer(factory, part, plan.source, connections=plan.connections, brake=plan.brake)
        self._files = FileTracker()
        self._inserted = self._sent = self._rejected = 0

    async def run(self, batches: Iterator[pa.RecordBatch]) -> TaskResult:
        plan = self._plan
        name = f"part-{plan.run_id}-{self._importer.part.number:05d}-{new_id().hex()[-8:]}.parquet"
        file = RejectsFile(plan.rejects, plan.run_id, plan.batch, name) if plan.rejects is not None else None
        rows = plan.chunk_rows
        try:
            for batch in batches:
                for start in range(0, batch.num_rows, rows):
                    chunk = batch.slice(start, rows)
                    jobs, rejects = self._rows.read_plain(chunk) or self._rows.read(chunk)
                    self._rejected += len(rejects)
                    if rejects:
                        self._keep(file, rejects)
                    await self._send(jobs, chunk.num_rows - len(rejects))
                    await self._finish(self._files.written(chunk, len(rejects)))
            await self._finish(self._files.ended())
            if file is not None:
                file.close()
        finally:
            await self._importer.close()
        rejects_name = file.name if file is not None else None
        offered = self._sent + self._rejected
        return TaskResult(offered, self._inserted, self._rejected, rejects_name, plan.batch, plan.run_id)

    async def _finish(self, files: list[FinishedFile]) -> None:
        if files:
            await self._importer.finish_files(self._plan.name, [one.file for one in files], [one.rows for one in files])

    def _keep(self, file: RejectsFile | None, rejects: list[RejectedRow]) -> None:
        if file is None:
            first = rejects[0]
            raise InputError(
                f"row {first.key!r} for handler {first.handler!r} is refused: {first.reason}",
                hint="set option rejects to a directory: refused rows go there with their reasons, the others are written",
            )
        try:
            file.add(rejects)
        except OSError as error:
            raise Unavailable(f"refused rows cannot be written to {self._plan.rejects}: {error}") from error

    async def _send(self, jobs: PlainRows | list[NewJob], count: int) -> None:
        """Insert the jobs of ``count`` rows. Of rows with the same key the first counts, as it does across chunks."""
        plan = self._plan
        if count == 0:
            return
        if isinstance(jobs, list):  # one statement cannot insert a row twice
            jobs = list({job.id: job for job in reversed(jobs)}.values())
        await self._importer.wait_for_permission(jobs)
        if plan.rows_per_second is not None:
            await self._importer.wait_for_turn(plan.batch, count / plan.rows_per_second)
        self._sent += count
        handled = self._sent + self._rejected
        if isinstance(jobs, list):
            inserted = await self._importer.insert(jobs, self._rows.unique, handled)
        else:
            inserted = await self._importer.insert_columns(jobs, handled)
        self._inserted += inserted.new
        # An earlier attempt of this task may have inserted some of the rows, and counted them.
        if plan.refuse_duplicates and inserted.of_task < self._sent:
            raise Conflict(
                f"{self._sent - inserted.of_task} of {self._sent} rows are there already, or twice in the data",
                hint="leave onDuplicate at ignore to go on past them",
            )
