"""Agent A while the master does not answer: its store grants terms for the bucket, kept outcomes leave memory, and A itself
applies them in a bucket at work.

Time is left out, as everywhere, except for the one fact that the store's term depends on: the owner counts from the sending,
so its own time is over before the store's.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.model import master, memory, owner
from tests.model.explorer import Step
from tests.model.rules import Setting
from tests.model.state import WORKING, Copy, KeptOutcome, State

OVERTAKEN = "a job starts under a store's term in a bucket that is being emptied"


def steps(setting: Setting, state: State) -> Iterator[Step[State]]:
    """What A may do besides its work."""
    agent, store, rules = state.agent, state.store, setting.rules
    if setting.scope.suspends:
        yield from _word(setting, state)
    at_work = agent.mode == "up" and not agent.leaving and not owner.refuses(setting, state)
    if at_work and store.kept and rules.owner_applies:
        yield from apply_kept(setting, state)


def _word(setting: Setting, state: State) -> Iterator[Step[State]]:
    """The store's term, and its end."""
    agent, store, rules = state.agent, state.store, setting.rules
    if agent.term:
        yield Step("the store's term is over for its owner", state.with_agent(agent._replace(term=False)))
    if store.granted and not (agent.term and rules.owner_gives_up_first and agent.mode == "up"):
        yield Step("the store's term is over", state._replace(store=store._replace(granted=False)))
    if agent.mode != "up":
        return
    asks = not owner.refuses(setting, state) or not rules.term_needs_owner
    if asks and not agent.term and (store.state in WORKING or not rules.term_needs_owner) and store.epoch:
        granted = state._replace(store=store._replace(granted=True))
        yield Step("the store grants a term for the bucket", granted.with_agent(agent._replace(term=True)))


def may_start(setting: Setting, state: State, copy: Copy) -> tuple[bool, str]:
    """May a job start under the store's term, and what would be wrong with it."""
    if copy.bucket != 1:
        return True, ""
    allowed = state.agent.term or not setting.rules.start_needs_term
    return allowed, OVERTAKEN if _is_emptied(state) else ""


def _is_emptied(state: State) -> bool:
    """A rescuer has begun to move what lies in the bucket."""
    return any(each is not None and each.at in ("pages", "sweep") for each in (state.rescuer, state.zombie))


def let_go(setting: Setting, state: State, copy: Copy, *, is_kept: bool) -> State | None:
    """Memory without an outcome that the store keeps; None: it has to stay."""
    if not setting.scope.suspends or not state.agent.term or (setting.rules.keeps_first and not is_kept):
        return None
    if any(each.phase == "waiting" and each.job == copy.job for each in state.agent.copies):
        return None
    return state.with_agent(memory.let_go(state.agent, copy))


def apply_kept(setting: Setting, state: State) -> Iterator[Step[State]]:
    """An owner finds outcomes that its bucket keeps: written first, under their own identity, removed second."""
    outcome = state.store.kept[0]
    rest = owner.changed(setting, state, state.store._replace(kept=state.store.kept[1:]))
    written = _written(setting, state, outcome)
    if not setting.rules.apply_commits_first:
        yield Step("kept outcome removed, not written", rest)
    if written.state != state:
        yield Step("kept outcome applied by its owner", written.state, broken=written.broken)
    elif written.result in (master.ACCEPTED, master.REFUSED):
        yield Step("kept outcome removed", rest)


def _written(setting: Setting, state: State, outcome: KeptOutcome) -> master.Written:
    job, token, origin = outcome.entry
    return master.write(setting, state, Copy(job, token, 1, 1, origin, "", 0, 1), outcome.what)
