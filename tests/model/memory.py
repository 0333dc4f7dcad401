"""Agent A's memory: one live copy of an id, followers, and lists that may be deleted (``state/job_table.py``)."""

from __future__ import annotations

from collections.abc import Iterable

from tests.model.rules import Rules, Setting
from tests.model.state import SAVE_PENDING, SUBMITTED_2, UNFROZEN_LIST, Agent, Claimed, Copy, State

_IDLE = ("waiting", "settled")


def adopt(setting: Setting, agent: Agent, claimed: Claimed, bucket: int = 1) -> Agent:
    """A claimed list comes into memory."""
    copies = list(agent.copies)
    for entry in claimed.entries:
        live = any(copy.job == entry.job and copy.phase not in _IDLE for copy in copies)
        phase = "waiting" if live and setting.rules.one_live_copy else "queued"
        known = 0 if entry.origin in (SAVE_PENDING, SUBMITTED_2) else 1
        epoch = agent.epoch if bucket == 1 else 1
        if claimed.name == UNFROZEN_LIST:  # its rows bear the old epoch
            phase, epoch = ("held" if phase == "queued" else phase), epoch - 1
        copies.append(Copy(entry.job, entry.token, bucket, epoch, entry.origin, phase, claimed.name, known))
    return agent._replace(copies=tuple(sorted(copies)))


def changed(agent: Agent, copy: Copy, after: Copy) -> Agent:
    """One copy of the memory changes."""
    copies = list(agent.copies)
    copies[copies.index(copy)] = after
    return agent._replace(copies=tuple(sorted(copies)))


def settled(agent: Agent, copy: Copy, *, accepted: bool) -> Agent:
    """A copy is over; followers that its end makes void are over too, and the newest of the others takes its place."""
    copies = list(agent.copies)
    copies[copies.index(copy)] = copy._replace(phase="settled")
    rest = []
    for place, follower in enumerate(copies):
        if follower.phase == "waiting" and follower.job == copy.job:
            if _is_void(follower, copy, accepted):
                copies[place] = follower._replace(phase="settled")
            else:
                rest.append(place)
    if rest:
        heir = max(rest, key=lambda place: copies[place].token)
        copies[heir] = copies[heir]._replace(phase="queued")
    return agent._replace(copies=_without_dust(copies))


def let_go(agent: Agent, copy: Copy) -> Agent:
    """The outcome of a copy lies in the store: only its list is still to be deleted, with its last entry."""
    return changed_or_gone(agent, copy, copy._replace(phase="settled"))


def changed_or_gone(agent: Agent, copy: Copy, after: Copy) -> Agent:
    """As ``changed``; what is over and has no list is dust."""
    return agent._replace(copies=_without_dust(changed(agent, copy, after).copies))


def _is_void(follower: Copy, first: Copy, accepted: bool) -> bool:
    if accepted:
        return follower.token <= first.token
    return (follower.bucket, follower.epoch, follower.token) == (first.bucket, first.epoch, first.token)


def stepped(agent: Agent, epoch: int) -> Agent:
    """The bucket goes on under a new epoch. A copy that may have a row keeps its identity, and goes back if it has not been
    started; a copy that has none takes the new one."""
    copies = []
    for copy in agent.copies:
        if copy.bucket == 1 and copy.phase in ("queued", "running", "waiting") and not copy.row:
            copy = copy._replace(epoch=epoch)
        elif copy.bucket == 1 and copy.phase == "queued":
            copy = copy._replace(phase="held")
        copies.append(copy)
    return agent._replace(epoch=epoch, copies=tuple(sorted(copies)))


def forgotten(state: State) -> State:
    """Bucket 1 is another's: nothing of it is settled, its keys are not touched; copies in bucket 2 take over."""
    agent = state.agent
    gone = {copy.job for copy in agent.copies if copy.bucket == 1}
    copies = [copy for copy in agent.copies if copy.bucket != 1]
    for place, copy in enumerate(copies):
        if copy.phase == "waiting" and copy.job in gone:
            copies[place] = copy._replace(phase="queued")
    return state.with_agent(agent._replace(mode="lost", copies=tuple(copies)))


def deletable(rules: Rules, agent: Agent, bucket: int = 1) -> Iterable[int]:
    """Names of the claimed lists whose every entry is safe."""
    for name in {copy.list for copy in agent.copies if copy.list and copy.bucket == bucket}:
        entries = [copy for copy in agent.copies if copy.list == name]
        safe = [copy.safe or (copy.phase == "waiting" and not rules.duplicate_waits) for copy in entries]
        if all(safe) or (any(safe) and not rules.whole_lists) or not rules.commit_before_delete:
            yield name


def without_list(agent: Agent, name: int) -> Agent:
    """The store has deleted a list, or has none of that name any more."""
    return agent._replace(copies=_without_dust([c._replace(list=0) if c.list == name else c for c in agent.copies]))


def _without_dust(copies: Iterable[Copy]) -> tuple[Copy, ...]:
    return tuple(sorted(copy for copy in copies if copy.list or copy.phase != "settled"))
