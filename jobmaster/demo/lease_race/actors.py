"""The agents of a drill: the parts of a real agent with connections of their own, moved by hand.

What ticks in a real agent ticks here when the drill says so. The first owner has only those loops that carry a job that was
claimed to its end; whatever would ask a server by itself is left out, so that it sleeps when the drill lets it sleep.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from jobmaster.demo.lease_race.ground import AGENT, LEASE_SECONDS, RENEW_SECONDS
from jobmaster.demo.lease_race.hand_clock import HandClock
from jobmaster.handlers import Handlers, load_handlers
from jobmaster.master.master import Master
from jobmaster.model.ids import text
from jobmaster.settings.model import ClusterSettings
from jobmaster.telemetry import Telemetry
from jobmaster.wiring import open_master, open_stores
from jobmaster_agents.agent import AgentRuntime
from jobmaster_agents.event_log import EventLog
from jobmaster_agents.fetch.claimer import Claimer
from jobmaster_agents.launch.order import ChildConfig
from jobmaster_agents.store_connector import StoreConnector


class Actor:
    """One agent of a drill."""

    def __init__(
        self, name: str, master: Master, runtime: AgentRuntime, clock: HandClock, stack: AsyncExitStack
    ) -> None:
        self.name = name
        self.runtime = runtime
        self._master = master
        self.clock = clock
        self._stack = stack
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def enter(
        cls, name: str, settings: ClusterSettings, clock: HandClock, handlers: Handlers | None = None
    ) -> Actor:
        """Registered, with its bucket open; nothing of it moves yet.

        Args:
            handlers: what it runs on its own loop; ``None``: those of the configuration.
        """
        agent_id = clock.new_id()
        async with AsyncExitStack() as stack:
            master: Master = await open_master(settings, application_name=text(agent_id))
            stack.push_async_callback(master.close)
            stores = await open_stores(settings)
            for store in stores.values():
                stack.push_async_callback(store.close)
            log = EventLog({"agent": agent_id, "name": name})
            joining = StoreConnector(master, stores, log)
            await joining.connect(needed=settings.agents[AGENT].store)
            runtime = AgentRuntime(
                ChildConfig(settings=settings, agent=AGENT, name=name, agent_id=agent_id),
                settings.agents[AGENT],
                master,
                joining,
                handlers or load_handlers(settings.handlers),
                clock,
                Telemetry(),
                log,
            )
            await runtime.register()
            await runtime.open_all()
            actor = cls(name, master, runtime, clock, stack.pop_all())
        await actor.ask_whether_alive()
        return actor

    @property
    def claimer(self) -> Claimer:
        """Of its one bucket."""
        (claimer,) = self.runtime.bucket_worker.claimers.values()
        return claimer

    @property
    def bucket_id(self) -> bytes:
        """Its one bucket."""
        return bytes(self.claimer.owned.fence.bucket_id)

    def work(self, group: asyncio.TaskGroup) -> None:
        """All loops of a working agent."""
        self._tasks.append(group.create_task(self.runtime.bucket_worker.run(), name=f"drill-{self.name}"))

    def work_when_told(self, group: asyncio.TaskGroup) -> None:
        """The loops from a claim to its outcome: it claims when its claimer is asked."""
        working = self.runtime.bucket_worker
        loops = (working.outcome_writer.run(), working.in_flight.run(), working.executor.run(), self.claimer.run())
        self._tasks += [group.create_task(loop, name=f"drill-{self.name}") for loop in loops]

    async def ask_whether_alive(self) -> bool:
        """What a renewal would be answered. It also brings the connection of the heartbeat up, which a real agent has more
        time for: here a renewal is given up after 60 ms, and a busy machine may take longer to connect."""
        answer = await self._master.renew(self.runtime.ownership.agent_id, LEASE_SECONDS)
        return answer.alive

    async def renew(self) -> None:
        """A third of a renewal's time passes; the heartbeat sends one when it is due, or when the last one failed."""
        self.clock.turn(RENEW_SECONDS / 3.0)
        await self.runtime.heartbeat.tick()

    async def close(self) -> None:
        """Stop what moves and give the connections back."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.runtime.bucket_worker.aclose()
        await self._stack.aclose()
