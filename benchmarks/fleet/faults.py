"""Faults of a fleet, and the recovery from them: agents killed, a store away, the master away.

Rescues follow the code: a certificate for at most 64 agents per call, lost buckets taken one by one by any agent that
finds them (the certifier at once, the others with their next renewal), each emptied in pages and closed. Their jobs are HELD
then and continue through hints to two owners a second and through onboarding, 1,000 at a time, up to 2,000 ahead per bucket.
"""

from __future__ import annotations

from collections import deque

from benchmarks.fleet.cluster import Agent, Cluster, taken
from benchmarks.fleet.control_plane import SMALL_BYTES, Control, Lease
from jobmaster.rules.backoff import backoff_delay
from jobmaster.settings.model import Thresholds
from jobmaster_agents.leader.due_notifier import PER_GROUP
from jobmaster_agents.outcomes.kept_replay import PAGE_JOBS
from jobmaster_agents.outcomes.writer import WRITERS
from jobmaster_agents.rescue.failure_detector import CERTIFICATES_MAX
from jobmaster_agents.rescue.rescuer import RETRY_SECONDS, RETRY_SECONDS_MAX

PAGE = Thresholds().transfer_batch
AHEAD = Thresholds().assigned_low_water
_STATEMENTS_OF_A_DRAIN = 3
_CALLS_OF_A_DRAIN = 4


