"""The other systems: what is installed, how it is set up, and what its acknowledgement and its completion mean.

Settings are those that were found fastest for jobs that do nothing, among the ones their own pages recommend. Statements
about durability and outcomes are about these settings.
"""

from __future__ import annotations

from typing import NamedTuple


class Peer(NamedTuple):
    """One of them."""

    name: str
    store: str
    """Where its jobs live: ``postgresql`` or ``redis``."""
    requirements: tuple[str, ...]
    settings: str
    durable_at_acknowledgement: str
    outcome_kept: str
    drain_jobs: int
    """Jobs of one drain: some seconds of work."""
    bulk: bool = True
    """It has a call that submits many jobs at once."""
    node: bool = False


_LOG = "in the store's memory and append-only file (everysec): a crash of the store may cost about a second"
_ROW = "a committed row"

PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            "pgqueuer", "postgresql", ("pgqueuer", "asyncpg", "uvloop"), "asyncpg, uvloop, batch_size 500", _ROW,
            "a line in its log table; the job's row is deleted", 30_000,
        ),
        Peer(
            "procrastinate", "postgresql", ("procrastinate", "psycopg[binary,pool]"), "concurrency 30", _ROW,
            "the job's row", 2_000,
        ),
        Peer(
            "graphile", "postgresql", ("graphile-worker",),
            "localQueue 2000, concurrency 100, batched completion (delay 0), pool of 20", _ROW,
            "no: the job's row is deleted", 50_000, node=True,
        ),
        Peer("saq", "redis", ("saq[redis]", "hiredis", "typing_extensions", "uvloop"), "concurrency 100, uvloop", _LOG,
             "in the store, for 10 minutes", 8_000, bulk=False),
        Peer("taskiq", "redis", ("taskiq", "taskiq-redis", "hiredis", "uvloop"),
             "ListQueueBroker, results in Redis, 100 async tasks", _LOG, "in the store, without an end", 6_000, bulk=False),
        Peer("arq", "redis", ("arq", "hiredis", "uvloop"), "max_jobs 100, poll_delay 0.01 s, uvloop", _LOG,
             "in the store, for an hour", 6_000, bulk=False),
        Peer("dramatiq", "redis", ("dramatiq[redis]", "hiredis"), "8 threads, no results", _LOG, "no", 5_000, bulk=False),
        Peer("celery", "redis", ("celery[redis]", "hiredis"),
             "prefork with one child a worker, prefetch 100, results in Redis", _LOG, "in the store, for a day", 3_000,
             bulk=False),
        Peer("huey", "redis", ("huey", "redis", "hiredis"), "process workers, results in Redis", _LOG,
             "in the store, but nothing for None", 8_000, bulk=False),
    )
}  # fmt: skip
