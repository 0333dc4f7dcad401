"""Injects the faults of agents and servers of one history, and heals them at its end."""

from __future__ import annotations

import asyncio
import contextlib
from random import Random
from typing import TYPE_CHECKING, Any

from jobmaster.model.errors import JobMasterError
from jobmaster.model.flow.breaker import BreakerState
from jobmaster.model.pause import PauseKind
from tests.simulation.faults.nemesis import ClusterFault
from tests.simulation.master.tables import FINAL
from tests.simulation.runtime.event_loop import Process
from tests.simulation.runtime.hosts import Host, SimClock
from tests.simulation.runtime.network import Server
from tests.simulation.store.functions import SimBucket, id_of
from tests.simulation.store.sim_store import StoreServer

if TYPE_CHECKING:
    from tests.simulation.history import History

_WEIGHTS = {
    ClusterFault.CRASH: 5, ClusterFault.PAUSE: 5, ClusterFault.LEAVE: 5, ClusterFault.CUT: 4,
    ClusterFault.STORE_DOWN: 1, ClusterFault.MASTER_DOWN: 2, ClusterFault.ROLLBACK: 1.2,
    ClusterFault.STORE_LOST: 0.5,
    ClusterFault.STORE_SILENT: 0.7, ClusterFault.STORE_FULL: 0.7, ClusterFault.FAILOVER: 1, ClusterFault.CLOCKS: 1,
    ClusterFault.ARCHIVE: 2, ClusterFault.FREEZE: 2, ClusterFault.JOBS_PAUSED: 2,
}  # fmt: skip
_OF_MOVES = tuple(
    kind for kind in _WEIGHTS if kind not in (ClusterFault.FAILOVER, ClusterFault.CLOCKS, ClusterFault.ARCHIVE)
)
"""While the jobs move to another master. A failover of one master alone forgets what the other one knows."""
FAULTS_MIN = 3
_DURATIONS = (0.1, 0.3, 0.7, 1.2, 2.0)
OUTLAST_SECONDS = 10.0
"""In this time agents that one store disturbs, and nothing else, must have come to rest."""
STEADY_SECONDS = 2.0
"""Rest: so long no process ends, and no bucket is lost. Two leases."""
_LOOK_SECONDS = 0.1
_PAUSABLE = (
    ("handler", "plain"),
    ("handler", "plain"),
    ("handler", "fenced"),
    ("lane", "default"),
    ("priority", "medium"),
)


