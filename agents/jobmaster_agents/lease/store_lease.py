"""While the master does not answer, the agent's own store stands for its buckets, and work goes on.

A lease says two things: this agent works, and its buckets are nobody else's. When the master is away, nobody can take a
bucket in it; what is left to fear is that only *this* agent is cut off, and is certified dead by others. But a rescuer
fences the bucket in its store before it touches anything, so the store knows. An agent whose lease is half over, whose
renewals get no answer at all, and which otherwise works, therefore asks its store to *vouch* for each bucket: accepted, the
bucket was not fenced, and a rescuer that fences it later is told to wait until that term is over. The term is a lease: jobs
start in its first half, and a tenth before its end the process stops, by the same three guards (the supervisor's deadline
and the kernel's timer are told of every term).

Nothing is committed to the master on the store's word. A refusal is an answer: this agent does not go on after it. A store
that does not answer either leaves the process where it was: it fences itself at its deadline.

Owns ``Ownership.vouch``; must never touch a job.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from jobmaster.clock import Clock
from jobmaster.model.errors import CodeError, Refused, Unavailable
from jobmaster.model.ids import Fence
from jobmaster.ports import Word
from jobmaster.rules.lease import may_suspend, term, vouch_seconds
from jobmaster.settings.model import Leases, MasterDown
from jobmaster.telemetry import Telemetry
from jobmaster_agents.event_log import Event, EventLog
from jobmaster_agents.state.ownership import OnForgotten, OwnedBucket, Ownership

_LOOK_SECONDS = 0.05
_TAKE_BACK_SECONDS = 1.0


class LeaseStore(Protocol):
    """What stands for a bucket."""

    async def vouch(self, fence: Fence, term_seconds: float) -> Word: ...


class StoreLease:
    """The duty that asks.

    Args:
        unanswered: the master does not answer renewals (a moment in, yes or no out).
        heard_at: when the last store beat was sent, if the store heard it; ``None``: it did not.
        on_trust: told of every new moment at which others may end this process.
        on_forgotten: the store said that a bucket is another's.
    """

    name = "suspension"

    def __init__(
        self,
        ownership: Ownership,
        store: LeaseStore,
        leases: Leases,
        clock: Clock,
        unanswered: Callable[[float], bool],
        answered_at: Callable[[], float | None],
        on_trust: Callable[[float], None],
        on_forgotten: OnForgotten,
        telemetry: Telemetry,
        log: EventLog,
    ) -> None:
        self._ownership = ownership
        self._store = store
        self._lease_seconds = leases.lease_seconds
        self._every = vouch_seconds(leases.lease_seconds, leases.store_beat_seconds)
        self._goes_on = leases.master_down is MasterDown.CONTINUE
        self._now = clock.boottime
        self._unanswered = unanswered
        self._answered_at = answered_at
        self._on_trust = on_trust
        self._on_forgotten = on_forgotten
        self._telemetry = telemetry
        self._log = log
        self._since: float | None = None
        self.kicked = asyncio.Event()
        ownership.on_suspended.append(self._suspended)
        ownership.on_resumed.append(self.kicked.set)
        telemetry.read_from("suspended", lambda: int(ownership.suspended))
        telemetry.read_from("outcomes_kept", lambda: sum(each.kept for each in ownership.buckets.values()))

    @property
    def suspended_seconds(self) -> float | None:
        """For how long the store has stood for this process; ``None``: it does not."""
        return None if self._since is None else self._now() - self._since

    async def tick(self) -> float:
        """Ask when it is needed; nothing while the lease is in its first half."""
        ownership, now = self._ownership, self._now()
        if ownership.fenced.is_set() or not self._goes_on:
            return self._lease_seconds
        if not ownership.suspended and self._since is not None:
            await self._resumed(now)
        if now < ownership.soft_until:
            return max(ownership.soft_until - now, _LOOK_SECONDS)
        if now >= ownership.fence_at:
            self._fence()
            return self._lease_seconds
        works = self._answered_at() is not None
        if not may_suspend(now, ownership.term, unanswered=self._unanswered(now), works=works):
            return _LOOK_SECONDS
        await self._ask(now)
        self._give_up_unconfirmed(self._now())
        return self._every

    # ------------------------------------------------------------ the question

    async def _ask(self, now: float) -> None:
        """Once for every bucket, all together, bounded so that the deadline is met."""
        ownership = list(self._ownership.buckets.values())
        if not ownership:
            answered_at = (
                self._answered_at()
            )  # nobody to stand for: that the store hears this process is all there is to know
            if answered_at is not None:
                self._accept(answered_at, None)
            return
        patience = min(self._ownership.fence_at - now, self._lease_seconds / 3.0)
        asked = [asyncio.ensure_future(self._ask_for(owned)) for owned in ownership]
        await asyncio.wait(asked, timeout=patience)
        for each in asked:
            each.cancel()
        for outcome in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(outcome, CodeError):
                raise outcome

    async def _ask_for(self, owned: OwnedBucket) -> None:
        sent, fence = self._now(), owned.fence
        try:
            word = await self._store.vouch(fence, self._lease_seconds)
        except (Unavailable, Refused):
            return  # asked again; the deadline says for how long
        if fence != owned.fence:
            return  # unfrozen under a new epoch while the call was on its way
        if word is Word.OK:
            self._accept(sent, owned)
        elif word is Word.CLOSED:
            self._accept(sent, owned, starts=False)  # ours, and stopped: what runs may end, nothing starts
        elif not owned.lost:
            self._on_forgotten(
                owned.fence.bucket_id, f"the store answered {word} when it was to stand for the bucket", word
            )

    def _accept(self, sent: float, owned: OwnedBucket | None, *, starts: bool = True) -> None:
        now = self._now()
        granted = term(sent, self._lease_seconds)
        ownership = self._ownership
        if now < ownership.soft_until or now >= ownership.fence_at or now >= granted.hard_until:
            return  # a renewal came first; or the answer comes after a deadline, and does not move it
        ownership.trust_store(granted if starts else granted._replace(soft_until=0.0), owned)
        self._on_trust(ownership.kill_at)

    def _give_up_unconfirmed(self, now: float) -> None:
        """A bucket for which the store stands no longer, although it does for others: whoever has fenced it may begin."""
        if not self._ownership.suspended or now < self._ownership.hard_until:
            return
        for owned in list(self._ownership.buckets.values()):
            if owned.store_term is None or now >= owned.store_term.hard_until:
                self._on_forgotten(owned.fence.bucket_id, "neither the master nor the store stands for the bucket")

    # ------------------------------------------------------------ begin and end

    def _suspended(self) -> None:
        self._since = self._now()
        self._telemetry.suspensions += 1
        self._log.warning(
            Event.AGENT_SUSPENDED,
            {
                "buckets": len(self._ownership.buckets),
                "reason": "the master does not answer; jobs go on from the store, outcomes are kept there",
            },
        )

    async def _resumed(self, now: float) -> None:
        since, self._since = self._since, None
        kept = sum(owned.kept for owned in self._ownership.buckets.values())
        self._log.info(Event.AGENT_RESUMED, {"seconds": now - (since or now), "outcomes_kept": kept})
        # A rescuer that comes soon, because this process dies, need not wait for a word that nobody relies on.
        try:
            async with asyncio.timeout(_TAKE_BACK_SECONDS):
                for owned in list(self._ownership.buckets.values()):
                    await self._store.vouch(owned.fence, 0.0)
        except (Unavailable, Refused, TimeoutError):
            return  # it ends by itself within a lease

    def _fence(self) -> None:
        why = "neither the master nor the store stands for this agent"
        self._log.error(Event.AGENT_FENCED, {"reason": why, "buckets": len(self._ownership.buckets)})
        self._ownership.fence(why)
