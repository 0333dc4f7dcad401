"""The driver's side of ``spark_map``: chunks of rows come through a socket, each of them is one Spark job, and its answers go
back. The end of the connection is the end of the application."""

from __future__ import annotations

import dataclasses
import struct
import traceback
from collections.abc import Iterable
from datetime import UTC, datetime
from socket import AF_UNIX, socket
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from jobmaster.pipeline.jobs.driver_errors import DriverError, described
from jobmaster.pipeline.jobs.map_rows import ANSWER_COLUMNS, JOB, RowMapper
from jobmaster.pipeline.jobs.orders import MapAnswer, MapRow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from jobmaster.pipeline.jobs.map_functions import DeclaredMap
    from jobmaster.pipeline.jobs.map_rows import MapFunction

LENGTH = struct.Struct(">Q")
"""Stands before each message."""
FAILURES_MAX = 50
"""Spark jobs of one chunk that may fail and be tried again in halves: enough to find five such rows among a thousand."""
_BIGINT = range(-(2**63), 2**63)
_Values = tuple[Any, ...]


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
    """Answers to all rows. A row that is none fails before Spark has it. A part that fails in Spark as a whole is tried again
    in halves, so that a row that ends the Python of an executor is found and fails alone.

    Raises:
        Exception: Spark itself has ended.
    """
    answers: list[MapAnswer] = []
    given: list[_Values] = []
    for row in rows:
        try:
            given.append((row.job, *_values(declared, row.arguments)))
        except (msgspec.ValidationError, TypeError, ValueError) as error:
            answers.append(_failed(row.job, DriverError("", f"the arguments are no row: {error}")))
    parts, failures = [given] if given else [], 0
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
            answers += (_failed(job, _cause(error)) for job, *_ in part)
    return answers


def _failed(job: str, error: DriverError) -> MapAnswer:
    return MapAnswer(job, error, msgspec.Raw(b"null"))


def _cause(error: Exception) -> DriverError:
    """An error of Spark, whose text may be a stack of Java: its first cause names the task and what ended it."""
    causes = [line for line in str(error).splitlines() if line.startswith("Caused by: ")]
    return DriverError("", causes[0].removeprefix("Caused by: ")) if causes else described(error)


def _mapped(
    spark: SparkSession, mapper: RowMapper, declared: DeclaredMap, values: Iterable[_Values]
) -> list[MapAnswer]:
    """Answers of one Spark job."""
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
    """The columns of one row. The arguments have the names of the fields, which an encoder may have under other names.

    Raises:
        ValidationError, TypeError, ValueError: they do not fit the declared row, or Spark cannot hold a value.
    """
    row = declared.row(**{name: msgspec.convert(value, declared.types[name]) for name, value in arguments.items()})
    return [_native(getattr(row, name)) for name in declared.types]


def _native(value: Any) -> Any:
    """A value as Spark takes it. A time without a zone is one of UTC, whatever the zone of this machine is."""
    match value:
        case bool():
            return value
        case int() if value not in _BIGINT:
            raise ValueError(f"Spark cannot hold {value}: whole numbers have 64 bits")
        case datetime() if value.tzinfo is None:
            return value.replace(tzinfo=UTC)
        case UUID():
            return str(value)
        case list():
            return [_native(item) for item in value]
        case dict():
            return {key: _native(item) for key, item in value.items()}
    if (names := _field_names(value)) is not None:
        return {name: _native(getattr(value, name)) for name in names}
    return value


def _field_names(value: object) -> tuple[str, ...] | None:
    """Fields of a struct or a dataclass; ``None``: it is neither."""
    if isinstance(value, msgspec.Struct):
        return value.__struct_fields__
    if dataclasses.is_dataclass(value):
        return tuple(field.name for field in dataclasses.fields(value))
    return None


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
