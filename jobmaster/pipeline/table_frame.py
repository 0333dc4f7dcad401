"""A table of the source as a DataFrame whose queries read no more than they need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from jobmaster.pipeline.datasource.narrowing import narrowed
from jobmaster.pipeline.datasource.read_options import COUNTED, read_options
from jobmaster.pipeline.datasource.tables import FLAG, INT, LONG, SHORT, TEXT, TIME
from jobmaster.pipeline.spark.prunable import Demand, prunable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CHEAPEST_FIRST = (FLAG, SHORT, INT, LONG, TIME, TEXT)


def table_frame(spark: SparkSession, options: Mapping[str, str] | None = None) -> DataFrame:
    """A table, as ``spark.read.format("jobmaster")`` with these options has it.

    Of it the master sends each query the columns that the query names, and of the rows those that its comparisons of state,
    handler, lane, priority, bucket, id and time of creation leave. In a session of Spark Connect it sends all of them.

    Args:
        options: of a read, such as ``dsnEnv``, ``table``, ``since``.

    Raises:
        InputError: an option is wrong.
    """
    # Spark does not mind the case of the names of options.
    given = {name.lower(): value for name, value in (options or {}).items()}
    found = read_options(given)

    def load(demand: Demand) -> DataFrame:
        narrow = narrowed(found.table, given, demand.comparisons)
        columns = found.columns if demand.columns is None else demand.columns
        if not columns:
            # A source has one column at least.
            narrow[COUNTED] = "true"
            columns = (min(found.columns, key=lambda name: _CHEAPEST_FIRST.index(found.table.type_of(name))),)
        return spark.read.format("jobmaster").options(**{**narrow, "columns": ",".join(columns)}).load()

    return prunable(spark, spark.read.format("jobmaster").options(**given).load(), load)
