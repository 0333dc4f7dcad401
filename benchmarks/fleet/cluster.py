"""The way of a job through a fleet, batch by batch, in virtual time: submit, wake and claim, run, write, settle.

What is taken from the code: producers gather what comes while their calls are under way (two at most, 1,000 jobs each); a
bucket's owner is woken by the first job and claims again while something is left; a claim takes what there is room for;
an agent runs jobs in turns of 5 ms on one core; two writers take whatever outcomes have piled up, at most 2,000; above
20,000 outcomes nothing is claimed; a COPY is followed by a flush of the log that all commits of the moment share; settled
lists are deleted by one more call.

Calls are events at the moment they reach their server, so each server sees them in order.
"""

from __future__ import annotations

import random
from collections import deque

from benchmarks.fleet.costs import Costs
from benchmarks.fleet.discrete_events import Histogram, Log, Station, Timeline
from benchmarks.fleet.fleet_size import Fleet
from jobmaster.client.submit_router import STORE_CALLS_MAX
from jobmaster.settings.model import AgentSettings, Limits
from jobmaster_agents.execute.executor import TURN_SECONDS
from jobmaster_agents.fetch.claimer import CLAIM_JOBS_MAX
from jobmaster_agents.outcomes.writer import BACKLOG_ROWS_MAX, BACKLOG_ROWS_RELIEF, BATCH_ROWS, WRITERS

_AGENT = AgentSettings()
CAPACITY = _AGENT.bucket_buffer + _AGENT.slots
LOW_WATER = _AGENT.bucket_buffer // 2
CHUNK = Limits().submit_chunk_jobs
_COLLISIONS = 8
"""Buckets a producer tries before it waits."""


class Agent:
    """One process and the one bucket of it that has work."""

    __slots__ = (
        "alive", "backlog", "claiming", "core", "hungry", "in_turn", "kept", "number", "pending", "queue", "queued",
        "running", "store", "store_number", "used", "waiting", "writing",
    )  # fmt: skip

    def __init__(self, number: int, store: Station, store_number: int) -> None:
        self.number = number
        self.store = store
        self.store_number = store_number
        self.alive = True
        self.pending: deque[tuple[float, int]] = deque()
        """Groups in the bucket: time of submit, number of jobs."""
        self.waiting = 0
        self.queue: deque[tuple[float, int]] = deque()
        self.queued = 0
        self.running = 0
        self.core = 0.0
        """When the process is through with what it has begun."""
        self.used = 0.0
        self.claiming = False
        self.in_turn = False
        self.hungry = False
        self.backlog = 0
        """Outcomes that no writer has taken."""
        self.writing = 0
        self.kept = 0
        """Outcomes in the store while the master is away."""

    def work(self, at: float, seconds: float) -> float:
        """CPU on the agent's core; when it is done."""
        self.core = max(self.core, at) + seconds
        self.used += seconds
        return self.core


class Producer:
    """One process that submits."""

    __slots__ = ("calls", "first", "map_at", "ready", "seen", "since", "stalled", "used")

    def __init__(self) -> None:
        self.since = 0.0
        """Up to here arrivals have been drawn."""
        self.ready = 0
        self.first = 0.0
        self.calls: list[float] = []
        self.seen: dict[int, int] = {}
        """By the number of an agent: how much waited there when this process last put something."""
        self.stalled = 0.0
        """Until then it decodes the map, and nothing leaves."""
        self.map_at: float | None = 0.0
        """Changes of the map that it has read; ``None``: the next refresh reads all of it."""
        self.used = 0.0


