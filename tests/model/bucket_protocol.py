"""The bucket protocol as a model: agent A and its bucket closely, everything else as far as it meets them.

Every call of a store function and every statement is one atomic step, every process may stop between two steps, and a reply
may be lost after the effect. Time is left out: a lease may run out, and a certificate be written, at any moment (except where
``Scope.leased`` looks at just that). What an agent does not learn from the stores it does not know.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.model import outside, owner, rescuers, suspended, work
from tests.model.explorer import Step
from tests.model.rules import Rules, Scope, Setting
from tests.model.state import Job, State

LOST_JOB = "I5 an acknowledged job is lost, or only in an agent's memory"


class BucketProtocol:
    """The model for ``tests.model.explorer``."""

    def __init__(self, scope: Scope, rules: Rules | None = None) -> None:
        self.setting = Setting(rules or Rules(), scope)

    def start(self) -> State:
        return State(jobs=(Job(),) * self.setting.scope.jobs)

    def steps(self, state: State) -> Iterator[Step[State]]:
        if all(job.exempt for job in state.jobs):
            return
        if not self.setting.scope.failover:
            yield from self._steps(state)
        else:
            for step in self._steps(state):
                yield step._replace(after=outside.forgiven(step.after))

    def _steps(self, state: State) -> Iterator[Step[State]]:
        setting = self.setting
        yield from outside.steps(setting, state)
        yield from owner.steps(setting, state)
        yield from work.steps(setting, state)
        if setting.scope.keeps_outcomes:
            yield from suspended.steps(setting, state)
        if setting.scope.exits:
            yield from work.leave(setting, state)
        yield from rescuers.steps(setting, state)

    def broken(self, state: State) -> str:
        return LOST_JOB if outside.lost(state) else ""

    def promised(self, state: State) -> bool:
        return any(job.acked and not job.outcomes and not job.exempt for job in state.jobs)
