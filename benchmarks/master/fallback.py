"""``python -m benchmarks.master.fallback``: what it costs when a COPY of outcomes meets rows that exist already.

One duplicate aborts a COPY, neighbours included; the batch then goes again through the guarded upsert. Measured on the
master's own calls: batches of outcomes of which a share has a row, as after a rescue or a redelivery, beside batches without
any, and beside the upsert alone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import click

from benchmarks.drain import empty
from benchmarks.floor import PAYLOAD
from benchmarks.support.master_probe import MasterProbe
from benchmarks.support.measured_cluster import measured_cluster
from benchmarks.support.report import median, output_options, progress, show, summary
from jobmaster.clock import new_id
from jobmaster.model.job import FinalRow

Write = Callable[[list[FinalRow]], Awaitable[None]]


def outcome(bucket_id: bytes) -> FinalRow:
    """One job that has succeeded."""
    return FinalRow(
        new_id(), "SUCCEEDED", 3, "default", "bench.noop", 1, bucket_id, 1, 1, 0, 0, 100, 10, PAYLOAD, b"", None, None
    )


async def one_run(probe: MasterProbe, write: Write, batches: int, size: int, share: float) -> float:
    """Outcomes a second."""
    bucket_id = probe.fences[0].bucket_id
    prepared = [[outcome(bucket_id) for _ in range(size)] for _ in range(batches)]
    twice = int(size * share)
    if twice:
        await probe.master.outcomes.copy_final([row for rows in prepared for row in rows[:: size // twice]])
    began = time.perf_counter()
    for rows in prepared:
        await write(rows)
    seconds = time.perf_counter() - began
    found = await probe.sql.fetchval("SELECT count(*) FROM job")
    assert found == batches * size, f"{found} rows for {batches * size} outcomes"
    await empty(probe.measured)
    return batches * size / seconds


async def measure(probe: MasterProbe, batches: int, size: int, runs: int) -> dict[str, list[float]]:
    """All ways in turn."""

    async def optimistic(rows: list[FinalRow]) -> None:
        if not await probe.master.outcomes.copy_final(rows):
            written = await probe.master.outcomes.record_final(rows)
            assert len(written.accepted) == len(rows)

    async def guarded(rows: list[FinalRow]) -> None:
        written = await probe.master.outcomes.record_final(rows)
        assert len(written.accepted) == len(rows)

    ways: dict[str, tuple[Write, float]] = {
        "no_duplicates": (optimistic, 0.0),
        "one_percent": (optimistic, 0.01),
        "upsert_only": (guarded, 0.0),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(runs + 1):
        for name, (write, share) in ways.items():
            rate = await one_run(probe, write, batches, size, share)
            if number:
                rates[name].append(rate)
                progress(f"{name}: {rate:,.0f} outcomes/s")
    return rates


def run(batches: int, size: int, runs: int) -> dict[str, Any]:
    """One connection, one batch after the other."""

    async def measure_rates() -> dict[str, list[float]]:
        probe = await MasterProbe.open(cluster)
        try:
            return await measure(probe, batches, size, runs)
        finally:
            await probe.close()

    with measured_cluster() as cluster:
        servers = asyncio.run(cluster.described())
        rates = asyncio.run(measure_rates())
    clean, dirty = median(rates["no_duplicates"]), median(rates["one_percent"])
    return {
        "outcomes_per_second": clean,
        "outcomes_per_second_one_percent": dirty,
        "outcomes_per_second_upsert_only": median(rates["upsert_only"]),
        "ratio": round(dirty / clean, 3),
        "batch": size,
        "spread": {name: summary(values) for name, values in rates.items()},
        "servers": servers,
    }


@click.command()
@click.option("--batches", default=50, show_default=True)
@click.option("--size", default=1000, show_default=True, help="Outcomes of one batch.")
@click.option("--runs", default=5, show_default=True)
@output_options
def main(batches: int, size: int, runs: int, as_json: bool, save: bool) -> None:
    """Outcomes a second into the master when every batch holds 1 % that is there already."""
    show("fallback", run(batches, size, runs), as_json=as_json, save=save)


if __name__ == "__main__":
    main()