class Rescue:
    """Certificates, drains and onboarding."""

    def __init__(self, cluster: Cluster, control: Control) -> None:
        self.cluster, self.control = cluster, control
        self.lost: deque[Agent | None] = deque()
        """Lost buckets: of an agent the one with jobs, else an empty one."""
        self.held: deque[tuple[float, int]] = deque()
        self.holding = 0
        self.rescued = 0
        self.certified = 0
        self.drained = 0
        self.looks = 0
        self.first_certificate = self.last_certificate = self.last_drained = 0.0
        self._rescuing: set[int] = set()
        self._dead: list[Lease] = []
        self._fetching: set[int] = set()
        control.on_renewed = self.on_renewal
        control.on_fenced = self.left
        cluster.time.at(cluster.random.random(), self._tend)

    # ------------------------------------------------------------ death

    def kill(self, count: int) -> int:
        """So many agents at once, as by the loss of their machines; how many of their jobs had no outcome yet."""
        cluster = self.cluster
        jobs = 0
        for lease in cluster.random.sample(self.control.leases[1:], count):  # (the leader is another)
            self._dead.append(lease)
            jobs += self._stop(lease.agent)
        return jobs

    def _stop(self, agent: Agent) -> int:
        agent.alive = False
        now = self.cluster.time.now
        # A batch that is being written is written; the rest lies in claimed lists and in the bucket.
        agent.pending.extend(agent.queue)
        for unwritten in (agent.running + agent.backlog, agent.kept):
            if unwritten:
                agent.pending.append((now, unwritten))
        agent.waiting += agent.queued + agent.running + agent.backlog + agent.kept
        agent.queue.clear()
        agent.queued = agent.running = agent.backlog = agent.kept = 0
        return agent.waiting

    def left(self, lease: Lease) -> None:
        """It fenced itself; its supervisor proves the death at once and starts another process."""
        self._stop(lease.agent)
        self._lose(lease.agent)
        moment = max(self.cluster.time.now, lease.agent.store.away_until) + 2.0
        self.cluster.time.at(moment, self._start, lease)

    def _start(self, lease: Lease) -> None:
        cluster, old = self.cluster, lease.agent
        agent = Agent(len(cluster.agents), old.store, old.store_number)
        cluster.agents.append(agent)
        cluster.open.append(agent)
        cluster.buckets_changed += cluster.fleet.buckets
        fresh = Lease(agent, cluster.time.now, self.control.pace.lease_seconds)
        self.control.join(fresh)

    def _lose(self, agent: Agent) -> None:
        self.lost.append(agent)
        self.lost.extend([None] * (self.cluster.fleet.buckets - 1))
        self.certified += 1
        self.cluster.buckets_changed += self.cluster.fleet.buckets
        self.first_certificate = self.first_certificate or self.cluster.time.now
        self.last_certificate = self.cluster.time.now

    # ------------------------------------------------------------ the leader's second

    def _tend(self, _: object) -> None:
        cluster = self.cluster
        now, costs = cluster.time.now, cluster.costs
        if now >= cluster.master_away:
            overdue = [lease for lease in self._dead if lease.known_until < now]
            while overdue:
                some, overdue = overdue[:CERTIFICATES_MAX], overdue[CERTIFICATES_MAX:]
                rows = len(some) * cluster.fleet.buckets
                cluster.master.serve(now, costs.certify.of(cluster.fleet.agents) + costs.persist.of(rows))
                for lease in some:
                    self._dead.remove(lease)
                    self._lose(lease.agent)
                self.begin(self.control.leases[0].agent)
            if self.holding:
                self._hint()
        cluster.time.at(now + 1.0, self._tend)

    def _hint(self) -> None:
        """Two owners get a hint."""
        cluster = self.cluster
        for _ in range(PER_GROUP):
            agent = cluster.open[int(cluster.random.random() * len(cluster.open))]
            if agent.alive and agent.store.away_until <= cluster.time.now:
                cluster.time.at(agent.store.serve(cluster.time.now, cluster.costs.hint), self._fetch, agent)

    # ------------------------------------------------------------ rescuers

    def on_renewal(self, lease: Lease) -> None:
        """A renewal returned that buckets are lost."""
        if self.lost:
            self.begin(lease.agent)

    def begin(self, agent: Agent) -> None:
        """An agent looks for lost buckets until there are none."""
        if agent.alive and agent.number not in self._rescuing:
            self._rescuing.add(agent.number)
            cluster = self.cluster
            end = cluster.master.serve(cluster.time.now, cluster.costs.draining.of(cluster.fleet.agents))
            cluster.time.at(end, self._take, (agent, 0))

    def _take(self, what: tuple[Agent, int]) -> None:
        agent, moved = what
        cluster, costs = self.cluster, self.cluster.costs
        self.looks += 1
        end = cluster.master.serve(cluster.time.now, costs.take_lost.of(cluster.fleet.agents))
        if not self.lost or not agent.alive:
            self._rescuing.discard(agent.number)
            if moved:
                self._hint()
            return
        cluster.time.at(end, self._drain, (agent, moved, self.lost.popleft(), 0))

    def _drain(self, what: tuple[Agent, int, Agent | None, int]) -> None:
        """Fence, pages, close, sweep: as one wait for each page and one for the rest."""
        agent, moved, victim, failures = what
        cluster, costs, now = self.cluster, self.cluster.costs, self.cluster.time.now
        store = victim.store if victim is not None else agent.store
        if store.away_until > now:
            pause = backoff_delay(failures + 1, RETRY_SECONDS, RETRY_SECONDS_MAX)
            cluster.time.at(now + pause, self._drain, (agent, moved, victim, failures + 1))
            if not failures:
                cluster.time.at(now, self._take, (agent, moved))  # others have their turn meanwhile
            return
        if victim is not None and victim in cluster.open:
            cluster.open.remove(victim)  # fenced: producers get CLOSED
        seconds = _STATEMENTS_OF_A_DRAIN * costs.persist.of(1)
        calls = _CALLS_OF_A_DRAIN * costs.empty
        pages = 0
        if victim is not None and victim.waiting:
            pages = -(-victim.waiting // PAGE)
            seconds += pages * costs.insert.fixed + victim.waiting * costs.insert.per
            calls += 2 * (pages * costs.claim.fixed + victim.waiting * costs.claim.per)
        end = max(cluster.master.serve(now, seconds), store.serve(now, calls))
        waits = (_STATEMENTS_OF_A_DRAIN + pages) * costs.flush
        cluster.time.at(end + waits, self._drained, (agent, moved, victim, failures))

    def _drained(self, what: tuple[Agent, int, Agent | None, int]) -> None:
        agent, moved, victim, failures = what
        self.drained += 1
        self.last_drained = self.cluster.time.now
        if victim is not None and victim.waiting:
            moved += victim.waiting
            self.rescued += victim.waiting
            self.holding += victim.waiting
            self.held.extend(victim.pending)
            victim.pending.clear()
            victim.waiting = 0
        if failures:  # (its rescuer continues by itself)
            if moved:
                self._hint()
            return
        self._take((agent, moved))

    # ------------------------------------------------------------ held jobs into buckets

    def _fetch(self, agent: Agent) -> None:
        if not agent.alive or not self.holding or agent.waiting >= AHEAD or agent.number in self._fetching:
            return
        self._fetching.add(agent.number)
        cluster, count = self.cluster, min(self.holding, PAGE)
        self.holding -= count
        groups = taken(self.held, count)
        end = cluster.master.serve(cluster.time.now, cluster.costs.onboard.of(count))
        cluster.time.at(end, self._marked, (agent, groups, count))

    def _marked(self, what: tuple[Agent, list[tuple[float, int]], int]) -> None:
        self.cluster.log.commit(SMALL_BYTES * what[2], self._fetched, what)

    def _fetched(self, what: tuple[Agent, list[tuple[float, int]], int]) -> None:
        agent, groups, count = what
        cluster = self.cluster
        self._fetching.discard(agent.number)
        end = agent.store.serve(cluster.time.now, cluster.costs.submit.of(count))
        for submitted_at, some in groups:
            cluster.put(agent, submitted_at, some, end)
        if self.holding:
            self.cluster.time.at(end, self._again, agent)

    def _again(self, agent: Agent) -> None:
        """The next batch when the bucket has fallen below its low-water mark."""
        if agent.waiting < AHEAD:
            self._fetch(agent)
        elif self.holding:
            self.cluster.time.at(self.cluster.time.now + 0.02, self._again, agent)


class Outage:
    """The master is away: outcomes wait in memory, then in the stores, and are written when it is back."""

    def __init__(self, cluster: Cluster, control: Control) -> None:
        self.cluster, self.control = cluster, control
        self.kept = 0
        self.most_waiting = 0
        self.caught_up = 0.0
        self._applying: set[int] = set()
        control.on_renewed = self._back

    def begin(self, seconds: float) -> None:
        """From now on for so long."""
        cluster = self.cluster
        cluster.master_away = cluster.time.now + seconds
        for producer in cluster.producers:
            producer.map_at = None  # it comes back as another server, and no version of the map is continued
        cluster.time.at(cluster.time.now, self._keep)

    def _keep(self, _: object) -> None:
        """Past half its lease an agent's outcomes go to its store."""
        cluster, now = self.cluster, self.cluster.time.now
        if now >= cluster.master_away:
            return
        for lease in self.control.leases:
            agent = lease.agent
            if lease.suspended and agent.backlog:
                agent.store.serve(now, cluster.costs.submit.of(agent.backlog))
                agent.kept += agent.backlog
                self.kept += agent.backlog
                agent.backlog = 0
                if agent.hungry:
                    cluster.ask(agent)
        self.most_waiting = max(self.most_waiting, cluster.in_flight)
        cluster.time.at(now + 0.25, self._keep)

    def _back(self, lease: Lease) -> None:
        """The first renewal that is answered: writers continue, kept outcomes are applied."""
        agent = lease.agent
        while agent.backlog and agent.writing < WRITERS:
            self.cluster.write(agent)
        if agent.kept and agent.number not in self._applying:
            self._applying.add(agent.number)
            self._page(agent)

    def _page(self, agent: Agent) -> None:
        cluster, costs = self.cluster, self.cluster.costs
        count = min(agent.kept, PAGE_JOBS)
        if not count:
            self._applying.discard(agent.number)
            return
        read = agent.store.serve(cluster.time.now, costs.claim.of(count))
        cluster.time.at(read, self._apply, (agent, count))

    def _apply(self, what: tuple[Agent, int]) -> None:
        cluster = self.cluster
        end = cluster.master.serve(cluster.time.now, cluster.costs.upsert.of(what[1]))
        cluster.time.at(end, self._flush, what)

    def _flush(self, what: tuple[Agent, int]) -> None:
        self.cluster.log.commit(self.cluster.costs.upsert_bytes.of(what[1]), self._applied, what)

    def _applied(self, what: tuple[Agent, int]) -> None:
        agent, count = what
        agent.kept -= count
        self.cluster.finished += count
        agent.store.serve(self.cluster.time.now, self.cluster.costs.settle.of(count))
        self._page(agent)
