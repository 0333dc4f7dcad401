"""The data source ``jobmaster``: Spark's view of a cluster.

Every user of Spark in an environment imports this module (Spark looks for a source in each ``pyspark_*`` package), so it
imports only what its name needs; methods import the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


class JobMasterSource(DataSource):
    """``spark.read.format("jobmaster").option("dsn", ...).option("table", "jobs").load()``

    Options are described in the pipeline's page of the documentation; ``read_options`` lists them.
    """

    @classmethod
    def name(cls) -> str:
        return "jobmaster"

    def schema(self) -> StructType | str:
        """Columns of the table, or those of option ``columns``."""
        from jobmaster.pipeline.datasource.read_options import read_options, schema_with_options

        options = read_options(self.options)
        if "provider" in self.options:
            return schema_with_options(options.table, options.columns, self.options)
        return options.table.ddl(options.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads the columns of ``schema``."""
        from jobmaster.pipeline.datasource.batch_reader import JobMasterReader
        from jobmaster.pipeline.datasource.read_options import options_of_schema, read_options, read_plan
        from jobmaster.pipeline.datasource.tables import HISTORY

        kept = options_of_schema(schema)
        # The options of Spark do not mind the case of names; a plain mapping of them would.
        options = read_options(type(self.options)({**kept, **self.options}) if kept else self.options)
        kind: Any = JobMasterReader
        if options.table.name == HISTORY:
            from jobmaster.pipeline.datasource.history_reader import HistoryReader

            kind = HistoryReader
        reader: DataSourceReader = kind(read_plan(options, schema))
        return reader

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Reads rows recorded since the last batch: jobs that ended, attempts, events."""
        from jobmaster.model.errors import InputError
        from jobmaster.pipeline.datasource.read_options import read_options, read_plan
        from jobmaster.pipeline.datasource.stream_reader import JobMasterStreamReader
        from jobmaster.pipeline.datasource.tables import RECORDED

        options = read_options(self.options)
        if options.table.name not in RECORDED:
            raise InputError(
                f"table {options.table.name!r} cannot be read as a stream", hint=f"these can: {', '.join(RECORDED)}"
            )
        plan = read_plan(options, schema, streams=True)
        return JobMasterStreamReader(plan._replace(snapshot=None))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Writes rows as jobs; only ``mode("append")``."""
        from jobmaster.model.errors import InputError
        from jobmaster.pipeline.datasource.write_options import write_plan
        from jobmaster.pipeline.datasource.writer import JobMasterWriter

        if overwrite:
            raise InputError("jobs are not overwritten", hint='use .mode("append")')
        writer: DataSourceWriter = JobMasterWriter(write_plan(self.options, schema))
        return writer

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Writes rows of a streaming query as jobs; only ``outputMode("append")``."""
        from jobmaster.model.errors import InputError
        from jobmaster.pipeline.datasource.write_options import check_stream
        from jobmaster.pipeline.datasource.writer import JobMasterStreamWriter

        if overwrite:
            raise InputError("jobs are not overwritten", hint='use .outputMode("append")')
        return JobMasterStreamWriter(self.options, check_stream(self.options, schema))
