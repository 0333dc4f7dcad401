"""Twins of the statements about workflows, and of the triggers that follow the end of a step.

The triggers run when a statement has written all of its rows. The lock of a workflow makes its ends follow one another, so
each sees the steps as they are. Left out, each sees the other steps as they were when its statement began.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

from jobmaster.codec import decode_headers
from jobmaster.rules.capabilities import lacking
from tests.simulation.master.job_statements import has_tag
from tests.simulation.master.signal_statements import SignalStatements
from tests.simulation.master.statements_base import AGENT_OUTCOMES
from tests.simulation.master.tables import FINAL, JobRow, Record, Snapshot

_STEP = b'"workflow":['
_FAILED = frozenset({"FAILED", "CANCELLED", "EXPIRED"})
_OPEN = frozenset({"PENDING", "STARTED"})
_HOUR_MS = 3_600_000
"""Statements by which agents record outcomes."""


class WorkflowRow(NamedTuple):
    """One row of ``workflow``."""

    id: bytes
    name: str
    undoes: bool
    args_bytes: int
    state: str = "RUNNING"
    cancelled: bool = False
    ends: int = 0


class StepRow(NamedTuple):
    """One row of ``workflow_step``."""

    number: int
    name: str
    runs_on: str
    parents: tuple[int, ...]
    choice: str | None
    handler: str
    priority: int
    lane: str
    args: bytes
    refs: str
    headers: bytes
    delay_us: int
    kept: bool
    state: str = "PENDING"
    result: bytes | None = None
    job_id: bytes | None = None
    tries: int = 0
    ended: int | None = None
    error: str | None = None


Steps = dict[int, StepRow]


class WorkflowStatements(SignalStatements):
    """Twins of ``workflows``."""

    _ended: tuple[JobRow, ...] = ()
    """Rows of steps that the statement under way has ended."""

    def _put(self, row: JobRow) -> None:
        before = self.tables.jobs.get(row.id)
        super()._put(row)
        # No trigger follows an insert: an outcome without a row finds no step that is STARTED.
        if row.state in FINAL and _STEP in row.headers and before is not None and before.state != row.state:
            self._ended += (row,)

    def run_triggers(self, statement: str, old: Snapshot) -> None:
        """What follows the ends of steps; called when a statement has changed rows."""
        super().run_triggers(statement, old)
        while self._ended:
            ended, self._ended = self._ended, ()
            if "every end" in self.without and statement not in AGENT_OUTCOMES:
                continue
            for row in sorted(ended, key=lambda row: row.id):
                self._step_ended(row, old)

    # ------------------------------------------------------------ statements

    def outcomes_finish_steps(self, old: Snapshot, *given: Any) -> list[Record]:
        *outcomes, bucket_id, epoch, owner, lane, priority, handlers, tags, words = given
        (answer,) = self.outcomes_record_final(old, *outcomes)
        accepted, known = answer["accepted"], set(self.tables.jobs)
        self.run_triggers("outcomes/finish_steps", old)
        now = self.now_us()
        fit = sorted(
            (row for job_id, row in self.tables.jobs.items()
             if job_id not in known and row.state == "HELD" and row.lane == lane and row.priority == priority
             and decode_headers(row.headers).signal is None  # one that has received a kept signal sends a notice
             and row.due_us is not None and row.due_us <= now and (handlers is None or row.handler in handlers)
             and (tags is None or not has_tag(row.headers, tags))
             and (words is None or not lacking(row.headers, words))),
            key=lambda row: row.id,
        )  # fmt: skip
        more = len(fit) > len(accepted)
        names = ("id", "token", "handler", "args", "due_at", "headers", "attempt", "rescues")
        if not fit or not self._lock(old, bucket_id, epoch, owner, ("ACTIVE",)):
            return [Record(accepted=accepted, more=more, **dict.fromkeys(names))]
        found = []
        for row in fit[: len(accepted)]:
            moved = row._replace(state="ASSIGNED", token=row.token + 1, bucket_id=bucket_id, bucket_epoch=epoch,
                                 expires_us=None, changed_us=now)  # fmt: skip
            self._put(moved)
            self.audit.bound(self.tables, "finish_steps", bucket_id, epoch, owner)
            values = (row.id, moved.token, row.handler, row.args, self.moment(row.due_us), row.headers, row.attempt,
                      row.rescues)  # fmt: skip
            found.append(Record(accepted=accepted, more=more, **dict(zip(names, values, strict=True))))
        self.hits["workflow: next step in the same bucket"] += len(found)
        return found

    def workflows_start(
        self, old: Snapshot, of: bytes, name: str, undoes: bool, args_bytes: int, *columns: Any
    ) -> list[Record]:
        steps = {}
        for number, title, runs_on, parents, *others in zip(*columns, strict=True):
            numbers = tuple(map(int, filter(None, parents[1:-1].split(","))))
            steps[number] = StepRow(number, title, runs_on, numbers, *others)
        if (there := self.tables.workflows.get(of)) is not None:
            known = {number: _definition(step) for number, step in self.tables.workflow_steps[of].items()}
            same = there.name == name and known == {number: _definition(step) for number, step in steps.items()}
            return [Record(started=False if same else None)]
        self.tables.workflows[of] = WorkflowRow(of, name, undoes, args_bytes)
        self.tables.workflow_steps[of] = steps
        self._advance(of, steps, old)
        return [Record(started=True)]

    def workflows_cancel(self, old: Snapshot, of: bytes, actor: str) -> list[Record]:
        there = self.tables.workflows.get(of)
        cancelled = there is not None and there.state in ("RUNNING", "FAILING")
        if there is None or not (cancelled or there.state == "CANCELLING"):
            return [Record(cancelled=False, jobs=[])]
        steps = self.tables.workflow_steps[of]
        spared = _cleanup(steps)
        jobs = sorted(
            step.job_id for step in steps.values()
            if step.job_id and step.state == "STARTED" and step.runs_on == "success" and step.number not in spared
        )  # fmt: skip
        if not cancelled:
            return [Record(cancelled=False, jobs=jobs)]
        self.tables.workflows[of] = there._replace(state="CANCELLING", cancelled=True)
        self._call_off(of, "CANCELLED")
        self._advance(of, self.tables.workflow_steps[of], old)
        for job_id in jobs:
            self.audit.called_off(job_id)
            if "cancel cascade" not in self.without:
                self.requests_cancel(old, job_id, actor)
        self.audit.cancelled_steps(self.tables, jobs)
        return [Record(cancelled=True, jobs=jobs)]

    def workflows_retry(self, old: Snapshot, of: bytes, actor: str) -> list[Record]:
        there, steps = self.tables.workflows.get(of), self.tables.workflow_steps.get(of, {})
        undone = any(step.runs_on == "undo" and step.tries for step in steps.values())
        left = any(step.runs_on == "undo" and step.state in _FAILED | {"BLOCKED"} for step in steps.values())
        if there is None or there.state not in ("FAILED", "CANCELLED") or (undone and not left):
            return [Record(resumed=False)]
        self.tables.workflows[of] = there._replace(
            state="COMPENSATING" if undone else "RUNNING", cancelled=there.cancelled and undone
        )
        cleanup = _cleanup(steps)
        for step in steps.values():
            failed = step.state in _FAILED | {"BLOCKED"}
            skipped = step.state == "SKIPPED" and step.runs_on == "undo"
            again = (failed and step.runs_on == "undo") if undone else failed or skipped or step.number in cleanup
            if again:
                self._set(of, step._replace(state="PENDING", ended=None, error=None))
        self._advance(of, self.tables.workflow_steps[of], old)
        return [Record(resumed=True)]

    def workflows_get(self, old: Snapshot, of: bytes) -> list[Record]:
        there = self.tables.workflows.get(of)
        if there is None:
            return []
        states = [step.state for step in self.tables.workflow_steps[of].values() if step.runs_on != "undo"]
        return [Record(
            id=of, name=there.name, state=there.state, started_us=1, ended_us=2 if there.state in FINAL else None,
            steps=len(states), ended_steps=sum(state not in _OPEN for state in states),
            failed_steps=sum(state in _FAILED for state in states),
        )]  # fmt: skip

    def workflows_steps(self, old: Snapshot, of: bytes) -> list[Record]:
        steps = sorted(self.tables.workflow_steps.get(of, {}).values(), key=lambda step: step.number)
        return [
            Record(step=step.number, name=step.name, state=step.state, runs_on=step.runs_on, parents=step.parents,
                   handler=step.handler, job_id=step.job_id, tries=step.tries, error=step.error, job_error=None)
            for step in steps
        ]  # fmt: skip

    # ------------------------------------------------------------ what follows

    def _set(self, of: bytes, step: StepRow) -> None:
        """(The tables of a failover share what they hold with those of today, so nothing in them is changed.)"""
        self.tables.workflow_steps[of] = {**self.tables.workflow_steps[of], step.number: step}

    def _step_ended(self, row: JobRow, old: Snapshot) -> None:
        named = decode_headers(row.headers).workflow
        assert named is not None, "only its headers name the workflow of a job"
        of = UUID(named[0]).bytes
        steps = self.tables.workflow_steps.get(of, {})
        step = next((one for one in steps.values() if one.job_id == row.id and one.state == "STARTED"), None)
        if step is None:
            return
        self.hits["workflow: step ended"] += 1
        self._end_step(of, step, row.state, row.result, None)
        seen = self.tables.workflow_steps[of]
        if "join lock" in self.without:  # the ends of others are those of the begin of the statement
            seen = {**old.workflow_steps.get(of, seen), step.number: seen[step.number]}
        self._advance(of, seen, old)

    def _end_step(self, of: bytes, step: StepRow, state: str, result: bytes | None, error: str | None) -> None:
        there = self.tables.workflows[of]
        self.tables.workflows[of] = there._replace(ends=there.ends + 1)
        kept = result if step.kept and state == "SUCCEEDED" else None
        self._set(of, self.tables.workflow_steps[of][step.number]._replace(
            state=state, ended=there.ends + 1, result=kept, error=error
        ))  # fmt: skip

    def _call_off(self, of: bytes, state: str) -> None:
        cleanup = _cleanup(self.tables.workflow_steps[of])
        for step in self.tables.workflow_steps[of].values():
            if step.state == "PENDING" and step.runs_on == "success" and step.number not in cleanup:
                self._set(of, step._replace(state=state))

    def _advance(self, of: bytes, seen: Steps, old: Snapshot) -> None:
        """
        Args:
            seen: the steps as the statement sees them.
            old: what was there when it began.
        """
        if self.tables.workflows[of].state in FINAL:
            return
        moved = True
        while moved:
            moved = False
            there = self.tables.workflows[of]
            failed = any(step.runs_on != "undo" and step.state in _FAILED for step in seen.values())
            if there.state == "RUNNING" and there.undoes and failed:
                self.tables.workflows[of] = there._replace(state="FAILING")
                self._call_off(of, "BLOCKED")
                seen = self.tables.workflow_steps[of]
            ready = [
                step for step in seen.values()
                if step.state == "PENDING" and step.runs_on != "undo"
                and not any(seen[parent].state in _OPEN for parent in step.parents)
            ]  # fmt: skip
            for step in sorted(ready, key=lambda one: one.number):
                state = _decision(seen, step)
                if state == "STARTED":
                    state = self._run(of, step, old)
                else:
                    self._set(of, step._replace(state=state))
                moved = moved or state != "STARTED"
            if ready:
                seen = self.tables.workflow_steps[of]
        if any(step.runs_on != "undo" and step.state in _OPEN for step in seen.values()):
            return
        self._finish(of, failed, old)

    def _finish(self, of: bytes, failed: bool, old: Snapshot) -> None:
        there = self.tables.workflows[of]
        state = "CANCELLED" if there.cancelled else "FAILED" if failed else "SUCCEEDED"
        if there.undoes and state != "SUCCEEDED":
            self.tables.workflows[of] = self.tables.workflows[of]._replace(state="COMPENSATING")
            while True:
                steps = self.tables.workflow_steps[of]
                undos = [step for step in steps.values() if step.runs_on == "undo"]
                if any(undo.state == "STARTED" for undo in undos):
                    return
                left = [
                    undo for undo in undos if undo.state == "PENDING" and steps[undo.parents[0]].state == "SUCCEEDED"
                ]
                broken = any(undo.state in _FAILED for undo in undos)
                if broken:
                    state = "FAILED"
                    for undo in left:
                        self._set(of, undo._replace(state="BLOCKED"))
                if broken or not left:
                    break
                self._run(of, max(left, key=lambda undo: steps[undo.parents[0]].ended or 0), old)
        for step in self.tables.workflow_steps[of].values():
            if step.state == "PENDING":
                self._set(of, step._replace(state="SKIPPED"))
        self.tables.workflows[of] = self.tables.workflows[of]._replace(state=state)
        self.hits[f"workflow: {state}"] += 1

    def _run(self, of: bytes, step: StepRow, old: Snapshot) -> str:
        there, steps = self.tables.workflows[of], self.tables.workflow_steps[of]
        data, wrong = step.args, None
        for place, source, path in json.loads(step.refs):
            value = _value(steps, source, path)
            if value is None:
                wrong = f"the result of step {source} has no {'.'.join(path)}"
                break
            data = data[:place] + value.encode() + data[place:]
        if wrong is None and len(data) > there.args_bytes:
            wrong = f"the arguments have {len(data)} bytes with the results in them, the limit is {there.args_bytes}"
        made = self._job_id(of, step)
        known = self.tables.jobs.get(made)
        if wrong is None and known is None and self._vanishes(made):
            wrong = f"its job {UUID(bytes=made)} lies below the floor"
        if wrong is not None:
            self._end_step(of, step, "FAILED", None, wrong)
            return "FAILED"
        if known is None:
            before = [steps[parent].job_id for parent in step.parents if step.runs_on != "undo"]
            self.audit.began_step(self.tables, made, step.name, [job_id for job_id in before if job_id is not None])
            due_us = self.now_us() + step.delay_us
            if decode_headers(step.headers).signal is not None:
                signals = old.signals if "signal lock of a step" in self.without else self.tables.signals
                self._await_signal(signals, made, step.priority, step.lane, step.handler, due_us, data, step.headers)
            else:
                self._insert(made, "HELD", step.priority, step.lane, step.handler, 1, None, None, due_us, data,
                             step.headers)  # fmt: skip
        started = step._replace(state="STARTED", job_id=made, tries=step.tries + 1)
        self._set(of, started)
        if known is not None and known.state in FINAL:
            self._end_step(of, started, known.state, known.result, None)
            return known.state
        return "STARTED"

    def _job_id(self, of: bytes, step: StepRow) -> bytes:
        now_ms = self.now_us() // 1000
        near = abs(now_ms - int.from_bytes(of[:6])) < _HOUR_MS and of >= self.tables.floor
        time_part = of[:6] if near else now_ms.to_bytes(6)
        return time_part + of[6:12] + (step.tries + 1).to_bytes(2) + step.number.to_bytes(2)


def _definition(step: StepRow) -> tuple[Any, ...]:
    return step.runs_on, step.parents, step.handler, step.args, step.headers, step.delay_us


def _cleanup(steps: Steps) -> set[int]:
    """Steps that run after a failure or at the end, and those behind them."""
    found = {step.number for step in steps.values() if step.runs_on in ("failure", "end")}
    while more := {
        step.number for step in steps.values()
        if step.runs_on == "success" and step.number not in found and not found.isdisjoint(step.parents)
    }:  # fmt: skip
        found |= more
    return found


def _decision(steps: Steps, step: StepRow) -> str:
    ends = [steps[parent].state for parent in step.parents]
    failed = not _FAILED.isdisjoint(ends)
    if step.runs_on == "end" or (step.runs_on == "failure" and failed):
        return "STARTED"
    if step.runs_on == "failure":
        return "SKIPPED"
    if failed or "BLOCKED" in ends:
        return "BLOCKED"
    if ends and "SUCCEEDED" not in ends:
        return "SKIPPED"
    if step.choice is None:
        return "STARTED"
    choice = json.loads(step.choice)
    fits = _value(steps, choice["step"], choice["path"]) in choice["in"]
    return "STARTED" if fits != choice["else"] else "SKIPPED"


def _value(steps: Steps, number: int, path: Sequence[str]) -> str | None:
    """JSON of a part of a result; ``None``: it has no such part. (No result here has spaces in it.)"""
    step = steps[number]
    if step.state != "SUCCEEDED" or step.result is None:
        return "null"
    if not path:
        return step.result.decode()
    value: Any = json.loads(step.result)
    for part in path:
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            return None
    return json.dumps(value, separators=(",", ":"))
