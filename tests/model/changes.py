"""A client that changes a job which waits: reschedule, reprioritise, move, run now (``client/jobs/changes.py``).

A change of a job that is HELD is one statement and moves nothing that this model knows. A job in bucket 1 gets a row if it
has none, then its copy is recalled, then its row is held. The client may die between any two of these.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.model import master
from tests.model.explorer import Step
from tests.model.rules import Setting
from tests.model.state import ACTIVE, ASSIGNED, COMPLETING, FROZEN, Change, Entry, Row, State

STARTS_AS_BEFORE = "a changed job may start from the copy that it had before"
_RECALLED_FROM = (ACTIVE, COMPLETING, FROZEN)


def steps(setting: Setting, state: State) -> Iterator[Step[State]]:
    """What the client may do now. It changes one job, once."""
    change = state.change
    if change is not None:
        yield Step("the client that changes a job dies", _over(state), fault=True)
        if change.at == "recall":
            yield from _recall(setting, state, change)
        elif change.at == "insert":
            yield _insert(setting, state, change)
        else:
            yield _hold(setting, state, change)
    elif "change" not in state.spent:
        yield from _begin(setting, state)


def _over(state: State) -> State:
    return state._replace(change=None, spent=state.spent | {"change"})


def _begin(setting: Setting, state: State) -> Iterator[Step[State]]:
    bucket, rules = state.bucket, setting.rules
    first = "recall" if rules.recall_first else "hold"
    for number, job in enumerate(state.jobs):
        row = job.row
        if row is not None and row.state == ASSIGNED and row.bucket == 1:
            begun = state._replace(change=Change(number, row.token, row.epoch, row.origin, first))
            yield Step("a job in a bucket is to be changed", begun)
        elif row is None and job.acked and not job.dropped and not job.outcomes and bucket.state == ACTIVE:
            entry = next((each for each in _unclaimed(state) if each.job == number), None)
            if entry is None:
                continue
            change = Change(number, entry.token, bucket.epoch, entry.origin, first)
            if rules.row_first:
                assigned = Row(ASSIGNED, entry.token, 1, bucket.epoch, entry.origin)
                yield Step(
                    "Y0 a job without a row has one, its copy waits",
                    state.with_row(number, assigned)._replace(change=change),
                )
            else:
                yield Step("a job without a row is to be changed", state._replace(change=change._replace(at="recall")))


def _unclaimed(state: State) -> list[Entry]:
    """What a client may take out: ``pending`` of a bucket that is being emptied is left alone."""
    store = state.store
    return [*(store.pending if store.state == ACTIVE else ()), *store.assigned]


def _recall(setting: Setting, state: State, change: Change) -> Iterator[Step[State]]:
    """A job that was claimed keeps its copy, and is not changed."""
    store = state.store
    same = (change.job, change.token)
    waits = any((entry.job, entry.token) == same for entry in _unclaimed(state))
    claimed = any((entry.job, entry.token) == same for each in store.claimed for entry in each.entries)
    if store.epoch != change.epoch or store.state not in _RECALLED_FROM or claimed or not waits:
        yield Step("not recalled: the job is as it was", _over(state))
        return
    recalled = store._replace(
        pending=tuple(entry for entry in store.pending if store.state != ACTIVE or (entry.job, entry.token) != same),
        assigned=tuple(entry for entry in store.assigned if (entry.job, entry.token) != same),
    )
    after = state._replace(store=recalled, dirty=state.dirty or setting.scope.rollback)
    if setting.rules.recall_first:
        then = "hold" if state.jobs[change.job].row is not None or setting.rules.row_first else "insert"
        yield Step("Y1 the copy is recalled", after._replace(change=change._replace(at=then)))
    else:
        yield Step("Y1 the copy is recalled, after its row", _over(after))


def _insert(setting: Setting, state: State, change: Change) -> Step[State]:
    written = master.insert_held(setting, state, change.job)
    return Step("a changed job gets its row", _over(written.state), broken=written.broken)


def _hold(setting: Setting, state: State, change: Change) -> Step[State]:
    """By the identity of the copy that was recalled."""
    written = master.hold_recalled(setting, state, change)
    if written.result != master.ACCEPTED:
        return Step("the change is refused by the row", _over(written.state), broken=written.broken)
    broken = written.broken
    if "failover" not in state.spent and any(_may_start(state, change)):
        broken = broken or STARTS_AS_BEFORE
    after = written.state
    if setting.rules.recall_first:
        return Step("Y2 HELD with the new values", _over(after), broken=broken)
    recalls = after._replace(change=change._replace(at="recall"))
    return Step("HELD with the new values, before the recall", recalls, broken=broken)


def _may_start(state: State, change: Change) -> Iterator[bool]:
    same = (change.job, change.token)
    yield from ((entry.job, entry.token) == same for entry in state.store.copies())
    yield from (
        (copy.job, copy.token, copy.bucket) == (*same, 1) and copy.phase in ("queued", "allowed")
        for copy in state.agent.copies
        if state.agent.mode == "up"
    )
