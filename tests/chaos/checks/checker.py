"""The checker, in the form of Jepsen's total queue: what went in must come out, and nothing else may.

Pure: it sees a `History` and says what is wrong with it. Unknown outcomes stay unknown: they are neither success nor
failure, and whatever became of them is right as long as it happened once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from typing import Any

import msgspec

from tests.chaos.checks.flow import FLOW_VIOLATIONS, check_flow
from tests.chaos.checks.history import FINAL, Ack, Death, FaultRecord, History
from tests.chaos.processes.witness import ANYWHERE

EXCUSE_SECONDS = 60.0
"""`History.excuse_seconds` of a run in which the master is never away for long."""
REPLY_SECONDS = 10.0
"""An acknowledgement is written down when it arrives, which may be so long after the store has given it."""
AWAKE_SECONDS = 1.0
"""So long after its certificate (or after it was woken) an agent may still be on its way out."""
_EXAMPLES = 5
FENCED = "chaos.fenced"
ONCE = frozenset({"chaos.once", "chaos.once_isolated"})
"""At most once, in a thread or a worker process."""
QUIET_SECONDS = 5.0
"""An acknowledged cancel of a waiting job holds if its time was so far off, and nothing failed until then."""
DECIDED = {
    "chaos.put_off": ("SUCCEEDED", ""),
    "chaos.failing": ("FAILED", "failed"),
    "chaos.given_up": ("FAILED", "given_up"),
    "chaos.declined": ("FAILED", "failed"),
}
"""Handlers that decide how their job ends, or whose rules do -> its state and reason, with the first attempt."""
CLUSTER_REASONS = frozenset({"agent_lost", "timeout"})
"""Ends that the cluster decides: rescued too often, or stopped at the time-out."""
UNBEGUN_MAX = 3
"""At-most-once jobs that one fault may end without their first line: each had a thread, and was cut off before that line."""


class Findings(msgspec.Struct, kw_only=True):
    """What was found. Those in `violations` must be 0."""

    attempts: int = 0
    acknowledged: int = 0
    ok: int = 0
    """Acknowledged, recorded as succeeded, and seen running (jobs that are meant to fail are not among them)."""
    lost: int = 0
    """Acknowledged and without an outcome, although the level promised to survive everything that happened."""
    lost_by_level: dict[str, int] = {}
    excused: dict[str, int] = {}
    """Lost for a fault that their level does not cover."""
    excused_seconds: dict[str, float] = {}
    """Fault -> how long before it the oldest of these was acknowledged; negative: all of them while it lasted."""
    excused_jobs: set[str] = set()
    unfinished: int = 0
    """Of the lost: have a row, but not a final one."""
    unexpected: int = 0
    """Ran or were recorded, and no producer tried to submit them."""
    duplicate_outcomes: int = 0
    """Two concluding lines, a changed final row, or a result that was read and is another now."""
    stale_recorded: int = 0
    """The recorded result is of another assignment than the row's."""
    unwitnessed: int = 0
    """Recorded as succeeded, but no handler ever began."""
    fenced_twice: int = 0
    """``start="fenced"`` handlers that began twice under one token."""
    started_dead: int = 0
    """Jobs begun by an agent that had its death certificate and was awake."""
    once_twice: int = 0
    """At-most-once jobs that began more than once."""
    abandoned_unbegun: int = 0
    """At-most-once jobs that were given up although they had not begun, beyond the few that a fault may cut off."""
    decided_otherwise: int = 0
    """Jobs that ended in another way than their handler, or its rules, had decided, or with another attempt."""
    cancel_forgotten: int = 0
    """Jobs that began although a cancel had been acknowledged before their time."""
    cancels: int = 0
    """Cancels of waiting jobs that were answered."""
    cancelled_begun: int = 0
    """Of these, jobs that began later all the same: those above, and those that a fault excuses."""
    reexecuted: int = 0
    """Starts beyond the first of each attempt's... of each job, retries of failures not counted."""
    recovered: int = 0
    """Unknown to their producer, and done."""
    info: int = 0
    """Unknown to their producer, and never seen again."""
    stale_refused: int = 0
    limit_exceeded: int = 0
    """Jobs that ran while as many as the limit allows, or one more of an ordering key, were running."""
    order_broken: int = 0
    """Jobs of an ordering key that began before an earlier one had ended."""
    signal_missed: int = 0
    """Jobs that ran without the signal that was sent to them in time."""
    batch_wrong: int = 0
    """Batches that have not ended, that counted wrong, or whose callback was not fired exactly once."""
    workflow_wrong: int = 0
    """Workflows that have ended in another state, or with a step (or compensation) that has no job or two."""
    unique_twice: int = 0
    """Unique keys whose submits were answered with two jobs."""
    bucket_unrescued: int = 0
    """Buckets that were still lost when the time to drain was over."""
    flow: dict[str, int] = {}
    """How much there was of each part of flow."""
    states: dict[str, int] = {}
    examples: dict[str, list[str]] = {}

    @property
    def violations(self) -> dict[str, int]:
        """Those that are not 0 and should be."""
        names = (
            "lost",
            "unexpected",
            "duplicate_outcomes",
            "stale_recorded",
            "unwitnessed",
            "fenced_twice",
            "started_dead",
            "once_twice",
            "abandoned_unbegun",
            "decided_otherwise",
            "cancel_forgotten",
            "bucket_unrescued",
            *FLOW_VIOLATIONS,
        )
        return {name: getattr(self, name) for name in names if getattr(self, name)}


