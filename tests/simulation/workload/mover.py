"""A move of the cluster to another master, with the product's own mover, which dies in the middle and begins again."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

from jobmaster.client.cluster import Cluster
from jobmaster.codec import encode_entry
from jobmaster.master.history.cluster_move import ClusterMove
from jobmaster.model.errors import JobMasterError
from jobmaster.model.ids import text
from jobmaster.model.job import Entry
from jobmaster.retention import cluster_move
from tests.simulation.checks.audit import Audit, Job
from tests.simulation.checks.trace import Trace
from tests.simulation.master.cluster_statements import ClusterStatements
from tests.simulation.master.sim_master import MasterServer, SimConnection, name_of
from tests.simulation.master.tables import FINAL, OVER, JobRow, Record
from tests.simulation.runtime.event_loop import Process
from tests.simulation.runtime.network import Network
from tests.simulation.runtime.patches import Patch
from tests.simulation.workload.clients import plain

if TYPE_CHECKING:
    from tests.simulation.history import History

PAGE_JOBS = 3
_JOBS = 16
_AFTER_SECONDS = 60.0
_CALLS_MAX = 12
_LOOK_SECONDS = 0.05
_LATENCY_SECONDS = 0.002
_LOCK_SECONDS = 0.3
_DEATHS_MAX = 6
_DEATH_RATE = 0.02
_COMMIT_DEATH_RATE = 0.3
"""Between the commits of the two masters, where it matters most."""
_IDS = frozenset({"id", "uid", "target", "page"})
"""Columns with ids. The driver of the mover makes ``UUID`` of them."""


class MoverDied(Exception):
    """The process of the mover has been killed."""


class TargetAudit(Audit):
    """The other cluster runs what it gets by itself: what is checked there is checked by ``Mover``."""

    def broken(self, rule: str, what: str) -> None:
        return None


class Mover:
    """The command ``jobmaster migrate``, an operator who gives the move up for a while, and the agents of the target.

    Args:
        chance: the stream of this program.
        without: guards that both masters leave out.
    """

    def __init__(self, history: History, chance: Random, seconds: float, without: frozenset[str]) -> None:
        self._history = history
        self._chance = chance
        self._seconds = seconds
        self.without = without
        audit = TargetAudit(history.loop, Trace())
        self.target = MasterServer(
            "target", history.loop, ClusterStatements(history.master.statements.now_us, audit, without)
        )
        self.target.statements.tables.name = "other"
        self.done = False
        """Everything has moved, and no fault is to come."""
        self._deaths = 0
        self._depth = 0
        self._page: frozenset[bytes] = frozenset()
        self._in_doubt: set[bytes] = set()
        """Jobs of a page with which the mover has died between the two commits."""
        self._runs: Counter[bytes] = Counter()
        history.audit.is_elsewhere = self._has

    @property
    def patches(self) -> list[Patch]:
        """The mover connects to simulated masters, and moves few jobs at a time."""
        return [
            (cluster_move, "ClusterMove", self),
            (cluster_move, "_place", lambda settings: None),
            (cluster_move, "PAGE_JOBS", PAGE_JOBS),
            (cluster_move, "LOOK_SECONDS", _LOOK_SECONDS),
        ]

    async def connect(self, *_: object) -> ClusterMove:
        """In the place of ``ClusterMove.connect``."""
        self._depth = 0
        source: Any = MoveConnection(self, self._history, self._history.master)
        target: Any = MoveConnection(self, self._history, self.target)
        return ClusterMove(source, target)

    def start(self) -> None:
        """The command and the target's agents begin."""
        loop = self._history.loop
        loop.spawn(Process("mover", self._history), self._life())
        loop.spawn(Process("agents of the target", self._history), self._run_there())

    async def submit(self, cluster: Cluster) -> None:
        """Jobs that are due when all have moved. Some are cancelled, before or after that."""
        async with asyncio.TaskGroup() as group:
            for _ in range(_JOBS):
                group.create_task(
                    self._submit(cluster, 0.8 * self._seconds * self._chance.random()), name="job to move"
                )

    async def _submit(self, cluster: Cluster, wait: float) -> None:
        history, chance = self._history, self._chance
        await asyncio.sleep(wait)
        job = Job(history.new_id(), "to move")
        history.audit.jobs[job.id] = job
        for _ in range(_CALLS_MAX):
            try:
                receipt = await cluster.submit(plain, {}, job_id=job.id, after=_AFTER_SECONDS, durability="master")
            except JobMasterError:
                await asyncio.sleep(0.05 + 0.3 * chance.random())
            else:
                history.audit.acknowledged(job, str(receipt.level))
                break
        await asyncio.sleep((self._seconds + 1.0) * chance.random())
        drawn = chance.random()
        if drawn < 0.3:
            # A submit without an answer is executed late: a copy in a bucket, beside the row.
            assert history.clients is not None
            await history.clients.put(encode_entry(Entry(job.id, 1, "plain", b"{}")))
        elif drawn < 0.7:
            job.cancelled = True
            with contextlib.suppress(JobMasterError):
                await cluster.cancel(job.id)

    async def _life(self) -> None:
        history, settings = self._history, self._history.settings
        await asyncio.sleep(0.3 * self._seconds * self._chance.random())
        while True:
            last = history.nemesis.quiet and history.clients is not None and not history.clients.busy
            try:
                await cluster_move.move_cluster(settings, settings, "operator", lambda line: None)
            except MoverDied:
                history.audit.hits["mover dies"] += 1
                if self._chance.random() < 0.5:
                    await self._go_back()
            except JobMasterError as error:
                history.trace.note(history.loop.now, "mover", "fails", str(error))
            else:
                self.done = last
            await asyncio.sleep(0.05 + 0.3 * self._chance.random())

    async def _go_back(self) -> None:
        """The operator makes the cluster active again."""
        try:
            await self._history.open_master().statements.write("cluster/set_mode", "active", "operator", "")
        except JobMasterError as error:
            self._history.audit.hits[f"cluster stays migrating: {type(error).__name__}"] += 1
        await asyncio.sleep(self._chance.random())

    async def _run_there(self) -> None:
        """The agents of the target: each job that it has is run within a short time."""
        statements = self.target.statements
        while True:
            await asyncio.sleep(0.02 + 0.1 * self._chance.random())
            for row in list(statements.tables.jobs.values()):
                if row.state == "HELD" and self._chance.random() < 0.5:
                    self._runs[row.id] += 1
                    statements.tables.jobs[row.id] = row._replace(state="SUCCEEDED")

    # ------------------------------------------------------------ deaths

    def may_die(self, rate: float = _DEATH_RATE) -> None:
        """Perhaps the process is killed here."""
        if self._history.nemesis.quiet or self._history.faultless or self._deaths >= _DEATHS_MAX:
            return
        if self._chance.random() < rate:
            self._deaths += 1
            raise MoverDied

    def begins_transaction(self) -> None:
        self._depth += 1

    def ends_transaction(self, *, committed: bool) -> None:
        """The inner transaction is the target's."""
        self._depth -= 1
        if not committed:
            return
        if self._depth:
            before = set(self._in_doubt)
            self._in_doubt |= self._page
            self.may_die(_COMMIT_DEATH_RATE)
            self._in_doubt = before
        else:
            self.may_die()

    @property
    def holds_locks(self) -> bool:
        return self._depth > 0

    def locked(self, ids: list[bytes]) -> None:
        """The jobs of the page that is on its way."""
        self._page = frozenset(ids)

    def a_moment(self) -> float:
        """Seconds for which another statement may come between, where no lock is held."""
        return _LOCK_SECONDS * self._chance.random()

    # ------------------------------------------------------------ checks

    def _has(self, job_id: bytes) -> bool:
        row = self.target.statements.tables.jobs.get(job_id)
        return row is not None and row.state != "CANCELLED"

    def wrong(self) -> list[str]:
        """At the end: jobs that are in no master or in both, and those that have run there twice."""
        here, there = self._history.master.statements.tables.jobs, self.target.statements.tables.jobs
        found = [f"{text(job_id)} runs there {count} times" for job_id, count in self._runs.items() if count > 1]
        found += [
            f"{text(row.id)} has moved, and is not there" for row in here.values()
            if row.state == "MOVED" and row.id not in there
        ]  # fmt: skip
        return [*found, *(each for row in there.values() if (each := self._in_both(here.get(row.id), row)))]

    def _in_both(self, here: JobRow | None, there: JobRow) -> str:
        if here is not None and here.state == "MOVED":
            return ""
        state = "absent" if here is None else here.state
        # What ended it here while it was on its way counts, unless it has run there meanwhile.
        if state in FINAL and (there.state == "CANCELLED" or (there.id in self._in_doubt and there.state in OVER)):
            return ""
        return f"{text(there.id)} is {state} here and {there.state} there"


