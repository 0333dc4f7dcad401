"""Twins of the statements about schedules."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from jobmaster.master.driver.connection import EPOCH_2000_US
from tests.simulation.master.rescue_statements import RescueStatements
from tests.simulation.master.tables import ALIVE, FINAL, FireRow, JobRow, Record, ScheduleRow, Snapshot

SECOND_US = 1_000_000
_CANCELLED_AT_ONCE = ("HELD", "WAITING")


class _Line(NamedTuple):
    """One fire, as it is proposed, and then as it is decided."""

    nominal_us: int
    outcome: str
    through_us: int
    job_id: bytes
    due_us: int
    headers: bytes


def _jitter_of(row: ScheduleRow) -> float:
    return float(json.loads(row.definition).get("jitter_seconds", 0.0))


class ScheduleStatements(RescueStatements):
    """Twins of ``schedules``."""

    # ------------------------------------------------------------ the leader

    def fires_in_seconds(self) -> float | None:
        """What the leader's tick returns."""
        times = [row.decide_us for row in self.tables.schedules.values() if row.decide_us is not None]
        return (min(times) - self.now_us()) / SECOND_US if times else None

    def schedules_due(self, old: Snapshot, limit: int, late: float) -> list[Record]:
        now = self.now_us()
        due = sorted(
            (row.decide_us <= now - int(late * SECOND_US), row.decide_us, row.name) for row in self.tables.schedules.values()
            if row.decide_us is not None and row.decide_us <= now
        )  # fmt: skip
        rows = [self.tables.schedules[name] for *_, name in due[:limit]]
        return [
            Record(
                name=row.name, definition=row.definition, next_us=row.next_us, decide_us=row.decide_us,
                revision=row.revision, now_us=now,
            )
            for row in rows
        ]  # fmt: skip

    def schedules_fire(
        self, old: Snapshot, names: Sequence[str], expected: Sequence[int], revisions: Sequence[int],
        nexts: Sequence[int], schedules: Sequence[str], nominals: Sequence[int], outcomes: Sequence[str],
        throughs: Sequence[int], jobs: Sequence[bytes], dues: Sequence[int], headers: Sequence[bytes], lead: float,
        epoch: int | None,
    ) -> list[Record]:  # fmt: skip
        lines: dict[str, list[_Line]] = {}
        for name, *rest in zip(schedules, nominals, outcomes, throughs, jobs, dues, headers, strict=True):
            lines.setdefault(name, []).append(_Line(*rest))
        answer = []
        for name, expected_us, revision, next_us in sorted(zip(names, expected, revisions, nexts, strict=True)):
            row = self.tables.schedules.get(name)
            read = old.schedules.get(name) if "schedule compare-and-set" in self.without else row
            if row is None or read is None or (read.next_us, read.revision) != (expected_us, revision):
                continue
            if row.paused or row.retired:
                continue
            answer += self._decide(old, row, sorted(lines.get(name, ())), next_us, lead)
        return answer

    def _decide(
        self, old: Snapshot, row: ScheduleRow, lines: Sequence[_Line], next_us: int, lead: float
    ) -> list[Record]:
        now = self.now_us()
        running = [] if row.overlap == "parallel" else [job for job in row.last_jobs if self._unfinished(job)]
        checked = [line._replace(outcome=self._outcome_of(old, row, line, bool(running))) for line in lines]
        stop = next((line for line in checked if line.outcome == "waits"), None)
        decided = checked if stop is None else checked[: checked.index(stop)]
        if row.overlap == "cancel_previous" and any(line.outcome == "fired" for line in decided):
            for job in running:
                self._cancel(self.tables.jobs[job])
        previous, fired = row.last_us, []
        for line in decided:
            if "misfire lines" not in self.without or line.outcome != "missed":
                self._note(row, line, previous)
            if line.outcome == "fired":
                self._fired(row, line)
                fired.append(line.job_id)
            previous = line.nominal_us
        if row.overlap == "parallel":
            last = tuple(fired[-1:]) or row.last_jobs
        else:
            last = (*fired, *running)[:100]
        at = next_us or None if stop is None else stop.nominal_us
        decide = None if at is None else at - int(lead * SECOND_US)
        if stop is not None:
            since = max([stop.nominal_us, *(self.tables.jobs[job].changed_us for job in running)])
            decide = max(stop.nominal_us, now + min(max(now - since, SECOND_US), 15 * SECOND_US))
        self.tables.schedules[row.name] = row._replace(next_us=at, decide_us=decide, last_us=previous, last_jobs=last)
        return [
            Record(
                schedule=row.name, nominal_us=line.nominal_us, outcome=line.outcome, lane=row.lane, priority=row.priority,
                due_us=line.due_us,
            )
            for line in decided
        ]  # fmt: skip

    def _outcome_of(self, old: Snapshot, row: ScheduleRow, line: _Line, runs: bool) -> str:
        fires = old.fires if "schedule compare-and-set" in self.without else self.tables.fires
        there = fires.get((row.name, line.nominal_us))
        job = None if there is None or there.job_id is None else self.tables.jobs.get(there.job_id)
        if there is not None and (there.outcome != "withdrawn" or job is None):
            return "known"
        if job is not None and job.state not in FINAL:
            return "waits"
        if job is not None and job.state in ("SUCCEEDED", "FAILED"):
            return "ran"
        if line.outcome != "fired" or not runs:
            return line.outcome
        if line.nominal_us > self.now_us() or row.overlap == "queue":
            return "waits"
        return "skipped" if row.overlap == "skip" else "fired"

    def _note(self, row: ScheduleRow, line: _Line, previous: int | None) -> None:
        key = row.name, line.nominal_us
        self.hits[f"fire: {line.outcome}"] += 1
        if line.outcome == "ran":
            self.tables.fires[key] = self.tables.fires[key]._replace(outcome="fired", previous_us=previous)
        elif line.outcome != "known":
            job_id = line.job_id if line.outcome == "fired" else None
            self.tables.fires[key] = FireRow(line.outcome, job_id, line.through_us or None, previous, False)

    def _fired(self, row: ScheduleRow, line: _Line) -> None:
        self.audit.fired(self.tables, row.name, line.nominal_us, line.job_id)
        self._insert(
            line.job_id, "HELD", row.priority, row.lane, row.handler, 1, None, None, line.due_us, row.args, line.headers
        )

    def _unfinished(self, job_id: bytes) -> bool:
        row = self.tables.jobs.get(job_id)
        return row is not None and row.state not in FINAL

    def _cancel(self, row: JobRow) -> None:
        if row.state in _CANCELLED_AT_ONCE:
            row = row._replace(state="CANCELLED", changed_us=self.now_us())
        self.audit.called_off(row.id)
        self._put(row._replace(cancel_requested=True, expires_us=None))

    def schedules_retire_undeclared(self, old: Snapshot, grace: float) -> list[Record]:
        now, retired = self.now_us(), []
        declared = {
            name for agent_id, names in self.tables.declared.items() for name in names
            if agent_id in self.tables.agents and self.tables.agents[agent_id].state in ALIVE
        }  # fmt: skip
        for row in sorted(self.tables.schedules.values()):
            if row.source == "api" or row.retired:
                continue
            since = None if row.name in declared else row.undeclared_us or now
            row = row._replace(undeclared_us=since)
            if since is not None and since < now - int(grace * SECOND_US):
                row = row._replace(retired=True, decide_us=None, revision=row.revision + 1, lapsed_us=now)
                retired.append(Record(name=row.name))
            self.tables.schedules[row.name] = row
        return retired

    # ------------------------------------------------------------ definitions

    def schedules_declare(
        self, old: Snapshot, agent_id: bytes, names: Sequence[str], digests: Sequence[str]
    ) -> list[Record]:
        row = self.tables.agents.get(agent_id)
        if row is None:
            return []
        self.tables.declared[agent_id] = tuple(sorted({*self.tables.declared.get(agent_id, ()), *names}))
        self.tables.digests.setdefault(agent_id, set()).update(digests)
        return [Record(started_at=self.moment(row.started_us))]

    def _living_digests(self) -> set[str]:
        agents = self.tables.agents
        living = [each for each in self.tables.digests if each in agents and agents[each].state in ALIVE]
        return set().union(*(self.tables.digests[each] for each in living))

    def schedules_to_republish(self, old: Snapshot, names: Sequence[str], digests: Sequence[str]) -> list[Record]:
        living, rows = self._living_digests(), self.tables.schedules
        return [
            Record(name=name)
            for name, digest in zip(names, digests, strict=True)
            if name in rows and rows[name].digest not in {digest, *living}
            and rows[name].source != "api" and not rows[name].retired
        ]  # fmt: skip

    def queries_now(self, old: Snapshot) -> list[Any]:
        return [Record(now=self.moment(self.now_us()))]

    def schedules_put(self, old: Snapshot, source: str, started: tuple[int] | None, *columns: Any) -> list[Record]:
        lead = columns[-1]
        now, answer = self.now_us(), []
        declared = now if started is None else started[0] + EPOCH_2000_US
        for name, digest, definition, handler, args, priority, lane, _, _, overlap, tags, next_us in zip(
            *columns[:-1], strict=True
        ):
            there = self.tables.schedules.get(name)
            if there is not None:
                ours = there.source == source or there.retired or "api" not in (there.source, source)
                later = there.declared_us < declared and (
                    there.retired
                    or source == "api"
                    or digest not in there.superseded
                    or "superseded definitions" in self.without
                )
                left = not there.retired and there.digest not in {digest, *self._living_digests()}
                if not ours or not (later or (left and "api" not in (there.source, source))):
                    continue
                if there.digest == digest and not there.retired:
                    self.tables.schedules[name] = there._replace(
                        source=source, declared_us=declared, undeclared_us=None
                    )
                    answer.append(Record(name=name, changed=False, jitter=_jitter_of(there)))
                    continue
            last = None
            superseded: tuple[str, ...] = ()
            if there is not None and there.digest == digest:
                superseded = there.superseded
            elif there is not None and not there.retired and source != "api" and later:
                superseded = (there.digest, *there.superseded)[:20]
            decide = next_us - int(lead * SECOND_US) if next_us else None
            if there is not None and self._keeps_its_fire(there, source):
                next_us = there.next_us or 0
                decide = next_us - int(lead * SECOND_US) if there.decide_us is None else there.decide_us
                last = None if there.retired else there.last_us
            paused = there is not None and there.paused
            self.tables.schedules[name] = ScheduleRow(
                name, source, digest, definition, handler, args, priority, lane, overlap, tuple(json.loads(tags)), declared,
                1 if there is None else there.revision + 1, next_us or None, None if paused else decide, last,
                () if there is None else there.last_jobs, paused, False, None, None if there is None else there.paused_us,
                None, superseded,
            )  # fmt: skip
            self.audit.defined(self.tables, there, self.tables.schedules[name])
            answer.append(Record(name=name, changed=True, jitter=None if there is None else _jitter_of(there)))
        return answer

    def _keeps_its_fire(self, row: ScheduleRow, source: str) -> bool:
        """The next fire is overdue, and was neither put off by a pause nor given up by a removal."""
        overdue = row.next_us is not None and row.next_us <= (self.now_us() if row.paused_us is None else row.paused_us)
        lapsed = row.lapsed_us is not None and source != "api" and row.lapsed_us > self.now_us() - 86_400 * SECOND_US
        return overdue and (not row.retired or lapsed)

    def schedules_withdraw(self, old: Snapshot, names: Sequence[str], jitters: Sequence[float]) -> list[Record]:
        answer, now = [], self.now_us()
        jitter = {
            name: max(seconds, _jitter_of(self.tables.schedules[name])) * SECOND_US
            for name, seconds in zip(names, jitters, strict=True)
        }
        for (name, nominal), line in sorted(self.tables.fires.items()):
            job = None if line.job_id is None else self.tables.jobs.get(line.job_id)
            if name not in jitter or nominal <= now - jitter[name] or line.outcome != "fired" or job is None:
                continue
            waits = (job.due_us or 0) > now and job.attempt == 0 and not line.manual
            if job.state not in ("HELD", "ASSIGNED") or not (nominal > now or waits):
                continue
            self._cancel(job)
            self.hits["fire: withdrawn"] += 1
            self.tables.fires[name, nominal] = line._replace(outcome="withdrawn")
            row = self.tables.schedules[name]
            kept = tuple(each for each in row.last_jobs if each != job.id)
            self.tables.schedules[name] = row._replace(last_jobs=kept)
            answer.append(Record(schedule=name, job_id=job.id, state=self.tables.jobs[job.id].state))
        return answer

    # ------------------------------------------------------------ people

    def schedules_pause(
        self, old: Snapshot, names: Sequence[str] | None, tag: str | None, actor: str, reason: str
    ) -> list[Record]:
        chosen = [row for row in self._chosen(names, tag) if not row.paused]
        for row in chosen:
            self.tables.schedules[row.name] = row._replace(
                paused=True, decide_us=None, revision=row.revision + 1, paused_us=self.now_us()
            )
        return [Record(name=row.name) for row in chosen]

    def schedules_remove(self, old: Snapshot, names: Sequence[str] | None, tag: str | None, actor: str) -> list[Record]:
        chosen = self._chosen(names, tag)
        for row in chosen:
            self.tables.schedules[row.name] = row._replace(
                retired=True, decide_us=None, revision=row.revision + 1, lapsed_us=None
            )
        return [Record(name=row.name) for row in chosen]

    def _chosen(self, names: Sequence[str] | None, tag: str | None) -> list[ScheduleRow]:
        return [
            row for row in sorted(self.tables.schedules.values())
            if (names is None or row.name in names) and (tag is None or tag in row.tags) and not row.retired
        ]  # fmt: skip

    def schedules_resume(
        self,
        old: Snapshot,
        names: Sequence[str],
        revisions: Sequence[int],
        nexts: Sequence[int],
        lead: float,
        actor: str,
    ) -> list[Record]:
        answer = []
        for name, revision, next_us in sorted(zip(names, revisions, nexts, strict=True)):
            row = self.tables.schedules.get(name)
            if row is None or row.revision != revision or not row.paused:
                continue
            if row.next_us is not None and row.paused_us is not None and row.next_us <= row.paused_us:
                line = FireRow(
                    "missed", None, None if row.paused_us == row.next_us else row.paused_us, row.last_us, False
                )
                self.tables.fires.setdefault((name, row.next_us), line)
            decide = next_us - int(lead * SECOND_US) if next_us and not row.retired else None
            self.tables.schedules[name] = row._replace(
                paused=False,
                revision=revision + 1,
                next_us=next_us or None,
                decide_us=decide,
                last_us=None,
                paused_us=None,
            )
            answer.append(Record(name=name))
        return answer

    def schedules_run_now(
        self,
        old: Snapshot,
        name: str,
        job_id: bytes,
        at_us: int,
        headers: bytes,
        revision: int,
        next_us: int,
        actor: str,
    ) -> list[Record]:
        row = self.tables.schedules.get(name)
        if row is None or row.revision != revision or (row.next_us or 0) != next_us or row.retired:
            return []
        ahead = [] if row.overlap == "parallel" else self._ahead(name)
        jobs = {line.job_id for _, line in ahead}
        running = [] if row.overlap == "parallel" else sorted(
            each for each in row.last_jobs if each not in jobs and self._unfinished(each)
        )  # fmt: skip
        fires = not running or row.overlap == "cancel_previous"
        if fires:
            for each in running:
                self._cancel(self.tables.jobs[each])
            self._fired(row, _Line(at_us, "fired", 0, job_id, at_us, headers))
            if row.overlap != "parallel":
                self._run_before(row, job_id, ahead)
        outcome = "fired" if fires else "skipped"
        self.tables.fires[name, at_us] = FireRow(outcome, job_id if fires else None, None, None, True)
        return [Record(outcome=outcome, lane=row.lane, priority=row.priority, previous=running[0] if running else None)]

    def _ahead(self, name: str) -> list[tuple[int, FireRow]]:
        """Lines whose jobs were made ahead and have not begun."""
        now, found = self.now_us(), []
        for (schedule, nominal), line in sorted(self.tables.fires.items()):
            job = None if line.job_id is None else self.tables.jobs.get(line.job_id)
            if schedule != name or nominal <= now or line.outcome != "fired" or job is None:
                continue
            if job.state in ("HELD", "ASSIGNED") and job.attempt == 0 and (job.due_us or 0) > now:
                found.append((nominal, line))
        return found

    def _run_before(self, row: ScheduleRow, job_id: bytes, ahead: Sequence[tuple[int, FireRow]]) -> None:
        """The job that a person made is the newest; fires that lie ahead are decided again."""
        for nominal, line in ahead:
            assert line.job_id is not None
            self._cancel(self.tables.jobs[line.job_id])
            self.hits["fire: withdrawn"] += 1
            self.tables.fires[row.name, nominal] = line._replace(outcome="withdrawn")
        gone = {line.job_id for _, line in ahead}
        last = (job_id, *(each for each in row.last_jobs if each not in gone))[:100]
        row = row._replace(last_jobs=last, revision=row.revision + 1)
        if ahead:
            nominal, line = ahead[0]
            row = row._replace(
                next_us=nominal, decide_us=row.decide_us if row.paused else nominal, last_us=line.previous_us
            )
        self.tables.schedules[row.name] = row

    def schedules_list(
        self, old: Snapshot, names: Sequence[str] | None, tag: str | None, retired: bool, after: str, limit: int
    ) -> list[Record]:
        rows = [
            row for row in sorted(self.tables.schedules.values())
            if (names is None or row.name in names) and (tag is None or tag in row.tags)
            and (retired or not row.retired) and row.name > after
        ]  # fmt: skip
        return [
            Record(
                definition=row.definition, args=row.args, source=row.source, declared_us=row.declared_us,
                revision=row.revision, next_us=row.next_us, paused_us=1 if row.paused else None, paused_by="",
                paused_reason="", retired_us=1 if row.retired else None, retired_reason="", now_us=self.now_us(),
            )
            for row in rows[:limit]
        ]  # fmt: skip

    def schedules_fires(self, old: Snapshot, name: str, limit: int) -> list[Any]:
        found = sorted(((key[1], line) for key, line in self.tables.fires.items() if key[0] == name), reverse=True)
        return [
            (name, nominal, line.outcome, line.job_id, 0, line.through_us, line.manual)
            for nominal, line in found[:limit]
        ]
