"""What an executor does for ``spark_map``: call the function over record batches, and make one answer for each job of them.

An answer has three columns, which are the same for every function: the job, its error and its result, the last two as JSON.
So a value that does not fit the declared result is the error of one job, and no other job of the batch has it.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from jobmaster.pipeline.jobs.driver_errors import DriverError, described

if TYPE_CHECKING:
    from pyarrow import RecordBatch

JOB, ERROR = "job_id", "error"
ANSWER_COLUMNS = "job string, error string, result string"
"""In Spark's words."""
_Answer = tuple[str, str | None, str | None]
MapFunction = Callable[[Iterator["RecordBatch"]], Iterator["RecordBatch"]]


class RowError(Exception):
    """What the function has yielded is no answer."""


class RowMapper(NamedTuple):
    """The function as one that answers for each job."""

    function: MapFunction
    result: Any
    """Type of a result."""

    def answers(self, batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
        """For ``DataFrame.mapInArrow``. An error of the function is that of the jobs that it has in hand; for the
        batches that are left it is called again."""
        given = _Given(batches)
        while not given.ended:
            seen = given.count
            error = DriverError("", "the function has yielded no row for this job")
            try:
                for batch in self.function(given.batches()):
                    answered, wrong = self._answered(batch, given)
                    yield _record_batch(answered)
                    if wrong is not None:
                        raise wrong
                if given.count == seen and not given.ended:
                    raise RowError("the function has ended before it took a record batch")
            except Exception as raised:  # foreign code
                traceback.print_exc()
                error = described(raised)
                if given.count == seen:
                    given.take_all()  # it would end in the same way again
            text = msgspec.json.encode(error).decode()
            yield _record_batch([(job, text, None) for job in given.open])
            given.open.clear()

    def _answered(self, batch: RecordBatch, given: _Given) -> tuple[list[_Answer], RowError | None]:
        """The answers in a record batch of the function, up to a row that is none."""
        if JOB not in batch.schema.names:
            return [], RowError(f"the function has yielded rows without the column {JOB!r}, which its input has")
        answered: list[_Answer] = []
        for row in batch.to_pylist(maps_as_pydicts="strict"):
            job, error = row.pop(JOB), row.pop(ERROR, None)
            if job not in given.open:
                return answered, RowError(f"the function has yielded a row for job {job}, which waits for none")
            given.open.discard(job)
            answered.append(self._failed(job, str(error)) if error is not None else self._succeeded(job, row))
        return answered, None

    def _succeeded(self, job: str, row: dict[str, Any]) -> _Answer:
        try:
            text = msgspec.json.encode(msgspec.convert(row, self.result))
            msgspec.json.decode(text, type=self.result)  # JSON has no NaN: it would be found when the agent reads it
            return job, None, text.decode()
        except (msgspec.ValidationError, TypeError, ValueError) as wrong:
            return self._failed(job, f"the row of this job is not of the declared result: {wrong}")

    @staticmethod
    def _failed(job: str, message: str) -> _Answer:
        return job, msgspec.json.encode(DriverError("", message)).decode(), None


class _Given:
    """Record batches as the function takes them, and the jobs of them that have no answer yet."""

    def __init__(self, batches: Iterator[RecordBatch]) -> None:
        self._batches = iter(batches)
        self.open: set[str] = set()
        self.count = 0
        """Batches that were taken."""
        self.ended = False

    def batches(self) -> Iterator[RecordBatch]:
        """For one call of the function."""
        for batch in self._batches:
            self.open.update(batch.column(JOB).to_pylist())
            self.count += 1
            yield batch
        self.ended = True

    def take_all(self) -> None:
        """Take what is left."""
        for _ in self.batches():
            pass


def _record_batch(rows: list[_Answer]) -> RecordBatch:
    import pyarrow as pa

    columns = [pa.array([row[place] for row in rows], pa.string()) for place in range(3)]
    return pa.RecordBatch.from_arrays(columns, names=["job", "error", "result"])
