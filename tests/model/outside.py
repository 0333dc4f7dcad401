"""Everything around agent A and its rescuers: producers, clients, the healthy agent C, and what befalls the stores."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model import changes, master, memory, rescuers
from tests.model.explorer import Step
from tests.model.rules import Setting
from tests.model.state import (
    ACTIVE,
    ASSIGNED,
    FINAL,
    HELD,
    IN_FLIGHT,
    SAVE_PENDING,
    SUBMITTED_2,
    Claimed,
    Copy,
    Entry,
    KeptOutcome,
    Masterly,
    State,
    Store,
)

_SISTERS_LIST = 3
_TOKENS_MAX = 12


def steps(setting: Setting, state: State) -> Iterator[Step[State]]:
    """What the world may do now."""
    yield from _submit(setting, state)
    yield from _work_healthily(setting, state)
    scope = setting.scope
    if scope.cancel:
        yield from _cancel(setting, state)
    if scope.changes:
        yield from changes.steps(setting, state)
    if scope.archive:
        yield from _archive(setting, state)
    if scope.freezes:
        yield from rescuers.freeze(state)
    if scope.sister:
        yield from _sister(setting, state)
    if scope.crash and state.agent.mode != "dead":
        dead = state.agent._replace(mode="dead", copies=(), puts=(), unanswered=(), leaving=0)
        yield Step("A crashes", state.with_agent(dead)._replace(rolled_back=False), fault=True)
    if scope.leased:
        yield from _lease(state)
    yield from _store_faults(setting, state)
    if scope.failover:
        yield from _failover(setting, state)


# ---------------------------------------------------------------- producers and clients


def _submit(setting: Setting, state: State) -> Iterator[Step[State]]:
    scope = setting.scope
    number = next((number for number, job in enumerate(state.jobs) if not job.acked), None)
    if number is None:
        return
    job = state.jobs[number]
    sent = job._replace(sends=job.sends + 1)
    again = sent.sends < scope.sends
    ways: list[tuple[str, State, bool]] = []
    if state.store.state == ACTIVE:
        pending = (*state.store.pending, Entry(number, 1, SAVE_PENDING))
        ways.append(("bucket 1", state._replace(store=state.store._replace(pending=pending)), False))
    if job.sends and scope.to_bucket_2:
        ways.append(("bucket 2", state._replace(pending_2=(*state.pending_2, number)), True))
    for place, after, at_2 in ways:
        point = "S2" if number + 1 < len(state.jobs) else "S3"
        acked = sent._replace(acked=True, at_2=at_2)
        yield Step(f"{point} submitted to {place}, acknowledged", after.with_job(number, acked))
        if again:
            lost = after.with_job(number, sent._replace(at_2=at_2))
            yield Step(f"S1 submitted to {place}, reply lost", lost, fault=True)
    if job.sends and scope.to_master and not job.dropped:
        written = master.insert_held(setting, state, number)
        job = written.state.jobs[number]
        acked = job._replace(sends=sent.sends, acked=True)
        yield Step(
            "submitted to the master, acknowledged", written.state.with_job(number, acked), broken=written.broken
        )


def _cancel(setting: Setting, state: State) -> Iterator[Step[State]]:
    for number, job in enumerate(state.jobs):
        if not job.acked or job.cancelled or job.outcomes:
            continue
        written = master.cancel(setting, state, number)
        if written is None:
            continue
        row = written.state.jobs[number].row
        ended = row is not None and row.state == FINAL
        name = "C1 cancelled: a final row, copies remain" if ended else "C0 cancel requested"
        yield Step(name, written.state, fault=True, broken=written.broken)


def _archive(setting: Setting, state: State) -> Iterator[Step[State]]:
    for number, job in enumerate(state.jobs):
        if job.dropped or not job.acked:
            continue
        over = job.row is not None and job.row.state == FINAL
        if over or (job.row is None and not setting.rules.watermark_waits):
            dropped = job._replace(row=None, dropped=True)
            yield Step("archived and dropped: below the watermark", state.with_job(number, dropped), fault=True)


# ---------------------------------------------------------------- agent C, which nothing ever happens to


def _work_healthily(setting: Setting, state: State) -> Iterator[Step[State]]:
    copy = state.healthy
    if copy is not None:
        yield from _go_on(setting, state, copy)
        return
    if state.pending_2 and not setting.scope.sister:
        taken = Copy(state.pending_2[0], 1, 2, 1, SUBMITTED_2, "queued", 0, 0)
        yield Step("C claims", state._replace(pending_2=state.pending_2[1:], healthy=taken))
    for number, job in enumerate(state.jobs):
        row = job.row
        if row is None:
            continue
        if row.state == HELD and row.token < _TOKENS_MAX:
            written = master.onboard(setting, state, number, 2)
            now = written.state.jobs[number].row
            assert now is not None
            mine = Copy(number, now.token, 2, 1, now.origin, "queued", 0, 1)
            yield Step("C onboards", written.state._replace(healthy=mine), broken=written.broken)
        elif row.state in IN_FLIGHT and row.bucket == 2 and not state.kept_elsewhere(number):
            entry = Entry(number, row.token, row.origin)
            if not any(copy.job == number and copy.bucket == 2 for copy in state.agent.copies):
                written = master.release(setting, state, entry, 2, ASSIGNED + "P")
                yield Step("C releases a row without a copy", written.state, broken=written.broken)


def _go_on(setting: Setting, state: State, copy: Copy) -> Iterator[Step[State]]:
    if copy.phase == "queued":
        yield Step("C starts", state._replace(healthy=copy._replace(phase="running")))
        return
    ends = [("final", "C records an outcome")] + ([("persist", "C persists")] if copy.row < 2 else [])
    job = state.jobs[copy.job]
    for what, name in ends:
        written = master.write(setting, state, copy, what)
        going_on = what == "persist" and written.result == master.ACCEPTED
        after = written.state._replace(healthy=copy._replace(row=2) if going_on else None)
        if written.result == master.STOPPED:  # it writes CANCELLED instead
            after = written.state._replace(healthy=copy._replace(row=2))
        yield Step(
            name if written.result == master.ACCEPTED else f"C is refused a {what}", after, broken=written.broken
        )
    if job.failures < setting.scope.failures:
        written = master.write(setting, state, copy, "hold")
        job = written.state.jobs[copy.job]
        failed = written.state.with_job(copy.job, job._replace(failures=job.failures + 1))._replace(healthy=None)
        yield Step("C retries later", failed, fault=True, broken=written.broken)


def _sister(setting: Setting, state: State) -> Iterator[Step[State]]:
    """A owns bucket 2 too: claim, settle."""
    agent = state.agent
    if agent.mode == "dead":
        return
    if state.pending_2 and not state.claimed_2 and len(agent.copies) < setting.scope.copies:
        claimed = Claimed(_SISTERS_LIST, (Entry(state.pending_2[0], 1, SUBMITTED_2),))
        moved = state._replace(pending_2=(), claimed_2=(claimed,))
        yield Step("M1 claim from the sister bucket", moved.with_agent(memory.adopt(setting, agent, claimed, 2)))
    for name in memory.deletable(setting.rules, agent, 2):
        deleted = state._replace(claimed_2=())
        yield Step("F4 settle: the sister's list is deleted", deleted.with_agent(memory.without_list(agent, name)))


# ---------------------------------------------------------------- leases and stores


def _lease(state: State) -> Iterator[Step[State]]:
    lease = state.lease
    if lease.valid:
        dead = state.agent.mode == "dead"
        yield Step("the lease runs out", state._replace(lease=lease._replace(valid=False)), fault=not dead)
    elif state.agent.mode == "up" and not lease.certified:
        yield Step("A renews its lease", state._replace(lease=lease._replace(valid=True)))


def _store_faults(setting: Setting, state: State) -> Iterator[Step[State]]:
    scope, store = setting.scope, state.store
    if scope.store_loss and store.epoch and "loss" not in state.spent:
        lost = state._replace(store=Store("", 0, ""), spent=state.spent | {"loss"})
        yield Step("the store loses the bucket", _exempt(lost), fault=True)
    if not scope.rollback or "rollback" in state.spent:
        return
    if state.snapshot is None:
        yield Step("snapshot of the store", state._replace(snapshot=store, dirty=False), fault=True)
    else:
        back = state._replace(
            store=state.snapshot, snapshot=None, rolled_back=state.dirty, dirty=False, spent=state.spent | {"rollback"}
        )
        yield Step("the store is rolled back", _exempt(back), fault=True)


def _exempt(state: State) -> State:
    """Jobs that only the store knew are lost as far as their level allows."""
    for number, job in enumerate(state.jobs):
        rowless = job.acked and job.row is None and not job.outcomes
        if rowless and not job.at_2 and not state.kept(number):
            state = state.with_job(number, job._replace(exempt=True))
    return state


def _failover(setting: Setting, state: State) -> Iterator[Step[State]]:
    """A standby without the newest commits takes over."""
    if "failover" in state.spent:
        return
    standby = state.standby
    if standby is None:
        rows = tuple((job.row, job.outcomes) for job in state.jobs)
        yield Step("the standby is behind from here", state._replace(standby=Masterly(rows, state.bucket)), fault=True)
        return
    jobs = tuple(
        job._replace(row=row, outcomes=outcomes) for job, (row, outcomes) in zip(state.jobs, standby.rows, strict=True)
    )
    after = state._replace(jobs=jobs, bucket=standby.bucket, standby=None, spent=state.spent | {"failover"})
    if state.rescuer is not None and standby.bucket != state.bucket:
        mine = standby.bucket.owner == state.rescuer.name
        after = after._replace(
            rescuer=None,
            first_rescuer_gone=state.first_rescuer_gone or not mine,
            zombie=state.rescuer if setting.scope.rescuer_zombie and not mine else state.zombie,
        )
    for number, job in enumerate(after.jobs):
        if (
            job.acked
            and job.row != state.jobs[number].row
            and (not after.kept(number) or _may_be_erased(state, number))
        ):
            after = after.with_job(number, job._replace(doomed=True))
    yield Step("the master forgets its newest commits", forgiven(after), fault=True)


def _may_be_erased(state: State, number: int) -> bool:
    """A part relies on a commit about this job and is about to erase its copy in the store."""
    drains = [each.page for each in (state.rescuer, state.zombie) if each is not None and each.page is not None]
    items = [page.item.entry if isinstance(page.item, KeptOutcome) else page.item for page in drains if page.committed]
    return any(item.job == number for item in items) or any(
        copy.job == number and copy.safe for copy in state.agent.copies
    )


def forgiven(state: State) -> State:
    """Jobs whose copy was erased for a commit that the master has forgotten are lost, and not by the protocol."""
    for number, job in enumerate(state.jobs):
        if job.doomed and job.row is None and not job.outcomes and not job.exempt and not state.kept(number):
            state = state.with_job(number, job._replace(exempt=True))
    return state


def lost(state: State) -> bool:
    """An acknowledged job is nowhere but, at most, in the memory of an agent that may die."""
    return any(
        job.acked and job.row is None and not job.outcomes and not job.exempt and not state.kept(number)
        for number, job in enumerate(state.jobs)
    )
