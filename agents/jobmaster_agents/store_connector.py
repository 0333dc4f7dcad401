"""Connects an agent to every agent store of the cluster, and repeats the attempt for stores that do not answer.

An agent needs the other stores too: as leader it sends hints there, it evacuates lost buckets there, and it looks for keys of
unknown buckets. A store that was down when the agent started is added as soon as it is back, to the mapping that the parts of
the agent share. Without that, jobs of a lane that only this store serves would get no hint while that agent leads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping

from jobmaster.agentstore.store import AgentStore
from jobmaster.clock import new_id
from jobmaster.model.errors import Refused, Unavailable
from jobmaster.ports import ConnectorMaster
from jobmaster.wiring import OTHERS_SECONDS
from jobmaster_agents.event_log import Event, EventLog

AGAIN_SECONDS = 5.0
VERIFY_SECONDS = 60.0
"""Interval at which an agent checks that its own store still has the settings that jobs need."""


class StoreConnector:
    """The stores that can be used, and the periodic task that adds the others.

    Args:
        stores: every store of the configuration, by name.

    ``on_joined`` is called with the name of a store that is added late (there may be lost buckets in it).
    """

    name = "store-connector"

    def __init__(self, master: ConnectorMaster, stores: Mapping[str, AgentStore], log: EventLog) -> None:
        self._master = master
        self._log = log
        self.every = dict(stores)
        """All stores, claimed or not."""
        self._missing = dict(stores)
        self.usable: dict[str, AgentStore] = {}
        """Stores that are claimed for the cluster. Stores are added while the agent runs."""
        self.on_joined: Callable[[str], None] | None = None
        self._own: AgentStore | None = None
        self._verify_at = 0.0
        self._unfit = ""

    async def connect(self, needed: str) -> None:
        """Connect to each store once, all at the same time. Waits for the needed store, and a little longer for the others;
        the periodic task adds those that are left.

        Raises:
            Unavailable: the needed store does not answer.
            Refused: the needed store belongs to another cluster, was swapped, or may not keep jobs. For another store this
                is logged, and the periodic task tries again: agents that do not need that store must be able to start.
        """
        asked = {name: asyncio.ensure_future(self._connect_store(name, store)) for name, store in self._missing.items()}
        try:
            await asked[needed]
            self._own = self.usable[needed]
            await asyncio.wait(asked.values(), timeout=OTHERS_SECONDS)
            for name, answer in asked.items():
                try:
                    if answer.done():
                        answer.result()
                        continue
                    reason = "it has not answered yet"
                except Unavailable as error:
                    reason = str(error)
                except Refused as error:
                    self._log.error(Event.STORE_UNFIT, {"store": name, "reason": str(error)})
                    continue
                self._log.warning(Event.STORE_UNREACHABLE, {"store": name, "reason": reason})
        finally:
            await _end(asked.values())

    async def tick(self) -> float:
        """Try the missing stores again, all at the same time, and check the agent's own store from time to time."""
        await self._verify()
        missing = list(self._missing.items())
        answers = await asyncio.gather(
            *(self._connect_store(name, store) for name, store in missing), return_exceptions=True
        )
        failure: BaseException | None = None
        for (name, _), answer in zip(missing, answers, strict=True):
            if isinstance(answer, Unavailable):
                continue
            if isinstance(answer, BaseException):
                failure = answer
                continue
            self._log.info(Event.STORE_JOINED, {"store": name})
            if self.on_joined is not None:
                self.on_joined(name)
        if failure is not None:
            raise failure
        return AGAIN_SECONDS if self._missing else VERIFY_SECONDS

    async def _verify(self) -> None:
        """Log when the own store was set to evict keys, or made a replica, since it was claimed. Jobs in it are at risk then.
        The agent goes on: it would not empty the store sooner by stopping."""
        now = asyncio.get_running_loop().time()
        if self._own is None or now < self._verify_at:
            return
        self._verify_at = now + VERIFY_SECONDS * 0.5
        unfit = ""
        try:
            await self._own.verify()
        except Unavailable:
            return
        except Refused as error:
            unfit = str(error)
        if unfit and unfit != self._unfit:
            self._log.error(Event.STORE_UNFIT, {"store": self._own.name, "reason": unfit})
        self._unfit = unfit

    async def _connect_store(self, name: str, store: AgentStore) -> None:
        await self._claim(name, store)
        del self._missing[name]
        self.usable[name] = store

    async def _claim(self, name: str, store: AgentStore) -> None:
        """Claim a store for the cluster. A store that was swapped is refused; one that was emptied is logged."""
        # Before the store is asked: another agent that starts for the first time may have written the generation to the
        # master, and not to the store yet. A bucket exists only in a store that was initialised before.
        known, served = await self._master.stores.store_generation(name, new_id())
        emptied = served and (await store.health()).generation is None
        if await store.initialise(self._master.cluster.uid, known) != known:
            raise Refused(
                f"agent store {name!r} holds another generation of this cluster than the master remembers",
                hint="the store or the master was swapped or restored; see `jobmaster store check`",
            )
        if emptied:
            # Its buckets have lost their meta keys: the next call of an owner is refused, the owner declares the bucket lost,
            # and the rows in the master go back to HELD. Jobs that only the store had are gone.
            reason = (
                "it served this cluster before and holds nothing now: it was emptied, or its URL is another database"
            )
            self._log.error(Event.STORE_EMPTIED, {"store": name, "reason": reason})


async def _end(tasks: Collection[asyncio.Future[None]]) -> None:
    """Cancel the tasks that still run, and wait for their end."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
