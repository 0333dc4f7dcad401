"""The floor: what the two stores and one Python process allow when nothing but the moving is done.

A bare loop moves batches of a list under another name (one script call each, two batches in flight), calls a coroutine that
does nothing for every item, COPYs one outcome per item with 100 bytes of payload into the real ``job`` table - all its
columns, key, indexes, partitions - and deletes the moved list. No lease, no fence, no token that is compared, no time-outs,
no cancellation, no retry, no metrics. Beside it, ``raw_copy``: COPY of the same rows, made beforehand, and nothing else.

Runs as a process of its own (``python -m benchmarks.floor``), on uvloop like an agent, so that its CPU is its own.
"""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
import time
from typing import Any

import asyncpg
import redis.asyncio
import uvloop

from benchmarks.support.measured_cluster import MeasuredCluster, environment
from benchmarks.support.report import REPOSITORY
from jobmaster.clock import new_id

BATCH = 1000
IN_FLIGHT = 2
PAYLOAD = b'{"text":"' + b"x" * 89 + b'"}'
assert len(PAYLOAD) == 100
_WAITING = "floor:waiting"
_MOVE = (
    "local taken = redis.call('LPOP', KEYS[1], ARGV[1]) if not taken then return {} end "
    "redis.call('RPUSH', KEYS[2], unpack(taken)) return taken"
)
_COLUMNS = (
    "id", "state", "priority", "lane", "handler", "token", "bucket_id", "bucket_epoch", "attempt", "rescues", "due_at",
    "waited_us", "ran_us", "args", "headers", "result", "error",
)  # fmt: skip
Connection = Any


async def noop() -> None:
    """What is called for each item."""
    return


def row(item: bytes, bucket_id: bytes) -> tuple[object, ...]:
    """The outcome of one item: its first 16 bytes are the id, the rest is the payload."""
    return (
        item[:16], "SUCCEEDED", 3, "default", "bench.noop", 1, bucket_id, 1, 1, 0, None, 100, 10, item[16:], b"",
        None, None,
    )  # fmt: skip


class Floor:
    """The loop on one store and one master."""

    def __init__(self, store: redis.asyncio.Redis, bucket_id: bytes) -> None:
        self._store = store
        self._bucket_id = bucket_id
        self._names = 0

    async def fill(self, jobs: int) -> None:
        """Put the items in place; not measured."""
        for start in range(0, jobs, BATCH):
            items = [new_id() + PAYLOAD for _ in range(min(BATCH, jobs - start))]
            await self._store.rpush(_WAITING, *items)

    async def mover(self, connection: Connection) -> None:
        """One batch after another until none is left."""
        move = self._store.register_script(_MOVE)
        while True:
            self._names += 1
            name = f"floor:claimed:{self._names}"
            items: list[bytes] = await move(keys=[_WAITING, name], args=[BATCH])
            if not items:
                return
            rows = []
            for item in items:
                await noop()
                rows.append(row(item, self._bucket_id))
            await connection.copy_records_to_table("job", records=rows, columns=_COLUMNS)
            await self._store.delete(name)

    async def run(self, connections: list[Connection], jobs: int) -> float:
        """Seconds from the first move to the last deletion."""
        await self.fill(jobs)
        began = time.perf_counter()
        await asyncio.gather(*(self.mover(connection) for connection in connections))
        return time.perf_counter() - began


async def raw_copy(connections: list[Connection], jobs: int) -> float:
    """Seconds of COPY alone, with the floor's batches and connections."""
    bucket_id = new_id()
    batches = [[row(new_id() + PAYLOAD, bucket_id) for _ in range(BATCH)] for _ in range(max(jobs // BATCH, 1))]

    async def copier(connection: Connection) -> None:
        while batches:
            await connection.copy_records_to_table("job", records=batches.pop(), columns=_COLUMNS)

    began = time.perf_counter()
    await asyncio.gather(*(copier(connection) for connection in connections))
    return time.perf_counter() - began


async def measure(order: dict[str, Any]) -> dict[str, Any]:
    """One run, in this process."""
    connections = []
    for _ in range(IN_FLIGHT):
        connection = await asyncpg.connect(order["dsn"], server_settings={"search_path": f'"{order["schema"]}"'})
        await connection.set_type_codec("uuid", schema="pg_catalog", format="binary", encoder=bytes, decoder=bytes)
        connections.append(connection)
    store = redis.asyncio.from_url(order["url"])
    await store.ping()
    jobs = order["jobs"]
    before = resource.getrusage(resource.RUSAGE_SELF)
    if order["what"] == "raw_copy":
        seconds = await raw_copy(connections, jobs)
    else:
        seconds = await Floor(store, new_id()).run(connections, jobs)
    after = resource.getrusage(resource.RUSAGE_SELF)
    for connection in connections:
        await connection.close()
    await store.aclose()
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"jobs_per_second": jobs / seconds, "cpu_seconds": round(cpu, 2)}


def run(measured: MeasuredCluster, what: str, jobs: int) -> dict[str, Any]:
    """One run in a process of its own, on the servers of a measurement; the table is to be emptied afterwards."""
    order = {
        "dsn": measured.dsn,
        "url": measured.url,
        "schema": measured.settings.schema_name(),
        "jobs": jobs,
        "what": what,
    }
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.floor", json.dumps(order)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
        env=environment(),
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    print(json.dumps(uvloop.run(measure(json.loads(sys.argv[1])))))
