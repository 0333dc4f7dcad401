"""Agent A and its store: claim, re-read, put, delete lists, keep outcomes, and learning that the bucket is another's."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model import master, memory
from tests.model.explorer import Step
from tests.model.rules import Setting
from tests.model.state import (
    ACTIVE,
    ASSIGNED,
    DRAINING,
    FROZEN,
    HELD,
    IN_FLIGHT,
    LOST,
    RETRIED,
    UNFROZEN_LIST,
    WORKING,
    Claimed,
    Copy,
    Entry,
    KeptOutcome,
    State,
    Store,
)

STOP_UNDONE = "an operator's stop is undone by the owner of the bucket"
TAKEN_FROM_ITSELF = "a job is given back while its own agent is at it"
_KEPT_MAX = 2
_NAMES = (1, 2)
_TOKENS_MAX = 3
"""Onboarding by A goes no further than this; C has room beyond it, so that every job can end."""


def refuses(setting: Setting, state: State) -> bool:
    """GEN, ROLLBACK or FENCED for agent A."""
    store = state.store
    if store.epoch == 0:
        return True
    if state.rolled_back and setting.rules.counter_floor:
        return True
    return (store.epoch, store.owner) != (state.agent.epoch, "A") and setting.rules.store_fence


def changed(setting: Setting, state: State, store: Store) -> State:
    """A has changed the store (and so its change counter)."""
    return state._replace(store=store, dirty=state.dirty or setting.scope.rollback)


def steps(setting: Setting, state: State) -> Iterator[Step[State]]:
    """What A may do with its store now."""
    agent = state.agent
    if agent.mode == "lost":
        yield from _declare(setting, state)
    elif agent.mode == "out":
        yield from _declare_again(setting, state)
    elif agent.mode == "up":
        if state.bucket.owner == "A" and state.bucket.epoch > agent.epoch and state.bucket.state == ACTIVE:
            yield from _unfreeze(setting, state)
        if refuses(setting, state):
            if not _is_stopped(setting, state):
                yield Step("refused by the store: forget the bucket", memory.forgotten(state))
        else:
            if state.store.state in WORKING:
                yield from _claim(setting, state)
            yield from _reread(setting, state)
            if state.store.state in (*WORKING, FROZEN, DRAINING):
                yield from _delete(setting, state)
                if setting.scope.keeps_outcomes:
                    yield from _keep_outcome(setting, state)
        if setting.scope.onboards:
            yield from _onboard(setting, state)
        if state.bucket.state == ACTIVE:
            yield from _repair(setting, state)
    if agent.puts and agent.mode != "dead":
        yield from _put(setting, state)


# ---------------------------------------------------------------- lists


def _claim(setting: Setting, state: State) -> Iterator[Step[State]]:
    agent, store = state.agent, state.store
    used = {copy.list for copy in agent.copies} | {each.name for each in store.claimed}
    name = next((name for name in _NAMES if name not in used), None)
    room = setting.scope.copies - len(agent.copies)
    if name is None or room <= 0:
        return
    portions: list[tuple[tuple[Entry, ...], tuple[Entry, ...]]] = [(store.assigned[:1], ())] if store.assigned else []
    portions += [((), store.pending[:count]) for count in range(1, min(room, len(store.pending)) + 1)]
    if store.assigned and store.pending and room > 1:
        portions.append((store.assigned[:1], store.pending[:1]))
    for due, waiting in portions:
        claimed = Claimed(name, (*due, *waiting))
        after = store._replace(
            assigned=store.assigned[len(due) :],
            pending=store.pending[len(waiting) :],
            claimed=tuple(sorted((*store.claimed, claimed))),
        )
        moved = changed(setting, state, after)
        yield Step("M1 claim: in memory, not started", moved.with_agent(memory.adopt(setting, agent, claimed)))
        if setting.scope.lost_claims:
            yield Step("M0 claim: moved in the store, reply lost", moved, fault=True)


def _reread(setting: Setting, state: State) -> Iterator[Step[State]]:
    agent = state.agent
    if not setting.rules.reread_lists:
        return
    known = {copy.list for copy in agent.copies if copy.bucket == 1}
    room = setting.scope.copies - len(agent.copies)
    for claimed in state.store.claimed:
        if claimed.name not in known and len(claimed.entries) <= room:
            yield Step("re-read: an unknown list is adopted", state.with_agent(memory.adopt(setting, agent, claimed)))


def _delete(setting: Setting, state: State) -> Iterator[Step[State]]:
    for name in memory.deletable(setting.rules, state.agent):
        store = state.store
        after = store._replace(claimed=tuple(each for each in store.claimed if each.name != name))
        deleted = changed(setting, state, after) if after != store else state
        yield Step("F4 settle: the list is deleted", deleted.with_agent(memory.without_list(state.agent, name)))


def _keep_outcome(setting: Setting, state: State) -> Iterator[Step[State]]:
    """The master is away: outcomes are kept in the store, and lists whose every entry is safe or kept go in the same call.

    Memory keeps what it has, and writes it when the master is back in time; what was kept is for the next owner.
    """
    agent, store = state.agent, state.store
    for copy in agent.copies:
        what = {"done": "final", "failed": "hold"}.get(copy.phase)
        kept = {(each.entry, each.what) for each in store.kept}
        if what is None or copy.bucket != 1 or len(kept) >= _KEPT_MAX or (copy.entry, what) in kept:
            continue
        kept.add((copy.entry, what))
        others = [each for each in agent.copies if each.list == copy.list]
        covered = copy.list and all(each.safe or _is_kept(each, kept) for each in others)
        after = store._replace(
            kept=(*store.kept, KeptOutcome(what, copy.entry)),
            claimed=tuple(each for each in store.claimed if not covered or each.name != copy.list),
        )
        known = memory.without_list(agent, copy.list) if covered else agent
        moved = changed(setting, state, after).with_agent(known)
        yield Step("R3 kept: the outcome lies in the store", moved, fault=True)


def _is_kept(copy: Copy, kept: set[tuple[Entry, str]]) -> bool:
    return copy.phase in ("done", "failed") and any(entry == copy.entry for entry, _ in kept)


# ---------------------------------------------------------------- onboarding and its way back


def _onboard(setting: Setting, state: State) -> Iterator[Step[State]]:
    agent = state.agent
    for number, job in enumerate(state.jobs):
        row = job.row
        if row is None or row.state != HELD or row.token >= _TOKENS_MAX or any(put.job == number for put in agent.puts):
            continue
        if agent.leaving or (agent.copies and setting.scope.copies == 1):
            continue
        written = master.onboard(setting, state, number, 1)
        if written.result == master.FENCED and _is_stopped(setting, state):
            continue
        if written.result == master.FENCED:
            yield Step("onboarding refused by the bucket: forget it", memory.forgotten(state))
            continue
        marked = written.state.jobs[number].row
        assert marked is not None
        puts = (*agent.puts, Entry(number, marked.token, marked.origin))
        yield Step(
            "O1 onboarded: marked, not put", written.state.with_agent(agent._replace(puts=puts)), broken=written.broken
        )
        if setting.scope.lost_commits:
            yield Step("O1 onboarded: marked, reply lost", written.state, fault=True, broken=written.broken)


def _put(setting: Setting, state: State) -> Iterator[Step[State]]:
    """Marked first, put second; what the store refuses goes back by its identity.

    A put without an answer may have been done: it is repeated as long as its row waits and its copy is neither in memory nor
    in the bucket. (That look and the put are one step here.)
    """
    agent, store = state.agent, state.store
    for put in agent.puts:
        rest = state.with_agent(
            agent._replace(
                puts=tuple(each for each in agent.puts if each != put),
                unanswered=tuple(each for each in agent.unanswered if each != put),
            )
        )
        if put.origin == RETRIED and refuses(setting, state):
            yield Step(
                "put refused by the store: left to the rescuer", memory.forgotten(rest) if agent.mode == "up" else rest
            )
            continue
        if put in state.agent.unanswered:
            yield from _put_again(setting, state, rest, put)
            continue
        released = master.release(setting, rest, put, 1)
        if refuses(setting, state) or store.state != ACTIVE:
            yield Step("put refused: released", released.state, broken=released.broken)
            continue
        there = store._replace(assigned=tuple(sorted({*store.assigned, put})))
        yield Step("put: the copy lies in the bucket", changed(setting, rest, there))
        if setting.scope.lost_puts and "put" not in state.spent:
            spent = state.spent | {"put"}
            if setting.rules.unanswered_stays:
                unsure = state.with_agent(agent._replace(unanswered=(put,)))._replace(spent=spent)
                yield Step("put: not done, and not answered", unsure, fault=True)
                yield Step("put: done, reply lost", changed(setting, unsure, there), fault=True)
            else:
                late = changed(setting, released.state, there)._replace(spent=spent)
                yield Step("put, taken for failed: released", late, fault=True, broken=released.broken)


def _put_again(setting: Setting, state: State, rest: State, put: Entry) -> Iterator[Step[State]]:
    agent, store, row = state.agent, state.store, state.jobs[put.job].row
    if row is None or row.state != ASSIGNED or row.flag or (row.token, row.bucket, row.epoch) != (
        put.token, 1, agent.epoch,
    ):  # fmt: skip
        yield Step("not put again: its row is elsewhere", rest)
    elif any(copy.job == put.job for copy in agent.copies):
        yield Step("not put again: its copy is in memory", rest)
    elif put in store.copies() and not refuses(setting, state) and setting.rules.looks_in_bucket:
        yield Step("not put again: its copy lies in the bucket", rest)
    elif refuses(setting, state) or store.state != ACTIVE:
        yield Step("put again, refused: left to anti-entropy, exit or rescue", rest)
    else:
        there = store._replace(assigned=tuple(sorted({*store.assigned, put})))
        yield Step("put again: the copy lies in the bucket", changed(setting, rest, there))


def _repair(setting: Setting, state: State) -> Iterator[Step[State]]:
    """Anti-entropy of the owner: rows of this bucket that have no copy in the store or in memory."""
    rules = setting.rules
    if not rules.owner_repairs or (state.store.kept and rules.repair_minds_kept):
        return
    agent, store = state.agent, state.store
    if refuses(setting, state):
        return
    for number, job in enumerate(state.jobs):
        row = job.row
        if row is None or row.state not in IN_FLIGHT or row.state not in rules.owner_repairs or row.bucket != 1:
            continue
        if row.epoch > agent.epoch or any(put.job == number for put in agent.puts):
            continue
        in_store = row.state == ASSIGNED and row.epoch == agent.epoch
        if in_store and any((copy.job, copy.token) == (number, row.token) for copy in store.copies()):
            continue
        broken = master.made_void(state, number, row.token)
        if any(copy.job == number for copy in agent.copies):
            if rules.owner_sees_memory:
                continue
            broken = TAKEN_FROM_ITSELF if any(_is_at(copy, number, row.token) for copy in agent.copies) else broken
        if in_store:
            written = master.release(setting, state, Entry(number, row.token, row.origin), 1)
        else:
            written = master.give_back(setting, state, number)
        yield Step("anti-entropy: a row without a copy is released", written.state, broken=broken or written.broken)


def _is_at(copy: Copy, number: int, token: int) -> bool:
    """A copy that is being worked on under this very identity."""
    return (copy.job, copy.token, copy.bucket) == (number, token, 1) and copy.phase not in ("waiting", "settled")


# ---------------------------------------------------------------- an operator's stop


def _is_stopped(setting: Setting, state: State) -> bool:
    """A's bucket is frozen, or unfrozen under an epoch that A has not adopted yet: no reason to forget anything."""
    bucket = state.bucket
    stopped = bucket.owner == "A" and (bucket.state == FROZEN or bucket.epoch > state.agent.epoch)
    return stopped and bucket.state in (*WORKING, FROZEN) and setting.rules.minds_stop


