"""Twins of the statements about circuit breakers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jobmaster.model.job import Priority
from tests.simulation.master.pause_statements import PauseStatements
from tests.simulation.master.tables import (
    ALIVE,
    FINAL,
    BreakerRow,
    JobRow,
    Record,
    ResultRow,
    Snapshot,
    TrialRow,
)

START_US = 30_000_000
"""Time in which a trial has to start."""
REST_US = 60_000_000
"""Time for which a job that has given its place up is no trial."""
FORGET_US = 600_000_000
AHEAD_US = 5_000_000


class BreakerStatements(PauseStatements):
    """Twins of ``breakers``: a decision is made by what the statement saw when it began, and counts by compare-and-set."""

    start_us, rest_us = START_US, REST_US

    def breakers_declare(
        self, old: Snapshot, agent_id: bytes, names: Sequence[str], failures: Sequence[float], windows: Sequence[float],
        calls: Sequence[int], spans: Sequence[float], trials: Sequence[int], handlers: Sequence[str],
        of_handlers: Sequence[str],
    ) -> list[Record]:  # fmt: skip
        agent, tables = self.tables.agents.get(agent_id), self.tables
        tables.breaker_handlers.update(zip(handlers, of_handlers, strict=True))
        written = []
        for name, share, window, least, span, most in sorted(
            zip(names, failures, windows, calls, spans, trials, strict=True)
        ):
            before = tables.breakers.get(name)
            if agent is None or (before is not None and before.declared_us > agent.started_us):
                continue
            kept = before or BreakerRow(
                name, "CLOSED", 0, 0, None, share, window, least, span, most, 0, self.now_us(), "", ""
            )
            kept = kept._replace(
                failures=share, window_seconds=window, min_calls=least, open_seconds=span, half_open=most,
                declared_us=agent.started_us,
            )  # fmt: skip
            tables.breakers[name] = kept
            written.append(Record(name=name))
        return written

    def breakers_report(
        self, old: Snapshot, agent_id: bytes, number: int, names: Sequence[str], calls: Sequence[int],
        failures: Sequence[int], of_trials: Sequence[str], jobs: Sequence[bytes], attempts: Sequence[int],
        failed: Sequence[bool],
    ) -> list[Record]:  # fmt: skip
        tables, now = self.tables, self.now_us()
        for name, job_id, attempt, has_failed in zip(of_trials, jobs, attempts, failed, strict=True):
            trial = tables.breaker_trials.get((name, job_id))
            if trial is not None and trial.attempt == attempt and trial.failed is None:
                tables.breaker_trials[name, job_id] = trial._replace(failed=has_failed)
        for name, some, bad in zip(names, calls, failures, strict=True):
            row = tables.breakers.get(name)
            mine = {key: line for key, line in tables.breaker_results.items() if key[:2] == (name, agent_id)}
            last = max((key[2] for key in mine), default=0)
            if last >= number:
                continue
            self.audit.breakers.reported(name, agent_id, now, some, bad)
            at_us = now
            if row is not None:
                for key, line in mine.items():
                    if line.at_us < now - _us(row.window_seconds):
                        del tables.breaker_results[key]
                newest = tables.breaker_results.get((name, agent_id, last))
                if newest is not None and newest.at_us > max(row.changed_us, now - _us(row.window_seconds / 60)):
                    del tables.breaker_results[name, agent_id, last]
                    at_us, some, bad = newest.at_us, some + newest.calls, bad + newest.failures
            tables.breaker_results[name, agent_id, number] = ResultRow(at_us, some, bad)
        return [Record(unknown=[name for name in names if name not in tables.breakers])]

    def breakers_evaluate(self, old: Snapshot, names: Sequence[str], nobody_waits: bool) -> list[Record]:
        changed = []
        for name in sorted(set(names)):
            before = old.breakers.get(name)
            wanted = None if before is None else self._wanted(old, before, nobody_waits)
            if wanted is None:
                if before is not None and before == self.tables.breakers.get(name):
                    self.audit.breakers.stays(before, old.reports, self.now_us())
                continue
            version = self._next_version()
            row = self.tables.breakers.get(name)
            if row is None or (row.epoch != before.epoch and "breaker compare-and-set" not in self.without):  # type: ignore[union-attr]
                continue
            state, reason = wanted
            until = self.now_us() + _us(row.open_seconds) if state == "OPEN" else None
            changed.append(self._change(row, state, "breaker", reason, until, version))
        return changed

    def _wanted(self, old: Snapshot, row: BreakerRow, nobody_waits: bool) -> tuple[str, str] | None:
        """The state that the numbers ask for."""
        since = max(row.changed_us, self.now_us() - _us(row.window_seconds))
        alive = {agent.id for agent in old.agents.values() if agent.state in ALIVE}
        lines = [
            line for (name, agent_id, _), line in old.breaker_results.items()
            if name == row.name and line.at_us > since and ("results of the dead" not in self.without or agent_id in alive)
        ]  # fmt: skip
        calls, failed = sum(line.calls for line in lines), sum(line.failures for line in lines)
        if row.state == "CLOSED":
            opens = calls >= row.min_calls and failed >= row.failures * calls and failed > 0
            return ("OPEN", f"{failed} of {calls} runs have failed") if opens else None
        trials = [
            each for (name, _), each in old.breaker_trials.items() if name == row.name and each.epoch == row.epoch
        ]
        tried, lost = (sum(each.failed is outcome for each in trials) for outcome in (False, True))
        under_way = sum(each.failed is None and each.passed_us is None for each in trials)
        if row.state != "HALF_OPEN":
            return None
        if lost:
            return "OPEN", f"{lost} of {tried + lost} trials have failed"
        if tried >= row.half_open or (nobody_waits and tried and not under_way):
            return "CLOSED", f"{tried} trials have succeeded"
        return None

    def breakers_half_open(self, old: Snapshot) -> list[Record]:
        over = [row for row in old.breakers.values() if row.state == "OPEN" and row.until_us is not None]
        over = [row for row in sorted(over) if row.until_us is not None and row.until_us <= self.now_us()]
        if not over:
            return []
        version, changed = self._next_version(), []
        for before in over:
            for key in [
                key for key in self.tables.breaker_trials if key[0] == before.name and key in old.breaker_trials
            ]:
                del self.tables.breaker_trials[key]
            row = self.tables.breakers.get(before.name)
            if row is not None and row.epoch == before.epoch and row.state == "OPEN":
                changed.append(self._change(row, "HALF_OPEN", "breaker", "it was open for its time", None, version))
        return changed

    def breakers_set_state(
        self, old: Snapshot, name: str, state: str, seconds: float | None, actor: str, reason: str, epoch: int | None
    ) -> list[Record]:
        before, row = old.breakers.get(name), self.tables.breakers.get(name)
        if before is None or epoch not in (None, before.epoch):
            return []
        version = self._next_version()
        if row is None or epoch not in (None, row.epoch):
            return []
        until = self.now_us() + _us(seconds) if state == "OPEN" and seconds is not None else None
        self._change(row, state, actor, reason, until, version)
        return [Record(version=version)]

    def _change(self, row: BreakerRow, state: str, actor: str, reason: str, until: int | None, version: int) -> Record:
        now = self.now_us()
        epoch = max(row.epoch + 1, now)
        after = row._replace(state=state, epoch=epoch, until_us=until, changed_us=now, actor=actor, reason=reason)
        self.audit.breakers.changes(self.tables, row, after)
        self.tables.breakers[row.name] = after
        self.audit.breakers.barred(self.tables, version)
        return Record(name=row.name, state=state, reason=reason, version=version)

    # ------------------------------------------------------------ trials

    def breakers_choose_trials(self, old: Snapshot, depth: int) -> list[Record]:
        tables, looks = self.tables, []
        for before in sorted(old.breakers.values()):
            if before.state != "HALF_OPEN":
                if before.until_us is not None:
                    left = (before.until_us - self.now_us()) / 1e6
                    looks.append(Record(name=before.name, chosen=0, waits=True, left_seconds=left))
                continue
            trials = {
                job_id: each for (name, job_id), each in old.breaker_trials.items()
                if name == before.name and each.epoch == before.epoch
            }  # fmt: skip
            done = {job_id for job_id, each in trials.items() if each.failed is None and self._has_succeeded(job_id)}
            void = {job_id for job_id, each in trials.items() if self._is_void(job_id, each)}
            open_ = [job_id for job_id, each in trials.items()
                     if each.failed is None and each.passed_us is None and job_id not in done | void]  # fmt: skip
            free = before.half_open - len(open_) - len(done) - sum(each.failed is not None for each in trials.values())
            if "bound of trials" in self.without:
                free = 1000
            hopeless = any(each.failed for each in trials.values())
            found = [] if free <= 0 or hopeless else self._candidates(old, before, trials, depth)[:free]
            chosen = 0
            if found or done or void:
                version, row = self._next_version(), tables.breakers.get(before.name)
                same = row is not None and (row.epoch, row.looks) == (before.epoch, before.looks)
                if row is not None and (same or "one choice of trials" in self.without):
                    self._choose(row, done, void, found)
                    chosen = len(found)
                    self.audit.breakers.chosen(tables, row)
                    self.audit.breakers.barred(tables, version)
            looks.append(Record(name=before.name, chosen=chosen, waits=bool(open_ or found), left_seconds=None))
        return looks

    def _choose(self, row: BreakerRow, done: set[bytes], void: set[bytes], found: Sequence[JobRow]) -> None:
        tables, now = self.tables, self.now_us()
        tables.breakers[row.name] = row._replace(looks=row.looks + 1)
        for job_id in done | void:
            trial = tables.breaker_trials.get((row.name, job_id))
            if trial is not None and trial.failed is None:
                change: dict[str, Any] = {"failed": False} if job_id in done else {"passed_us": now}
                tables.breaker_trials[row.name, job_id] = trial._replace(**change)
        for (name, job_id), trial in [*tables.breaker_trials.items()]:
            rests = trial.failed is None and trial.passed_us is not None and trial.passed_us < now - FORGET_US
            if name == row.name and rests and job_id not in {job.id for job in found}:
                del tables.breaker_trials[name, job_id]
        for job in found:
            tables.breaker_trials[row.name, job.id] = TrialRow(row.epoch, job.attempt, None, now, None)

    def _has_succeeded(self, job_id: bytes) -> bool:
        job = self.tables.jobs.get(job_id)
        return job is not None and job.state == "SUCCEEDED"

    def _is_void(self, job_id: bytes, trial: TrialRow) -> bool:
        """The trial will not start soon, or has ended without a result."""
        if trial.failed is not None or trial.passed_us is not None or self._has_succeeded(job_id):
            return False
        job, now = self.tables.jobs.get(job_id), self.now_us()
        if job is None or job.attempt > trial.attempt or job.state in FINAL or job.state == "WAITING":
            return True
        if job.state == "PROCESSING":
            return False
        ahead = 0 if job.state == "HELD" else AHEAD_US
        return (job.due_us or 0) > now + ahead or trial.chosen_us < now - self.start_us

    def _candidates(self, old: Snapshot, row: BreakerRow, trials: dict[bytes, TrialRow], depth: int) -> list[JobRow]:
        """The oldest due jobs that would start where they wait."""
        now, found = self.now_us(), []
        due = [
            job
            for job in self.tables.jobs.values()
            if job.state == "HELD" and job.due_us is not None and job.due_us <= now
        ]
        for group in sorted({(job.lane, job.priority) for job in due}):
            handlers = self._runnable(old, row, *group)
            front = sorted(
                (job for job in due if (job.lane, job.priority) == group), key=lambda job: (job.due_us, job.id)
            )
            found += [job for job in front[:depth] if job.handler in handlers and not job.cancel_requested]

        def rests(job: JobRow) -> bool:
            trial = trials.get(job.id)
            return trial is not None and (
                trial.failed is not None or trial.passed_us is None or trial.passed_us > now - self.rest_us
            )

        return sorted((job for job in found if not rests(job)), key=lambda job: (job.due_us, job.id))

    def _runnable(self, old: Snapshot, row: BreakerRow, lane: str, priority: int) -> set[str]:
        """Handlers of the breaker that an owner of a bucket has, and that nothing pauses there."""
        owners = [
            old.agents[bucket.owner] for bucket in old.buckets.values()
            if (bucket.lane, bucket.priority, bucket.state) == (lane, priority, "ACTIVE") and bucket.owner in old.agents
        ]  # fmt: skip
        paused = {key for key, pause in self.tables.pauses.items() if not self._is_over(pause)}
        if paused & {("lane", lane), ("priority", Priority(priority).label)}:
            return set()
        return {
            handler for handler, name in self.tables.breaker_handlers.items()
            if name == row.name and ("handler", handler) not in paused
            and any(owner.state == "ACTIVE" and handler in owner.handlers for owner in owners)
        }  # fmt: skip

    def breakers_forget(self, old: Snapshot) -> list[Record]:
        tables, now = self.tables, self.now_us()
        gone = [key for key, line in tables.breaker_results.items() if line.at_us < now - 7_200_000_000]
        for key in gone:
            del tables.breaker_results[key]
        return [Record(forgotten=len(gone), breakers=[])]

    def breakers_list(self, old: Snapshot, name: str | None) -> list[Record]:
        return [self._breaker_listed(row) for row in sorted(self.tables.breakers.values()) if name in (None, row.name)]

    def _breaker_listed(self, row: BreakerRow) -> Record:
        tables = self.tables
        since = max(row.changed_us, self.now_us() - _us(row.window_seconds))
        lines = [each for key, each in tables.breaker_results.items() if key[0] == row.name and each.at_us > since]
        trials = {
            key[1]: each for key, each in tables.breaker_trials.items()
            if key[0] == row.name and each.epoch == row.epoch and row.state == "HALF_OPEN"
        }  # fmt: skip
        return Record(
            name=row.name, state=row.state, failures=row.failures, window_seconds=row.window_seconds,
            min_calls=row.min_calls, open_seconds=row.open_seconds, half_open=row.half_open,
            handlers=sorted(handler for handler, of in tables.breaker_handlers.items() if of == row.name),
            calls=sum(each.calls for each in lines), failed=sum(each.failures for each in lines),
            trial_jobs=sorted(id_ for id_, each in trials.items() if each.failed is None and each.passed_us is None),
            succeeded=sum(each.failed is False for each in trials.values()), changed_us=row.changed_us,
            until_us=row.until_us, actor=row.actor, reason=row.reason, epoch=row.epoch,
        )  # fmt: skip

    # ------------------------------------------------------------ what agents obey

    def _breakers_in_force(self) -> list[dict[str, Any]]:
        """Lines of ``pauses/in_force``."""
        tables = self.tables
        return [
            {
                "kind": "breaker", "value": row.name, "until_us": row.until_us, "left_seconds": None, "actor": row.actor,
                "reason": row.reason, "at_us": row.changed_us,
                "handlers": sorted(handler for handler, of in tables.breaker_handlers.items() if of == row.name),
                "trials": sorted(
                    job_id for (name, job_id), each in tables.breaker_trials.items()
                    if name == row.name and each.epoch == row.epoch and each.failed is None and each.passed_us is None
                ),
            }
            for row in sorted(tables.breakers.values()) if row.state != "CLOSED"
        ]  # fmt: skip


def _us(seconds: float) -> int:
    return round(seconds * 1e6)
