"""Signals, and jobs that wait for one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from jobmaster.master.driver import resent_writes
from jobmaster.master.driver.batches import Batch, BatchAnswer, columns, execute_batch, ids_of
from jobmaster.master.driver.connection import StatementRunner, to_us
from jobmaster.master.driver.job_errors import NO_SIGNAL
from jobmaster.master.intake import insert_in
from jobmaster.model.flow.signal import KeptSignal, OutgoingSignal, Recipients, SignalStatus, SignalStep, WaitingJobs
from jobmaster.model.job import NewJob
from jobmaster.ports import EndedWaits, Written

KEPT_MAX: Final = 100_000
"""Signals that are kept for jobs to come, in the whole cluster."""
PORTION: Final = 5_000
"""Jobs that one statement of a signal to all reaches."""
_HOLD_WAITING = "signals/hold_waiting"


class Signals:
    """``jobmaster.ports.ClientSignals`` and ``MaintenanceSignals`` on PostgreSQL."""

    def __init__(self, data: StatementRunner, schema: str) -> None:
        self._data = data
        self._schema = schema

    async def hold_waiting(self, jobs: Sequence[NewJob]) -> Written:
        """WAITING rows with token 1, or HELD ones where a kept signal was there; an id that has a row is *refused*."""

        async def send(rows: Sequence[NewJob]) -> BatchAnswer:
            return await execute_batch(self._data, _HOLD_WAITING, *columns(rows), ids=ids_of(rows))

        return await Batch(self._data, _HOLD_WAITING, send, resent_writes.exists).write(jobs)

    async def hold_waiting_in(self, connection: Any, jobs: Sequence[NewJob]) -> Written:
        """The same inside the caller's own transaction, as ``Intake.insert_held_in``. Until its end, senders of these keys
        wait for it."""
        return await insert_in(connection, _HOLD_WAITING, self._schema, jobs)

    async def send(self, signal: OutgoingSignal, actor: str) -> SignalStep:
        """A signal, or the next portion of one."""
        (row,) = await self._data.write("signals/send", *signal, KEPT_MAX, actor, PORTION)
        kept = row["kept_until"]
        return SignalStep(
            SignalStatus(row["status"]), row["delivered"], row["finished"], None if kept is None else to_us(kept)
        )

    async def kept(self, key: str | None, limit: int) -> list[KeptSignal]:
        """Signals that are kept for jobs to come, the oldest first."""
        return [
            KeptSignal(
                id_bytes=row["id"],
                key=row["key"],
                recipients=Recipients(row["recipients"]),
                payload_json=row["payload"],
                actor=row["actor"],
                sent_us=to_us(row["sent_at"]),
                kept_until_us=to_us(row["kept_until"]),
                delivered=row["delivered"],
            )
            for row in await self._data.read("signals/kept", key, limit)
        ]

    async def waiting(self, key: str | None, limit: int) -> list[WaitingJobs]:
        """How many jobs wait for each key, the most first."""
        return [
            WaitingJobs(key=row["key"], jobs=row["jobs"], since_us=to_us(row["since"]))
            for row in await self._data.read("signals/waiting", key, limit)
        ]

    async def expire_waits(self, limit: int) -> EndedWaits:
        """Jobs whose signal has not come in time -> EXPIRED, or HELD."""
        return EndedWaits(*(await self._data.write("signals/expire", limit, NO_SIGNAL))[0])

    async def finish_sent(self, age_seconds: float) -> bool:
        """The next portion of a signal whose sender has not come back."""
        return bool(await self._data.write("signals/finish", age_seconds, PORTION))

    async def end_kept(self, limit: int) -> int:
        """Signals are not kept longer than was asked; number of them."""
        return int((await self._data.write("signals/end_kept", limit))[0]["ended"])
