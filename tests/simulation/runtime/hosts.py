"""Machines with one agent each, under a twin of the supervisor: an agent that ends is replaced."""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from jobmaster.clock import Clock
from jobmaster.model.errors import CodeError, JobMasterError
from jobmaster.telemetry import Telemetry
from jobmaster_agents.agent import AgentRuntime
from jobmaster_agents.event_log import Event, EventLog, Fields
from jobmaster_agents.launch.launch_order import ChildConfig
from jobmaster_agents.probes import AgentLifecycle
from jobmaster_agents.run_agent import run_until_exit
from jobmaster_agents.store_connector import StoreConnector
from tests.simulation.runtime.event_loop import Process, SimLoop
from tests.simulation.runtime.patches import MAINTENANCE_SPEED

if TYPE_CHECKING:
    from tests.simulation.history import History

RESTART_SECONDS = 0.08
CRASHED = -9


class SimClock:
    """The clocks of one machine: a boot time of its own, and a wall clock that may be wrong."""

    def __init__(self, loop: SimLoop, boot: float) -> None:
        self._loop = loop
        self._boot = boot
        self.wall_offset_us = 0

    def boottime(self) -> float:
        return self._loop.now + self._boot

    def wall_us(self) -> int:
        return EPOCH_US + int(self._loop.now * 1e6) + self.wall_offset_us


EPOCH_US = 1_900_000_000_000_000


class SimLog(EventLog):
    """Events go to the trace, and are counted."""

    __slots__ = ("_history", "_name")

    def __init__(self, history: History, name: str) -> None:
        super().__init__()
        self._history = history
        self._name = name

    def _write(self, level: int, event: Event, fields: Fields | None, *, trace: bool = False) -> None:
        history = self._history
        history.audit.hits[event.value] += 1
        if event is Event.ENTRY_QUARANTINED and fields is not None:
            history.audit.hits[f"{event.value}: {fields['kind']}"] += 1
        if event is Event.BUCKET_GIVEN_BACK and fields is not None:
            history.audit.hits["salvaged"] += int(str(fields.get("salvaged", 0)))
        if event is Event.OUTCOMES_APPLIED and fields is not None and fields["unwritable"]:
            history.audit.hits["kept outcomes that cannot be written"] += 1
        why = fields.get("reason", fields.get("what", "")) if fields else ""
        history.trace.note(history.loop.now, self._name, "log", event.value, str(why))
        if trace and fields is not None and fields.get("error") not in _EXPECTED:
            history.audit.broken("error", f"{self._name}: {fields}")


_EXPECTED = ("Refused", "StoreRefused", "Conflict")


class Host:
    """One machine.

    Args:
        agent: key of its kind of agent in the configuration.
    """

    def __init__(self, history: History, number: int, agent: str, chance: Random) -> None:
        self._history = history
        self.number = number
        self.agent = agent
        self._chance = chance
        self.process: Process | None = None
        self.lifecycle: AgentLifecycle | None = None
        self.clock: Clock = SimClock(history.loop, 500.0 * number)
        self._died: asyncio.Future[int] | None = None
        self.starts = 0
        self.away = False
        """The whole machine has gone: the end of its agent is not reported, and no agent is started."""

    @property
    def serving(self) -> bool:
        """An agent is up."""
        return self.lifecycle is not None and self.lifecycle.serving is not None and self._may_serve()

    def _may_serve(self) -> bool:
        return self.process is not None and self.process.alive and self.process.resumes_at <= self._history.loop.now

    def crashed(self, process: Process) -> None:
        """The process has been killed."""
        if process is self.process and self._died is not None and not self._died.done():
            self._died.set_result(CRASHED)

    async def run(self) -> None:
        """One agent after the other."""
        loop, history = self._history.loop, self._history
        while True:
            self.starts += 1
            self.process = process = Process(f"agent{self.number}.{self.starts}", history)
            process.parts = self
            process.agent_id = history.new_id()
            self._died = died = loop.create_future()
            task = loop.spawn(process, self._life(process))
            task.add_done_callback(partial(_report, died))
            process.code = code = await died
            self.lifecycle = None
            history.trace.note(loop.now, process.name, "ended", str(code))
            history.audit.hits[f"exit {code}"] += 1
            while self.away:  # noqa: ASYNC110 (a flag of the simulation)
                await asyncio.sleep(0.05)
            if code != 0 and self._chance.random() < 0.6:
                supervisor = Process(f"supervisor{self.number}", history)
                loop.spawn(supervisor, self._certify(process.agent_id))
            await asyncio.sleep(RESTART_SECONDS * (0.5 + self._chance.random()))

    async def _life(self, process: Process) -> int:
        history = self._history
        log = SimLog(history, process.name)
        master, stores = history.open_master(), history.open_stores()
        config = ChildConfig(history.settings, self.agent, process.name, process.agent_id)
        agent = history.settings.agents[self.agent]
        try:
            await master.maintenance.ensure_partitions("day", 7)
            store_connector = StoreConnector(master, stores, log)
            await store_connector.connect(needed=agent.store)
            parts = AgentRuntime(config, agent, master, store_connector, history.handlers, self.clock, Telemetry(), log)
            process.parts = parts
            for task in parts.leader.maintenance.tasks:
                task.every_seconds /= MAINTENANCE_SPEED
            self.lifecycle = lifecycle = AgentLifecycle(self.clock)
            return await run_until_exit(config, parts, lifecycle, log)
        except CodeError as error:
            history.audit.broken("CodeError", str(error))
            return CodeError.exit_code
        except JobMasterError as error:
            return error.exit_code
        except BaseExceptionGroup as errors:
            ours, others = errors.split(JobMasterError)
            if others is not None or (ours is not None and ours.subgroup(CodeError) is not None):
                history.audit.broken("error", f"{process.name}: {_first(errors)!r}")
            return 1

    async def _certify(self, agent_id: bytes) -> None:
        """What the supervisor does that has seen its child die."""
        master = self._history.open_master()
        for _ in range(3):
            try:
                await master.members.end_agent(agent_id, dead=True, reason="its process died", process_ended=True)
            except JobMasterError:
                await asyncio.sleep(0.1)
            else:
                return


def _report(died: asyncio.Future[int], task: asyncio.Task[int]) -> None:
    if not died.done():
        if not task.cancelled() and (error := task.exception()) is not None:
            died.set_exception(error)
        else:
            died.set_result(1 if task.cancelled() else task.result())


def _first(errors: BaseException) -> BaseException:
    while isinstance(errors, BaseExceptionGroup):
        errors = errors.exceptions[0]
    return errors
