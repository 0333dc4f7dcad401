"""While the master does not answer, the agent's own store grants a term for each bucket, and work goes on.

A lease means two things: this agent works, and no other agent has its buckets. While the master is away, no agent can take a
bucket in it. One danger is left: only *this* agent is cut off, and others certify its death. But a rescuer fences a bucket in
its store before it moves anything, so the store knows. So an agent whose lease is half over, whose renewals get no answer,
and which otherwise works, requests a store term for each bucket. A granted term shows that the bucket was not fenced, and a
rescuer that fences it later must wait until the term is over. The term is a lease: jobs start in its first half, and a tenth
before its end the process stops, by the same three guards (supervisor and kernel timer get the end of every term).

Nothing is committed to the master under a store term. After a refusal the agent does not go on with the bucket. When the
store does not answer either, nothing changes: the process fences itself at its deadline.

Only this module calls ``Ownership.trust_store``; it must never touch a job.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from jobmaster.clock import Clock
from jobmaster.model.errors import CodeError, Refused, Unavailable
from jobmaster.ports import LeaseStore, ReplyStatus
from jobmaster.rules.lease import may_suspend, store_term_seconds, term
from jobmaster.settings.model import Leases, MasterDown
from jobmaster.telemetry import Telemetry
from jobmaster_agents.event_log import Event, EventLog
from jobmaster_agents.state.ownership import OnForgotten, OwnedBucket, Ownership

_LOOK_SECONDS = 0.05
_TAKE_BACK_SECONDS = 1.0


class StoreLease:
    """The periodic task that requests store terms.

    Args:
        unanswered: whether the master leaves renewals unanswered at a moment.
        answered_at: when the last store beat was sent, if the store answered it; otherwise ``None``.
        on_trust: called with every new moment at which others may end this process.
        on_forgotten: an answer of the store shows that a bucket has another owner.
    """

    name = "store-lease"

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
        self._every = store_term_seconds(leases.lease_seconds, leases.store_beat_seconds)
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
        """For how long the process has been suspended; ``None``: it is not."""
        return None if self._since is None else self._now() - self._since

    async def tick(self) -> float:
        """Request terms when they are needed; nothing in the first half of the lease."""
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
        await self._request_terms(now)
        self._give_up_unconfirmed(self._now())
        return self._every

    # ------------------------------------------------------------ the requests

    async def _request_terms(self, now: float) -> None:
        """One request for each bucket, all at once, bounded so that the deadline is met."""
        buckets = list(self._ownership.buckets.values())
        if not buckets:
            answered_at = self._answered_at()  # without a bucket, an answered beat is all that can be known
            if answered_at is not None:
                self._accept(answered_at, None)
            return
        timeout = min(self._ownership.fence_at - now, self._lease_seconds / 3.0)
        requests = [asyncio.ensure_future(self._request(owned)) for owned in buckets]
        await asyncio.wait(requests, timeout=timeout)
        for each in requests:
            each.cancel()
        for outcome in await asyncio.gather(*requests, return_exceptions=True):
            if isinstance(outcome, CodeError):
                raise outcome

    async def _request(self, owned: OwnedBucket) -> None:
        sent, fence = self._now(), owned.fence
        try:
            status = await self._store.grant_term(fence, self._lease_seconds)
        except (Unavailable, Refused):
            return  # requested again, until the deadline
        if fence != owned.fence:
            return  # unfrozen under a new epoch during the call
        if status is ReplyStatus.OK:
            self._accept(sent, owned)
        elif status is ReplyStatus.CLOSED:
            self._accept(sent, owned, starts=False)  # ours and frozen: running jobs may end, none starts
        elif not owned.lost:
            self._on_forgotten(
                owned.fence.bucket_id, f"the store answered {status} when it was to stand for the bucket", status
            )

    def _accept(self, sent: float, owned: OwnedBucket | None, *, starts: bool = True) -> None:
        now = self._now()
        granted = term(sent, self._lease_seconds)
        ownership = self._ownership
        if now < ownership.soft_until or now >= ownership.fence_at or now >= granted.hard_until:
            return  # a renewal came first, or the answer came after a deadline and does not move it
        ownership.trust_store(granted if starts else granted._replace(soft_until=0.0), owned)
        self._on_trust(ownership.kill_at)

    def _give_up_unconfirmed(self, now: float) -> None:
        """Give up a bucket without a store term, although others have one: a rescuer that has fenced it may begin."""
        if not self._ownership.suspended or now < self._ownership.hard_until:
            return
        for owned in list(self._ownership.buckets.values()):
            if owned.store_term is None or now >= owned.store_term.hard_until:
                self._on_forgotten(owned.fence.bucket_id, "the bucket has neither a lease nor a store term")

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
        # If this process dies soon, its rescuer need not wait for a term that is not used any more.
        try:
            async with asyncio.timeout(_TAKE_BACK_SECONDS):
                for owned in list(self._ownership.buckets.values()):
                    await self._store.grant_term(owned.fence, 0.0)
        except (Unavailable, Refused, TimeoutError):
            return  # the terms end by themselves within a lease

    def _fence(self) -> None:
        why = "the agent has neither a lease nor a store term"
        self._log.error(Event.AGENT_FENCED, {"reason": why, "buckets": len(self._ownership.buckets)})
        self._ownership.fence(why)
