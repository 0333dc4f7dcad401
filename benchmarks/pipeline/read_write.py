"""Reading and writing through the data source, with Spark's own JDBC reader on the same rows in the same session.

The JDBC driver's jar comes from Debian's package ``libpostgresql-jdbc-java``, if it is available; the report states
if it is not.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import statistics
import subprocess
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg

from benchmarks.support.synthetic_history import fill_day, lower_floor
from jobmaster.embedded import PostgresServer
from jobmaster.master.schema.migrate import migrate
from jobmaster.pipeline.spark.session import SessionOptions, open_session
from jobmaster.pipeline.table_frame import table_frame
from jobmaster.settings.model import ClusterSettings, MasterSettings

_INSTALLED = Path("/usr/share/java/postgresql.jar")
_PACKAGE = "libpostgresql-jdbc-java"
_RUNS = 3
_TASKS = 4
_JDBC_TABLE = "job_by_jdbc"
_FETCH_SECONDS = 120
_SPEC = (
    '{"name":"images.resize","schema":{"type":"object","properties":{"path":{"type":"string"},"width":{"type":"integer"}},'
    '"required":["path"],"additionalProperties":false}}'
)


def measure(directory: Path, rows: int, jar: Path | None = None) -> dict[str, Any]:
    """Read ``rows`` jobs, write half as many in each of three turns, and write those of the first turn again.

    Args:
        jar: the JDBC driver; ``None``: it is looked for.

    Returns:
        ``read_rows_per_second``, ``jdbc_read_rows_per_second``, ``read_over_jdbc`` (``None`` with ``jdbc_note`` where
        there is no driver), the same of ``write``, ``queries``, ``written`` (in one turn), ``replay_inserted``,
        ``replay_rows_per_second``; rates are medians.
    """
    jar, note = (jar, jar.name) if jar is not None else _jar(directory)
    with PostgresServer(directory / "tcp", durable=False, port=_free_port()) as server:
        settings = ClusterSettings(cluster="moving-bench", master=MasterSettings(dsn=server.dsn))
        schema = settings.schema_name()
        asyncio.run(migrate(dsn=server.dsn, schema=schema, cluster=settings.cluster, settings=settings.master))
        asyncio.run(_fill(settings, rows))
        conf = {"spark.jars": str(jar)} if jar is not None else {}
        spark = open_session(SessionOptions("local[2]", conf, "benchmark"), os.environ)
        try:
            found = _reading(spark, settings, server, rows, jdbc=jar is not None)
            found["jdbc_note"] = note
            found["queries"] = _querying(spark, settings, server, jdbc=jar is not None)
            return {**found, **_writing(spark, settings, server, directory, rows // 2, jdbc=jar is not None)}
        finally:
            spark.stop()


def _reading(spark: Any, settings: ClusterSettings, server: PostgresServer, rows: int, *, jdbc: bool) -> dict[str, Any]:
    options = {"dsn": server.dsn, "schema": settings.schema_name(), "table": "jobs", "numPartitions": str(_TASKS)}
    ours = spark.read.format("jobmaster").options(**options).load()
    readers: dict[str, Callable[[], None]] = {"read": lambda: _drain(ours)}
    if jdbc:
        theirs = _jdbc(spark, settings, server, ours.columns)
        readers["jdbc_read"] = lambda: _drain(theirs)
    times: dict[str, list[float]] = {name: [] for name in readers}
    for read in readers.values():
        read()  # the server's cache and the JVM are warm for both
    for _ in range(_RUNS):
        for name, read in readers.items():
            began = time.perf_counter()
            read()
            times[name].append(time.perf_counter() - began)
    found: dict[str, Any] = {"jdbc_read_rows_per_second": None, "read_over_jdbc": None}
    found |= {f"{name}_rows_per_second": round(rows / statistics.median(taken)) for name, taken in times.items()}
    if jdbc:
        found["read_over_jdbc"] = _over(times["jdbc_read"], times["read"])
    return found


_QUERIES: dict[str, tuple[Callable[[Any], object], dict[str, str]]] = {
    "all columns": (lambda frame: frame.write.format("noop").mode("overwrite").save(), {}),
    "count": (lambda frame: frame.count(), {"columns": "id"}),
    "ids of one state": (
        lambda frame: _drain(frame.where("state = 'FAILED'").select("id")),
        {"columns": "id,state", "states": "FAILED"},
    ),
    "count by handler and state": (
        lambda frame: frame.groupBy("handler", "state").count().collect(),
        {"columns": "handler,state"},
    ),
}
"""Queries as one writes them, and the options with which the source reads no more than they need."""


def _querying(spark: Any, settings: ClusterSettings, server: PostgresServer, *, jdbc: bool) -> dict[str, Any]:
    """Seconds of each query: without options, with options, of ``table_frame``, and with JDBC; and ratios to the last one."""
    given = {"dsn": server.dsn, "schema": settings.schema_name(), "table": "jobs", "numPartitions": str(_TASKS)}

    def ours(options: dict[str, str]) -> Any:
        return spark.read.format("jobmaster").options(**given, **options).load()

    names = ours({}).columns
    found: dict[str, Any] = {}
    for name, (query, options) in _QUERIES.items():
        frames: dict[str, Callable[[dict[str, str]], Any]] = {
            "plain": lambda _: ours({}),
            "options": ours,
            "frame": lambda _: table_frame(spark, given),
        }
        if jdbc:
            frames["jdbc"] = lambda _: _jdbc(spark, settings, server, names)
        times: dict[str, list[float]] = {way: [] for way in frames}
        for turn in range(_RUNS + 1):
            for way, load in frames.items():
                frame = load(options)
                began = time.perf_counter()
                query(frame)
                if turn:  # the first one warms up
                    times[way].append(time.perf_counter() - began)
        seconds = {f"{way}_seconds": round(statistics.median(taken), 2) for way, taken in times.items()}
        if jdbc:
            for way in ("plain", "options", "frame"):
                seconds[f"{way}_over_jdbc"] = round(seconds[f"{way}_seconds"] / seconds["jdbc_seconds"], 2)
        found[name] = seconds
    return found


def _jdbc(spark: Any, settings: ClusterSettings, server: PostgresServer, columns: list[str]) -> Any:
    """The same columns of the same view, in as many ranges of ids."""
    schema = settings.schema_name()
    cuts = asyncio.run(_cuts(settings))
    edges = ["00000000-0000-0000-0000-000000000000", *cuts, "ffffffff-ffff-ffff-ffff-ffffffffffff"]
    predicates = [f"id >= '{low}' AND id < '{high}'" for low, high in pairwise(edges)]
    texts = {"id", "bucket_id", "args", "headers", "result", "error"}
    listed = ", ".join(f"{name}::text AS {name}" if name in texts else name for name in columns)
    options = _jdbc_options(server, schema)
    return spark.read.jdbc(
        options.pop("url"),
        f"(SELECT {listed}, id AS cut_id FROM {schema}.jobs) AS jobs".replace("cut_id", "cut"),
        predicates=[predicate.replace("id ", "cut ") for predicate in predicates],
        properties={**options, "fetchsize": "20000"},
    ).drop("cut")


def _writing(
    spark: Any, settings: ClusterSettings, server: PostgresServer, directory: Path, rows: int, *, jdbc: bool
) -> dict[str, Any]:
    """Write some rows in turns with Spark's JDBC writer, each time others; then those of the first turn again."""
    times: dict[str, list[float]] = {"write": [], "jdbc_write": []}
    inserted: list[int] = []
    if jdbc:
        asyncio.run(_execute(settings, f"CREATE TABLE {_JDBC_TABLE} (LIKE job INCLUDING ALL)"))
    for turn in range(_RUNS):
        loaded = _source(spark, directory, rows, turn)
        times["write"].append(_timed(partial(_write, loaded, settings, turn, f"run-{turn}")))
        inserted.append(_inserted(settings, f"run-{turn}"))
        if jdbc:
            writer = _jdbc_writer(loaded, settings, server)
            times["jdbc_write"].append(_timed(writer.save))
    first = spark.read.parquet(str(directory / "source-0.parquet"))
    again = _timed(partial(_write, first, settings, 0, "again"))
    held = asyncio.run(_value(settings, "SELECT count(*) FROM job WHERE state = 'HELD'"))
    assert held == sum(inserted) == rows * _RUNS
    found: dict[str, Any] = {
        "written": inserted[0],
        "write_rows_per_second": round(rows / statistics.median(times["write"])),
        "jdbc_write_rows_per_second": None,
        "write_over_jdbc": None,
        "replay_inserted": _inserted(settings, "again"),
        "replay_rows_per_second": round(rows / again),
    }
    if jdbc:
        assert asyncio.run(_value(settings, f"SELECT count(*) FROM {_JDBC_TABLE}")) == held
        found["jdbc_write_rows_per_second"] = round(rows / statistics.median(times["jdbc_write"]))
        found["write_over_jdbc"] = _over(times["jdbc_write"], times["write"])
    return found


