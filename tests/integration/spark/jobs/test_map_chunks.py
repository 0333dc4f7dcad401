"""Chunks of ``spark_map`` in a real Spark, through a socket as an agent has it."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from jobmaster.pipeline.jobs import map_chunks
from jobmaster.pipeline.jobs.map_chunks import LENGTH, answer_chunks, packed
from jobmaster.pipeline.jobs.map_functions import DeclaredMap
from jobmaster.pipeline.jobs.orders import MapAnswer, MapRow

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.spark]
FATAL = 13
TOO_LARGE = 2**63


class Number(msgspec.Struct):
    n: int


def double(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
    """Twice each number. One number ends the process, as a fault of native code would."""
    import pyarrow as pa

    for batch in batches:
        rows = batch.to_pylist()
        if any(row["n"] == FATAL for row in rows):
            os._exit(3)
        yield pa.RecordBatch.from_pylist([{"job_id": row["job_id"], "twice": 2 * row["n"]} for row in rows])


DECLARED = DeclaredMap(Number, dict[str, int], {"n": int}, "`n` bigint")


def answered(spark: SparkSession, path: Path, *chunks: list[int]) -> Iterator[list[MapAnswer]]:
    """The answers to each chunk; the jobs are named by their places."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        driver = threading.Thread(target=answer_chunks, args=(spark, double, DECLARED, str(path)))
        driver.start()
        link, _ = server.accept()
        with link, link.makefile("rb") as answers:
            for chunk in chunks:
                link.sendall(packed([MapRow(str(place), {"n": n}) for place, n in enumerate(chunk)]))
                (length,) = LENGTH.unpack(answers.read(LENGTH.size))
                yield msgspec.json.decode(answers.read(length), type=list[MapAnswer])
            link.shutdown(socket.SHUT_RDWR)
        driver.join()


def test_a_row_that_ends_python_or_that_spark_cannot_hold_fails_alone(spark: SparkSession, server_root: Path) -> None:
    numbers = [0, FATAL, 2, TOO_LARGE]
    first, second = answered(spark, server_root / "chunks", numbers, [8, 9])
    errors = {answer.job: answer.error.message for answer in first if answer.error is not None}
    assert errors.keys() == {str(numbers.index(FATAL)), str(numbers.index(TOO_LARGE))}
    assert "Python worker exited unexpectedly" in errors[str(numbers.index(FATAL))]
    assert str(TOO_LARGE) in errors[str(numbers.index(TOO_LARGE))]
    results = {numbers[int(one.job)]: msgspec.json.decode(one.result) for one in first if one.error is None}
    assert results == {n: {"twice": 2 * n} for n in numbers if n not in (FATAL, TOO_LARGE)}
    assert len(first) == len(numbers)
    assert [msgspec.json.decode(one.result) for one in second] == [{"twice": 16}, {"twice": 18}], (
        "the application goes on"
    )


def test_without_end_a_chunk_is_not_halved(
    spark: SparkSession, server_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(map_chunks, "FAILURES_MAX", 1)
    (answers,) = answered(spark, server_root / "limited", [FATAL, 1, 2, 3])
    assert [answer.job for answer in answers if answer.error is not None] == ["0", "1"]
