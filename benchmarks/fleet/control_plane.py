"""What a fleet costs its servers without any job: heartbeats, renewals, judging, comparing, the leader, bucket maps.

Periods are those of the code: a renewal stretches with the size of the cluster (``jobmaster.rules.lease.lease_timing``), a
certifier reads once per lease, an owner compares one bucket every few seconds, a producer reads what has changed in the map
when its copy is ten seconds old and it has work, and the whole map after a restart of the master. Every call goes through the
same servers as the jobs.
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.fleet.cluster import Agent, Cluster, Producer
from benchmarks.fleet.discrete_events import Histogram
from jobmaster.rules.lease import MARGIN_SHARE, SOFT_SHARE, lease_timing
from jobmaster.settings.model import Leases
from jobmaster_agents.buckets.anti_entropy import IDLE_FACTOR
from jobmaster_agents.fetch.wake_listener import WakeListener

_RENEW_TRIES = 3.0
"""A failed renewal is tried again after this part of the rhythm."""
RENEW_BYTES, SMALL_BYTES = 250.0, 200.0


class Lease:
    """One agent's, as the agent counts it and as the master does."""

    __slots__ = ("agent", "fenced", "known_until", "sent", "soft_until", "suspended", "until")

    def __init__(self, agent: Agent, sent: float, seconds: float) -> None:
        self.agent = agent
        self.fenced = False
        self.suspended = False
        """The store has granted it a term."""
        self.renewed(sent, sent, seconds)

    def renewed(self, sent: float, written: float, seconds: float) -> None:
        """An answer that counted."""
        self.sent = sent
        self.soft_until = sent + seconds * SOFT_SHARE
        self.until = sent + seconds * (1 - MARGIN_SHARE)
        self.known_until = written + seconds
        self.suspended = False