def check(history: History) -> Findings:
    """Check one run."""
    findings = Findings(
        attempts=history.attempts,
        acknowledged=len(history.acks),
        stale_refused=history.stale_refused,
        states=dict(Counter(row.state for row in history.rows.values())),
    )
    _losses(history, findings)
    _unexpected(history, findings)
    _outcomes(history, findings)
    _starts(history, findings)
    _at_most_once(history, findings)
    _decided(history, findings)
    _cancels(history, findings)
    for bucket, state in history.unrescued.items():
        _note(
            findings, "bucket_unrescued", bucket, f"a bucket of store {history.stores.get(bucket)}, {state} in the end"
        )
    findings.flow = check_flow(history, lambda name, job, said: _note(findings, name, job, said))
    done = {job for job, row in history.rows.items() if row.state in FINAL}
    findings.recovered = len((history.unknown - history.acks.keys()) & done)
    findings.info = len(history.unknown - history.acks.keys() - history.rows.keys())
    return findings


def _note(findings: Findings, name: str, subject: str, said: str) -> None:
    setattr(findings, name, getattr(findings, name) + 1)
    examples = findings.examples.setdefault(name, [])
    if len(examples) < _EXAMPLES:
        examples.append(f"{subject}: {said}")


def _losses(history: History, findings: Findings) -> None:
    by_level: Counter[str] = Counter()
    excused: Counter[str] = Counter()
    for job, ack in history.acks.items():
        row = history.rows.get(job)
        if row is not None and row.state in FINAL:
            findings.ok += row.state == "SUCCEEDED" and job in history.runs
            continue
        # A row that is not final is no loss that a fault could excuse: the cluster knows the job and does not end it.
        fault = _excuse(ack, history) if row is None else None
        if fault is not None:
            excused[fault.kind] += 1
            age = round(fault.at - ack.at, 1)
            findings.excused_seconds[fault.kind] = max(age, findings.excused_seconds.get(fault.kind, age))
            findings.excused_jobs.add(job)
            continue
        by_level[ack.level] += 1
        findings.unfinished += row is not None
        said = f"acknowledged at level {ack.level} in {ack.bucket or 'the master'} at {ack.at:.3f}, "
        _note(findings, "lost", job, said + (f"{row.state} in the end" if row is not None else "nowhere"))
    findings.lost_by_level, findings.excused = dict(by_level), dict(excused)


def _excuse(ack: Ack, history: History) -> FaultRecord | None:
    """Of the faults that excuse the loss, the one that began nearest to the acknowledgement."""
    found = []
    for fault in history.faults:
        if ack.level not in fault.uncovered:
            continue
        elsewhere = ack.bucket != ANYWHERE and history.stores.get(ack.bucket) != fault.store
        earliest = max(_last_owned(history, ack, fault) - history.excuse_seconds, fault.at - fault.forgets_seconds)
        if not (fault.store and elsewhere) and earliest <= ack.at <= fault.until + REPLY_SECONDS:
            found.append(fault)
    return min(found, key=lambda fault: abs(fault.at - ack.at), default=None)


def _last_owned(history: History, ack: Ack, fault: FaultRecord) -> float:
    """When the bucket of a job last had an owner that moved its jobs to the master, before a fault at the latest."""
    evacuation = history.evacuations.get(ack.bucket)
    if evacuation is None or evacuation.emptied_at <= fault.at:
        return fault.at
    return min(fault.at, evacuation.left_at)


def _unexpected(history: History, findings: Findings) -> None:
    ranges = sorted(history.attempted)
    firsts = [first for first, _ in ranges]

    def attempted(value: int) -> bool:
        at = bisect_right(firsts, value) - 1
        return at >= 0 and value <= ranges[at][1]

    for job, row in history.rows.items():
        if not attempted(row.value):
            _note(findings, "unexpected", job, f"recorded with value {row.value}, which no producer submitted")
    for job, runs in history.runs.items():
        if job not in history.rows and not attempted(runs[0].value):
            _note(findings, "unexpected", job, f"ran with value {runs[0].value}, which no producer submitted")


