"""Tables and queries of any PostgreSQL as DataFrames, without JDBC: the data source ``jobmaster_postgres``.

One COPY, one task: for a query of a foreign database no way to divide it is known to be correct.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

BLOCK_BYTES = 4 * 1024 * 1024
OPTIONS = ("url", "dsn", "dbtable", "query")


class ForeignQuery(NamedTuple):
    """What is read, and from where."""

    dsn: str
    text: str
    columns: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        return f"ForeignQuery({self.text!r})"


class PostgresSource(DataSource):
    """``spark.read.format("jobmaster_postgres").option("url", ...).option("dbtable", "public.orders").load()``"""

    @classmethod
    def name(cls) -> str:
        return "jobmaster_postgres"

    def schema(self) -> str:
        """Columns as the server names them; types that Spark lacks come as text."""
        return ", ".join(f"`{name}` {kind}" for name, kind in self._query().columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads all columns."""
        return PostgresReader(self._query())

    def _query(self) -> ForeignQuery:
        from jobmaster.master.history.foreign_db import describe, query_of
        from jobmaster.model.errors import InputError
        from jobmaster.pipeline.datasource.cluster_ref import address_of
        from jobmaster.pipeline.datasource.read_options import refuse_unknown

        refuse_unknown(self.options, OPTIONS)
        dsn = address_of(self.options)
        if not dsn:
            raise InputError("the source needs option url", hint="such as postgresql://user:password@host/database")
        text = query_of(self.options.get("dbtable"), self.options.get("query"))
        return ForeignQuery(dsn, text, asyncio.run(describe(dsn, text)))


class PostgresReader(DataSourceReader):
    """One task."""

    def __init__(self, query: ForeignQuery) -> None:
        self.query = query

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """All rows."""
        import pyarrow as pa

        from jobmaster.master.history.foreign_db import copy_query
        from jobmaster.pipeline.datasource.copy_to_arrow import CopyStream, Output, arrow_type

        async def copy(output: Output) -> None:
            await copy_query(self.query.dsn, self.query.text, output)

        schema = pa.schema([pa.field(name, arrow_type(kind)) for name, kind in self.query.columns])
        return CopyStream(copy, BLOCK_BYTES).batches(schema, "the query")
