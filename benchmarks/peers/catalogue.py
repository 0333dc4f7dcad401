"""The other systems: what is installed, how it is set up, and what its acknowledgement and its completion mean.

Settings are those that were found fastest for jobs that do nothing, among the ones their own pages recommend. Statements
about durability, outcomes and killed workers are about these settings. Systems whose workers run jobs in threads have more
threads for jobs that only wait (``adapter.at_once``).

River cannot be had: see ``UNAVAILABLE``.
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
    after_kill: str
    """What its pages or its source say of a job whose worker is killed."""
    drain_jobs: int
    """Jobs of one drain: some seconds of work."""
    bulk: bool = True
    """It has a call that submits many jobs at once."""
    also: tuple[str, ...] = ("context", "retry_5")
    """Kinds of work beyond those that every adapter knows: its jobs are given a context (``context``) with the attempt, and a
    job can run again at once (``retry_5``); its jobs carry ``tags``."""
    language: str = "python"
    """Of its adapter: ``python``, ``node`` or ``ruby``."""
    python: tuple[int, int] = (3, 11)
    """The first version of Python that it runs on."""
    variant_of: str = ""
    """Another peer whose adapter it shares."""
    pool: str = ""
    """Told to a shared adapter: how its workers run jobs."""

    @property
    def adapter(self) -> str:
        """The name of its adapter, without the suffix."""
        return self.variant_of or self.name


_LOG = "in the store's memory and append-only file (everysec): a crash of the store may cost about a second"
_ROW = "a committed row"
_CELERY = ("celery[redis]", "hiredis")
_RQ = ("rq", "redis", "hiredis")

UNAVAILABLE = {
    "river": "River has no adapter: its workers are written in Go, its modules come from the proxy of Go modules, and that"
    " could not be reached where this was tried (its name did not resolve, with Go 1.19 of Debian 12, in November 2026);"
    " its package for Python only submits jobs",
}
"""Systems that were wanted and cannot be had, with the reason."""

PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            "pgqueuer", "postgresql", ("pgqueuer", "asyncpg", "uvloop"), "asyncpg, uvloop, batch_size 500", _ROW,
            "a line in its log table; the job's row is deleted", "runs again when its heartbeat is 30 s old", 30_000,
            also=("context",),
        ),
        Peer(
            "procrastinate", "postgresql", ("procrastinate", "psycopg[binary,pool]"), "concurrency 30", _ROW,
            "the job's row", "stays as running until a task of the user retries stalled jobs", 2_000,
        ),
        Peer(
            "graphile", "postgresql", ("graphile-worker", "pg"),
            "localQueue 2000, concurrency 100, batched completion (delay 0), pool of 20", _ROW,
            "no: the job's row is deleted", "runs again after 4 hours", 50_000, also=("context",), language="node",
        ),
        Peer(
            "oban", "postgresql", ("oban",), "limit 100, pool of 20, uvloop", _ROW, "the job's row, for a day",
            "runs again when its attempt is older than 5 minutes, by a sweep each minute", 4_000, python=(3, 12),
            also=("context", "retry_5", "tags"),
        ),
        Peer("saq", "redis", ("saq[redis]", "hiredis", "typing_extensions", "uvloop"), "concurrency 100, uvloop", _LOG,
             "in the store, for 10 minutes", "a sweep after the job's time limit, if it has retries left", 8_000, bulk=False),
        Peer("taskiq", "redis", ("taskiq", "taskiq-redis", "hiredis", "uvloop"),
             "ListQueueBroker, results in Redis, 100 async tasks", _LOG, "in the store, without an end",
             "lost: its list broker takes the job from the store", 6_000, bulk=False, also=()),
        Peer("arq", "redis", ("arq", "hiredis", "uvloop"), "max_jobs 100, poll_delay 0.01 s, uvloop", _LOG,
             "in the store, for an hour", "runs again when its lock expires: after the job's time limit", 6_000, bulk=False),
        Peer("dramatiq", "redis", ("dramatiq[redis]", "hiredis"), "8 threads, no results", _LOG, "no",
             "runs again when the worker's heartbeat is 60 s old", 5_000, bulk=False, also=()),
        Peer("celery", "redis", _CELERY,
             "prefork with one child a worker, prefetch 100, results in Redis", _LOG, "in the store, for a day",
             "lost: it is acknowledged before it runs", 3_000, bulk=False),
        Peer("celery_threads", "redis", _CELERY, "8 threads, prefetch 100, results in Redis", _LOG,
             "in the store, for a day", "lost: it is acknowledged before it runs", 3_000, bulk=False,
             variant_of="celery", pool="threads"),
        Peer("rq", "redis", _RQ, "its usual worker, which forks a child for each job", _LOG, "in the store, for 500 seconds",
             "failed as abandoned, by maintenance at each 10 minutes", 600),
        Peer("rq_simple", "redis", _RQ, "SimpleWorker: jobs run in the worker's own process", _LOG,
             "in the store, for 500 seconds", "failed as abandoned, by maintenance at each 10 minutes", 3_000,
             variant_of="rq", pool="simple"),
        Peer("huey", "redis", ("huey", "redis", "hiredis"), "process workers, results in Redis", _LOG,
             "in the store, but nothing for None", "lost: it is taken from the store before it runs", 8_000, bulk=False),
        Peer("bullmq", "redis", ("bullmq", "ioredis"), "concurrency 100, ioredis", _LOG, "in the store, without an end",
             "runs again when its lock of 30 s has expired, by a check at each 30 s", 10_000, language="node"),
        Peer("sidekiq", "redis", ("sidekiq", "redis"), "Debian's package, 10 threads, basic fetch", _LOG, "no",
             "lost: it is taken from the store before it runs; the paid edition finds it", 10_000, also=(),
             language="ruby"),
    )
}  # fmt: skip
