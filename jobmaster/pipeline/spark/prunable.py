"""A source in Python as a table of which Spark's planner asks only the columns and rows that a query needs.

Spark asks a source in Python for all of its columns, and keeps the filters that it has passed to one for later queries.
Sources in Java have interfaces for both. Here objects of this process implement them: Py4J passes the calls of the planner,
as it passes those of ``foreachBatch``. For each query the planner gets the scan of a source that was loaded for it alone. The
executors run the same readers as ever.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from jobmaster.clock import new_id
from jobmaster.pipeline.datasource.narrowing import Comparison, Operator
from jobmaster.pipeline.datasource.selection import EARLIEST

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CONNECTOR = "org.apache.spark.sql.connector"
_INT_MAX = (1 << 31) - 1
_OPERATORS = {
    "EqualTo": Operator.ONE_OF,
    "EqualNullSafe": Operator.ONE_OF,
    "In": Operator.ONE_OF,
    "GreaterThan": Operator.FROM,
    "GreaterThanOrEqual": Operator.FROM,
    "LessThan": Operator.TO,
    "LessThanOrEqual": Operator.TO,
}
"""By the name of the class of a filter. Others, such as IsNotNull and Or, are left to Spark."""


class Demand(NamedTuple):
    """What a query needs of a table."""

    columns: tuple[str, ...] | None
    """Empty: only the number of rows. ``None``: the planner did not say."""
    comparisons: tuple[Comparison, ...]


class _Implementation:
    """An object of this process behind interfaces of Java."""

    def __init__(self, interfaces: Sequence[str], methods: Mapping[str, Callable[..., Any]]) -> None:
        self.Java = SimpleNamespace(implements=[f"{_CONNECTOR}.{name}" for name in interfaces])
        self._methods = methods

    def __getattr__(self, name: str) -> Callable[..., Any]:
        try:
            return self._methods[name]
        except KeyError:
            raise AttributeError(name) from None


def prunable(spark: SparkSession, whole: DataFrame, load: Callable[[Demand], DataFrame]) -> DataFrame:
    """A DataFrame like ``whole`` whose queries read no more than they need.

    Args:
        whole: what a source in Python has loaded, and nothing else.
        load: loads what a query needs: at least these columns, by their names in ``whole``, and at least these rows.

    Returns:
        ``whole`` itself in a session of Spark Connect, whose planner is in another process; and, with a warning, in a Spark
        without the classes that this module was written for.
    """
    session = getattr(spark, "_jsparkSession", None)
    if session is None:
        return whole
    from py4j.protocol import Py4JError

    try:
        return _planned(spark, session, whole, load)
    except (Py4JError, TypeError) as error:  # a class or method is not there: TypeError is of a package that is called
        warnings.warn(
            f"Spark {spark.version} does not let the planner ask for columns and rows, so queries of this table read all of "
            f"them: {' '.join(str(error).split())[:200]}",
            RuntimeWarning,
            stacklevel=3,
        )
        return whole


def _planned(spark: SparkSession, session: Any, whole: DataFrame, load: Callable[[Demand], DataFrame]) -> DataFrame:
    from pyspark.java_gateway import ensure_callback_server_started
    from pyspark.sql import DataFrame

    gateway: Any = spark.sparkContext._gateway
    ensure_callback_server_started(gateway)
    relation = _relation(whole)
    table = _table(gateway, relation.table(), load)
    copy = relation.copy(
        table,
        relation.output(),
        relation.catalog(),
        relation.identifier(),
        relation.options(),
        relation.timeTravelSpec(),
    )
    datasets = getattr(gateway.jvm.org.apache.spark.sql.classic, "Dataset$").__getattr__("MODULE$")
    return DataFrame(datasets.ofRows(session, copy), spark)


def _relation(frame: Any) -> Any:
    return frame._jdf.queryExecution().analyzed()


def _table(gateway: Any, real: Any, load: Callable[[Demand], DataFrame]) -> _Implementation:
    """The interface ``Table``. The planner compares tables, and gets this one back as an object of Java."""
    identity = f"jobmaster {new_id().hex()}"
    number = hash(identity) & _INT_MAX
    capabilities = gateway.jvm.org.apache.spark.sql.connector.catalog.TableCapability

    def equals(other: Any) -> bool:
        return other is not None and bool(other.hashCode() == number and other.toString() == identity)

    return _Implementation(
        ("catalog.Table", "catalog.SupportsRead"),
        {
            "name": real.name,
            "id": real.id,
            "schema": real.schema,
            "columns": real.columns,
            "partitioning": real.partitioning,
            "properties": real.properties,
            "constraints": real.constraints,
            "version": real.version,
            "capabilities": lambda: gateway.jvm.java.util.EnumSet.of(capabilities.BATCH_READ),
            "newScanBuilder": lambda _: _builder(gateway, load),
            "equals": equals,
            "hashCode": lambda: number,
            "toString": lambda: identity,
        },
    )


def _builder(gateway: Any, load: Callable[[Demand], DataFrame]) -> _Implementation:
    """The interfaces of a ``ScanBuilder``, of one query. Spark applies all filters again."""
    found = [Demand(None, ())]

    def push(filters: Any) -> Any:
        comparisons = tuple(one for one in map(comparison_of, filters) if one is not None)
        found[0] = found[0]._replace(comparisons=comparisons)
        return filters

    def prune(schema: Any) -> None:
        found[0] = found[0]._replace(columns=tuple(schema.fieldNames()))

    def build() -> Any:
        relation = _relation(load(found[0]))
        return relation.table().newScanBuilder(relation.options()).build()

    return _Implementation(
        ("read.SupportsPushDownFilters", "read.SupportsPushDownRequiredColumns"),
        {
            "pushFilters": push,
            "pushedFilters": lambda: gateway.new_array(gateway.jvm.org.apache.spark.sql.sources.Filter, 0),
            "pruneColumns": prune,
            "build": build,
        },
    )


def comparison_of(one: Any) -> Comparison | None:
    """The comparison that a filter of Spark, an object of Java, is; ``None`` for any other condition."""
    kind = one.getClass().getSimpleName()
    operator = _OPERATORS.get(kind)
    if operator is None:
        return None
    values = one.values() if kind == "In" else (one.value(),)
    return Comparison(one.attribute(), operator, tuple(map(_plain, values)))


def _plain(value: Any) -> object:
    """A text, number or ``datetime`` for a value of Java; the milliseconds of a time, rounded down."""
    kind = value.getClass().getName() if hasattr(value, "getClass") else ""
    if kind == "java.sql.Timestamp":
        return _moment(value.getTime())
    if kind == "java.time.Instant":
        return _moment(value.toEpochMilli())
    return value


def _moment(milliseconds: int) -> datetime | None:
    try:
        return EARLIEST + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None