class FaultInjector:
    """Draws the faults of a history and injects them.

    Args:
        chance: the stream of faults.
    """

    def __init__(self, history: History, chance: Random) -> None:
        self._history = history
        self._chance = chance
        self._down: list[Server] = []
        self._lasting: tuple[ClusterFault, StoreServer] | None = None
        """The store that is silent, or full, until the end of the faults."""
        if history.faultless:
            kinds, count = [ClusterFault.LEAVE], chance.randint(1, 3)
        else:
            kinds = list(_WEIGHTS if history.mover is None else _OF_MOVES)
            kinds = chance.sample(kinds, chance.randint(3, len(kinds)))
            count = chance.randint(4, 7)
        self._kinds = chance.choices(kinds, [_WEIGHTS[kind] for kind in kinds], k=count)

    async def inject(self, seconds: float) -> None:
        """Inject all of them within so many seconds."""
        history = self._history
        moments = sorted(seconds * (0.05 + 0.95 * self._chance.random()) for _ in self._kinds)
        began = history.loop.now
        for moment, kind in zip(moments, self._kinds, strict=True):
            await asyncio.sleep(max(began + moment - history.loop.now, 0.0))
            self._inject(kind)
        while not history.faultless and history.nemesis.faults < FAULTS_MIN:
            self._inject(self._chance.choice((ClusterFault.PAUSE, ClusterFault.CRASH, ClusterFault.CUT)))
            await asyncio.sleep(0.3)
        await asyncio.sleep(max(began + seconds - history.loop.now, 0.0))
        if self._lasting is not None:
            await self._outlast(*self._lasting)

    def _inject(self, kind: ClusterFault) -> None:
        history = self._history
        history.trace.note(history.loop.now, "NEMESIS", kind.value, "")
        if getattr(self, f"_{kind.name.lower()}")() is False:
            return  # no agent or server was in a state for it
        history.audit.hits[f"fault: {kind.value}"] += 1
        history.nemesis.cluster_faults += kind is not ClusterFault.LEAVE

    def heal(self) -> None:
        """Servers are up again, and nothing is frozen. What stands still goes on by itself."""
        for server in list(self._down):
            self._up(server)
        self.let_go()

    def let_go(self) -> None:
        """The operator lets go on what is frozen, paused, or stopped by a breaker without an end; asked again, because a stop
        without an answer may be executed later."""
        tables = self._history.master.statements.tables
        if any(bucket.state == "FROZEN" for bucket in tables.buckets.values()):
            self._operate("unfreeze", None)
        for subject in sorted(tables.pauses):
            self._resume(*subject)
        for breaker in sorted(tables.breakers.values()):
            if breaker.state == "OPEN" and breaker.until_us is None:
                self._history.loop.spawn(Process("operator", self._history), close(self._history, breaker.name))

    # ------------------------------------------------------------ one store, for several leases

    def _store_silent(self) -> bool:
        if self._lasting is not None:
            return False
        server = self._some_store()
        self._lasting = ClusterFault.STORE_SILENT, server
        server.unread = []
        return True

    def _store_full(self) -> bool:
        if self._lasting is not None:
            return False
        server = self._some_store()
        self._lasting = ClusterFault.STORE_FULL, server
        server.functions.full = True
        return True

    async def _outlast(self, fault: ClusterFault, server: StoreServer) -> None:
        """Everything heals but this one store. Its own agents live on while it is full; the others are not concerned while it
        is silent, although one of their machines disappears just now: its buckets are drained."""
        history = self._history
        history.nemesis.heal()
        for each in list(self._down):
            self._up(each)
        silent = fault is ClusterFault.STORE_SILENT
        hosts = [host for host in history.hosts if not silent or self._store_of(host) != server.name]
        gone = self._chance.choice(hosts) if silent and len(hosts) > 1 else None
        if gone is not None:
            hosts.remove(gone)
            gone.away = True
            if gone.process is not None and gone.process.alive:
                history.nemesis.crash(gone.process)
        ends = history.loop.now + OUTLAST_SECONDS
        since, starts = history.loop.now, -1
        while history.loop.now - since < STEADY_SECONDS and not history.audit.violations:
            if history.loop.now >= ends:
                history.audit.broken("outlast", f"{fault.value}: {server.name} keeps others from coming to rest")
            self.let_go()
            await asyncio.sleep(_LOOK_SECONDS)
            before, starts = starts, sum(host.starts for host in hosts)
            if starts != before or not self._at_rest(hosts, {server.name} if silent else set()):
                since = history.loop.now
        history.audit.hits[f"outlasted: {fault.value}"] += 1
        if silent:
            server.go_on()
        if gone is not None:
            gone.away = False
        server.functions.full = False

    def _at_rest(self, hosts: list[Host], but: set[str]) -> bool:
        buckets = self._history.master.statements.tables.buckets.values()
        lost = any(each.state in ("LOST", "DRAINING", "FROZEN") and each.store not in but for each in buckets)
        return not lost and all(host.serving for host in hosts)

    def _store_of(self, host: Host) -> str:
        return self._history.settings.agents[host.agent].store

    # ------------------------------------------------------------ operators

    def _freeze(self) -> bool:
        """An operator stops some buckets, and lets them go on a little later."""
        buckets = [b.id for b in self._history.master.statements.tables.buckets.values() if b.state == "ACTIVE"]
        if not buckets:
            return False
        chosen = sorted(self._chance.sample(buckets, self._chance.randint(1, min(3, len(buckets)))))
        self._operate("freeze", chosen)
        seconds = self._chance.choice((0.05, 0.3, 0.8, 1.5))
        self._history.loop.call_later(seconds, self._operate, "unfreeze", chosen)
        return True

    def _operate(self, what: str, bucket_ids: list[bytes] | None) -> None:
        history = self._history
        history.loop.spawn(Process("operator", history), operate(history, what, bucket_ids))

    def _jobs_paused(self) -> None:
        """An operator pauses something, and resumes it a little later; some pauses end by themselves."""
        history, (kind, value) = self._history, self._chance.choice(_PAUSABLE)
        ends_after = self._chance.choice((None, None, 0.4))
        history.loop.spawn(Process("operator", history), pause(history, kind, value, ends_after))
        history.loop.call_later(self._chance.choice((0.3, 0.8, 1.5)), self._resume, kind, value)

    def _resume(self, kind: str, value: str) -> None:
        history = self._history
        history.loop.spawn(Process("operator", history), resume(history, kind, value))

    # ------------------------------------------------------------ agents

    def _some_host(self) -> Host | None:
        hosts = [host for host in self._history.hosts if host.process is not None and host.process.alive]
        return self._chance.choice(hosts) if hosts else None

    def _some_process(self) -> Process | None:
        host = self._some_host()
        return host.process if host is not None else None

    def _crash(self) -> bool:
        process = self._some_process()
        if process is not None:
            self._history.nemesis.crash(process)
        return process is not None

    def _pause(self) -> bool:
        process = self._some_process()
        if process is not None:
            self._history.loop.halt(process, self._history.nemesis.pause())
        return process is not None

    def _leave(self) -> None:
        host = self._some_host()
        if host is not None and host.lifecycle is not None:
            host.lifecycle.reason = "the simulation asks"
            host.lifecycle.leave.set()
            if self._chance.random() < 0.2:
                host.lifecycle.hurry.set()

    def _cut(self) -> bool:
        process = self._some_process()
        if process is None:
            return False
        stores: list[Server] = list(self._history.stores.values())
        master: Server = self._history.master
        servers = self._chance.choice(([master], stores, stores[:1], [master, *stores]))
        nemesis = self._history.nemesis
        nemesis.cut(process, servers)
        self._history.loop.call_later(self._chance.choice(_DURATIONS), nemesis.mend, process)
        return True

    # ------------------------------------------------------------ servers

    def _some_store(self) -> StoreServer:
        return self._chance.choice(list(self._history.stores.values()))

    def go_down(self, server: Server, seconds: float) -> None:
        server.up = False
        server.abort()
        self._down.append(server)
        self._history.loop.call_later(seconds, self._up, server)

    def _up(self, server: Server) -> None:
        if server in self._down:
            self._down.remove(server)
        server.up = True
        if server is self._history.master:
            self._history.audit.master_up_since = self._history.master.statements.now_us()

    def _store_down(self) -> None:
        self.go_down(self._some_store(), self._chance.choice(_DURATIONS))

    def _master_down(self) -> None:
        self.go_down(self._history.master, self._chance.choice(_DURATIONS))

    def _rollback(self) -> None:
        server = self._some_store()
        functions = server.functions
        then = {meta: bucket.copied() for meta, bucket in functions.buckets.items()}, functions.owner

        def come_back() -> None:
            self._replace(server, then[0])
            functions.owner = then[1]

        self._history.loop.call_later(0.6 * self._chance.random() ** 2, come_back)

    def _store_lost(self) -> None:
        self.empty(self._some_store())

    def empty(self, server: StoreServer) -> None:
        """The store loses everything."""
        self._replace(server, {})
        server.functions.owner = None

    def _replace(self, server: StoreServer, data: dict[bytes, SimBucket]) -> None:
        """The store gets other data. The loss of jobs that only the store held is no violation."""
        functions = server.functions
        before, there = _ids(functions.buckets), _ids(data)
        tables = self._history.master.statements.tables
        rows, aside = tables.jobs, {job_id for job_id, _ in tables.quarantine}
        for job_id in before - there:
            job = self._history.audit.jobs.get(job_id)
            if job is None or job_id in rows or job_id in aside:
                continue
            job.guardian = self._holder(job_id, server.name)
            if job.guardian is None:
                job.excused = "only the store had it"
            else:
                self._history.audit.hits["only its owner has it"] += 1
        server.abort()
        functions.buckets = data
        self._history.audit.words_lost = True

    def _holder(self, job_id: bytes, store: str) -> Process | None:
        """The trusted agent that has a copy without a row in memory: it is bound to save that."""
        for host in self._history.hosts:
            process = host.process
            parts: Any = process.parts if process is not None and process.alive else None
            if not hasattr(parts, "bucket_worker") or not parts.ownership.may_commit(host.clock.boottime()):
                continue
            live = parts.bucket_worker.job_table.get(job_id)
            if live is None or live.entry.token > 1 or live.row_state is not None:
                continue
            owned = live.claimed_list.owned
            if owned.store == store and parts.ownership.get(owned.fence.bucket_id) is not None:
                return process
        return None

    def _failover(self) -> None:
        statements = self._history.master.statements
        then = statements.tables.copied()

        def take_over() -> None:
            self._history.master.abort()
            self._history.audit.failover(statements.tables, then)
            then.server = statements.tables.server + 1
            statements.tables = then
            self._history.audit.master_up_since = statements.now_us()

        self._history.loop.call_later(0.15 * self._chance.random(), take_over)

    def _clocks(self) -> None:
        history = self._history
        for host in history.hosts:
            if isinstance(host.clock, SimClock):
                host.clock.wall_offset_us += self._chance.choice((-86_400, 0, 86_400)) * 1_000_000
        history.store_offset_us += int(self._chance.choice((-0.3, 0.0, 0.3)) * 1e6)
        jump = self._chance.choice((-0.4, 0.0, 0.4, 3.0))
        if jump:
            history.audit.clocks_jumped = True
            history.master_offset_us += int(jump * 1e6)

    def _archive(self) -> bool:
        """Retention: rows of finished jobs go, the watermark rises. It never passes an id without a row, nor a range of which
        a batch may still take ids: retention keeps jobs for longer than a range is used. It never passes the present either:
        a master whose clock is seconds ahead makes ids that lie in the future, above those of later submits."""
        history = self._history
        tables = history.master.statements.tables
        present = history.new_id.lowest()
        ranges = (each for each in history.new_id.ranges if self._is_in_use(each))
        known = sorted(each for each in (*history.audit.jobs, *ranges) if each < present)
        reach = 0
        aside = {job_id for job_id, _ in tables.quarantine}
        settled = (tables.jobs, history.audit.concluded, aside)
        while reach < len(known) and any(known[reach] in each for each in settled):
            reach += 1
        if reach < 2:
            return False
        tables.floor = max(tables.floor, known[reach - 1])
        for job_id in [job_id for job_id, row in tables.jobs.items() if job_id < tables.floor and row.state in FINAL]:
            history.audit.concluded[job_id] = history.master.statements.drop_row(job_id)
            history.audit.hits["row archived"] += 1
        return True

    def _is_in_use(self, lowest: bytes) -> bool:
        tables = self._history.master.statements.tables
        batch_id = tables.batch_ranges.get(lowest)
        return batch_id is None or tables.batches[batch_id].state == "OPEN"