def _unfreeze(setting: Setting, state: State) -> Iterator[Step[State]]:
    """The new epoch in the store, then in memory; what had been onboarded is put aside, to be given back."""
    store, epoch = state.store, state.bucket.epoch
    if store.epoch < epoch and store.owner == "A" and store.state in (ACTIVE, FROZEN):
        lists = (Claimed(UNFROZEN_LIST, store.assigned),) if store.assigned else ()
        unfrozen = store._replace(
            state=ACTIVE, epoch=epoch, assigned=(), claimed=tuple(sorted((*store.claimed, *lists)))
        )
        state = changed(setting, state, unfrozen)
        if setting.scope.lost_commits:
            yield Step("unfrozen in the store, reply lost", state, fault=True)
    elif (store.epoch, store.owner, store.state) != (epoch, "A", ACTIVE):
        yield Step("refused by the store when unfrozen: forget the bucket", memory.forgotten(state))
        return
    yield Step("unfrozen in store and memory", state.with_agent(memory.stepped(state.agent, epoch)))


# ---------------------------------------------------------------- the bucket is another's


def _declare(setting: Setting, state: State) -> Iterator[Step[State]]:
    out = state.with_agent(state.agent._replace(mode="out"))
    if _is_named(state) or (state.bucket == (FROZEN, state.agent.epoch, "A") and not setting.rules.minds_stop):
        if setting.rules.owner_declares:
            broken = STOP_UNDONE if state.bucket.state == FROZEN else ""
            lost = out._replace(bucket=state.bucket._replace(state=LOST))
            yield Step("disowned: LOST by its owner", lost, broken=broken)
    else:
        yield Step("disowned: it is another's already", out)


def _declare_again(setting: Setting, state: State) -> Iterator[Step[State]]:
    if setting.rules.declares_again and setting.rules.owner_declares and _is_named(state):
        yield Step("disowned again: LOST by its owner", state._replace(bucket=state.bucket._replace(state=LOST)))


def _is_named(state: State) -> bool:
    """The master still names A as the owner of a bucket at work."""
    bucket = state.bucket
    return bucket.epoch >= state.agent.epoch and bucket.owner == "A" and bucket.state in WORKING
