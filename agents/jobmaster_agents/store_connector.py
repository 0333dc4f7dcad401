"""The agent stores of the cluster, claimed one by one; one that does not answer is asked again until it does.

An agent needs the stores it does not live on too: it hints owners there when it coordinates, drains lost buckets there, and
looks for keys that nobody knows. A store that was down when the agent started joins the others as soon as it is back, in
the very mapping that the duties share; without that, jobs of a lane that only this store serves would never be hinted at
as long as that agent leads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from jobmaster.agentstore.store import AgentStore
from jobmaster.clock import new_id
from jobmaster.master.master import ClusterRow
from jobmaster.model.errors import Refused, Unavailable
from jobmaster.wiring import OTHERS_SECONDS
from jobmaster_agents.event_log import Event, EventLog

AGAIN_SECONDS = 5.0
VERIFY_SECONDS = 60.0
"""How often an agent looks whether its own store still has the settings that jobs need."""


class GenerationMaster(Protocol):
    """Who remembers which generation of each store the cluster works with."""

    cluster: ClusterRow

    async def store_generation(self, name: str, proposed: bytes) -> bytes: ...


class StoreConnector:
    """The stores that can be used, and the duty that adds the others.

    Args:
        stores: every store of the configuration, by name.
        on_joined: told the name of a store that has joined late (there may be lost buckets in it).
    """

    name = "joining"

    def __init__(self, master: GenerationMaster, stores: Mapping[str, AgentStore], log: EventLog) -> None:
        self._master = master
        self._log = log
        self.every = dict(stores)
        """All of them, claimed or not."""
        self._missing = dict(stores)
        self.usable: dict[str, AgentStore] = {}
        """Claimed for the cluster. It grows while the agent lives."""
        self.on_joined: Callable[[str], None] | None = None
        self._own: AgentStore | None = None
        self._verify_at = 0.0
        self._unfit = ""

    async def connect(self, needed: str) -> None:
        """Ask each store once, all at the same time. The needed one is waited for; the others have a moment longer, and are
        left to the duty then.

        Raises:
            Unavailable: the needed one does not answer.
            Refused: the needed one belongs to somebody else, was swapped, or may not keep jobs. Of another store this is
                logged, and the duty meets it again: agents that can do without it replace those that have died.
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
        """Ask those again that have not answered yet, all at the same time, and look at the agent's own now and then."""
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
        """The own store may have been set to evict keys, or made a replica, since it was claimed. Jobs that wait in it are at
        risk then; an agent that stopped would empty it no sooner, so it goes on, and logs it."""
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
        """Claim a store for the cluster; a store that was swapped is refused, one that was emptied is named."""
        proposed = new_id()
        known = await self._master.store_generation(name, proposed)
        emptied = known != proposed and (await store.health()).generation is None
        if await store.initialise(self._master.cluster.uid, known) != known:
            raise Refused(
                f"agent store {name!r} holds another generation of this cluster than the master remembers",
                hint="the store or the master was swapped or restored; see `jobmaster store check`",
            )
        if emptied:
            # Its buckets are without their meta now: their owners learn it from the next call and declare them lost, and
            # the rows the master knows go back to HELD. What only the store knew is gone.
            reason = (
                "it served this cluster before and holds nothing now: it was emptied, or its URL is another database"
            )
            self._log.error(Event.STORE_EMPTIED, {"store": name, "reason": reason})


async def _end(tasks: Collection[asyncio.Future[None]]) -> None:
    """Cancel what is still under way, and wait for its end."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