class Cluster:
    """Everything, and what is counted.

    Args:
        shared: all processes share this many cores of one machine (the validation); ``None``: each has its own.
    """

    def __init__(self, fleet: Fleet, costs: Costs, *, rate: float, seed: int, shared: Station | None = None) -> None:
        self.fleet, self.costs, self.rate = fleet, costs, rate
        self.random = random.Random(seed)
        self.time = Timeline()
        self.shared = shared
        self.master = shared or Station(fleet.master_cores, fleet.master_share)
        self.stores = [Station(1, fleet.store_speed) for _ in range(fleet.stores)]
        flush = costs.flush if fleet.flush_ms is None else fleet.flush_ms / 1e3
        self.log = Log(self.time, flush, fleet.log_mb_per_second * 1e6)
        self.hop = costs.hop + fleet.network_ms / 2e3
        """From one process to another, until it runs."""
        self.buckets_changed = 0
        """So far, by faults; those of ``fleet.changes`` come on top."""
        self.agents = [Agent(n, self.stores[n % fleet.stores], n % fleet.stores) for n in range(fleet.agents)]
        self.open = list(self.agents)
        """Agents whose buckets are in the producers' bucket maps."""
        self.producers = [Producer() for _ in range(fleet.producers if rate else 0)]
        self.starts, self.ends = Histogram(), Histogram()
        self.submitted = self.finished = self.persisted = self.calls = 0
        self.over = False
        """Producers send what they have, and no more."""
        self._long = 0.0
        self.master_away = 0.0
        self.capacity = CAPACITY * fleet.used_buckets
        self.low_water = LOW_WATER * fleet.used_buckets
        each = rate / len(self.producers) if self.producers else 0.0
        self._each = each
        for producer in self.producers:
            self.time.at(self.random.expovariate(each), self._arrive, producer)

    # ------------------------------------------------------------ producers

    def _arrive(self, producer: Producer) -> None:
        """The first job after a pause; the call leaves when the process has packed it."""
        if self.over:
            return
        now = self.time.now
        producer.ready, producer.first, producer.since = 1, now, now
        self._pack(producer, now)

    def _pack(self, producer: Producer, since: float) -> None:
        cost = self.costs.submit_client.of(producer.ready)
        producer.used += cost
        begin = max(since, self.time.now)
        end = begin + cost if self.shared is None else self.shared.serve(begin, cost)
        self.time.at(end + self.hop, self._send, producer)

    def _send(self, producer: Producer) -> None:
        now, calls = self.time.now, producer.calls
        while calls and calls[0] <= now:
            del calls[0]
        if len(calls) >= STORE_CALLS_MAX or producer.stalled > now:
            self.time.at(producer.stalled if producer.stalled > now else calls[0], self._send, producer)
            return
        agent = self._choose(producer.seen)
        if agent is None:
            self.time.at(now + 0.05, self._send, producer)
            return
        count = producer.ready
        end = agent.store.serve(now, self.costs.submit.of(count))
        if self.shared:
            end = max(end, self.shared.serve(now, self.costs.submit.of(count)))
        calls.append(end + self.hop)
        self.put(agent, producer.first, count, end)
        producer.seen[agent.number] = agent.waiting
        self.submitted += count
        self._more(producer, now)

    def _more(self, producer: Producer, now: float) -> None:
        """What has come meanwhile goes into the next call."""
        if self.over:
            return
        count = self._poisson(self._each * (now - producer.since))
        producer.first, producer.since = (producer.since + now) / 2, now
        if count:
            producer.ready = min(count, CHUNK)
            self._pack(producer, now)
        else:
            self.time.at(now + self.random.expovariate(self._each), self._arrive, producer)

    def _poisson(self, mean: float) -> int:
        if mean > 50.0:
            return max(round(self.random.gauss(mean, mean**0.5)), 0)
        left, count = mean, -1
        while left >= 0.0:
            left -= self.random.expovariate(1.0)
            count += 1
        return count

    def _choose(self, seen: dict[int, int]) -> Agent | None:
        """The emptier of two, by this producer's last answers, of those whose stores answer."""
        agents, draw, now = self.open, self.random.random, self.time.now
        best: Agent | None = None
        for _ in range(2):
            for _ in range(_COLLISIONS):
                agent = agents[int(draw() * len(agents))]
                if agent.store.away_until <= now:
                    break
            else:
                continue
            if best is None or seen.get(agent.number, 0) < seen.get(best.number, 0):
                best = agent
        return best

    # ------------------------------------------------------------ from the bucket into the agent

    def put(self, agent: Agent, submitted_at: float, count: int, end: float) -> None:
        """Jobs lie in the bucket from ``end`` on; its owner is woken."""
        agent.pending.append((submitted_at, count))
        agent.waiting += count
        if agent.alive and not agent.claiming and not agent.hungry:
            agent.claiming = True
            woken = self._store(agent, end, self.costs.wake) + self.hop
            self.time.at(agent.work(woken, self.costs.claim_client.fixed) + self.hop, self._claim, agent)

    def _store(self, agent: Agent, at: float, seconds: float) -> float:
        end = agent.store.serve(at, seconds)
        return end if self.shared is None else max(end, self.shared.serve(at, seconds))

    def ask(self, agent: Agent) -> None:
        """There may be something to claim."""
        if agent.alive and not agent.claiming:
            agent.claiming, agent.hungry = True, False
            self.time.at(max(self.time.now, agent.core) + self.hop, self._claim, agent)

    def _claim(self, agent: Agent) -> None:
        if not agent.alive:
            return
        room = min(self.capacity - agent.queued - agent.running, CLAIM_JOBS_MAX)
        if room <= 0 or agent.backlog > BACKLOG_ROWS_MAX:
            agent.claiming, agent.hungry = False, True
            return
        count = min(room, agent.waiting)
        end = self._store(agent, self.time.now, self.costs.claim.of(count))
        if not count:
            agent.claiming = False
            return
        agent.waiting -= count
        self.time.at(end + self.hop, self._claimed, (agent, taken(agent.pending, count), count))

    def _claimed(self, what: tuple[Agent, list[tuple[float, int]], int]) -> None:
        agent, groups, count = what
        if not agent.alive:
            agent.pending.extend(groups)
            agent.waiting += count
            return
        agent.queue.extend(groups)
        agent.queued += count
        agent.claiming = False
        if not agent.in_turn:
            self._turn(agent)
        if agent.waiting:
            self.ask(agent)

    # ------------------------------------------------------------ running

    def _turn(self, agent: Agent) -> None:
        """Jobs back to back on the agent's core until the loop has its turn."""
        now, fleet = self.time.now, self.fleet
        each = self.costs.job + fleet.handler_us / 1e6
        count = min(agent.queued, max(int(TURN_SECONDS / each), 1))
        if fleet.wait_ms:
            count = min(count, _AGENT.slots - agent.running)
        if count <= 0:
            agent.in_turn = False
            return
        agent.in_turn = True
        begin = max(agent.core, now)
        end = agent.work(now, count * each)
        if self.shared is not None:
            end = agent.core = max(end, self.shared.serve(begin, count * each))
        moment = begin
        for submitted_at, some in taken(agent.queue, count):
            self.starts.add(moment + some * each / 2 - submitted_at, some)
            moment += some * each
        agent.queued -= count
        agent.running += count
        self.time.at(end, self._ran, (agent, count))

    def _ran(self, what: tuple[Agent, int]) -> None:
        agent = what[0]
        if not agent.alive:
            return
        agent.in_turn = False
        if self.fleet.wait_ms:
            self.time.at(self.time.now + self.fleet.wait_ms / 1e3, self._ended, what)
        else:
            self._ended(what)
        if agent.queued and not agent.in_turn:
            self._turn(agent)
        if agent.hungry and agent.queued <= self.low_water and agent.backlog <= BACKLOG_ROWS_RELIEF:
            self.ask(agent)

    def _ended(self, what: tuple[Agent, int]) -> None:
        agent, count = what
        if not agent.alive:
            return
        agent.running -= count
        agent.backlog += count
        if agent.writing < WRITERS:
            self.write(agent)
        if self.fleet.wait_ms and agent.queued and not agent.in_turn:
            self._turn(agent)

    # ------------------------------------------------------------ outcomes

    def write(self, agent: Agent) -> None:
        """The next batch of a writer, encoded on the agent's core."""
        now = self.time.now
        if now < self.master_away:
            return  # called again when the master is back
        count = min(agent.backlog, BATCH_ROWS)
        agent.backlog -= count
        agent.writing += 1
        sent = agent.work(now, self.costs.copy_client.fixed)
        self.time.at(sent + 2 * self.hop, self._copy, (agent, count, now))  # (there and back at once)

    def _copy(self, what: tuple[Agent, int, float]) -> None:
        agent, count, _ = what
        now, costs = self.time.now, self.costs
        if not agent.alive or now < self.master_away:
            agent.writing -= 1
            if agent.alive:
                agent.backlog += count
            else:
                agent.pending.append((now, count))
                agent.waiting += count
            return
        self._long += count * self.fleet.long_share
        long = min(int(self._long), count)
        self._long -= long
        size, seconds = 0.0, 0.0
        if count > long:
            seconds += costs.copy.of(count - long)
            size += costs.log_bytes.of(count - long)
        if long:  # its row was written when it had run for a while: a statement of its own, and a guarded end
            seconds += costs.persist.of(long) + costs.upsert.of(long)
            size += 2 * costs.upsert_bytes.of(long)
            self.persisted += long
        self.calls += 1
        self.time.at(self.master.serve(now, seconds), self._flush, (agent, count, what[2], size))

    def _flush(self, what: tuple[Agent, int, float, float]) -> None:
        self.log.commit(what[3], self._written, what)

    def _written(self, what: tuple[Agent, int, float, float]) -> None:
        agent, count, begun, _ = what
        now = self.time.now
        self.finished += count
        agent.writing -= 1
        if not agent.alive:
            return
        self.ends.add(now - begun, count)
        agent.work(now, self.costs.settle_client.fixed)
        self._store(agent, now, self.costs.settle.of(count))
        if agent.backlog and agent.writing < WRITERS:
            self.write(agent)
        if agent.hungry and agent.queued <= self.low_water and agent.backlog <= BACKLOG_ROWS_RELIEF:
            self.ask(agent)

    # ------------------------------------------------------------ counting

    @property
    def in_flight(self) -> int:
        """Jobs that were submitted and have no recorded outcome."""
        return self.submitted - self.finished

    def counted(self) -> int:
        """The same, looked for where jobs can be; what is in a call under way is not seen. For the tests."""
        return sum(a.waiting + a.queued + a.running + a.backlog + a.kept for a in self.agents)

    def busy(self) -> dict[str, float]:
        """Seconds of work so far: of the busiest store and producer, of the mean agent, of a core of the master."""
        return {
            "agents": sum(agent.used for agent in self.agents) / len(self.agents),
            "stores": max(store.busy / store.speed for store in self.stores),
            "master": self.master.busy / self.master.speed / self.master.servers,
            "master_log": self.log.busy,
            "producers": max((producer.used for producer in self.producers), default=0.0),
        }


def taken(groups: deque[tuple[float, int]], count: int) -> list[tuple[float, int]]:
    """The oldest so many jobs of some groups, removed."""
    found: list[tuple[float, int]] = []
    while count:
        submitted_at, some = groups[0]
        if some > count:
            groups[0] = (submitted_at, some - count)
            found.append((submitted_at, count))
            break
        groups.popleft()
        found.append((submitted_at, some))
        count -= some
    return found
