"""``Cluster.limits``: list the limits of the cluster, set other values at run time, and take them back."""

from __future__ import annotations

import builtins

from jobmaster.handlers.flow.limits import checked_limit_name, checked_values
from jobmaster.model.errors import InputError, NotFound
from jobmaster.model.flow.limit import LimitView
from jobmaster.model.suggestion import did_you_mean
from jobmaster.ports import ClientLimits

ACTOR = "client"
REASON_CHARS_MAX = 1000


class Limits:
    """The limits of a cluster. Made by ``Cluster``."""

    def __init__(self, master: ClientLimits) -> None:
        self._master = master

    async def set(
        self,
        name: str,
        running: int | None = None,
        *,
        rate: str | float | None = None,
        burst: float | None = None,
        reason: str = "",
        actor: str = ACTOR,
        force: bool = False,
    ) -> LimitView:
        """Give a limit other values; they stand over those of the code, in every agent, until ``reset``.

        Every admission that begins after the call obeys. A limit that is lowered ends no job: until enough of them have
        ended no other starts. What is left out stays as in the code; a second call replaces the first.

        Args:
            name: of the limit.
            running: jobs that may run at once, of each key: 1 to 1,000,000.
            rate: starts in a time, of each key: ``"50/s"``, ``"600/m"``, or a number of starts a second.
            burst: starts that may come at once after a pause. Default: those of one second.
            reason: for the list and the operator's log.
            actor: for the list and the operator's log.
            force: also set a limit that no agent has declared yet.

        Raises:
            InputError: a value out of its range, or none at all.
            NotFound: no agent has declared such a limit.
            Unavailable, OutcomeUnknown: of the master.
        """
        values = checked_values(name, running, rate, burst)
        if len(reason) > REASON_CHARS_MAX or "\0" in reason:
            raise InputError(f"'reason' must be at most {REASON_CHARS_MAX} characters without U+0000")
        if rate is not None and burst is None:
            values = values._replace(burst=None)  # those of one second, whatever the code has
        if not force and not await self._master.list(name):
            raise await self._not_found(name, "to set it before an agent declares it, give force=True (--force)")
        await self._master.set(values, actor, reason)
        return await self.get(name)

    async def reset(self, name: str, *, actor: str = ACTOR) -> bool:
        """Take set values back: those of the code count again. A limit that no agent has declared is removed.

        Returns:
            False when nothing was set.

        Raises:
            InputError: no name of a limit.
            Unavailable, OutcomeUnknown: of the master.
        """
        return await self._master.reset(checked_limit_name(name), actor) is not None

    async def get(self, name: str) -> LimitView:
        """One limit, with what is taken of it now.

        Raises:
            NotFound: there is none of this name; the nearest one is named.
            Unavailable: the master does not answer.
        """
        found = await self._master.list(checked_limit_name(name))
        if not found:
            raise await self._not_found(name, "jobmaster limit list")
        return found[0]

    async def list(self) -> builtins.list[LimitView]:
        """The limits in the order of their names, with what is taken of them now; at most 1000."""
        return await self._master.list()

    async def _not_found(self, name: str, hint: str) -> NotFound:
        near = did_you_mean(name, [limit.name for limit in await self._master.list()])
        return NotFound(f"there is no limit {name!r}", hint=f"{near}; {hint}" if near else hint)
