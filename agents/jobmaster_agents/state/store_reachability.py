"""Which agent stores answer this process, so that no other task waits for a silent one.

A call to a host that has vanished ends with its time-out, seconds later. Tasks that go from store to store (due notifier,
rescue, maintenance) look here first, and report a call that failed. From then on the store counts as silent: it gets a PING
a second, and its first answer ends the silence. A store that answers with a refusal is not silent, and neither is a full one.

Stores of the configuration that this agent has not joined yet count as silent since its start.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping

from jobmaster.agentstore.errors import OutOfMemory
from jobmaster.clock import Clock
from jobmaster.model.errors import JobMasterError, Unavailable
from jobmaster.ports import ReachStore
from jobmaster.telemetry import Telemetry
from jobmaster_agents.event_log import Event, EventLog

PING_EVERY_SECONDS = 1.0
PING_SECONDS = 2.0
"""How long one PING may take."""
IDLE_SECONDS = 3600.0


class StoreReachability:
    """The silent stores, and the periodic task that sends them a PING.

    Args:
        names: every store of the configuration.
        stores: those that this agent has joined; the mapping may grow.
        on_answer: called with the name of a store that answers again.
    """

    name = "store-reachability"

    def __init__(
        self,
        names: Collection[str],
        stores: Mapping[str, ReachStore],
        clock: Clock,
        on_answer: Callable[[str], None],
        telemetry: Telemetry,
        log: EventLog,
    ) -> None:
        self._stores = stores
        self._now = clock.boottime
        self._on_answer = on_answer
        self._log = log
        now = self._now()
        self._silent = {name: now for name in names if name not in stores}
        """Store -> since when (CLOCK_BOOTTIME seconds)."""
        self._logged: set[str] = set()
        self._silences: Counter[str] = Counter()
        self.kicked = asyncio.Event()
        telemetry.read_from("stores_silent", lambda: len(self._silent))

    def answers(self, store: str) -> bool:
        """False while a store is silent, and for one that is not in the configuration."""
        return store in self._stores and store not in self._silent

    def silent_seconds(self, store: str) -> float | None:
        """For how long a store has been silent; ``None``: it answers."""
        since = self._silent.get(store)
        return None if since is None else self._now() - since

    def silences(self, store: str) -> int:
        """How many silences of a store are over (a PING had failed): work that was put off because of one is due again."""
        return self._silences[store]

    def failed(self, store: str, error: BaseException) -> None:
        """A call that may have gone to this store got no answer. (It may have been the master's: the PING shows it.)"""
        if not isinstance(error, Unavailable | TimeoutError) or isinstance(error, OutOfMemory):
            return
        if store not in self._silent:
            self._silent[store] = self._now()
            self.kicked.set()

    def joined(self, store: str) -> None:
        """The agent has joined the store just now."""
        if self._silent.pop(store, None) is not None:
            self._silences[store] += 1
            self._on_answer(store)

    async def tick(self) -> float:
        """Send every silent store one PING, all at the same time."""
        await asyncio.gather(*(self._ping(name) for name in list(self._silent) if name in self._stores))
        return PING_EVERY_SECONDS if self._silent else IDLE_SECONDS

    async def _ping(self, name: str) -> None:
        try:
            async with asyncio.timeout(PING_SECONDS):
                await self._stores[name].ping()
        except (Unavailable, TimeoutError) as error:
            if name not in self._logged:
                self._logged.add(name)
                self._log.warning(Event.STORE_SILENT, {"store": name, "reason": str(error) or "no answer in time"})
            return
        except JobMasterError:
            pass  # a refusal is an answer: the tasks that use the store get it, and log it
        since = self._silent.pop(name, None)
        if since is None:
            return
        if name in self._logged:
            self._logged.discard(name)
            self._silences[name] += 1
            self._log.info(Event.STORE_HEARD_AGAIN, {"store": name, "seconds": self._now() - since})
        self._on_answer(name)
