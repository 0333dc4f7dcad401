"""The client's handle of a store: the store, and the durability that its acknowledgements have.

The durability is read from the store at the first submit, and again every ``RECHECK_SECONDS`` beside the traffic; the last
answer holds until the next one. A store whose settings cannot be read reaches ``volatile`` only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from jobmaster.client.coalescer import answer_of, closed
from jobmaster.clock import Clock
from jobmaster.model.errors import DurabilityRefused, JobMasterError
from jobmaster.model.job import Durability
from jobmaster.ports import PlacementStore, StoreHealth
from jobmaster.settings.model import ClusterSettings, StoreDurability

RECHECK_SECONDS = 30.0
SILENT_SECONDS = 30.0
"""After a lookup in a store got no answer, its closed buckets are skipped for this long."""

_log = logging.getLogger(__name__)

_RANK = {Durability.VOLATILE: 0, Durability.STORE: 1, Durability.STORE_FSYNC: 2}


def reached(health: StoreHealth) -> Durability:
    """The level that an acknowledged write in this store reaches. A disk that a failover leaves behind counts as a log."""
    if not health.append_only:
        return Durability.VOLATILE
    on_disk = health.append_fsync == "always" and not health.fails_over
    return Durability.STORE_FSYNC if on_disk else Durability.STORE


class StoreHandle:
    """One store and the durability of its acknowledgements.

    Args:
        volatile_ok: the operator accepts that this store keeps no append-only file: ``store`` is then satisfied by
            ``volatile`` too. What is reached stays what is measured.
    """

    def __init__(self, name: str, store: PlacementStore, clock: Clock, *, volatile_ok: bool = False) -> None:
        self.name = name
        self.store = store
        self._clock = clock
        self._volatile_ok = volatile_ok
        self._level: Durability | None = None
        self._health: StoreHealth | None = None
        self._recheck_at = 0.0
        self._silent_until = 0.0
        self._task: asyncio.Task[Durability] | None = None
        self._closed = False

    async def level(self) -> Durability:
        """The level of this store's acknowledgements; ``Unavailable`` when it was never reached."""
        level = self._level
        if level is None:
            return await answer_of(self._start())
        if not self._closed and self._clock.boottime() >= self._recheck_at:
            self._start()
        return level

    @property
    def silent(self) -> bool:
        """True for ``SILENT_SECONDS`` after a lookup in this store's buckets got no answer."""
        return self._clock.boottime() < self._silent_until

    def gave_no_answer(self) -> None:
        """A lookup in its buckets failed."""
        self._silent_until = self._clock.boottime() + SILENT_SECONDS

    def known_level(self) -> Durability | None:
        """``level()`` without waiting; ``None`` when it must be read first."""
        return self._level if self._clock.boottime() < self._recheck_at else None

    def satisfies(self, level: Durability, need: Durability) -> bool:
        """True when ``level`` is at least ``need``, or accepted in place of it by the configuration of this store."""
        return _RANK[level] >= _RANK[need] or (self._volatile_ok and need is Durability.STORE)

    def refusal(self, need: Durability) -> DurabilityRefused:
        """Why this store cannot give ``need``, and how to make it."""
        health = self._health
        if health is None or not health.append_only:
            hint = (
                "CONFIG SET appendonly yes on the store; or accept the loss of its jobs with "
                f"stores.{self.name}.durability: volatile_ok, in one submit with allow_volatile=True; or submit with "
                "durability='master'"
            )
            return DurabilityRefused(
                f"store {self.name!r} has its append-only file off: it cannot promise {need.value!r}", hint=hint
            )
        if health.fails_over:
            return DurabilityRefused(
                f"store {self.name!r} fails over to a replica, which may lack the last writes: it cannot promise "
                f"{need.value!r}",
                hint="submit with durability='master'",
            )
        if health.append_fsync in {"", "unknown"}:
            return DurabilityRefused(
                f"store {self.name!r} does not let this user read its appendfsync setting: {need.value!r} is unproven",
                hint="allow CONFIG GET for this user, or submit with durability='master'",
            )
        return DurabilityRefused(
            f"store {self.name!r} has appendfsync {health.append_fsync!r}: it cannot promise {need.value!r}",
            hint="CONFIG SET appendfsync always on the store, or submit with durability='master'",
        )

    async def close(self) -> None:
        """End the check that may be under way; no further one is made."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _start(self) -> asyncio.Task[Durability]:
        if self._closed:
            raise closed()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._read_health())
            self._task.add_done_callback(self._health_read)
        return self._task

    async def _read_health(self) -> Durability:
        health = await self.store.health()
        level = reached(health)
        if self._level is not None and level is not self._level:
            _log.warning("store %s: acknowledgements now reach %s (before: %s)", self.name, level, self._level)
        self._health, self._level = health, level
        return level

    def _health_read(self, task: asyncio.Task[Durability]) -> None:
        self._task = None
        self._recheck_at = self._clock.boottime() + RECHECK_SECONDS
        if not task.cancelled() and isinstance(error := task.exception(), JobMasterError) and self._level is not None:
            _log.info("store %s: its durability could not be checked again: %s", self.name, error)


def store_handles(
    settings: ClusterSettings, stores: Mapping[str, PlacementStore], clock: Clock
) -> dict[str, StoreHandle]:
    """A handle of each store, by name."""
    accepted = {name for name, store in settings.stores.items() if store.durability is StoreDurability.VOLATILE_OK}
    return {name: StoreHandle(name, store, clock, volatile_ok=name in accepted) for name, store in stores.items()}
