"""Ports of the master for limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

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
from jobmaster.ports.master_answers import Written


class Admission(NamedTuple):
    """Answer about jobs with limits that are about to start."""

    written: Written
    """About the jobs for which every limit has a permit, as of ``persist``."""
    denied: Mapping[bytes, FullLimit]
    """The others: nothing of theirs was written, and nothing is settled."""


class LimitedStarts(Protocol):
    """For an agent's starts."""

    async def admit(
        self, fence: Fence, rows: Sequence[InFlightRow], uses: Mapping[bytes, Sequence[LimitUse]]
    ) -> Admission:
        """Rows -> PROCESSING under the bucket lock, for jobs for which every limit has a permit, in the order of the rows.
        Sent again after an unknown commit, the same jobs keep their permits."""
        ...


class PermitLender(Protocol):
    """For an agent that starts many jobs of one limit."""

    async def lend(self, agent_id: bytes, questions: Sequence[LoanQuestion]) -> list[Loan]:
        """Lend permits; an answer for each question that is not older than the last one. An agent without a valid lease has
        none."""
        ...


class WaitingForPermits(Protocol):
    """For an agent's hints to others."""

    async def waiting_elsewhere(self, agent_id: bytes, limits: Sequence[LimitKey]) -> list[tuple[bytes, str]]:
        """Buckets of other agents, and their stores, in which a job was denied a permit of these limits not long ago; of each
        limit at most one."""
        ...


class DeclaredLimits(Protocol):
    """For agents: the limits in their code."""

    async def declare(self, agent_id: bytes, limits: Sequence[LimitValues]) -> list[str]:
        """Publish limits. The declaration of an agent that started later stands, and what an operator has set: names of the
        limits for which that is so."""
        ...


class ClientLimits(Protocol):
    """For people."""

    async def set(self, values: LimitValues, actor: str, reason: str) -> None:
        """Values that stand over those of the code; ``None`` among them: as in the code."""
        ...

    async def reset(self, name: str, actor: str) -> bool | None:
        """The values of the code count again. True: the limit is removed, because no agent has declared it; ``None``:
        nothing was set."""
        ...

    async def list(self, name: str | None = None, *, limit: int = 1000) -> list[LimitView]:
        """Limits in the order of their names, with what is taken of them."""
        ...


class Limits(LimitedStarts, PermitLender, WaitingForPermits, DeclaredLimits, ClientLimits, Protocol):
    """Limits, from their declaration to the admission of jobs."""
