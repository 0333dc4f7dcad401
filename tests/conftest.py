"""Real servers for every test: one PostgreSQL and one Valkey per run, a fresh database and cluster name per test.

One Spark session serves all tests that want one; they bear the mark `spark`, so that they run in one process.
The servers end with this process, however it ends. Of the product only `jobmaster.embedded`
is imported before a fixture needs more.
"""

from __future__ import annotations

import gc
import os
import re
import secrets
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import hypothesis
import pytest
from hypothesis.internal.conjecture import providers

from jobmaster.embedded import PostgresServer, ValkeyServer
from tests.support.servers.driver_lookups import remember_builtin_types, remember_versions
from tests.support.servers.server_directory import make_server_directory
from tests.support.spark import class_archive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.servers.migrated_databases import MigratedDatabases


MIGRATED_SCHEMA = "jobmaster_test"
SLOW_FILE = re.compile(rb"^pytestmark = (?:[^\n]*|\[\n(?:    [^\n]*\n)*?    pytest\.)mark\.slow\b", re.MULTILINE)
"""What stands in a file all of whose tests are slow."""

# Also for what the tests start: the demo, the archiver.
SPARK = Path(__file__).parent / "support" / "spark"
for variable, value in class_archive.variables().items():
    os.environ.setdefault(variable, value)
os.environ.setdefault("PYSPARK_PYTHON", str(SPARK / "worker_python"))
os.environ.setdefault("TEST_PYTHON", sys.executable)


remember_builtin_types()
remember_versions()