def _source(spark: Any, directory: Path, rows: int, turn: int) -> Any:
    """Rows of one turn, in a file that every writer reads."""
    where = str(directory / f"source-{turn}.parquet")
    path = "concat('/data/file-', id, '.txt')"
    frame = spark.range(0, rows, 1, _TASKS).selectExpr(
        f"concat('k{turn}-', id) AS key", f"to_json(named_struct('path', {path}, 'width', id % 1000)) AS args"
    )
    frame.write.parquet(where)
    return spark.read.parquet(where)


def _write(frame: Any, settings: ClusterSettings, turn: int, run_id: str) -> None:
    options = {"dsn": settings.master.dsn or "", "schema": settings.schema_name()}
    given = {"handler": "images.resize", "batch": f"benchmark {turn}", "runId": run_id}
    frame.write.format("jobmaster").options(**options, **given).mode("append").save()


def _inserted(settings: ClusterSettings, run_id: str) -> int:
    return int(asyncio.run(_value(settings, "SELECT inserted FROM pipeline_write WHERE run_id = $1", run_id)))


def _jdbc_writer(frame: Any, settings: ClusterSettings, server: PostgresServer) -> Any:
    """Writes the same rows into a table with the columns, checks and indexes of jobs.

    JDBC checks no arguments, and a row that is there already would end it. The ids are of one time, as those of a batch are.
    """
    at_ms = f"{time.time_ns() // 1_000_000:012x}"
    digest = "md5(key)"
    made = frame.selectExpr(
        f"concat('{at_ms}7', substr({digest}, 1, 3), '8', substr({digest}, 4, 15)) AS id",
        "'HELD' AS state",
        "cast(3 AS smallint) AS priority",
        "'default' AS lane",
        "'images.resize' AS handler",
        "1 AS token",
        "current_timestamp() AS due_at",
        "encode(args, 'UTF-8') AS args",
        "encode(to_json(named_struct('key', key)), 'UTF-8') AS headers",
    )
    options = {
        **_jdbc_options(server, settings.schema_name()),
        "dbtable": _JDBC_TABLE,
        "batchsize": "10000",
        "reWriteBatchedInserts": "true",
        "stringtype": "unspecified",
    }
    return made.write.format("jdbc").options(**options).mode("append")


