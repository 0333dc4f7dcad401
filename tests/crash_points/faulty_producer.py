"""``python -m tests.crash_points.faulty_producer CONFIG LEDGER SCENE``: a producer whose ports have faults.

Ids are written to the ledger before they are sent, so that its successor can submit the same jobs again;
acknowledged ids are written as well.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

from jobmaster.client.batches import batch, batches
from jobmaster.client.cluster import Cluster
from jobmaster.client.locks import once
from jobmaster.clock import new_id
from jobmaster.settings.loader import load_settings
from jobmaster.wiring import open_master, open_stores
from tests.crash_points import jobs
from tests.crash_points.crash_points import Situation
from tests.crash_points.faulty_ports import VARIABLE, FaultDirectory, FaultyPort

SINGLE_JOBS = 12
BULK_JOBS = 120
CHUNK_JOBS = 20
FILL_JOBS = 240
"""More chunks than are on their way when the third one is answered, so some are left for the next run."""
LOCK, LOCK_SECONDS = "import", 4.0
ACTION = ("load-rates", "3")


class Ledger:
    """Lines ``word hex``, each on the disk before the next step."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, word: str, job_id: bytes) -> None:
        with self.path.open("a") as file:
            file.write(f"{word} {job_id.hex()}\n")

    def ids(self, word: str) -> list[bytes]:
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        return [bytes.fromhex(line.split()[1]) for line in lines if line.startswith(f"{word} ")]


async def main(config: str, ledger: Ledger, situation: Situation) -> None:
    settings = load_settings(Path(config), {}, []).settings
    faults = FaultDirectory(Path(os.environ[VARIABLE]))
    master = await open_master(settings, application_name="jobmaster-client")
    stores = await open_stores(settings)
    faulty: Callable[[object, str], FaultyPort] = lambda port, name: FaultyPort(port, name, faults)  # noqa: E731
    cluster = Cluster(
        settings,
        faulty(master, "master"),
        {name: faulty(store, "store") for name, store in stores.items()},
        handlers=jobs.handlers,
    )
    witness = {"path": str(ledger.path.with_name("witness"))}
    if situation is Situation.SUBMIT:
        await submit(cluster, ledger, witness)
    elif situation is Situation.BULK:
        summary = await cluster.submit_many([witness] * BULK_JOBS, handler=jobs.quick)
        for job_id in summary.ids.as_bytes():
            ledger.add("acknowledged", job_id)
    elif situation is Situation.FILL:
        batches.SILENT_SECONDS, batch.SIGN_SECONDS = 1.0, 0.2
        async with cluster.batch("filled", key=ledger.path.parent.name) as filled:
            summary = await filled.submit_many([witness] * FILL_JOBS, handler=jobs.quick)
        ledger.add("batch", filled.id_bytes)
        for job_id in summary.ids.as_bytes():
            ledger.add("acknowledged", job_id)
    elif situation is Situation.CHANGE:
        for job_id in ledger.ids("change"):
            change = await cluster.run_now(job_id)
            assert change.changed, change
    elif situation is Situation.LOCK:
        once.ONCE_TTL_SECONDS = LOCK_SECONDS  # the next program waits for the end of a dead one's lock
        await under_lock(cluster, ledger)
    else:
        for job_id in ledger.ids("cancel"):
            await cluster.cancel(job_id)
    await cluster.close()
    for store in stores.values():
        await store.close()
    await master.close()


async def under_lock(cluster: Cluster, ledger: Ledger) -> None:
    """Work under a lock until it was renewed, then an action that runs once; each leaves a line of its own."""
    async with cluster.lock(LOCK, ttl=LOCK_SECONDS, wait=None) as lock:
        ledger.add("fence", lock.fence.to_bytes(8, "big"))
        await asyncio.sleep(LOCK_SECONDS * 0.6)
        lock.check()

    async def load() -> None:
        ledger.add("loaded", b"\0")

    ledger.add("mine" if await cluster.once(*ACTION, load) else "done", b"\0")


async def submit(cluster: Cluster, ledger: Ledger, witness: dict[str, str]) -> None:
    """Jobs one by one; those of an earlier run that were never acknowledged first, under the same ids."""
    acknowledged = set(ledger.ids("acknowledged"))
    again = [job_id for job_id in ledger.ids("sent") if job_id not in acknowledged]
    fresh = [new_id() for _ in range(SINGLE_JOBS - len(ledger.ids("sent")))]
    for job_id in fresh:
        ledger.add("sent", job_id)
    for job_id in again + fresh:
        await cluster.submit(jobs.quick, witness, job_id=UUID(bytes=job_id))
        ledger.add("acknowledged", job_id)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Ledger(Path(sys.argv[2])), Situation(sys.argv[3])))
