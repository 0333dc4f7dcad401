"""The whole history as a DataFrame whose archived part Spark reads by itself.

Spark reads Parquet with only the columns, row groups and days that a query needs. A source in Python, such as the table
``history``, is not told what a query needs. The jobs in the master come from ``table_frame``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from jobmaster.pipeline.datasource.history_reader import COLUMN_OF_FILTER, HistoryReader
from jobmaster.pipeline.datasource.read_options import read_options, read_plan
from jobmaster.pipeline.datasource.selection import HIGHEST, LOWEST, Selection
from jobmaster.pipeline.datasource.tables import HISTORY
from jobmaster.pipeline.table_frame import table_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def history_frame(spark: SparkSession, options: Mapping[str, str] | None = None) -> DataFrame:
    """Every job once, as in the table ``history``.

    Args:
        options: of a read of that table, such as ``dsnEnv``, ``columns``, ``states``, ``since``.

    Raises:
        InputError: an option is wrong. Unavailable: the master cannot be reached.

    A query on it raises ``Refused`` when a range has left the master since: make the DataFrame anew.
    """
    from pyspark.sql.types import StructType

    given = {**(options or {}), "table": HISTORY}
    found = read_options(given)
    columns = found.columns
    ddl = found.table.ddl(columns)
    plan = read_plan(found, StructType.fromDDL(ddl))
    reader = HistoryReader(plan)
    with ThreadPoolExecutor(1) as thread:  # the caller may have a running event loop, as every notebook has
        files, digest = thread.submit(lambda: asyncio.run(reader.archived_files())).result()
    live = table_frame(spark, {**given, "archived": digest})
    if not files:
        return live
    needed = list(dict.fromkeys([*columns, "id", *(COLUMN_OF_FILTER[one] for one in plan.selection.filters)]))
    urls = [f"{one.lake}/{one.path}" for one in files]
    archived = spark.read.schema(found.table.ddl(needed)).parquet(*urls)
    return _chosen(archived, plan.selection).select(*columns).unionAll(live)


def _chosen(frame: DataFrame, selection: Selection) -> DataFrame:
    from pyspark.sql import functions as F

    # Ids in text form have the order of the ids.
    if selection.low > LOWEST:
        frame = frame.where(F.col("id") >= str(selection.low))
    if selection.high < HIGHEST:
        frame = frame.where(F.col("id") < str(selection.high))
    for option, words in selection.filters.items():
        frame = frame.where(F.col(COLUMN_OF_FILTER[option]).isin(list(words)))
    return frame