def _outcomes(history: History, findings: Findings) -> None:
    findings.duplicate_outcomes += history.overwritten
    if history.overwritten:
        findings.examples["duplicate_outcomes"] = [f"{history.overwritten} final rows were changed"]
    for job, count in history.conclusions.items():
        if count > 1:
            _note(findings, "duplicate_outcomes", job, f"{count} concluding lines")
    for job, token in history.observed.items():
        row = history.rows.get(job)
        if row is not None and row.recorded_token != token:
            _note(findings, "duplicate_outcomes", job, f"token {token} was read, {row.recorded_token} is recorded now")
    for job, row in history.rows.items():
        if row.recorded_token and row.recorded_token != row.token:
            said = f"the result is of token {row.recorded_token}, the row has {row.token}"
            _note(findings, "stale_recorded", job, said)
        if row.state == "SUCCEEDED" and job not in history.runs:
            _note(findings, "unwitnessed", job, "recorded as succeeded, no handler began")


def _starts(history: History, findings: Findings) -> None:
    dead: dict[int, list[Death]] = {}
    for death in history.deaths:
        dead.setdefault(death.pid, []).append(death)
    for job, runs in history.runs.items():
        row = history.rows.get(job)
        findings.reexecuted += max(len(runs) - (row.attempt if row is not None else 1), 0)
        if runs[0].handler == FENCED and len({run.token for run in runs}) < len(runs):
            _note(findings, "fenced_twice", job, f"began under tokens {[run.token for run in runs]}")
        for run in runs:
            for death in dead.get(run.pid, ()):
                over = max(death.at, history.woken.get(run.pid, 0.0)) + AWAKE_SECONDS
                if over < run.at < death.again_at:
                    said = f"begun by {run.pid} {run.at - over:.1f} s after it had to be gone"
                    _note(findings, "started_dead", job, said)


def _at_most_once(history: History, findings: Findings) -> None:
    for job, runs in history.runs.items():
        if runs[0].handler in ONCE and len(runs) > 1:
            _note(findings, "once_twice", job, f"began {len(runs)} times")
    unbegun = [job for job, row in history.rows.items() if row.reason == "abandoned" and job not in history.runs]
    for job in unbegun[UNBEGUN_MAX * len(history.faults) :]:
        _note(findings, "abandoned_unbegun", job, f"one of {len(unbegun)} that were given up and never began")


def _decided(history: History, findings: Findings) -> None:
    for job, runs in history.runs.items():
        row, expected = history.rows.get(job), DECIDED.get(runs[0].handler)
        if row is None or expected is None or row.state not in FINAL:
            continue  # a loss, if it is one
        if row.state == "FAILED" and row.reason in CLUSTER_REASONS:
            continue
        if (row.state, row.reason, row.attempt) != (*expected, 1):
            said = f"of {runs[0].handler} ended as {row.state} {row.reason} after attempt {row.attempt}"
            _note(findings, "decided_otherwise", job, said)


def _cancels(history: History, findings: Findings) -> None:
    findings.cancels = len(history.cancels)
    for job, cancel in history.cancels.items():
        begun = [run.at for run in history.runs.get(job, ()) if run.at > cancel.at + AWAKE_SECONDS]
        # The row is final, or nothing kept the owner from hearing of the request in time.
        holds = cancel.state == "CANCELLED" or (
            cancel.due - cancel.at >= QUIET_SECONDS
            and not any(one.at < cancel.due + QUIET_SECONDS and one.until > cancel.at for one in history.faults)
        )
        findings.cancelled_begun += bool(begun)
        if begun and holds:
            said = (
                f"{cancel.state} {begun[0] - cancel.at:.1f} s before it began, due {cancel.due - cancel.at:.1f} s after"
            )
            _note(findings, "cancel_forgotten", job, said)


def rescue_seconds(history: History) -> dict[str, Any]:
    """From a kill to the next start of each job that the killed process was running: p50, p99, max."""
    found = []
    for fault in history.faults:
        if fault.pids:
            found += _rescued_after(history, fault)
    if not found:
        return {"jobs": 0, "p50": None, "p99": None, "max": None}
    found.sort()
    return {
        "jobs": len(found),
        "p50": round(found[len(found) // 2], 3),
        "p99": round(found[min(int(len(found) * 0.99), len(found) - 1)], 3),
        "max": round(found[-1], 3),
    }


def _rescued_after(history: History, fault: FaultRecord) -> list[float]:
    killed = set(fault.pids)
    found = []
    for job, runs in history.runs.items():
        if len(runs) < 2 or not any(run.pid in killed and run.at <= fault.at for run in runs):
            continue
        ended = any(pid in killed and at <= fault.at for pid, at in history.ended.get(job, ()))
        later = min((run.at for run in runs if run.at > fault.at), default=None)
        if later is not None and not ended:
            found.append(later - fault.at)
    return found
