"""``python -m benchmarks.master.bucket_map``: the cost of a producer's refresh of the map of buckets, whole and as changes.

Agents are rows with 15 buckets each, made by the real statements; producers are the client's own ``BucketDirectory`` objects
over one connection of this process. Both ways take turns on the same servers: the whole list with the traits of all owners at
every refresh, as it was sent before, and what has changed since the last refresh. The master's CPU is that of its processes,
the producer's that of this process (of the whole list: to decode it, without the handles), and bytes are what the kernel has
received on the connection.
"""

from __future__ import annotations

import asyncio
import random
import socket
import statistics
import struct
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import click

from benchmarks.fleet.cost_fitting import postgres_cpu
from benchmarks.fleet.measure_costs import BUCKETS, directory_of, populate
from benchmarks.support.master_probe import MasterProbe
from benchmarks.support.measured_cluster import MeasuredCluster, measured_cluster
from benchmarks.support.report import output_options, progress, show, summary
from jobmaster.model.ids import AgentId
from jobmaster.settings.model import Leases

CHANGED = (0, 10, 100, 1000)
"""Buckets that have changed between two refreshes of a producer."""
_BYTES_RECEIVED_AT = 128  # in the kernel's struct tcp_info
_OWNERS = """
WITH owners AS MATERIALIZED (
    SELECT a.id, a.handlers, a.share, a.capabilities FROM agent a
    WHERE a.state = 'ACTIVE' AND EXISTS (SELECT FROM bucket b WHERE b.owner = a.id AND b.state = 'ACTIVE')
), kinds AS MATERIALIZED (
    SELECT DISTINCT handlers, share, capabilities FROM owners
)
SELECT id, handlers, share, capabilities FROM owners WHERE (SELECT count(*) FROM kinds) > 1
UNION ALL
SELECT NULL, handlers, share, capabilities FROM kinds WHERE (SELECT count(*) FROM kinds) = 1
"""
"""What producers read beside the list of buckets before they read changes."""


class Cost(NamedTuple):
    """Of one refresh."""

    master_us: float
    producer_us: float
    received_bytes: float


class Refreshes:
    """One master, and producers over its one data connection."""

    def __init__(self, measured: MeasuredCluster, probe: MasterProbe, producers: int, seed: int) -> None:
        self._measured = measured
        self._probe = probe
        self._producers = [directory_of(probe) for _ in range(producers)]
        self._random = random.Random(seed)
        self._ids: list[Any] = []

    def _received(self) -> int:
        total = 0
        for connection in self._probe.master._data._connections._idle:  # type: ignore[union-attr]
            end: socket.socket = connection._transport.get_extra_info("socket")  # type: ignore[union-attr]
            info = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
            total += struct.unpack_from("Q", info, _BYTES_RECEIVED_AT)[0]
        return total

    async def cost(self, calls: list[Callable[[], Awaitable[object]]]) -> Cost:
        """Mean of some refreshes, one after the other."""
        master, producer, received = postgres_cpu(self._measured), time.process_time(), self._received()
        for call in calls:
            await call()
        producer = time.process_time() - producer
        master, received = postgres_cpu(self._measured) - master, self._received() - received
        return Cost(master / len(calls) * 1e6, producer / len(calls) * 1e6, received / len(calls))

    async def whole_before(self) -> None:
        """As it was: everything, and the handles built from it."""
        master, text = self._probe.master, _OWNERS
        buckets = await master.queries.list_buckets()
        await master._data.run("owners", lambda connection: connection.fetch(text), writes=False)
        assert len({bucket.id: bucket for bucket in buckets}) >= len(self._ids)

    async def whole_once(self) -> None:
        """The first refresh of a producer."""
        await directory_of(self._probe).renew()

    async def changes(self, count: int) -> Cost:
        """A refresh of each producer after so many buckets have changed."""
        if not self._ids:
            self._ids = [row["id"] for row in await self._probe.sql.fetch("SELECT id FROM bucket ORDER BY id")]
        chosen = self._random.sample(self._ids, min(count, len(self._ids)))
        await self._probe.sql.execute("UPDATE bucket SET epoch = epoch + 1 WHERE id = ANY ($1)", chosen)
        return await self.cost([producer.renew for producer in self._producers])


async def measure(measured: MeasuredCluster, buckets: int, producers: int, rounds: int) -> dict[str, Any]:
    """All ways in turns."""
    probe = await MasterProbe.open(measured)
    try:
        owners: list[AgentId] = []
        await populate(probe, -(-buckets // BUCKETS), owners)
        refreshes = Refreshes(measured, probe, producers, seed=1)
        await refreshes.changes(0)  # each has read the whole map
        found: dict[str, list[Cost]] = {}
        for number in range(rounds + 1):
            turn = {
                "whole at every refresh": await refreshes.cost([refreshes.whole_before] * max(producers // 10, 5)),
                "first refresh": await refreshes.cost([refreshes.whole_once] * max(producers // 10, 5)),
                **{f"{count} changed": await refreshes.changes(count) for count in CHANGED},
            }
            progress(", ".join(f"{name}: {cost.master_us:,.0f} us" for name, cost in turn.items()))
            for name, cost in turn.items() if number else ():  # the first is the warm-up
                found.setdefault(name, []).append(cost)
    finally:
        await probe.close()
    per_second = 1000 / Leases().bucket_map_seconds
    ways = {
        name: {
            **{field: summary([getattr(cost, field) for cost in costs], 1) for field in Cost._fields},
            "master_cores_for_1000_producers": round(_middle(costs, "master_us") * per_second / 1e6, 4),
            "mb_per_second_for_1000_producers": round(_middle(costs, "received_bytes") * per_second / 1e6, 3),
        }
        for name, costs in found.items()
    }
    return {
        "buckets": len(owners) * BUCKETS,
        "agents": len(owners),
        "producers": producers,
        "refresh_seconds": Leases().bucket_map_seconds,
        "ways": ways,
        "servers": await measured.described(),
    }


def _middle(costs: list[Cost], field: str) -> float:
    return statistics.median(float(getattr(cost, field)) for cost in costs)


@click.command()
@click.option("--buckets", default=10_000, show_default=True)
@click.option("--producers", default=1000, show_default=True, help="Each refreshes once in a turn.")
@click.option("--rounds", default=5, show_default=True)
@output_options
def main(buckets: int, producers: int, rounds: int, as_json: bool, save: bool) -> None:
    """CPU and bytes of a refresh of the map of buckets: whole, and as changes, in one run."""
    with measured_cluster(tcp=True) as measured:
        found = asyncio.run(measure(measured, buckets, producers, rounds))
    show("bucket_map", found, as_json=as_json, save=save)


if __name__ == "__main__":
    main()