class MoveConnection:
    """What the mover wants of a driver's connection. What a transaction does, it does at one moment: that is what its locks
    are for."""

    def __init__(self, mover: Mover, history: History, server: MasterServer) -> None:
        self._mover = mover
        self._history = history
        self._server = server
        self._network = Network(server, history.nemesis, history.trace)

    async def fetch(self, statement: str, *values: object) -> list[Record]:
        name, args = name_of(statement), tuple(map(_plain, values))
        seen = SimConnection(self._server)
        if name == "cluster/lock_page":
            self._mover.locked(args[0])
        if not self._mover.holds_locks:
            self._mover.may_die()
            answer: list[Record] = await self._network.call(
                name, lambda: self._server.execute(name, seen.old, args), writes=True, sees=seen.see
            )
            self._mover.may_die()
        else:
            if "lock of a page" in self._mover.without and name == "cluster/mark_moved":
                await asyncio.sleep(self._mover.a_moment())
            seen.see()
            answer = self._server.execute(name, seen.old, args)
        return [Record({key: _unplain(key, value) for key, value in row.items()}) for row in answer]

    def transaction(self) -> _Transaction:
        return _Transaction(self._mover)

    async def close(self, timeout: float) -> None:
        return None


class _Transaction:
    def __init__(self, mover: Mover) -> None:
        self._mover = mover

    async def __aenter__(self) -> Self:
        if not self._mover.holds_locks:
            await asyncio.sleep(_LATENCY_SECONDS)
        self._mover.begins_transaction()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._mover.ends_transaction(committed=kind is None)


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value.bytes if isinstance(value, UUID) else value


def _unplain(key: str, value: Any) -> Any:
    if key not in _IDS:
        return value
    return [UUID(bytes=each) for each in value] if isinstance(value, list) else UUID(bytes=value)
