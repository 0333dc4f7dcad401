"""Two beats: one in the agent's store every second, one renewal of the lease in the master every few.

A renewal is sent only if the process has made progress since the last one and the last store beat succeeded: a lease means
that the agent works, not that a timer fires. The lease counts from the moment of sending. An answer after the deadline does
not extend it, and after the deadline nothing is sent: the process fences itself and its supervisor starts a new agent.
Failures do not leave the tick (a failed beat is the normal start of an outage), so the rhythm never backs off.

While the process is suspended (``store_lease``) the deadline is that of the store term, and renewals are tried until one is
answered. Alive: the lease is trusted again. Dead: the process fences itself.

Owns ``Ownership.trust``; must never touch a job or a bucket.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from jobmaster.agentstore.errors import OutOfMemory
from jobmaster.clock import Clock
from jobmaster.model.errors import CodeError, JobMasterError, Unavailable
from jobmaster.model.inspection.views import AgentStatistics
from jobmaster.ports import BeatStore, HeartbeatMembers, Renewal
from jobmaster.rules.lease import LeaseTiming, lease_timing, renewed, shortened
from jobmaster.settings.model import Leases
from jobmaster.telemetry import RenewalResult, Telemetry
from jobmaster_agents.event_log import Event, EventLog
from jobmaster_agents.lease.clock_check import ClockCheck
from jobmaster_agents.lease.process_statistics import ProcessStatistics
from jobmaster_agents.periodic_task import note_failure
from jobmaster_agents.state.ownership import Ownership
from jobmaster_agents.state.progress import Progress

BEAT_TTL_BEATS = 3.0
"""A beat in the store lives this many beat intervals."""


OnRenewal = Callable[[Renewal], None]
OnTrust = Callable[[float], None]


class StoreBeat:
    """Beats in the agent's store."""

    name = "store-beat"

    def __init__(
        self, agent_id: bytes, store: BeatStore, leases: Leases, clock: Clock, telemetry: Telemetry, log: EventLog
    ) -> None:
        self._agent_id = agent_id
        self._store = store
        self._every = leases.store_beat_seconds
        self._telemetry = telemetry
        self._log = log
        self._failures = 0
        self._now = clock.boottime
        self._answered_at: float | None = None

    @property
    def answered_at(self) -> float | None:
        """When the last beat was sent (CLOCK_BOOTTIME seconds); ``None`` when the store did not answer it."""
        return None if self._failures else self._answered_at

    @property
    def healthy(self) -> bool:
        """True while the last beat succeeded (also before the first one)."""
        return self._failures == 0

    async def tick(self) -> float:
        """One beat, bounded in time."""
        sent = self._now()
        try:
            async with asyncio.timeout(max(self._every, 0.5)):
                await self._beat()
        except CodeError:
            raise
        except (JobMasterError, TimeoutError) as error:
            self._telemetry.beats["failed"] += 1
            self._failures += 1
            if self._failures == 1:
                self._log.warning(Event.STORE_BEAT_FAILED, {"reason": _reason(error)})
        else:
            self._telemetry.beats["ok"] += 1
            if self._failures:
                self._log.info(Event.STORE_BEAT_AGAIN, {"failures": self._failures})
            self._failures = 0
            self._answered_at = sent
        return self._every

    async def _beat(self) -> None:
        try:
            await self._store.beat(self._agent_id, self._every * BEAT_TTL_BEATS)
        except OutOfMemory:
            return  # it answers, and only agents at work can empty it


