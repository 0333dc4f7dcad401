"""Jobs that wait for signals, and what sends them: with the product's own submits and sends."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from jobmaster.client.cluster import Cluster
from jobmaster.client.signals.wait import signal
from jobmaster.client.workflows.definition import chain, step
from jobmaster.codec import decode_headers
from jobmaster.handlers import call
from jobmaster.model import ids
from jobmaster.model.errors import Conflict, InputError, JobMasterError
from tests.simulation.checks.audit import Job
from tests.simulation.faults.nemesis import Nemesis
from tests.simulation.master.sim_master import SimMaster
from tests.simulation.runtime.event_loop import Process
from tests.simulation.runtime.hosts import SimClock
from tests.simulation.runtime.network import Network
from tests.simulation.workload.clients import HANDLERS, plain

if TYPE_CHECKING:
    from tests.simulation.history import History

PAIRS = 4
STEPS = 4
QUEUE = 3
_KEEP_SECONDS = 3600.0
_TIMEOUT_SECONDS = 0.4
_LOOK_SECONDS = 0.1
_LOCK_SECONDS = 0.02
_TRIES = 12


class Sent(NamedTuple):
    """A signal."""

    id: bytes
    key: str
    to: str


class Signallers:
    """One program. Some jobs, some steps of workflows, and the kept signal to all of their key come at the same moment;
    others share one key, and there is one signal to one of it less; two wait for what does not come. After the last
    fault every signal is sent again under its id, as after a lost answer: a failover may have forgotten it. Then the
    job that is left gets a signal to all.

    Args:
        chance: the stream of this program.
    """

    def __init__(self, history: History, chance: Random, seconds: float) -> None:
        self._history = history
        self._chance = chance
        self._seconds = seconds
        self._nemesis = Nemesis(
            history.loop, history.trace, chance, faultless=history.faultless, on_crash=lambda process: None
        )
        self._nemesis.lock_seconds = _LOCK_SECONDS
        self._cluster: Any = None
        self._jobs: dict[bytes, str] = {}
        self._workflows: dict[bytes, str] = {}
        self._sent: list[Sent] = []

    def start(self) -> None:
        """The program begins, once."""
        if self._cluster is None:
            history = self._history
            master = SimMaster(history.master, Network(history.master, self._nemesis, history.trace))
            clock = SimClock(history.loop, 9.0)
            self._cluster = Cluster(history.settings, master, history.open_stores(), handlers=HANDLERS, clock=clock)
            self._nemesis.quiet = False
            history.loop.spawn(Process("signaller", history), self._life())

    async def _life(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(PAIRS):
                group.create_task(self._pair(f"pair {number}"))
            for number in range(STEPS):
                group.create_task(self._step_pair(f"step {number}"))
            group.create_task(self._wait("queue", self._moment()))
            for _ in range(QUEUE):
                group.create_task(self._wait("queue", self._moment()))
                group.create_task(self._send(Sent(self._history.new_id(), "queue", "one"), self._moment()))
            group.create_task(self._wait("expire", self._moment(), timeout=_TIMEOUT_SECONDS))
            group.create_task(self._wait("run", self._moment(), timeout=_TIMEOUT_SECONDS, on_timeout="run"))
        while not self._history.nemesis.quiet:  # noqa: ASYNC110  # it has no event
            await asyncio.sleep(_LOOK_SECONDS)
        self._nemesis.heal()
        for sent in list(self._sent):
            await self._send(sent, 0.0)
        await self._send(Sent(self._history.new_id(), "queue", "all"), 0.0)

    def _moment(self) -> float:
        return self._seconds * self._chance.random()

    async def _pair(self, key: str) -> None:
        moment = self._moment()
        await asyncio.gather(self._wait(key, moment), self._send(Sent(self._history.new_id(), key, "all"), moment))

    async def _step_pair(self, key: str) -> None:
        moment = self._moment()
        await asyncio.gather(self._start(key, moment), self._send(Sent(self._history.new_id(), key, "all"), moment))

    async def _start(self, key: str, moment: float) -> None:
        """A workflow whose only step waits, started again under its id until there is an answer."""
        of = UUID(bytes=self._history.new_id()[:12] + bytes(4))
        flow = chain(step(call("step", before=None), name="waits", wait_for=signal(key)))
        await asyncio.sleep(moment)
        for _ in range(_TRIES):
            try:
                await self._cluster.workflows.start("signal", flow, workflow_id=of)
            except (Conflict, InputError):
                return
            except JobMasterError:
                await self._pause()
                continue
            self._history.audit.acknowledged_workflows.add(of.bytes)
            self._workflows[of.bytes] = key
            return

    async def _wait(self, key: str, moment: float, **options: Any) -> None:
        """A job that waits, sent again under its id until there is an answer."""
        history = self._history
        job = Job(history.new_id(), "waits")
        await asyncio.sleep(moment)
        history.audit.jobs[job.id] = job
        while True:
            try:
                receipt = await self._cluster.submit(plain, {}, job_id=job.id, wait_for=signal(key, **options))
            except InputError:
                return  # its id is older by now than what the master keeps
            except JobMasterError:
                await self._pause()
                continue
            history.audit.acknowledged(job, str(receipt.level))
            self._jobs[job.id] = key
            return

    async def _send(self, sent: Sent, moment: float) -> None:
        await asyncio.sleep(moment)
        while True:
            try:
                await self._cluster.signals.send(
                    sent.key, {"n": 1}, to=sent.to, keep_for=_KEEP_SECONDS, signal_id=sent.id
                )
            except JobMasterError:
                await self._pause()
                continue
            if sent not in self._sent:
                self._sent.append(sent)
            return

    async def _pause(self) -> None:
        await asyncio.sleep(0.05 + 0.3 * self._chance.random())

    def wrong(self) -> list[str]:
        """At the end: jobs without the signal that was sent to them, and signals to one that more than one has received."""
        history, wrong = self._history, []
        receivers: Counter[str] = Counter()
        sent = {each.key for each in self._sent}
        to_one = {ids.text(each.id) for each in self._sent if each.to == "one"}
        steps = history.master.statements.tables.workflow_steps
        made = {
            one.job_id: key for of, key in self._workflows.items() for one in steps.get(of, {}).values() if one.job_id
        }
        for job_id, key in (self._jobs | made).items():
            row = history.master.statements.tables.jobs.get(job_id)
            if row is None or job_id in history.audit.forgotten:
                continue
            got = decode_headers(row.headers).received
            if key in ("expire", "run"):
                if (row.state == "EXPIRED" and key == "run") or got is not None:
                    wrong.append(f"a job that waits for nothing ({key}) is {row.state}, signal {got}")
            elif got is None and key in sent:
                wrong.append(f"{row.state} job {job_id.hex()[-6:]} has no signal of {key!r}")
            elif got is not None and got.id in to_one:
                receivers[got.id] += 1
        return [*wrong, *(f"{count} jobs have the signal {each}" for each, count in receivers.items() if count > 1)]
