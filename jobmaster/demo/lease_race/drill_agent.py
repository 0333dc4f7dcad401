"""The agents of a drill: the parts of a real agent with connections of their own, driven step by step.

Periodic tasks tick only when the drill calls them. The first owner runs only the loops that carry a claimed job to its end.
It has no loop that calls a server by itself, so it sleeps when the drill lets it sleep.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from jobmaster.demo.lease_race.drill_cluster import AGENT, LEASE_SECONDS, RENEW_SECONDS
from jobmaster.demo.lease_race.manual_clock import ManualClock
from jobmaster.handlers import Handlers, load_handlers
from jobmaster.master.master import Master
from jobmaster.model.ids import text
from jobmaster.settings.model import ClusterSettings
from jobmaster.telemetry import Telemetry
from jobmaster.wiring import open_master, open_stores
from jobmaster_agents.agent import AgentRuntime
from jobmaster_agents.event_log import EventLog
from jobmaster_agents.fetch.claimer import Claimer
from jobmaster_agents.launch.launch_order import ChildConfig
from jobmaster_agents.store_connector import StoreConnector


class DrillAgent:
    """One agent of a drill."""

    def __init__(
        self, name: str, master: Master, runtime: AgentRuntime, clock: ManualClock, stack: AsyncExitStack
    ) -> None:
        self.name = name
        self.runtime = runtime
        self._master = master
        self.clock = clock
        self._stack = stack
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def enter(
        cls, name: str, settings: ClusterSettings, clock: ManualClock, handlers: Handlers | None = None
    ) -> DrillAgent:
        """An agent that is registered and has its bucket open; none of its loops runs yet.

        Args:
            handlers: handlers of its event loop; ``None``: those of the configuration.
        """
        agent_id = clock.new_id()
        async with AsyncExitStack() as stack:
            master: Master = await open_master(settings, application_name=text(agent_id))
            stack.push_async_callback(master.close)
            stores = await open_stores(settings)
            for store in stores.values():
                stack.push_async_callback(store.close)
            log = EventLog({"agent": agent_id, "name": name})
            store_connector = StoreConnector(master, stores, log)
            await store_connector.connect(needed=settings.agents[AGENT].store)
            runtime = AgentRuntime(
                ChildConfig(settings=settings, agent=AGENT, name=name, agent_id=agent_id),
                settings.agents[AGENT],
                master,
                store_connector,
                handlers or load_handlers(settings.handlers),
                clock,
                Telemetry(),
                log,
            )
            await runtime.register()
            await runtime.pause_watch.tick()  # buckets are opened once the pauses are known
            await runtime.open_all()
            actor = cls(name, master, runtime, clock, stack.pop_all())
        await actor.is_alive_in_master()
        return actor

    @property
    def claimer(self) -> Claimer:
        """The claimer of its one bucket."""
        (claimer,) = self.runtime.bucket_worker.claimers.values()
        return claimer

    @property
    def bucket_id(self) -> bytes:
        """The id of its one bucket."""
        return bytes(self.claimer.owned.fence.bucket_id)

    def work(self, group: asyncio.TaskGroup) -> None:
        """Start all loops that work on jobs."""
        self._tasks.append(group.create_task(self.runtime.bucket_worker.run(), name=f"drill-{self.name}"))

    def run_claimed_jobs(self, group: asyncio.TaskGroup) -> None:
        """Start the loops from a claim to its outcome. The claimer claims when it is woken."""
        bucket_worker = self.runtime.bucket_worker
        writer, in_flight, executor = bucket_worker.outcome_writer, bucket_worker.in_flight, bucket_worker.executor
        loops = (writer.run(), in_flight.run(), executor.run(), self.claimer.run())
        self._tasks += [group.create_task(loop, name=f"drill-{self.name}") for loop in loops]

    async def is_alive_in_master(self) -> bool:
        """Send a renewal; True when the master takes the agent for alive. The call also opens the heartbeat's connection: a
        renewal of the drill is given up after 60 ms, and a busy machine may take longer to connect."""
        answer = await self._master.members.renew(self.runtime.ownership.agent_id, LEASE_SECONDS)
        return answer.alive

    async def renew(self) -> None:
        """Let a third of the renewal interval pass. The heartbeat renews when it is due, or when the last renewal failed."""
        self.clock.turn(RENEW_SECONDS / 3.0)
        await self.runtime.heartbeat.tick()

    async def close(self) -> None:
        """Stop the loops and close the connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.runtime.bucket_worker.aclose()
        await self._stack.aclose()