def _ids(buckets: dict[bytes, SimBucket]) -> set[bytes]:
    return {id_of(item) for bucket in buckets.values() for item in (*bucket.items(), *bucket.kept)}


async def operate(history: History, what: str, bucket_ids: list[bytes] | None) -> None:
    """What `jobmaster bucket freeze` and `unfreeze` do: the master first, then the stores, as far as they answer."""
    master, stores = history.open_master(), history.open_stores()
    for _ in range(5):
        try:
            done = await getattr(master.buckets, what)(bucket_ids, None, "operator", "the simulation asks")
            for bucket in done if what == "freeze" else ():
                with contextlib.suppress(JobMasterError):
                    await stores[bucket.store].freeze(bucket.id, bucket.epoch, bucket.owner)
        except JobMasterError:
            await asyncio.sleep(0.1)
        else:
            return


async def pause(history: History, kind: str, value: str, seconds: float | None) -> None:
    """What `jobmaster pause --no-wait` does."""
    master = history.open_master()
    for _ in range(5):
        try:
            await master.pauses.pause(PauseKind(kind), value, None, seconds, "operator", "the simulation asks")
        except JobMasterError:
            await asyncio.sleep(0.1)
        else:
            return


async def resume(history: History, kind: str, value: str) -> None:
    """What `jobmaster resume --no-wait` does."""
    master = history.open_master()
    for _ in range(5):
        try:
            await master.pauses.resume(PauseKind(kind), value, "operator", "the simulation asks")
        except JobMasterError:
            await asyncio.sleep(0.1)
        else:
            return


async def close(history: History, breaker: str) -> None:
    """What `jobmaster breaker close` does."""
    master = history.open_master()
    for _ in range(5):
        try:
            await master.breakers.set_state(breaker, BreakerState.CLOSED, None, "operator", "the simulation asks")
        except JobMasterError:
            await asyncio.sleep(0.1)
        else:
            return
