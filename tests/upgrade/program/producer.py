"""Submits at each level until SIGTERM, and writes each acknowledged id down: ``python producer.py CONFIG FOLDER [later]``.

It uses only what both versions of the API have. With ``later`` it also submits jobs that older agents do not know.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jobmaster

LEVELS = ("store", "store_fsync", "master")
PORTION = 20
PAUSE_SECONDS = 0.15


class Producer:
    """One process of submits."""

    def __init__(self, jobs: Any, folder: Path, later: bool) -> None:
        self._jobs = jobs
        self._later = later
        self._number = 0
        self._fd = os.open(folder / f"acknowledged-{os.getpid()}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self.stop = asyncio.Event()

    async def run(self, cluster: Any) -> None:
        """Portions at each level, one after the other, until the stop signal."""
        singles = (self._jobs.slow, self._jobs.fenced, self._jobs.flaky)
        while not self.stop.is_set():
            for level in LEVELS:
                calls = [jobmaster.call(self._jobs.quick, self._next()) for _ in range(PORTION)]
                await self._acknowledged(cluster.submit_many(calls, durability=level), level)
                for handler in singles:
                    await self._acknowledged(
                        cluster.submit(jobmaster.call(handler, self._next()), durability=level), level
                    )
                held = jobmaster.call(self._jobs.quick, self._next())
                await self._acknowledged(cluster.submit(held, durability=level, after=0.5), level)
                if self._later:
                    await self._acknowledged(
                        cluster.submit("fleet.later", {"number": self._next()}, durability=level), level
                    )
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.stop.wait(), PAUSE_SECONDS)

    def _next(self) -> int:
        self._number += 1
        return self._number

    async def _acknowledged(self, submitting: Any, level: str) -> None:
        try:
            found = await submitting
        except jobmaster.BulkFailed as error:
            sys.stderr.write(f"producer: {error}\n")
            self._write(error.summary.ids, level)
        except jobmaster.JobMasterError as error:
            sys.stderr.write(f"producer: {type(error).__name__}: {error}\n")
        else:
            self._write(found.ids if hasattr(found, "ids") else [found.id], level)

    def _write(self, ids: Sequence[Any], level: str) -> None:
        os.write(self._fd, "".join(f"{level} {job}\n" for job in ids).encode())


async def main(config: str, folder: str, *words: str) -> None:
    """Open the cluster and submit."""
    jobs = importlib.import_module("fleet_jobs")
    producer = Producer(jobs, Path(folder), "later" in words)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, producer.stop.set)
    async with jobmaster.connect(config, handlers=jobs.handlers) as cluster:
        await producer.run(cluster)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
