"""One seed from beginning to end: servers, agents, clients, faults, healing, and the final check."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import Any

from jobmaster.client.cluster import Cluster
from jobmaster.settings.model import (
    AgentSettings,
    BucketCounts,
    ClusterSettings,
    JobDefaults,
    Leases,
    OnSuspicion,
    Safety,
    StoreSettings,
    Thresholds,
)
from tests.simulation.checks.audit import Audit
from tests.simulation.checks.trace import Trace
from tests.simulation.faults.injector import FaultInjector
from tests.simulation.faults.nemesis import Nemesis
from tests.simulation.faults.scenarios import Scenario, borrowers_cut_off
from tests.simulation.master.cluster_statements import ClusterStatements
from tests.simulation.master.sim_master import MasterServer, SimMaster
from tests.simulation.master.tables import OVER
from tests.simulation.runtime.event_loop import Deadlock, Process, SimLoop
from tests.simulation.runtime.hosts import EPOCH_US, Host, SimClock
from tests.simulation.runtime.network import Network
from tests.simulation.runtime.patches import Ids, Patch, PatchedProduct
from tests.simulation.store.sim_store import CLUSTER, SimStore, StoreServer
from tests.simulation.workload.batches import unended
from tests.simulation.workload.bulk import Bulk, unfinished_bulk
from tests.simulation.workload.clients import HANDLERS, Clients, isolated
from tests.simulation.workload.guarded import GUARDED_EVERY, Guarded, with_breaker
from tests.simulation.workload.invalid_jobs import INVALID_KINDS, unaccounted
from tests.simulation.workload.limited import LIMITED, LimitedJobs
from tests.simulation.workload.lockers import Lockers
from tests.simulation.workload.mover import Mover
from tests.simulation.workload.orders import ORDERLY, ORDERS_EVERY, Orders, unfinished
from tests.simulation.workload.recurring import Recurring, gaps, left_behind, undecided
from tests.simulation.workload.signallers import Signallers
from tests.simulation.workload.unique_jobs import UNIQUE_EVERY, UniqueJobs

FAULTLESS_EVERY = 4
SIGNALS_EVERY = 6
"""So many histories, and those of a scenario, have signals; the others are not longer for it."""
LIMITED_EVERY = 12
"""Of so many histories with faults one has jobs with limits and ordering keys."""
ACTIVE_SECONDS = 2.6
HEAL_SECONDS = 30.0
"""After the last fault everything that was acknowledged ends within this time (leases last one second)."""
_LOOK_SECONDS = 0.1

_NONE = BucketCounts(critical=0, high=0, medium=1, low=0, very_low=0)
SETTINGS = ClusterSettings(
    cluster=CLUSTER,
    stores={"s1": StoreSettings(), "s2": StoreSettings()},
    agents={
        "one": AgentSettings(store="s1", buckets=BucketCounts(critical=0, high=1, medium=1, low=0, very_low=0), slots=4,
                             bucket_buffer=4, max_running=6, isolated_processes=2),
        "two": AgentSettings(store="s2", buckets=_NONE, slots=4, bucket_buffer=4, max_running=6, weight=2),
    },
    thresholds=Thresholds(transient_threshold_seconds=0.8, transfer_batch=5, persist_within_seconds=0.4),
    leases=Leases(lease_seconds=1.0, renew_seconds=0.33, store_beat_seconds=0.3, leader_lease_seconds=1.0,
                  leader_renew_seconds=0.3, grace_seconds=0.6, tombstone_seconds=1.5, bucket_map_seconds=0.5,
                  store_dead_seconds=2.5, orphan_grace_seconds=1.5, anti_entropy_seconds=0.9),
    jobs=JobDefaults(max_rescues=3),
    safety=Safety(flapping_deaths=0, on_suspicion=OnSuspicion.IGNORE),  # one machine; the audit sees more
)  # fmt: skip


@dataclass(frozen=True)
class Result:
    """Result of a history."""

    seed: int
    faultless: bool
    violations: tuple[str, ...]
    events: int
    faults: int
    jobs: int
    digest: str
    hits: Counter[str]
    seconds: float
    """Of virtual time."""
    text: str = ""


class History:
    """All servers, machines and clients of one seed, and their run.

    Args:
        without: guards that the simulated statements leave out.
        scenario: faults beside those that are drawn.
        limited: there are jobs with limits and ordering keys; ``None``: by the seed.
        has_unique: some jobs have unique keys, which they have in some histories only.
        has_breaker: some jobs need a resource that is down for a while, which they do in some histories only.
        has_bulk: there are bulk operations.
        has_move: the jobs move to the master of another cluster. None has limits, unique keys, a breaker or a schedule.
    """

    def __init__(
        self,
        seed: int,
        *,
        without: frozenset[str] = frozenset(),
        scenario: Scenario | None = None,
        limited: bool | None = None,
        has_unique: bool = False,
        has_breaker: bool = False,
        has_bulk: bool = False,
        has_move: bool = False,
    ) -> None:
        self.seed = seed
        by_seed = seed % LIMITED_EVERY == 5 or seed % (2 * LIMITED_EVERY) == 0
        self._limited = (by_seed and not has_move) if limited is None else limited
        self.handlers = LIMITED if self._limited else HANDLERS
        self._scenario = scenario
        self.faultless = seed % FAULTLESS_EVERY == 0
        streams = {
            name: Random(f"{name} {seed}") for name in ("schedule", "faults", "workload", "ids", "product", "locks")
        }
        self._streams = streams
        self.trace = Trace()
        self.loop = SimLoop(streams["schedule"], self._loop_error)  # type: ignore[abstract]  # no sockets, on purpose
        self.audit = Audit(self.loop, self.trace)
        self.nemesis = Nemesis(
            self.loop, self.trace, streams["faults"], faultless=self.faultless, on_crash=self._crashed
        )
        self._has_drawn_faults = scenario is not borrowers_cut_off  # an agent that dies of something else shows nothing
        self.nemesis.rate *= self._has_drawn_faults
        self.settings = SETTINGS
        self.master_offset_us = 0
        self.store_offset_us = 0
        self.master = MasterServer("master", self.loop, ClusterStatements(self._master_us, self.audit, without))
        self.audit.now_us = self._master_us
        self.audit.terminate = self.master.terminate
        self.master.statement_bytes = self.nemesis.statement_bytes
        self.master.statements.batch_look_us = 1_000_000
        self.stores = {
            name: StoreServer(name, self.loop, self._store_us, self.audit.emptying) for name in SETTINGS.stores
        }
        self.new_id = Ids(lambda: EPOCH_US + int(self.loop.now * 1e6), streams["ids"])
        kinds = ("one", "two", "one")
        self.hosts = [Host(self, i + 1, kind, streams["faults"]) for i, kind in enumerate(kinds)]
        self.has_unique = has_unique or (seed % UNIQUE_EVERY == 1 and not has_move)
        self.has_breaker = has_breaker or (seed % GUARDED_EVERY == 3 and not has_move)
        self.has_bulk = has_bulk
        if self.has_breaker:
            self.handlers = with_breaker(self.handlers)
        self.resource_is_down = False
        self.master.statements.start_us, self.master.statements.rest_us = 1_500_000, 500_000
        self.clients: Clients | None = None
        self.recurring: Recurring | None = None
        self.has_orders = scenario is not None and scenario.__name__ in ORDERLY
        self.signallers = Signallers(self, Random(f"signals {seed}"), ACTIVE_SECONDS)
        self.run_isolated = isolated
        self.mover = Mover(self, Random(f"move {seed}"), ACTIVE_SECONDS, without) if has_move else None

    def _master_us(self) -> int:
        return EPOCH_US + int(self.loop.now * 1e6) + self.master_offset_us

    def _store_us(self) -> int:
        return EPOCH_US + int(self.loop.now * 1e6) + self.store_offset_us

    def _crashed(self, process: Process) -> None:
        for host in self.hosts:
            host.crashed(process)

    def _loop_error(self, context: dict[str, Any]) -> None:
        self.audit.broken("error", f"{context.get('message')}: {context.get('exception')!r}")

    # ------------------------------------------------------------ connections

    def open_master(self) -> SimMaster:
        """A process connects."""
        return SimMaster(self.master, Network(self.master, self.nemesis, self.trace))

    def open_stores(self) -> dict[str, SimStore]:
        """A process connects to every store."""
        return {
            name: SimStore(server, Network(server, self.nemesis, self.trace), self.nemesis)
            for name, server in self.stores.items()
        }

    # ------------------------------------------------------------ from beginning to end

    def run(self, patches: list[Patch] | None = None, *, text: bool = False) -> Result:
        """Play it."""
        random.seed(self._streams["product"].getrandbits(64))
        if self.mover is not None:
            patches = [*(patches or ()), *self.mover.patches]
        with PatchedProduct(self.audit.hits, self.new_id, patches).opened():
            try:
                self.loop.run(self._main())
            except Deadlock:
                self.audit.broken("L1", "nothing is ready and no timer runs")
        violations = tuple(dict.fromkeys(self.audit.violations))
        return Result(
            self.seed, self.faultless, violations, self.trace.events, self.nemesis.faults, len(self.audit.jobs),
            self.trace.digest(), self.audit.hits, self.loop.now - 1000.0, self.trace.text() if text else "",
        )  # fmt: skip

    async def _main(self) -> None:
        hosts = [self.loop.create_task(host.run()) for host in self.hosts]
        for host in self.hosts:
            while not (host.serving or self.audit.violations):  # noqa: ASYNC110  # the agents' own events are their own affair
                await asyncio.sleep(0.02)
        client = Process("client", self)
        clients = self.loop.spawn(client, self._clients())
        Lockers(self, self._streams["locks"], ACTIVE_SECONDS).start()
        if self.mover is not None:
            self.mover.start()
        elif self.seed % SIGNALS_EVERY == 3:
            self.signallers.start()
        self.nemesis.quiet = False
        injector = FaultInjector(self, self._streams["faults"])
        scenario = [] if self._scenario is None else [self.loop.spawn(Process("scenario", self), self._scenario(self))]
        await (injector.inject(ACTIVE_SECONDS) if self._has_drawn_faults else asyncio.sleep(ACTIVE_SECONDS))
        self.nemesis.heal()
        injector.heal()
        await self._settle(clients, injector)
        if self.audit.violations:
            return
        self.audit.final(self.master.statements.tables, INVALID_KINDS)
        found = {
            "invalid job": unaccounted(self),
            "I10": gaps(self, self.recurring.untouched if self.recurring is not None else []),
            "I15": unfinished(self),
            "definition": left_behind(self),
            "L1": [*unended(self), *unfinished_bulk(self)],
            "signal": self.signallers.wrong(),
            "move": self.mover.wrong() if self.mover is not None else [],
        }
        for rule, of_rule in found.items():
            for wrong in of_rule:
                self.audit.broken(rule, wrong)
        for task in (*hosts, clients, *scenario):
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                self.audit.broken("error", repr(error))

    async def _clients(self) -> None:
        stores = self.open_stores()
        cluster = Cluster(
            self.settings, self.open_master(), stores, handlers=self.handlers, clock=SimClock(self.loop, 7.0)
        )
        self.clients = Clients(self, cluster, stores, self._streams["workload"], self.new_id)
        work = [self.clients.run(ACTIVE_SECONDS)]
        if self.mover is None:
            self.recurring = Recurring(self, Random(f"schedules {self.seed}"), self.new_id)
            work.append(self.recurring.run(ACTIVE_SECONDS))
        else:
            work.append(self.mover.submit(cluster))
        if self.has_orders or (self.seed % ORDERS_EVERY == 2 and self.mover is None):
            work.append(Orders(self, cluster, Random(f"orders {self.seed}"), self.new_id).run(ACTIVE_SECONDS))
        if self._limited:
            limited = LimitedJobs(self, self.open_master(), stores, Random(f"limits {self.seed}"))
            work.append(limited.run(ACTIVE_SECONDS))
        if self.has_unique:
            other = Cluster(
                self.settings, self.open_master(), stores, handlers=self.handlers, clock=SimClock(self.loop, 9.0)
            )
            unique = UniqueJobs(self, [cluster, other], Random(f"unique {self.seed}"))
            work.append(unique.run(ACTIVE_SECONDS))
        if self.has_breaker:
            work.append(Guarded(self, cluster, Random(f"guarded {self.seed}")).run(ACTIVE_SECONDS))
        if self.has_bulk:
            work.append(Bulk(self, cluster, Random(f"bulk {self.seed}")).run(ACTIVE_SECONDS))
        await asyncio.gather(*work)

    async def _settle(self, clients: asyncio.Task[None], injector: FaultInjector) -> None:
        """Until everything has ended, or the time for it is over."""
        ends = self.loop.now + HEAL_SECONDS
        quiet = 0
        while quiet < 3 and self.loop.now < ends and not self.audit.violations:
            await asyncio.sleep(_LOOK_SECONDS)
            quiet = quiet + 1 if clients.done() and self._is_over() else 0
            injector.let_go()

    def _is_over(self) -> bool:
        tables = self.master.statements.tables
        if not all(host.serving for host in self.hosts):
            return False
        if undecided(self) or left_behind(self) or unfinished(self) or unended(self) or unfinished_bulk(self):
            return False
        if any(bucket.state in ("LOST", "DRAINING", "FROZEN") for bucket in tables.buckets.values()):
            return False
        jobs = self.audit.jobs
        if self.mover is not None and not self.mover.done:
            return False
        if any(row.state not in OVER and jobs[row.id].kind not in INVALID_KINDS for row in tables.jobs.values()):
            return False
        missing = [
            job
            for job in jobs.values()
            if job.level and not job.may_be_lost and job.id not in tables.jobs and job.id not in self.audit.concluded
        ]
        return all(job.kind in INVALID_KINDS for job in missing) and not unaccounted(self)
