"""Limits: admission of starts, declarations of agents, values of operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jobmaster.master.driver import resent_writes
from jobmaster.master.driver.batches import Batch, BatchAnswer, columns, ids_of, run_batch
from jobmaster.master.driver.connection import StatementRunner, to_us
from jobmaster.model.flow.limit import (
    FullLimit,
    LimitKey,
    LimitUse,
    LimitValues,
    LimitView,
    Loan,
    LoanQuestion,
)
from jobmaster.model.ids import Fence
from jobmaster.model.job import InFlightRow
from jobmaster.ports import Admission

WAITING_SECONDS = 3.0
"""A job that waits for a permit asks again within this time."""


class Limits:
    """``jobmaster.ports.Limits`` on PostgreSQL."""

    def __init__(self, data: StatementRunner, control: StatementRunner) -> None:
        self._data = data
        self._control = control

    async def admit(
        self, fence: Fence, rows: Sequence[InFlightRow], uses: Mapping[bytes, Sequence[LimitUse]]
    ) -> Admission:
        """Rows -> PROCESSING of those for which every limit has a permit. Denied rows are not read back: they are not
        refused, and the next call decides anew."""
        denied: dict[bytes, FullLimit] = {}

        async def send(some: Sequence[InFlightRow]) -> BatchAnswer:
            taken = [(place, *use) for place, row in enumerate(some, 1) for use in uses[row.id]]
            answer = (await run_batch(
                self._data, "limits/admit", *fence, *columns(some), *columns(taken), ids=ids_of(some)
            ))[0]  # fmt: skip
            for job_id, *full in zip(answer["denied"], answer["limits"], answer["keys"], answer["waits"], strict=True):
                denied[job_id] = FullLimit(*full)
            return BatchAnswer([*answer["accepted"], *answer["denied"]], answer["bucket_ok"])

        written = await Batch(
            self._data,
            "limits/admit",
            send,
            lambda row, found: resent_writes.persisted(row.token, fence.bucket_id, fence.epoch, found),
            bucket_id=fence.bucket_id,
            cancelled_is_accepted=False,
        ).write(rows)
        return Admission(written._replace(accepted=written.accepted - denied.keys()), denied)

    async def lend(self, agent_id: bytes, questions: Sequence[LoanQuestion]) -> list[Loan]:
        """Lend permits to an agent."""
        rows = await self._data.write("limits/lend", agent_id, *columns(questions), WAITING_SECONDS)
        return [Loan(**row) for row in rows]

    async def waiting_elsewhere(self, agent_id: bytes, limits: Sequence[LimitKey]) -> list[tuple[bytes, str]]:
        """Buckets in which jobs wait for permits of these limits."""
        names, keys = [name for name, _ in limits], [key for _, key in limits]
        rows = await self._data.read("limits/waiting_elsewhere", agent_id, names, keys, WAITING_SECONDS)
        return [(row["id"], row["store"]) for row in rows]

    async def declare(self, agent_id: bytes, limits: Sequence[LimitValues]) -> list[str]:
        """Publish limits of an agent; names of those over which values of an operator stand."""
        if not limits:
            return []
        return [row["name"] for row in await self._control.write("limits/declare", agent_id, *columns(limits))]

    async def set(self, values: LimitValues, actor: str, reason: str) -> None:
        """Values of an operator."""
        await self._control.write("limits/set", *values, actor, reason)

    async def reset(self, name: str, actor: str) -> bool | None:
        """Back to the values of the code; ``None``: nothing was set."""
        rows = await self._control.write("limits/reset", name, actor)
        return bool(rows[0]["removed"]) if rows else None

    async def list(self, name: str | None = None, *, limit: int = 1000) -> list[LimitView]:
        """Limits by name."""
        found = []
        for row in await self._control.read("limits/list", name, limit):
            values = dict(row)
            set_us = to_us(values.pop("set_at")) or None
            found.append(LimitView(set_us=set_us, **values))
        return found