# How long an example takes depends on what else the machine does. Loaded here, because a test takes its settings from the
# profile when its module is imported.
hypothesis.settings.register_profile("tests", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("tests")

# What is imported and collected lives as long as the process: the collector starts when all of it is there.
gc.disable()

# A shell that runs the tests in the background ignores SIGINT, and every program that they start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """In the fast part, properties are tried without the numbers and texts of the product's source.

    hypothesis reads them from every module that was imported, 9 ms of a processor each, in each process of a run.
    """
    if config.option.markexpr == "not slow":
        providers._get_local_constants = lambda: providers._local_constants
    if hasattr(config, "workerinput"):
        from tests.support.file_order import collect_from_own_place

        collect_from_own_place(config)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A file is not imported when its text shows that `-m` selects none of its tests.

    With `-m "slow and ..."` that is a file without the text of the mark; with `-m "not slow"` one that is marked as a whole.
    """
    marks = config.option.markexpr
    if not collection_path.name.startswith("test_"):
        return None
    if marks == "not slow":
        return SLOW_FILE.search(collection_path.read_bytes()) is not None or None
    if not marks.startswith("slow and"):
        return None
    wanted = b"mark.long" if marks.startswith("slow and long") else b"mark.slow"
    return wanted not in collection_path.read_bytes() or None


def pytest_collection_finish() -> None:
    """What was collected lives as long as the process, so that the garbage collector need not look at it again."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Before `-m` is applied: a test that wants the session has its mark."""
    from tests.support.file_order import longest_first

    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
    longest_first(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Of the files that share a run by `--dist loadfile`, and of the tests that share one by `--dist loadscope`."""
    from tests.support.file_order import FileOrder, SetupOrder

    order = {"loadfile": FileOrder, "loadscope": SetupOrder}.get(config.getoption("dist"))
    return order(config, log) if order else None


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session of the run: two threads, no UI. Tests that want another one are processes of their own.

    Adaptive execution makes each stage of a query a job of its own and plans anew after it: a third of the processor time of
    a roll-up over some hundred rows.
    """
    pytest.importorskip("pyspark", reason="the extra `pipeline` is not installed")
    from jobmaster.pipeline.spark.session import SessionOptions, open_session

    conf = {
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.driver.memory": "1g",
    }
    session = open_session(SessionOptions("local[2]", conf, "tests"), os.environ)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def server_root() -> Iterator[Path]:
    """A short scratch directory outside pytest's own, whose paths are too long for sockets."""
    root = make_server_directory()
    yield root
    shutil.rmtree(root)


@pytest.fixture(scope="session")
def postgres_server(server_root: Path) -> Iterator[PostgresServer]:
    """The PostgreSQL of the run. fsync is off: tests kill processes, not the machine. Autovacuum would look through the 2,000
    relations of each database, and the databases of tests live for seconds."""
    settings = {"max_wal_size": "128MB", "autovacuum": "off"}
    with PostgresServer(server_root / "postgres", durable=False, settings=settings) as server:
        yield server


@pytest.fixture(scope="session")
def valkey_server(server_root: Path) -> Iterator[ValkeyServer]:
    """The Valkey of the run, shared by all tests: never flush it, never change its settings."""
    with ValkeyServer(server_root / "valkey") as server:
        yield server


@pytest.fixture
async def master_dsn(postgres_server: PostgresServer) -> AsyncIterator[str]:
    """DSN of an empty database of this test's own; connections that are open at its end are closed."""
    from tests.support.servers.migrated_databases import close_connections

    name = f"test_{secrets.token_hex(6)}"
    admin = await asyncpg.connect(postgres_server.dsn)
    try:
        await admin.execute(f"CREATE DATABASE {name} TEMPLATE template0 STRATEGY file_copy")
        yield urlunsplit(urlsplit(postgres_server.dsn)._replace(path=f"/{name}"))
        await close_connections(admin, name)
        await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
    finally:
        await admin.close()


@pytest.fixture(scope="session")
async def migrated_databases(postgres_server: PostgresServer) -> AsyncIterator[MigratedDatabases]:
    """The migrated databases of the run."""
    from tests.support.servers.migrated_databases import MigratedDatabases

    databases = MigratedDatabases(postgres_server.dsn, MIGRATED_SCHEMA)
    yield databases
    await databases.close()


@pytest.fixture
async def migrated_dsn(migrated_databases: MigratedDatabases, cluster_name: str) -> AsyncIterator[str]:
    """DSN of a migrated database; its cluster is ``cluster_name``, its schema ``MIGRATED_SCHEMA``.

    For the time of the test it is the test's own; ``tests/support/servers/migrated_databases.py`` says what happens then.
    """
    dsn = await migrated_databases.take(cluster_name)
    yield dsn
    await migrated_databases.give_back(dsn)


@pytest.fixture
def store_url(valkey_server: ValkeyServer) -> str:
    """URL of the run's Valkey; use it with `cluster_name`, so that keys of two tests never meet."""
    return valkey_server.url


@pytest.fixture
def cluster_name() -> str:
    """A valid cluster id that no other test has."""
    return f"test-{secrets.token_hex(6)}"


@pytest.fixture
def new_valkey(server_root: Path) -> Iterator[Callable[..., ValkeyServer]]:
    """Starts further stores of the test's own, which it may `kill`, `stop` and `start` as it likes."""
    started: list[ValkeyServer] = []

    def start(**settings: str) -> ValkeyServer:
        server = ValkeyServer(server_root / f"valkey-{secrets.token_hex(4)}", settings=settings)
        started.append(server)
        return server.start()

    yield start
    for server in started:
        server.stop()
        shutil.rmtree(server.directory.path)


@pytest.fixture
def new_postgres(server_root: Path) -> Iterator[Callable[..., PostgresServer]]:
    """Starts a PostgreSQL of the test's own (about a second), which it may `kill`, `stop` and `start` as it likes."""
    started: list[PostgresServer] = []

    def start(**settings: str) -> PostgresServer:
        server = PostgresServer(server_root / f"postgres-{secrets.token_hex(4)}", durable=False, settings=settings)
        started.append(server)
        return server.start()

    yield start
    for server in started:
        server.stop()
        shutil.rmtree(server.directory.path)
