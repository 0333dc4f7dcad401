"""Input data of ``submit``: files, a table or query of a PostgreSQL, or a query over files; as a DataFrame."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from jobmaster.model.errors import InputError
from jobmaster.pipeline.spark.errors import run_spark
from jobmaster.settings.masking import mask_secrets
from jobmaster.settings.urls import is_dsn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS = ("csv", "json", "parquet", "orc")
_ENDINGS = {
    ".csv": "csv", ".csv.gz": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".json.gz": "json",
    ".jsonl.gz": "json", ".parquet": "parquet", ".orc": "orc",
}  # fmt: skip
_CONNECT = "pyspark.sql.connect."
_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*:/")
_FILE_URL = re.compile(r"^file:(//)?(?=/)")
_USER = re.compile(r"(?i)(?<=[?&])(user|password)=[^&]*&?")
_VIEW = re.compile(r"^(?P<name>[A-Za-z_]\w*)=(?P<path>.+)$")
CORRUPT = "_corrupt_record"


class SourceSpec(NamedTuple):
    """The source of the rows."""

    place: str | None
    """A path or URL of files, or ``postgresql://`` of a database; ``None`` with ``sql`` over ``views``."""
    format: str | None = None
    """Of files; ``None``: by the file name's suffix."""
    table: str | None = None
    """Of a database."""
    sql: str | None = None
    """A query: of the database, or over the files (view ``source``) and the other views."""
    views: tuple[str, ...] = ()
    """``name=path`` of further files for the query."""
    options: Mapping[str, str] = {}
    """For Spark's reader of the format."""

    @property
    def is_text(self) -> bool:
        """Every value is text (CSV)."""
        return self.sql is None and self.place is not None and self.kind == "csv"

    @property
    def kind(self) -> str:
        """Format of the files, or ``postgresql``.

        Raises:
            InputError: the suffix of the name is unknown.
        """
        assert self.place is not None
        return "postgresql" if is_dsn(self.place) else format_of(self.place, self.format)

    @property
    def description(self) -> str:
        """Description for the name of a source, without user and password; ``located`` makes all spellings the same."""
        words = ["query"] if self.place is None else [self.place]
        if self.place is not None and is_dsn(self.place):
            words = [f"postgresql://{_without_user(self.place)}", self.table or ""]
        return " ".join(filter(None, [*words, self.sql, *self.views]))

    @property
    def earlier_descriptions(self) -> tuple[str, ...]:
        """What earlier versions made of it: paths as they were typed, an address with a user without its scheme, no views."""
        if self.place is None:
            return (f"query {self.sql}",)
        if is_dsn(self.place):
            scheme, _, rest = self.place.partition("://")
            with_user = f"{mask_secrets(rest.rpartition('@')[2])} {self.table or self.sql}"
            return with_user, f"{scheme}://{with_user}"
        return (self.place if self.sql is None else f"{self.place} {self.sql}",)


def located(spark: SparkSession, source: SourceSpec) -> SourceSpec:
    """The source with absolute paths, so that a resume from another directory reads the same files. Paths stay where the
    session resolves them elsewhere: on the server of Spark Connect, or in another default file system such as HDFS."""
    if type(spark).__module__.startswith(_CONNECT) or not _default_file_system(spark).startswith("file:"):
        return source
    views = []
    for view in source.views:
        match = _VIEW.match(view)
        views.append(view if match is None else f"{match['name']}={_absolute(match['path'])}")
    return source._replace(place=_absolute(source.place) if source.place else source.place, views=tuple(views))


def _default_file_system(spark: SparkSession) -> str:
    """``file:///`` or ``hdfs://...``: where Spark looks for a path without a scheme. Spark has no public function for it."""
    found: str = spark.sparkContext._jsc.hadoopConfiguration().get("fs.defaultFS")
    return found


def _absolute(path: str) -> str:
    bare = _FILE_URL.sub("", path)
    return path if _SCHEME.match(bare) else os.path.abspath(bare)


def _without_user(address: str) -> str:
    """The address of a database after its scheme, without user and password."""
    place, mark, options = address.partition("://")[2].partition("?")
    options = _USER.sub("", f"{mark}{options}").rstrip("?&")
    return mask_secrets(f"{place.rpartition('@')[2]}{options}")


def format_of(path: str, wanted: str | None) -> str:
    """The format of some files.

    Raises:
        InputError: the suffix of the name is unknown.
    """
    if wanted is not None:
        return wanted
    bare = path.rstrip("/*").lower()
    for ending, name in _ENDINGS.items():
        if bare.endswith(ending):
            return name
    raise InputError(f"the name {path!r} has no known format", hint=f"give --format, one of {', '.join(FORMATS)}")


def read_input(spark: SparkSession, source: SourceSpec) -> DataFrame:
    """The rows.

    Raises:
        InputError: the path, the table or the query is wrong.
    """
    if source.place is None:
        if not source.sql:
            raise InputError("there is no source of rows", hint="name a file, a database, or give --sql")
    elif source.kind == "postgresql":
        if source.views:
            raise InputError("--view goes with files", hint="a query of a database can name its own tables only")
        options = {"dbtable": source.table} if source.sql is None else {"query": source.sql}
        if source.table is None and source.sql is None:
            raise InputError("a database has many tables", hint="give --table or --sql")
        reader = spark.read.format("jobmaster_postgres").option("url", source.place)
        return run_spark(lambda: reader.options(**options).load())
    if source.table is not None:
        raise InputError("--table goes with a database", hint="such as postgresql://host/database --table orders")
    frame = _files(spark, source.place, source.format, source.options) if source.place is not None else None
    if source.sql is None:
        assert frame is not None
        return frame
    if frame is not None:
        frame.createOrReplaceTempView("source")
    for view in source.views:
        match = _VIEW.match(view)
        if match is None:
            raise InputError(f"--view {view!r} is not NAME=PATH", hint="such as orders=orders.parquet")
        _files(spark, match["path"], None, source.options).createOrReplaceTempView(match["name"])
    sql = source.sql
    return _checked(lambda: spark.sql(sql), f"the query {sql!r}")


def _files(spark: SparkSession, path: str, wanted: str | None, options: Mapping[str, str]) -> DataFrame:
    kind = format_of(path, wanted)
    ours = {"header": "true", "mode": "PERMISSIVE", "escape": '"', "multiLine": "true"} if kind == "csv" else {}
    reader = spark.read.format(kind).options(**{**ours, **options})
    return _checked(lambda: reader.load(path), path)


def _checked(work, what: str) -> DataFrame:  # type: ignore[no-untyped-def]  # DataFrames are not checked types here
    from pyspark.errors import AnalysisException

    def tried() -> DataFrame:
        try:
            return work()
        except AnalysisException as error:
            first = (str(error).strip().splitlines() or [""])[0]
            raise InputError(f"{what} cannot be read: {first}") from error

    return run_spark(tried)
