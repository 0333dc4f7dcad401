"""The driver's side of ``spark_map``: chunks of rows come through a socket, each of them is one Spark job, and its answers go
back. The end of the connection is the end of the application."""

from __future__ import annotations

import struct
import traceback
from datetime import date, datetime
from socket import AF_UNIX, socket
from typing import TYPE_CHECKING, Any

import msgspec

from jobmaster.pipeline.jobs.driver_errors import DriverError, described
from jobmaster.pipeline.jobs.map_rows import ANSWER_COLUMNS, JOB, RowMapper
from jobmaster.pipeline.jobs.orders import MapAnswer, MapRow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from jobmaster.pipeline.jobs.map_functions import DeclaredMap
    from jobmaster.pipeline.jobs.map_rows import MapFunction

LENGTH = struct.Struct(">I")
"""Stands before each message."""
FAILURES_MAX = 50
"""Spark jobs of one chunk that may fail and be tried again in halves; enough for four such rows among a thousand."""
_NATIVE = (datetime, date, bytes)
"""Types that Spark takes as they are."""


def packed(message: list[MapRow] | list[MapAnswer]) -> bytes:
    """A message as it goes through the socket."""
    text = msgspec.json.encode(message)
    return LENGTH.pack(len(text)) + text


def answer_chunks(spark: SparkSession, function: MapFunction, declared: DeclaredMap, path: str) -> None:
    """Answer what comes through the agent's socket, until the agent closes it.

    Raises:
        PySparkException: a Spark job has failed as a whole.
    """
    with socket(AF_UNIX) as link:
        link.connect(path)
        while (text := _message(link)) is not None:
            rows = msgspec.json.decode(text, type=list[MapRow])
            link.sendall(packed(_answers(spark, RowMapper(function, declared.result), declared, rows)))


def _answers(spark: SparkSession, mapper: RowMapper, declared: DeclaredMap, rows: list[MapRow]) -> list[MapAnswer]:
    """Answers to all rows. A part that fails as a whole is tried again in halves, so that a row that ends the Python of an
    executor, or that Spark cannot hold, is found and fails alone.

    Raises:
        Exception: Spark itself has ended.
    """
    answers: list[MapAnswer] = []
    parts, failures = [rows], 0
    while parts:
        part = parts.pop()
        try:
            answers += _mapped(spark, mapper, declared, part)
        except Exception as error:  # foreign code, or Spark's
            failures += 1
            spark.range(1).count()  # without Spark the application ends, and another one answers
            if len(part) > 1 and failures <= FAILURES_MAX:
                middle = len(part) // 2
                parts += (part[middle:], part[:middle])
                continue
            traceback.print_exc()
            answers += (MapAnswer(row.job, _cause(error), msgspec.Raw(b"null")) for row in part)
    return answers


def _cause(error: Exception) -> DriverError:
    """An error of Spark, whose text may be a stack of Java: its first cause names the task and what ended it."""
    causes = [line for line in str(error).splitlines() if line.startswith("Caused by: ")]
    return DriverError("", causes[0].removeprefix("Caused by: ")) if causes else described(error)


def _mapped(spark: SparkSession, mapper: RowMapper, declared: DeclaredMap, rows: list[MapRow]) -> list[MapAnswer]:
    """Answers of one Spark job."""
    values = [(row.job, *_values(declared, row.arguments)) for row in rows]
    frame = spark.createDataFrame(values, f"{JOB} string, {declared.columns}")
    found = frame.mapInArrow(mapper.answers, ANSWER_COLUMNS).toArrow()
    return [
        MapAnswer(
            each["job"],
            None if each["error"] is None else msgspec.json.decode(each["error"], type=DriverError),
            msgspec.Raw((each["result"] or "null").encode()),
        )
        for each in found.to_pylist()
    ]


def _values(declared: DeclaredMap, arguments: dict[str, Any]) -> list[Any]:
    row: Any = msgspec.convert(arguments, declared.row)
    return [msgspec.to_builtins(getattr(row, name), builtin_types=_NATIVE) for name in declared.names]


def _message(link: socket) -> bytes | None:
    head = _exactly(link, LENGTH.size)
    return None if head is None else _exactly(link, LENGTH.unpack(head)[0])


def _exactly(link: socket, count: int) -> bytes | None:
    found = bytearray()
    while len(found) < count:
        part = link.recv(count - len(found))
        if not part:
            return None
        found += part
    return bytes(found)
