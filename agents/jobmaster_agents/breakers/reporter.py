"""Reports the results of runs to the master, once a second while there are any.

After a report with a failure, or with the end of a trial, the agent evaluates the breaker: it opens or closes it by a
compare-and-set in the master. So a breaker opens without a leader, and no agent has to ask another one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jobmaster.clock import Clock
from jobmaster.model.flow.breaker import BreakerChange, BreakerRule, TrialResult
from jobmaster.ports import ReportedBreakers
from jobmaster.telemetry import Telemetry
from jobmaster_agents.breakers.results import BreakerResults
from jobmaster_agents.event_log import Event, EventLog

EVERY_SECONDS = 1.0
KEPT_SECONDS = 10.0
"""Results that the master has not taken for so long are dropped: they would count as of the moment when it answers."""


class BreakerReporter:
    """Periodic task of an agent whose handlers have breakers."""

    name = "breaker-reporter"

    def __init__(
        self,
        agent_id: bytes,
        master: ReportedBreakers,
        results: BreakerResults,
        rules: Mapping[str, BreakerRule],
        handlers: Mapping[str, str],
        clock: Clock,
        telemetry: Telemetry,
        log: EventLog,
    ) -> None:
        self._agent_id = agent_id
        self._master = master
        self._results = results
        self._rules = list(rules.values())
        self._handlers = handlers
        self._now = clock.boottime
        self._telemetry = telemetry
        self._log = log
        self._number = 0
        self._unsent: tuple[dict[str, tuple[int, int]], list[TrialResult]] | None = None
        self._unsent_since = 0.0
        self._unevaluated: set[str] = set()

    async def declare(self) -> None:
        """Publish the breakers of the handlers."""
        await self._master.declare(self._agent_id, self._rules, self._handlers)

    async def tick(self) -> float:
        """Report what was counted since the last tick."""
        now = self._now()
        if self._unsent is not None and now - self._unsent_since > KEPT_SECONDS:
            self._unsent = None
        if self._unsent is None:
            counts, trials = self._results.take()
            if counts:
                self._unsent, self._unsent_since = (counts, trials), now
                self._number += 1
        if self._unsent is not None:
            counts, trials = self._unsent
            unknown = await self._master.report(self._agent_id, self._number, counts, trials)
            self._unsent = None
            if unknown:  # a failover has forgotten the declaration
                await self.declare()
            self._unevaluated.update(name for name, (_, failures) in counts.items() if failures)
            self._unevaluated.update(each.name for each in trials)
        if self._unevaluated:
            changes = await self._master.evaluate(sorted(self._unevaluated))
            self._unevaluated.clear()
            log_changes(changes, self._telemetry, self._log)
        return EVERY_SECONDS


def log_changes(changes: Sequence[BreakerChange], telemetry: Telemetry, log: EventLog) -> None:
    """Log changes of state that this agent has made."""
    for change in changes:
        telemetry.breaker_changes[change.state.value] += 1
        log.warning(Event.BREAKER_CHANGED, {"breaker": change.name, "state": change.state, "reason": change.reason})
