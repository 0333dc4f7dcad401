"""Circuit breakers in the master, as agents, the leader and clients use them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from jobmaster.model.flow.breaker import BreakerChange, BreakerRule, BreakerState, BreakerView, TrialResult


class BreakerLook(NamedTuple):
    """What the choice of trials has found about a breaker that is half-open or will be."""

    name: str
    chosen: int
    """New trials."""
    waits: bool
    """A trial is under way, or a job waits to become one."""
    left_seconds: float | None
    """Until an open breaker becomes half-open; ``None``: it is."""


class BreakerEvaluation(Protocol):
    """Changes of state that follow from what agents have reported."""

    async def evaluate(self, names: Sequence[str], *, nobody_waits: bool = False) -> list[BreakerChange]:
        """Open, close or open again what the reports say, by compare-and-set.

        Args:
            nobody_waits: no job waits for a trial, so one success closes a half-open breaker.
        """
        ...


class ReportedBreakers(BreakerEvaluation, Protocol):
    """For an agent whose handlers have breakers."""

    async def declare(self, agent_id: bytes, rules: Sequence[BreakerRule], handlers: Mapping[str, str]) -> None:
        """Publish the rules, and the breaker of each handler. The rules of an agent that started later stand."""
        ...

    async def report(
        self,
        agent_id: bytes,
        number: int,
        counts: Mapping[str, tuple[int, int]],
        trials: Sequence[TrialResult],
    ) -> list[str]:
        """Add runs and failures by breaker, and the ends of trials. Sent again under the same number it adds nothing.

        Returns:
            Breakers that the master does not know.
        """
        ...


class LeaderBreakers(BreakerEvaluation, Protocol):
    """For the leader."""

    async def half_open(self) -> list[BreakerChange]:
        """Open breakers whose time is over become half-open."""
        ...

    async def choose_trials(self, depth: int) -> list[BreakerLook]:
        """Choose jobs that may try the resources of half-open breakers; one line for each of them, and for each that will be
        half-open.

        Args:
            depth: how many of the oldest due jobs of each lane and priority are looked at.
        """
        ...

    async def forget(self) -> int:
        """Delete results that no window holds any more, and breakers that no agent has; number of results."""
        ...


class ClientBreakers(Protocol):
    """For clients."""

    async def list(self, name: str | None = None) -> Sequence[BreakerView]:
        """The breakers by name, or the one of that name."""
        ...

    async def set_state(
        self,
        name: str,
        state: BreakerState,
        open_seconds: float | None,
        actor: str,
        reason: str,
        epoch: int | None = None,
    ) -> int | None:
        """Open or close a breaker; the version of the pauses with the change.

        Args:
            epoch: the change is made only if the breaker has this epoch; ``None``: whatever it has.

        Returns:
            ``None``: there is no such breaker, or its epoch is another one.
        """
        ...


class Breakers(ReportedBreakers, LeaderBreakers, ClientBreakers, Protocol):
    """All of them."""