def _jdbc_options(server: PostgresServer, schema: str) -> dict[str, str]:
    parts = urlsplit(server.tcp_dsn)
    return {
        "url": f"jdbc:postgresql://127.0.0.1:{parts.port}{parts.path}",
        "driver": "org.postgresql.Driver",
        "user": parts.username or "",
        "password": parts.password or "",
        "options": f"-c search_path={schema}",
    }


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _over(theirs: list[float], ours: list[float]) -> float:
    """How many times as fast ours is: median of the turns."""
    return round(statistics.median(one / other for one, other in zip(theirs, ours, strict=True)), 2)


def _drain(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


async def _fill(settings: ClusterSettings, rows: int) -> None:
    connection = await _connect(settings)
    await lower_floor(connection, 1)
    await fill_day(connection, 1, rows)
    await connection.execute("INSERT INTO handler VALUES ('images.resize', $1, 'x', gen_random_uuid())", _SPEC)
    await connection.execute("VACUUM ANALYZE job", timeout=3600)
    await connection.close()


async def _cuts(settings: ClusterSettings) -> list[str]:
    connection = await _connect(settings)
    shares = [part / _TASKS for part in range(1, _TASKS)]
    query = "SELECT percentile_disc($1::float8[]) WITHIN GROUP (ORDER BY id) FROM job"
    cuts = await connection.fetchval(query, shares)
    await connection.close()
    return [str(cut) for cut in cuts]


async def _execute(settings: ClusterSettings, statement: str) -> None:
    connection = await _connect(settings)
    await connection.execute(statement)
    await connection.close()


async def _value(settings: ClusterSettings, query: str, *values: object) -> Any:
    connection = await _connect(settings)
    value = await connection.fetchval(query, *values)
    await connection.close()
    return value


async def _connect(settings: ClusterSettings) -> asyncpg.Connection[asyncpg.Record]:
    return await asyncpg.connect(
        settings.master.dsn, server_settings={"search_path": settings.schema_name(), "timezone": "UTC"}
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _jar(directory: Path) -> tuple[Path | None, str]:
    """The JDBC driver, or ``None``; and where it came from, or why there is none."""
    if _INSTALLED.exists():
        return _INSTALLED, f"{_PACKAGE} is installed"
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        return None, f"no driver: {_PACKAGE} is not installed and this system has no apt-get to fetch it"
    folder = directory / "jdbc"
    folder.mkdir()
    folder.chmod(0o777)
    fetch = ["timeout", str(_FETCH_SECONDS), "apt-get", "download", _PACKAGE]
    done = subprocess.run(fetch, cwd=folder, capture_output=True, text=True, check=False)
    packages = list(folder.glob("*.deb"))
    if not packages:
        return None, f"no driver: {_PACKAGE} cannot be fetched: {done.stderr.strip().splitlines()[-1:]}"
    subprocess.run(["dpkg-deb", "-x", str(packages[0]), str(folder)], check=True, capture_output=True)
    jars = list((folder / "usr/share/java").glob("postgresql*.jar"))
    return (jars[0].resolve(), packages[0].name) if jars else (None, f"no driver in {packages[0].name}")