class Control:
    """The control plane of a cluster, running from its first moment."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        fleet = cluster.fleet
        self.pace = lease_timing(fleet.agents, fleet.lease_seconds, fleet.renew_seconds, fleet.renewals_per_second)
        self.renewals, self.refreshes, self.decodes, self.term_grants = (Histogram() for _ in range(4))
        self.spent = dict.fromkeys(("renew", "map", "compare", "certify", "leader_tick"), 0.0)
        """CPU of the master by cause."""
        self.leases: list[Lease] = []
        self.fenced = 0
        self.suspended = 0
        self.longest_gap = 0.0
        """Seconds between two renewals of one agent that were answered."""
        self.on_renewed: Callable[[Lease], None] = self._nothing
        self.on_fenced: Callable[[Lease], None] = self._nothing
        draw = cluster.random.random
        for agent in cluster.agents:
            self.join(Lease(agent, -draw() * self.pace.renew_seconds, self.pace.lease_seconds))
        for producer in cluster.producers:
            cluster.time.at(draw() * fleet.map_seconds, self._refresh, producer)
        cluster.time.at(draw(), self._tend)

    def join(self, lease: Lease) -> None:
        """The periodic tasks of an agent begin."""
        time, draw = self.cluster.time, self.cluster.random.random
        now = time.now
        self.leases.append(lease)
        time.at(max(lease.sent + self.pace.renew_seconds, now), self._renew, lease)
        time.at(now + draw() * self.cluster.fleet.beat_seconds, self._beat, lease)
        time.at(now + draw() * self._compare_seconds(), self._compare, lease)
        time.at(now + draw() * self.pace.lease_seconds, self._judge, lease)

    def _nothing(self, _: Lease) -> None:
        """No listener."""

    def _compare_seconds(self) -> float:
        idle, busy = self.cluster.fleet.buckets - 1, 1 if self.cluster.rate else 0
        return Leases().anti_entropy_seconds / max(idle / IDLE_FACTOR + busy, 1e-9)

    def _master(self, cause: str, seconds: float) -> float:
        self.spent[cause] += seconds
        return self.cluster.master.serve(self.cluster.time.now, seconds)

    # ------------------------------------------------------------ of an agent

    def _renew(self, lease: Lease) -> None:
        cluster, now = self.cluster, self.cluster.time.now
        if lease.fenced or not lease.agent.alive:
            return
        if now < cluster.master_away or lease.agent.store.away_until > now:
            self._failed(lease, now)
            return
        end = self._master("renew", cluster.costs.renew.of(cluster.fleet.agents))
        cluster.time.at(end + 2 * cluster.hop, self._flush_renewal, (lease, now))  # (there and back at once)

    def _flush_renewal(self, what: tuple[Lease, float]) -> None:
        self.cluster.log.commit(RENEW_BYTES, self._renewed, what)

    def _renewed(self, what: tuple[Lease, float]) -> None:
        lease, sent = what
        now, pace = self.cluster.time.now, self.pace
        self.renewals.add(now - sent)
        if lease.fenced or not lease.agent.alive:
            return
        if now >= lease.until and not lease.suspended:
            self._fence(lease)
            return
        self.longest_gap = max(self.longest_gap, sent - lease.sent)
        lease.renewed(sent, now, pace.lease_seconds)
        self.cluster.time.at(max(sent + pace.renew_seconds, now), self._renew, lease)
        self.on_renewed(lease)

    def _failed(self, lease: Lease, now: float) -> None:
        """Not answered, or not sent because the store beat failed."""
        if now >= lease.until and not lease.suspended:
            self._fence(lease)
            return
        again = now + self.pace.renew_seconds / _RENEW_TRIES
        self.cluster.time.at(again if lease.suspended else min(again, lease.until), self._renew, lease)

    def _fence(self, lease: Lease) -> None:
        lease.fenced = True
        self.fenced += 1
        self.on_fenced(lease)

    def _beat(self, lease: Lease) -> None:
        cluster, agent, now = self.cluster, lease.agent, self.cluster.time.now
        if lease.fenced or not agent.alive:
            return
        fleet, costs = cluster.fleet, cluster.costs
        if agent.store.away_until <= now:
            agent.store.serve(
                now, costs.beat + fleet.buckets * costs.empty * fleet.beat_seconds / WakeListener.wake_seconds
            )
            if now < cluster.master_away and now >= lease.soft_until:
                self._grant_terms(lease, now)
        cluster.time.at(now + fleet.beat_seconds, self._beat, lease)

    def _grant_terms(self, lease: Lease, now: float) -> None:
        """Requests a term for every bucket from the store; if it is granted before the lease is over, work continues."""
        cluster = self.cluster
        end = lease.agent.store.serve(now, cluster.fleet.buckets * cluster.costs.grant_term)
        self.term_grants.add(end - now)
        if not lease.suspended and end < lease.until:
            lease.suspended = True
            self.suspended += 1

    def _compare(self, lease: Lease) -> None:
        cluster, now = self.cluster, self.cluster.time.now
        if lease.fenced or not lease.agent.alive:
            return
        if now >= cluster.master_away:
            self._master("compare", cluster.costs.compare.of(cluster.fleet.agents))
        cluster.time.at(now + self._compare_seconds(), self._compare, lease)

    def _judge(self, lease: Lease) -> None:
        cluster, now = self.cluster, self.cluster.time.now
        if lease.fenced or not lease.agent.alive:
            return
        if now >= cluster.master_away:
            self._master("certify", cluster.costs.certify.of(cluster.fleet.agents))
        cluster.time.at(now + self.pace.lease_seconds, self._judge, lease)

    # ------------------------------------------------------------ of a producer, of the leader

    def _refresh(self, producer: Producer) -> None:
        cluster, costs, now = self.cluster, self.cluster.costs, self.cluster.time.now
        if now >= cluster.master_away:
            changed = cluster.buckets_changed + now * cluster.fleet.changes
            if producer.map_at is None:
                server, client = (line.of(cluster.fleet.agents) for line in (costs.map, costs.map_client))
            else:
                # No more than there are: a bucket that has changed twice comes once.
                count = min(changed - producer.map_at, cluster.fleet.agents * cluster.fleet.buckets)
                server, client = (line.of(count) for line in (costs.refresh, costs.refresh_client))
            producer.map_at = changed
            end = self._master("map", server) + 2 * cluster.hop
            self.refreshes.add(end - now)
            cluster.time.at(end, self._decode, (producer, client))
        cluster.time.at(now + cluster.fleet.map_seconds, self._refresh, producer)

    def _decode(self, what: tuple[Producer, float]) -> None:
        """On the producer's own loop, where its submits wait meanwhile."""
        producer, seconds = what
        producer.used += seconds
        producer.stalled = self.cluster.time.now + seconds
        self.decodes.add(seconds)

    def _tend(self, _: object) -> None:
        cluster, now = self.cluster, self.cluster.time.now
        if now >= cluster.master_away:
            self._master("leader_tick", cluster.costs.leader_tick.of(cluster.fleet.agents))
        cluster.time.at(now + 1.0, self._tend)
