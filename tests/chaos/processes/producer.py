"""A producer in a process of its own: ``python -m tests.chaos.processes.producer CONFIG NUMBER RATE SEED``.

It submits in all the ways there are, at a given mean rate; what an outage kept back is made up for afterwards, at most
four times as fast. It writes every answer down at once. A submit whose outcome is unknown is sent again with the same
id a few times, as the error says; then it stays unknown. SIGTERM ends it: what is under way is finished first.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from jobmaster.client.bulk import BulkFailed
from jobmaster.client.cluster import Cluster
from jobmaster.clock import new_id
from jobmaster.model.errors import JobMasterError, OutcomeUnknown, WaitTimeout
from jobmaster.settings.loader import load_settings
from jobmaster.wiring import open_cluster
from tests.chaos.processes import jobs
from tests.chaos.processes.flow import FlowWays
from tests.chaos.processes.witness import ANYWHERE, VARIABLE, Phase, WitnessLine, WitnessWriter

VALUES = 10**9
"""Values of one producer."""
_BULK = 200
_SINGLES = 40
_BURST = 4.0
_TRIES = 6
_AT_ONCE = 24
_SLOW_SECONDS_MAX = 1.2
_OBSERVE_SECONDS = 20.0
_FAT_BYTES = 64 * 1024
_LONG_SECONDS = (10.0, 20.0)


class Producer:
    """One process's worth of submits."""

    def __init__(self, number: int, rate: float, seed: int, witness_writer: WitnessWriter) -> None:
        self._number = number
        self._rng = random.Random(f"{seed}/{number}/{os.getpid()}")
        self._rate = rate
        self._witness_writer = witness_writer
        # A producer that is started again must not use values of the one that was killed.
        self._next = number * VALUES + int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1000) % 500_000 * 1000
        self._stores: dict[bytes, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.stop = asyncio.Event()

    async def run(self, cluster: Cluster) -> None:
        """Submit until the stop signal."""
        self._cluster = cluster
        flow = FlowWays(cluster, self._rng, self._values, self._submit, self._witness_writer.write)
        self._start(flow.fire_until(f"chaos-{self._number}", self.stop))
        ways: list[tuple[float, int, Callable[[], Coroutine[Any, Any, None]]]] = [
            (0.60, _BULK, self._bulk),
            (0.06, _BULK // 2, self._bulk_master),
            (0.12, _SINGLES, self._singles),
            (0.13, _SINGLES, self._fsync),
            (0.03, _SINGLES // 2, self._master),
            (0.02, _SINGLES // 2, self._keyed),
            (0.02, _SINGLES // 2, self._later),
            (0.01, _SINGLES // 2, self._cancelled),
            (0.005, _SINGLES // 2, self._fat),
            (0.01, _SINGLES // 2, self._once),
            (0.002, 2, self._long),
            *flow.ways(),
        ]
        by_calls = [share / size for share, size, _ in ways]
        first = self._rng.sample(ways, len(ways))  # each way once, also in a short run on a slow machine
        credit, before = 0.0, time.monotonic()
        while not self.stop.is_set():
            now = time.monotonic()
            credit, before = credit + (now - before) * self._rate, now
            credit = min(credit, self._rate * 60)
            spent = 0.0
            while credit > 0 and spent < self._rate * 0.05 * _BURST and len(self._tasks) < _AT_ONCE:
                _, size, way = first.pop() if first else self._rng.choices(ways, by_calls)[0]
                credit, spent = credit - size, spent + size
                self._start(way())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.stop.wait(), 0.05)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=30)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            sys.stderr.write(f"producer: {type(error).__name__}: {error}\n")

    def _values(self, count: int, level: str) -> range:
        values = range(self._next, self._next + count)
        self._next += count
        self._witness_writer.write(WitnessLine(phase=Phase.ATTEMPTED, level=level, values=(values[0], values[-1])))
        return values

    # ------------------------------------------------------------ many at once

    async def _bulk(self) -> None:
        values = self._values(_BULK, "store")
        await self._many([(jobs.quick, {"value": value}) for value in values], durability="store")

    async def _bulk_master(self) -> None:
        values = self._values(_BULK // 2, "master")
        await self._many([(jobs.quick, {"value": value}) for value in values], durability="master")

    async def _many(self, items: list[Any], **options: Any) -> None:
        try:
            summary = await self._cluster.submit_many(items, priority=self._rng.randint(1, 5), **options)
            unknown, why = [], ""
        except BulkFailed as error:
            summary, unknown, why = error.summary, [job.hex for job in error.unknown_ids], str(error)
        if unknown:
            self._witness_writer.write(WitnessLine(phase=Phase.UNKNOWN, jobs=unknown, why=why[:200]))
        # What was held because no bucket took it is safer than asked for; which ones, the summary does not say.
        level = options["durability"]
        if len(summary.ids):
            ids = [job.hex for job in summary.ids]
            self._witness_writer.write(WitnessLine(phase=Phase.ACKNOWLEDGED, level=level, jobs=ids, bucket=ANYWHERE))

    # ------------------------------------------------------------ one by one

    async def _singles(self) -> None:
        values = self._values(_SINGLES, "store")
        await asyncio.gather(*(self._one(value, durability="store") for value in values))

    async def _fsync(self) -> None:
        values = self._values(_SINGLES, "store_fsync")
        await asyncio.gather(*(self._one(value, durability="store_fsync") for value in values))

    async def _master(self) -> None:
        values = self._values(_SINGLES // 2, "master")
        await asyncio.gather(*(self._one(value, durability="master") for value in values))

    async def _later(self) -> None:
        values = self._values(_SINGLES // 2, "master")
        after = self._rng.uniform(0.5, 8.0)
        await asyncio.gather(*(self._one(value, durability="master", after=after) for value in values))

    async def _cancelled(self) -> None:
        """Jobs that wait for their time, and half of them are cancelled before it."""
        level = self._rng.choice(("store", "master"))
        values = self._values(_SINGLES // 2, level)
        after = self._rng.uniform(4.0, 15.0)
        await asyncio.gather(*(self._cancel_one(value, level, after) for value in values))

    async def _cancel_one(self, value: int, level: str, after: float) -> None:
        due = time.time() + after
        job = await self._submit(value, jobs.quick, {"value": value}, durability=level, after=after, job_id=new_id())
        if job is None or value % 2:
            return
        await asyncio.sleep(self._rng.uniform(0.0, 2.0))
        with contextlib.suppress(JobMasterError):
            state = await self._cluster.cancel(job)
            if time.time() < due:
                self._witness_writer.write(WitnessLine(phase=Phase.CANCELLED, job=job.hex(), due=due, why=state.value))

    async def _fat(self) -> None:
        """Arguments and results of 64 KiB that no compression makes small."""
        values = self._values(_SINGLES // 2, "store")
        texts = [base64.b64encode(self._rng.randbytes(_FAT_BYTES * 3 // 4)).decode() for _ in values]
        await asyncio.gather(
            *(
                self._submit(value, jobs.fat, {"value": value, "text": text}, durability="store", job_id=new_id())
                for value, text in zip(values, texts, strict=True)
            )
        )

    async def _once(self) -> None:
        values = self._values(_SINGLES // 2, "store")
        handler = jobs.once if self._rng.random() < 0.7 else jobs.once_isolated
        await asyncio.gather(
            *(self._submit(v, handler, {"value": v}, durability="store", job_id=new_id()) for v in values)
        )

    async def _long(self) -> None:
        for value in self._values(2, "store"):
            args = {"value": value, "seconds": round(self._rng.uniform(*_LONG_SECONDS), 3)}
            await self._submit(value, jobs.long, args, durability="store", job_id=new_id())

    async def _keyed(self) -> None:
        """Every key is sent twice at once, as an impatient caller would."""
        values = self._values(_SINGLES // 2, "master")
        await asyncio.gather(
            *(self._one(value, own_id=False, idempotency_key=f"k{value}") for value in values for _ in range(2))
        )

    def _job(self, value: int) -> tuple[Any, dict[str, Any]]:
        kind = self._rng.random()
        if kind < 0.25:
            return jobs.slow, {"value": value, "seconds": round(self._rng.uniform(0.05, _SLOW_SECONDS_MAX), 3)}
        if kind < 0.32:
            return jobs.fenced, {"value": value}
        if kind < 0.38:
            return jobs.flaky, {"value": value}
        if kind < 0.42:
            return jobs.threaded, {"value": value}
        if kind < 0.48:
            return self._rng.choice((jobs.put_off, jobs.failing, jobs.given_up)), {"value": value}
        return jobs.quick, {"value": value}

    async def _one(self, value: int, *, own_id: bool = True, **options: Any) -> None:
        handler, args = (jobs.quick, {"value": value}) if not own_id else self._job(value)
        if own_id:
            options["job_id"] = new_id()
        job = await self._submit(value, handler, args, **options)
        if job is not None and self._rng.random() < 0.02:
            self._start(self._observe(job))

    async def _submit(self, value: int, handler: Any, args: dict[str, Any], **options: Any) -> bytes | None:
        """Submit, again and again while the outcome is unknown; the id when it was acknowledged.

        Args:
            options: without ``job_id``, the ids of a submit whose outcome is unknown are not written down.
        """
        own_id = "job_id" in options
        options["priority"] = self._rng.randint(1, 5)
        for attempt in range(_TRIES):
            try:
                receipt = await self._cluster.submit(handler, args, **options)
            except OutcomeUnknown as error:
                ids = [job.hex for job in error.job_ids] if own_id else []
                self._witness_writer.write(
                    WitnessLine(phase=Phase.UNKNOWN, value=value, jobs=ids, why=str(error)[:200])
                )
            except JobMasterError as error:
                self._witness_writer.write(
                    WitnessLine(phase=Phase.REFUSED, value=value, why=f"{type(error).__name__}: {error}"[:200])
                )
            else:
                self._witness_writer.write(
                    WitnessLine(
                        phase=Phase.ACKNOWLEDGED,
                        level=receipt.level.value,
                        jobs=[receipt.id_bytes.hex()],
                        value=value,
                        bucket=receipt.bucket_id.hex() if receipt.bucket_id else "",
                    )
                )
                return receipt.id_bytes
            await asyncio.sleep(0.2 * 2**attempt * self._rng.random())
        return None

    async def _observe(self, job: bytes) -> None:
        """Read the outcome as users do; what was read once must stay."""
        try:
            token = await self._cluster.result(job, timeout=_OBSERVE_SECONDS)
        except (WaitTimeout, JobMasterError):  # also of a job that is meant to fail
            return
        self._witness_writer.write(WitnessLine(phase=Phase.OBSERVED, job=job.hex(), token=token))


async def main(config: str, number: str, rate: str, seed: str) -> int:
    """Open a cluster (again and again, if it must be), and submit until SIGTERM."""
    settings = load_settings(Path(config), {}, []).settings
    producer = Producer(int(number), float(rate), int(seed), WitnessWriter(Path(os.environ[VARIABLE]), "producer"))
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, producer.stop.set)
    while not producer.stop.is_set():
        try:
            cluster = await open_cluster(settings, jobs.handlers)
        except JobMasterError as error:
            sys.stderr.write(f"producer: cannot open the cluster yet: {error}\n")
            await asyncio.sleep(0.3)
            continue
        async with cluster:
            await producer.run(cluster)
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:])))
