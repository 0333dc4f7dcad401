"""``Cluster.breakers``: list the circuit breakers of a cluster, open and close one."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from jobmaster.handlers import check_name
from jobmaster.handlers.flow.breaker import OPEN_SECONDS_MAX
from jobmaster.model.errors import Conflict, InputError, NotFound
from jobmaster.model.flow.breaker import BreakerState, BreakerView
from jobmaster.model.suggestion import did_you_mean
from jobmaster.ports import ClientBreakers

ACTOR = "client"
REASON_CHARS_MAX = 1000


class Breakers:
    """The circuit breakers of a cluster. Made by ``Cluster``."""

    def __init__(self, master: ClientBreakers, refuse_closed: Callable[[], None]) -> None:
        self._master = master
        self._refuse_closed = refuse_closed

    async def list(self) -> list[BreakerView]:
        """Every breaker that a handler of an agent has declared, by name."""
        self._refuse_closed()
        return [*await self._master.list()]

    async def get(self, resource: str) -> BreakerView:
        """One breaker.

        Raises:
            NotFound: no handler of an agent has declared it.
        """
        self._refuse_closed()
        name = check_name(resource, "the name of a breaker")
        for view in await self._master.list(name):
            return view
        known = [view.name for view in await self._master.list()]
        raise NotFound(
            f"there is no breaker {name!r}",
            hint=did_you_mean(name, known) or "agents declare breakers with their handlers: @handlers.job(breaker=...)",
        )

    async def open(
        self,
        resource: str,
        *,
        open_for: float | timedelta | None = None,
        reason: str = "",
        actor: str = ACTOR,
        epoch: int | None = None,
    ) -> BreakerView:
        """Open a breaker: the jobs of its handlers wait in the master, and use up no attempt. Agents obey with their next
        renewal (3 s).

        Args:
            open_for: seconds until it becomes half-open; ``None``: it stays open until it is closed.
            reason: for lists and the operator's log.
            actor: name of the operator.
            epoch: that of the view by which this is decided: the breaker is opened only if it has not changed since.
                ``None``: whatever it has become.

        Raises:
            NotFound: there is no such breaker.
            Conflict: its state has changed since ``epoch``; nothing was done.
            InputError: ``open_for``, ``reason``, ``actor`` or ``epoch`` cannot be meant.
        """
        return await self._set(resource, BreakerState.OPEN, _seconds(open_for), reason, actor, epoch)

    async def close(
        self, resource: str, *, reason: str = "", actor: str = ACTOR, epoch: int | None = None
    ) -> BreakerView:
        """Close a breaker: its jobs start again, and what has failed before does not count any more.

        Args:
            epoch: as of ``open``.

        Raises:
            NotFound: there is no such breaker.
            Conflict: its state has changed since ``epoch``; nothing was done.
            InputError: ``reason``, ``actor`` or ``epoch`` cannot be meant.
        """
        return await self._set(resource, BreakerState.CLOSED, None, reason, actor, epoch)

    async def _set(
        self,
        resource: str,
        state: BreakerState,
        open_seconds: float | None,
        reason: str,
        actor: str,
        epoch: int | None,
    ) -> BreakerView:
        self._refuse_closed()
        name = check_name(resource, "the name of a breaker")
        check_name(actor, "'actor'")
        text: object = reason
        if not isinstance(text, str) or len(text) > REASON_CHARS_MAX or "\0" in text:
            raise InputError(f"'reason' must be text of at most {REASON_CHARS_MAX} characters without U+0000")
        seen = _epoch(epoch)
        done = await self._master.set_state(name, state, open_seconds, actor, reason or "no reason given", seen)
        view = await self.get(name)
        if done is None:
            since = "" if view.changed_at is None else f" since {view.changed_at:%Y-%m-%d %H:%M:%S} UTC"
            raise Conflict(
                f"breaker {name!r} has changed and is {view.state.value}{since}, by {view.actor or 'nothing'}: {view.reason}",
                hint=f"look at it again, then name its epoch {view.epoch}, or none",
            )
        return view


def _epoch(epoch: object) -> int | None:
    if epoch is None:
        return None
    if isinstance(epoch, bool) or not isinstance(epoch, int) or not 0 <= epoch < 1 << 63:
        raise InputError(f"'epoch' must be the epoch of a breaker that was read, not {epoch!r:.100}")
    return epoch


def _seconds(open_for: object) -> float | None:
    if open_for is None:
        return None
    seconds = open_for.total_seconds() if isinstance(open_for, timedelta) else open_for
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= OPEN_SECONDS_MAX:
        raise InputError(f"'open_for' must be above 0 and at most {OPEN_SECONDS_MAX:g} seconds, not {open_for!r}")
    return float(seconds)
