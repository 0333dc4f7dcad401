"""Agent A and its copies: start, run, record, give back, try again; apply kept outcomes."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model import master, memory, owner, suspended
from tests.model.explorer import Step
from tests.model.rules import Scope, Setting
from tests.model.state import (
    ACTIVE,
    ASSIGNED,
    COMPLETING,
    FINAL,
    ONBOARDED,
    READY,
    RETRIED,
    WORKING,
    Agent,
    Copy,
    Entry,
    KeptOutcome,
    State,
)

TWICE = "one live copy: the same assignment is started twice in one agent"
LATE_START = 'a start="fenced" is authorised after the bucket was lost'
CANCELLED_START = 'a start="fenced" is authorised after a cancel request'
STARTED_AFTER_END = "a job that has ended starts from a copy of its last assignment"
ROBBED_OWNER = "a job starts under a valid lease in a bucket that was taken away"


def steps(setting: Setting, state: State) -> Iterator[Step[State]]:
    """What A may do with what it holds in memory."""
    if state.agent.mode == "dead":
        return
    for copy in state.agent.copies:
        match copy.phase:
            case "queued":
                yield from _begin(setting, state, copy)
            case "allowed":
                yield from _call(state, copy)
            case "running":
                yield from _run(setting, state, copy)
            case "done":
                yield from _finish(setting, state, copy)
                yield from _let_go(setting, state, copy, "final")
            case "held":
                yield from _record(
                    setting,
                    state,
                    copy,
                    "hold",
                    "H1 held: committed, list not deleted",
                    "F2 held: committed, reply lost",
                )
            case "failed":
                yield from _fail(setting, state, copy)
                yield from _let_go(setting, state, copy, "hold")


def _let_go(setting: Setting, state: State, copy: Copy, what: str) -> Iterator[Step[State]]:
    is_kept = KeptOutcome(what, copy.entry) in state.store.kept
    after = suspended.let_go(setting, state, copy, is_kept=is_kept)
    if after is not None:
        yield Step("memory lets go of a kept outcome", after)


def _to(state: State, copy: Copy, phase: str, row: int | None = None) -> State:
    after = copy._replace(phase=phase, row=copy.row if row is None else row)
    return state.with_agent(memory.changed(state.agent, copy, after))


# ---------------------------------------------------------------- start


def _begin(setting: Setting, state: State, copy: Copy) -> Iterator[Step[State]]:
    scope = setting.scope
    if scope.fenced_start:
        yield from _authorise(setting, state, copy)
    elif scope.suspends:
        allowed, broken = suspended.may_start(setting, state, copy)
        if allowed:
            yield Step("start", _to(state, copy, "running"), broken=broken)
    elif not scope.leased or state.lease.valid:
        broken = ROBBED_OWNER if scope.leased and not master.owns(state, copy, *WORKING) else ""
        yield Step("start", _to(state, copy, "running"), broken=broken or _started_after_end(scope, state, copy))
    if scope.gives_back or state.agent.leaving == 2:
        yield Step("H0 to be given back, not committed", _to(state, copy, "held"))


def _started_after_end(scope: Scope, state: State, copy: Copy) -> str:
    """The row ended under this very assignment, or was cancelled after its owner had given it back. (A producer's copies all
    have one token. An owner that lives on after its certificate may start a job; so may one whose master forgets.)"""
    row = state.jobs[copy.job].row
    if row is None or row.state != FINAL or copy.origin not in (ONBOARDED, RETRIED) or scope.zombie or scope.failover:
        return ""
    return STARTED_AFTER_END if row.token == copy.token and row.bucket in (0, copy.bucket) else ""


def _authorise(setting: Setting, state: State, copy: Copy) -> Iterator[Step[State]]:
    row = state.jobs[copy.job].row
    written = master.write(setting, state, copy, "persist")
    broken = written.broken
    if written.result == master.ACCEPTED:
        if not master.owns(state, copy, *WORKING):
            broken = LATE_START
        elif row is not None and row.flag:
            broken = CANCELLED_START
        yield Step("B2 fenced start: committed, not called", _to(written.state, copy, "allowed", 2), broken=broken)
        if setting.scope.lost_commits:
            yield Step("B1 fenced start: committed, reply lost", written.state, fault=True, broken=broken)
    else:
        yield from _not_accepted(setting, written, copy, "fenced start")


def _call(state: State, copy: Copy) -> Iterator[Step[State]]:
    same = (copy.job, copy.token, copy.bucket)
    twice = any((each.job, each.token, each.bucket) == same and each.phase == "running" for each in state.agent.copies)
    yield Step("start, authorised", _to(state, copy, "running"), broken=TWICE if twice else "")


# ---------------------------------------------------------------- while it runs


def _run(setting: Setting, state: State, copy: Copy) -> Iterator[Step[State]]:
    scope = setting.scope
    if scope.persists and copy.row < 2 and not scope.fenced_start:
        written = master.write(setting, state, copy, "persist")
        if written.result == master.ACCEPTED:
            yield Step("persist: in flight", _to(written.state, copy, "running", 2), broken=written.broken)
            if scope.lost_commits:
                yield Step("persist: committed, reply lost", _to(written.state, copy, "running", 1), fault=True)
        else:
            yield from _not_accepted(setting, written, copy, "persist")
    yield Step("R0 handler done, nothing recorded", _to(state, copy, "done"))
    job = state.jobs[copy.job]
    if job.failures < scope.failures:
        counted = state.with_job(copy.job, job._replace(failures=job.failures + 1))
        yield Step("handler failed", _to(counted, copy, "failed"), fault=True)
    if state.agent.leaving == 2:
        yield Step("H0 to be given back, not committed", _to(state, copy, "held"))


def _not_accepted(setting: Setting, written: master.Written, copy: Copy, what: str) -> Iterator[Step[State]]:
    state = written.state
    if written.result == master.STOPPED:  # a cancel request: its row holds all of it, so the list may go
        yield Step(f"{what}: stopped by a cancel request", _to(state, copy, "done", 2))
    elif written.result == master.FENCED and setting.rules.minds_stop and master.stopped(state, copy):
        return  # it asks the row, and keeps what it holds
    elif written.result == master.FENCED and setting.rules.two_refusals:
        yield Step(f"{what} refused by the bucket: forget it", memory.forgotten(state))
    else:
        after = state.with_agent(memory.settled(state.agent, copy, accepted=False))
        yield Step(f"{what} refused by the row", after)


# ---------------------------------------------------------------- outcomes


def _finish(setting: Setting, state: State, copy: Copy) -> Iterator[Step[State]]:
    bare = copy.row > 0 and not setting.rules.upsert_known
    yield from _record(
        setting,
        state,
        copy,
        "final",
        "R2 outcome: committed, list not deleted",
        "R1 outcome: committed, reply lost",
        bare=bare,
    )


def _record(
    setting: Setting, state: State, copy: Copy, what: str, name: str, lost: str, *, bare: bool = False
) -> Iterator[Step[State]]:
    """A write that needs no bucket lock."""
    written = master.write(setting, state, copy, what, bare=bare)
    after = written.state
    accepted = written.result == master.ACCEPTED
    settled = after.with_agent(memory.settled(after.agent, copy, accepted=accepted))
    yield Step(name if accepted else f"{what} refused by the row", settled, broken=written.broken)
    if accepted and setting.scope.lost_commits and after != state:
        unknown = after.with_agent(memory.changed(after.agent, copy, copy._replace(row=max(copy.row, 1))))
        yield Step(lost, unknown, fault=True, broken=written.broken)


def _fail(setting: Setting, state: State, copy: Copy) -> Iterator[Step[State]]:
    yield from _record(
        setting,
        state,
        copy,
        "hold",
        "T1 retry later: committed, list not deleted",
        "T0 retry later: committed, reply lost",
    )
    if not setting.scope.retry_here or state.agent.leaving or copy.bucket != 1:
        return
    written = master.write(setting, state, copy, "here")
    after, row = written.state, written.state.jobs[copy.job].row
    if written.result != master.ACCEPTED:
        yield from _not_accepted(setting, written, copy, "retry here")
        return
    broken = written.broken
    if row is not None and row.state == ASSIGNED and row.origin != RETRIED:
        if setting.rules.due_tells_retry:  # the same identity with another due time: the producer's second copy
            refused = state.with_agent(memory.settled(state.agent, copy, accepted=False))
            yield Step("retry here refused by the row", refused)
            return
        broken = broken or master.NOT_MINE
    agent = memory.settled(after.agent, copy, accepted=True)
    if row is not None and row.state == ASSIGNED:
        agent = agent._replace(puts=(*agent.puts, Entry(copy.job, row.token, row.origin)))
    yield Step("T1 retry here: committed, not put", after.with_agent(agent), broken=broken)
    if setting.scope.lost_commits and after != state:
        yield Step("T0 retry here: committed, reply lost", after, fault=True, broken=broken)


def leave(setting: Setting, state: State) -> Iterator[Step[State]]:
    """Graceful exit: master first, then the store; close when both are empty."""
    agent, bucket, store = state.agent, state.bucket, state.store
    if agent.mode != "up":
        return
    if agent.leaving == 0 and bucket == (ACTIVE, agent.epoch, "A"):
        closing = state._replace(bucket=bucket._replace(state=COMPLETING), agent=agent._replace(leaving=1))
        yield Step("G0 COMPLETING in the master, store open", closing, fault=True)
    elif owner.refuses(setting, state):
        return
    elif agent.leaving == 1 and store.state == ACTIVE:
        closed = owner.changed(setting, state, store._replace(state=COMPLETING))
        yield Step("G1 store closed to submits", closed.with_agent(agent._replace(leaving=2)))
    elif agent.leaving == 2 and store.kept and not agent.copies:
        yield from suspended.apply_kept(setting, state)
    elif agent.leaving == 2 and store.state == COMPLETING and store.empty() and not agent.copies:
        empty = owner.changed(setting, state, store._replace(state=READY))
        yield Step("G3 found empty, closed in the store", empty.with_agent(agent._replace(leaving=3)))
    elif agent.leaving == 3 and bucket == (COMPLETING, agent.epoch, "A"):
        yield from _retire(setting, state)


def _retire(setting: Setting, state: State) -> Iterator[Step[State]]:
    """Rows that name the bucket although nothing lies there are released first; one that runs leaves it to a rescuer."""
    rows = [(number, job.row) for number, job in enumerate(state.jobs) if job.row and master.names_bucket(job)]
    for number, row in rows:
        if row.state == ASSIGNED:
            written = master.release(setting, state, Entry(number, row.token, row.origin), 1)
            yield Step("leaving: a row without a copy is released", written.state, broken=written.broken)
        else:
            yield Step("leaving: the bucket is left behind", state.with_agent(Agent("dead")))
    if not rows:
        retired = state._replace(bucket=state.bucket._replace(state=READY))
        gone = state.agent._replace(mode="out", puts=(), unanswered=())
        yield Step("G4 READY_TO_DELETE in the master", retired.with_agent(gone))