class Heartbeat:
    """Renews the lease in the master and watches its end.

    Args:
        attest: ``None`` when the process works, otherwise the fault (store beats and progress together).
        on_renewal: called with every answer that counted.
        on_trust: called with every new ``trusted_until`` (for the supervisor and the kernel's timer).
    """

    name = "heartbeat"

    def __init__(
        self,
        ownership: Ownership,
        members: HeartbeatMembers,
        leases: Leases,
        clock: Clock,
        attest: Callable[[float], str | None],
        on_renewal: OnRenewal,
        on_trust: OnTrust,
        telemetry: Telemetry,
        log: EventLog,
    ) -> None:
        self._ownership = ownership
        self._members = members
        self._leases = leases
        self._lease_timing = LeaseTiming(leases.lease_seconds, leases.renew_seconds)
        self._now = clock.boottime
        self._attest = attest
        self._on_renewal = on_renewal
        self._on_trust = on_trust
        self._telemetry = telemetry
        self._log = log
        self.clock_check: ClockCheck | None = None
        """Compares the clocks at every answer."""
        self.statistics: ProcessStatistics | None = None
        """What a renewal publishes now and then; ``None``: nothing."""
        self._failures = self._statistics_failures = 0
        self._next = 0.0
        self._asked_at: float | None = None
        self._unanswered = False
        self._retiring = False
        telemetry.read_from("lease_seconds_left", lambda: max(ownership.trusted_until - self._now(), 0.0))

    def registered(self, sent: float) -> None:
        """The agent row was written with a fresh lease by a call that was sent at ``sent``."""
        if not self._extend(sent, self._lease_timing.lease_seconds):
            self._ownership.fence("the registration was answered after its own lease had ended")
        self._next = sent + self._leases.renew_seconds

    def retire(self) -> None:
        """The agent is about to end its own row: nothing is renewed any more, and an answer that it has ended is no
        certificate. The deadline stays."""
        self._retiring = True

    def unanswered(self, now: float) -> bool:
        """True while the master does not answer renewals: the last one got no answer, or the present one waits for long. A
        renewal that was withheld, refused or answered does not count."""
        waits = self._asked_at is not None and now - self._asked_at >= self._leases.renew_seconds / 3.0
        return self._unanswered or waits

    async def tick(self) -> float:
        """Renew when it is time; fence when the deadline has come."""
        now = self._now()
        if self._ownership.fenced.is_set():
            return self._leases.renew_seconds
        if now >= self._ownership.fence_at:
            # The process was stopped or cut off for too long. Even a renewal that the master would accept comes too late.
            self._fence("the lease could not be renewed in time")
            return self._leases.renew_seconds
        if self._retiring:
            return max(self._ownership.fence_at - now, 0.0)
        if now >= self._next:
            await self._renew(now)
        return max(min(self._next, self._ownership.fence_at) - self._now(), 0.0)

    async def _renew(self, now: float) -> None:
        lag_seconds = max(now - self._next, 0.0)
        self._next = now + self._lease_timing.renew_seconds
        wrong = self._attest(now)
        if wrong is not None:
            self._telemetry.loop_stalls += 1
            self._unanswered = False
            self._failed(RenewalResult.WITHHELD, wrong, now)
            return
        published = self._due_statistics(
            now, lag_seconds
        )  # before `sent`: files are read, and the lease counts from there
        sent = self._asked_at = self._now()
        asked_us = self.clock_check.now_us() if self.clock_check is not None else 0
        promised = self._lease_timing.lease_seconds
        self._promise(sent, promised)
        try:
            # Bounded so that a hung connection still leaves room for another try before the lease ends.
            async with asyncio.timeout(self._leases.renew_seconds):
                answer = await self._members.renew(self._ownership.agent_id, promised, published)
        except CodeError:
            raise
        except (JobMasterError, TimeoutError) as error:
            self._unanswered = isinstance(error, Unavailable | TimeoutError)
            self._failed(RenewalResult.FAILED, _reason(error), self._now())
            return
        finally:
            self._asked_at = None
        self._telemetry.renewal_seconds.observe(self._now() - sent)
        if self.clock_check is not None:
            self.clock_check.compare(asked_us, answer.now_us)
        if not answer.alive:
            if self._retiring:
                return
            self._fence("the master holds a death certificate for this agent")
            return
        if not self._extend(sent, promised):
            self._telemetry.renewals[RenewalResult.LATE] += 1
            if self._ownership.suspended:
                self._next = self._now()  # answered too late to count: renewed again at once
            else:
                self._fence("the renewal was answered after the lease had ended")
            return
        self._unanswered = False
        self._telemetry.renewals[RenewalResult.OK] += 1
        if self._failures:
            self._log.info(Event.LEASE_TRUSTED_AGAIN, {"failures": self._failures})
        self._failures = 0
        self._pace(answer.agents)
        self._on_renewal(answer)

    def _due_statistics(self, now: float, lag_seconds: float) -> AgentStatistics | None:
        """What this renewal publishes. A figure that cannot be read costs no renewal."""
        if self.statistics is None:
            return None
        try:
            published = self.statistics.due(now, lag_seconds)
        except Exception as error:
            self._statistics_failures += 1
            note_failure(self._log, self._telemetry, "process-statistics", error, self._statistics_failures)
            return None
        self._statistics_failures = 0 if published is not None else self._statistics_failures
        return published

    def _pace(self, agents: int) -> None:
        """The rhythm of a cluster of so many agents, from the next renewal on."""
        leases = self._leases
        self._lease_timing = lease_timing(
            agents, leases.lease_seconds, leases.renew_seconds, leases.renewals_per_second
        )
        self._ownership.stretch = self._lease_timing.lease_seconds / leases.lease_seconds

    def _promise(self, sent: float, lease_seconds: float) -> None:
        """Before a renewal for a shorter time than what is trusted: the master may count by it, answered or not."""
        present = self._ownership.term
        if present is None or self._ownership.suspended:
            return
        less = shortened(present, sent, lease_seconds)
        if less is not present:
            self._ownership.trust(less)
            self._on_trust(less.trusted_until)

    def _extend(self, sent: float, lease_seconds: float) -> bool:
        present = None if self._ownership.suspended else self._ownership.term
        term = renewed(present, sent, self._now(), lease_seconds)
        if term is None:
            return False
        self._ownership.trust(term)
        self._on_trust(term.trusted_until)
        return True

    def _failed(self, result: RenewalResult, reason: str, now: float) -> None:
        self._telemetry.renewals[result] += 1
        self._failures += 1
        # Soon again: three failures in a row at the normal pace would already be the end of the lease.
        self._next = min(self._next, now + self._lease_timing.renew_seconds / 3.0)
        if self._failures == 1:
            left = self._ownership.fence_at - now
            self._log.warning(Event.LEASE_RENEWAL_FAILED, {"reason": reason, "seconds_left": left})

    def _fence(self, why: str) -> None:
        self._log.error(Event.AGENT_FENCED, {"reason": why, "buckets": len(self._ownership.buckets)})
        self._ownership.fence(why)


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__


def attestation(beat: StoreBeat, progress: Progress) -> Callable[[float], str | None]:
    """The condition of a renewal: the process makes progress, and its store answers."""

    def attest(now: float) -> str | None:
        wrong = progress.attest(now)
        progress.expect_turn(asyncio.get_running_loop())
        if wrong is None and not beat.healthy:
            wrong = "the agent's store does not answer"
        return wrong

    return attest
