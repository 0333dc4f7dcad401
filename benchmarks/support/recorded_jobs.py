"""Jobs that the server records as ended, at a rate that no agent of one machine reaches."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.support.measured_cluster import MeasuredCluster

_RECORD = """
INSERT INTO job (id, state, priority, lane, handler, token, bucket_id, bucket_epoch, attempt, waited_us, ran_us, args, result)
SELECT (substr(uuid_floor(clock_timestamp())::text, 1, 14) || '7' || substr(digest, 1, 3) || '-8' || substr(digest, 4, 3)
        || '-' || substr(digest, 7, 12))::uuid,
       'SUCCEEDED', 3, 'default', 'bench.recorded', 1, 'b0000000-0000-7000-8000-000000000001', 1, 1, 1000, 1000,
       convert_to('{"path":"/data/' || n || '","size":' || n * 37 || '}', 'UTF8'),
       convert_to('{"ok":true,"bytes":' || n || '}', 'UTF8')
FROM (SELECT n, md5(n || ' ' || $2::integer) AS digest FROM generate_series(1, $1::integer) AS n) AS made
"""
_STATEMENTS_A_SECOND = 10


class Recorder:
    """Records jobs until it is stopped. ``jobs``: how many it has recorded."""

    def __init__(self, measured: MeasuredCluster, rate: int) -> None:
        self.jobs = 0
        self.late_seconds = 0.0
        """How far it was behind the rate, at most."""
        self._measured, self._rate = measured, rate
        self._stop = threading.Event()

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        connection = await self._measured.connect()
        began, number = time.perf_counter(), 0
        try:
            while not self._stop.is_set():
                due = began + number / _STATEMENTS_A_SECOND
                await asyncio.sleep(max(due - time.perf_counter(), 0))
                share = self._rate * (number + 1) // _STATEMENTS_A_SECOND - self.jobs
                await connection.execute(_RECORD, share, number)
                self.jobs += share
                number += 1
                self.late_seconds = max(self.late_seconds, time.perf_counter() - due)
        finally:
            await connection.close()


@contextmanager
def recording(measured: MeasuredCluster, rate: int) -> Iterator[Recorder]:
    """A recorder in a thread of its own; the server does the work."""
    recorder = Recorder(measured, rate)
    failed: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(recorder.run())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="recorder")
    thread.start()
    try:
        yield recorder
    finally:
        recorder.stop()
        thread.join()
    if failed:
        raise failed[0]
