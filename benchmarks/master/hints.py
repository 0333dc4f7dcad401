"""``python -m benchmarks.master.hints``: what a second of the leader costs, by the buckets of the cluster and by what is due.

The leader's own statement (``leadership/tick``) and its ``DueNotifier`` over a real master with hundreds of registered
agents; the stores take hints and do nothing. The map of buckets is out of date in each second, so that each reads what has
changed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import click

from benchmarks.fleet.cost_fitting import postgres_cpu
from benchmarks.fleet.measure_costs import BUCKETS, Ticks, populate
from benchmarks.support.master_probe import MasterProbe
from benchmarks.support.measured_cluster import MeasuredCluster, measured_cluster
from benchmarks.support.report import output_options, progress, show, summary
from jobmaster.model.ids import AgentId
from jobmaster.telemetry import Telemetry
from jobmaster_agents.event_log import EventLog
from jobmaster_agents.leader.due_notifier import DueNotifier, Group
from jobmaster_agents.state.store_reachability import StoreReachability

CASES: dict[str, tuple[Sequence[Group], int]] = {
    "nothing due": ((), 0),
    "one of 15 groups due": ((("mail", 3),), 0),
    "all 15 groups due": (tuple((lane, at) for lane in ("default", "mail", "reports") for at in range(1, 6)), 0),
    "one due, 10 buckets changed": ((("mail", 3),), 10),
}
"""Lanes and priorities that are due, and buckets that have changed since the second before."""


class _Store:
    """Takes hints."""

    async def hint(self, bucket_id: bytes) -> None:
        """Nothing."""

    async def ping(self) -> None:
        """Nothing."""


async def seconds_of(
    measured: MeasuredCluster, probe: MasterProbe, owner: AgentId, seconds: int
) -> dict[str, dict[str, Any]]:
    """CPU of the master and of the leader in one second, for each case."""
    stores = {f"store-{number}": _Store() for number in range(10)} | {"default": _Store()}
    clock, telemetry = Ticks(), Telemetry()
    reachability = StoreReachability(stores, stores, clock, lambda _: None, telemetry, EventLog())
    notifier = DueNotifier(probe.master.queries, stores, reachability, clock, telemetry, map_seconds=0.5)
    ids = [row["id"] for row in await probe.sql.fetch("SELECT id FROM bucket ORDER BY random()")]
    await probe.master.leadership.acquire(owner, 1, 3600.0)
    found: dict[str, dict[str, Any]] = {}
    for name, (due, changed) in CASES.items():
        master, leader = [], []
        for number in range(seconds + 3):
            if changed:
                await probe.sql.execute("UPDATE bucket SET epoch = epoch + 1 WHERE id = ANY ($1)", ids[:changed])
            server, client = postgres_cpu(measured), time.process_time()
            await probe.master.leadership.tick(owner, 1, 3600.0, 300.0)
            await notifier.notify(due)
            await notifier.tick()
            client, server = time.process_time() - client, postgres_cpu(measured) - server
            if number >= 3:  # the first ones read the whole map and arrange the turns
                master.append(server * 1e6)
                leader.append(client * 1e6)
        found[name] = {"master_us": summary(master, 1), "leader_us": summary(leader, 1)}
    return found


async def measure(measured: MeasuredCluster, sizes: Sequence[int], seconds: int) -> dict[str, Any]:
    """Every case at each number of buckets."""
    probe = await MasterProbe.open(measured)
    owners: list[AgentId] = []
    by_buckets = {}
    try:
        for buckets in sizes:
            await populate(probe, -(-buckets // BUCKETS), owners)
            count = len(owners) * BUCKETS
            by_buckets[str(count)] = await seconds_of(measured, probe, owners[0], seconds)
            progress(f"{count} buckets: { {name: one['leader_us'] for name, one in by_buckets[str(count)].items()} }")
    finally:
        await probe.close()
    return {"by_buckets": by_buckets, "servers": await measured.described()}


@click.command()
@click.option(
    "--seconds", default=100, show_default=True, help="Seconds of the leader, one after the other, for each case."
)
@output_options
def main(seconds: int, as_json: bool, save: bool) -> None:
    """CPU of one second of the leader: with 1,000 and with 10,000 buckets, and by what is due."""
    with measured_cluster() as measured:
        found = asyncio.run(measure(measured, (1_000, 10_000), seconds))
    show("hints", found, as_json=as_json, save=save)


if __name__ == "__main__":
    main()
