"""``Cluster.operate``: drain agents, freeze and unfreeze buckets, release unique keys; for the command line and HTTP, too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from jobmaster.handlers import check_lane, check_name
from jobmaster.model import ids
from jobmaster.model.bucket import Bucket
from jobmaster.model.errors import InputError, JobMasterError, NotFound
from jobmaster.ports.operating import OperatingMaster, OperatingStore

REASON_CHARS_MAX = 1000
NO_REASON = "no reason given"


class Frozen(NamedTuple):
    """What a freeze or an unfreeze has changed."""

    buckets: list[Bucket]
    """As they are now."""
    warnings: list[str]
    """A sentence for each store that could not be told. The owners freeze their buckets there with their next renewal."""


class Operating:
    """What operators do to agents, buckets and unique keys. Made by ``Cluster``.

    Args:
        stores: those of this program's configuration.
    """

    def __init__(
        self, master: OperatingMaster, stores: Mapping[str, OperatingStore], refuse_closed: Callable[[], None]
    ) -> None:
        self._master = master
        self._stores = stores
        self._refuse_closed = refuse_closed

    async def drain(self, agent: UUID | str, *, actor: str = "client") -> None:
        """Request the graceful exit of an agent: it completes its buckets, gives the remaining jobs back and exits. It reads
        the request with its next renewal; its supervisor does not start it again.

        Raises:
            NotFound: no living agent has this id.
            InputError: no id, or no name of an actor.
        """
        self._refuse_closed()
        agent_id = _id_of(agent, "an agent")
        if not await self._master.members.request_drain(agent_id, check_name(actor, "'actor'")):
            raise NotFound(f"no living agent is {ids.text(agent_id)}", hint="jobmaster agent list")

    async def freeze(
        self,
        buckets: Sequence[UUID | str] | None = None,
        *,
        lane: str | None = None,
        every: bool = False,
        reason: str = NO_REASON,
        actor: str = "client",
    ) -> Frozen:
        """Emergency stop: ACTIVE buckets take no jobs and start none until they are unfrozen. What runs may end, what waits
        stays. Buckets that agents open later are not frozen.

        Args:
            buckets, lane, every: exactly one of them: these buckets, those of a lane, or all of the cluster.
            reason: for the bucket's history and the operator's log.

        Returns: those that were frozen by this call.

        Raises:
            InputError: none of the three or several, or a value that cannot be meant; nothing was changed.
        """
        chosen = self._chosen(buckets, lane, every)
        frozen = await self._master.buckets.freeze(*chosen, check_name(actor, "'actor'"), _reason(reason))
        stores = sorted({bucket.store for bucket in frozen})
        answers = await asyncio.gather(*(self._freeze_in(name, frozen) for name in stores))
        return Frozen(frozen, [answer for answer in answers if answer is not None])

    async def unfreeze(
        self,
        buckets: Sequence[UUID | str] | None = None,
        *,
        lane: str | None = None,
        every: bool = False,
        reason: str = NO_REASON,
        actor: str = "client",
    ) -> Frozen:
        """End the stop: frozen buckets continue under a new epoch, when their owners have read it with their next renewal.
        Arguments and errors as ``freeze``."""
        chosen = self._chosen(buckets, lane, every)
        return Frozen(await self._master.buckets.unfreeze(*chosen, check_name(actor, "'actor'"), _reason(reason)), [])

    async def release_unique_key(self, handler: str, key: str, *, actor: str = "client") -> None:
        """Take a unique key from the job that holds it. The job goes on, and the next submit of the key makes another one
        beside it. The action is a line in the operator's log.

        Raises:
            NotFound: no job has had this key, or it was released or forgotten.
            InputError: no name of a handler, no key, or no name of an actor.
        """
        self._refuse_closed()
        named, wanted = check_name(handler, "'handler'"), check_name(key, "'key'")
        if not await self._master.uniqueness.release(named, wanted, check_name(actor, "'actor'")):
            raise NotFound(f"no job of {named} has the unique key {wanted!r}", hint=f"jobmaster unique list {named}")

    def _chosen(
        self, buckets: Sequence[UUID | str] | None, lane: str | None, every: bool
    ) -> tuple[list[bytes] | None, str | None]:
        self._refuse_closed()
        if [buckets is not None, lane is not None, every].count(True) != 1 or buckets == []:
            raise InputError("name buckets, or a lane, or all of them: one of the three")
        known = None if buckets is None else [_id_of(bucket, "a bucket") for bucket in buckets]
        return known, None if lane is None else check_lane(lane)

    async def _freeze_in(self, name: str, frozen: Sequence[Bucket]) -> str | None:
        """Freeze buckets in their store, so that it refuses producers and claims at once; a sentence when that fails."""
        store = self._stores.get(name)
        if store is None:
            return f"store {name} is not in the configuration: the owners freeze its buckets with their next renewal"
        try:
            for bucket in frozen:
                if bucket.store == name:
                    await store.freeze(bucket.id, bucket.epoch, bucket.owner)
        except JobMasterError as error:
            return f"{error}; the owners freeze its buckets with their next renewal"
        return None


def _id_of(value: UUID | str, what: str) -> bytes:
    try:
        return ids.parse(value)
    except (AttributeError, TypeError, ValueError):
        raise InputError(f"{value!r:.200} is not the id of {what}") from None


def _reason(reason: object) -> str:
    if not isinstance(reason, str) or len(reason) > REASON_CHARS_MAX or "\0" in reason:
        raise InputError(f"'reason' must be text of at most {REASON_CHARS_MAX} characters without U+0000")
    return reason or NO_REASON
