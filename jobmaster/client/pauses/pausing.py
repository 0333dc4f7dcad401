"""Pauses handlers, lanes, priorities and tags, and waits until every agent obeys.

The pause is a row in the master. Each agent reads it after its next renewal and confirms it with a write of its own, so the
wait needs no connection to an agent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, TypedDict

from jobmaster.client.options import moment_us
from jobmaster.client.schedules.schedules import Schedules
from jobmaster.clock import Clock
from jobmaster.handlers import Handlers, check_lane, check_name
from jobmaster.handlers.registry import unknown_handler
from jobmaster.model.bucket import BucketState
from jobmaster.model.errors import InputError, InvalidDueTime, UnknownHandler, UnknownLane, WaitTimeout
from jobmaster.model.job import Priority
from jobmaster.model.pause import PauseChange, PauseFollower, PauseKind, subject_of
from jobmaster.model.suggestion import did_you_mean
from jobmaster.ports import ClientMaster
from jobmaster.settings.model import ClusterSettings
from jobmaster.settings.submit_rules import served_lanes

TIMEOUT_SECONDS = 30.0
"""Default of the wait for the agents: some renewals, also where many agents renew less often."""
REASON_CHARS_MAX = 1000
_NO_REASON = "no reason given"
_POLL_SECONDS = 0.1
_NAMED_MAX = 3
"""Agents that an error names."""

Until = datetime | timedelta | float
"""A time (aware), or how long from now by the master's clock (seconds)."""


class PauseSubject(TypedDict, total=False):
    """What is paused or resumed: exactly one of these."""

    handler: Callable[..., Any] | str
    """The jobs of one handler: the function, or the name."""
    lane: str
    """Every job of a lane."""
    priority: Priority | int | Literal["very_low", "low", "medium", "high", "critical"]
    """Every job of a priority, in all lanes."""
    tag: str
    """The jobs that have this tag."""
    schedule: str
    """The fires of a schedule: ``schedules.pause``. Its pause has no end, and no agent has to confirm it."""


class _Subject(NamedTuple):
    kind: PauseKind
    value: str


class Pausing:
    """Pause and resume, as ``Cluster`` gives them."""

    def __init__(
        self, settings: ClusterSettings, master: ClientMaster, handlers: Handlers, schedules: Schedules, clock: Clock
    ) -> None:
        self._settings = settings
        self._master = master
        self._handlers = handlers
        self._schedules = schedules
        self._now = clock.boottime

    async def pause(
        self,
        given: PauseSubject,
        until: Until | None,
        reason: str,
        timeout: float | None,
        actor: str,
        *,
        force: bool,
    ) -> PauseChange:
        """See ``Cluster.pause``."""
        subject = self._subject(given, "pause")
        timeout = _timeout(timeout)
        until_us, for_seconds = _end(until)
        reason = _reason(reason)
        if subject.kind is PauseKind.SCHEDULE:
            if until is not None:
                raise InputError("the pause of a schedule has no end", hint="leave 'until' out, and resume it")
            await self._schedules.pause(subject.value, reason=reason, actor=actor)
            return PauseChange(kind=subject.kind, value=subject.value, version=0)
        if not force:
            await self._check_known(subject)
        began = self._now()
        written = await self._master.pauses.pause(*subject, until_us, for_seconds, actor, reason)
        if written is None:
            raise InvalidDueTime("'until' is not in the future by the master's clock", hint="give a later time")
        return await self._followed(subject, written.version, written.until_us, timeout, began)

    async def resume(self, given: PauseSubject, reason: str, timeout: float | None, actor: str) -> PauseChange:
        """See ``Cluster.resume``."""
        subject = self._subject(given, "resume")
        timeout = _timeout(timeout)
        reason = _reason(reason)
        if subject.kind is PauseKind.SCHEDULE:
            resumed = await self._schedules.resume(subject.value, actor=actor)
            return PauseChange(kind=subject.kind, value=subject.value, version=0 if resumed else None)
        began = self._now()
        version = await self._master.pauses.resume(*subject, actor, reason)
        if version is None:
            return PauseChange(kind=subject.kind, value=subject.value, version=None)
        return await self._followed(subject, version, None, timeout, began)

    # ------------------------------------------------------------ the agents

    async def _followed(
        self, subject: _Subject, version: int, until_us: int | None, timeout: float | None, began: float
    ) -> PauseChange:
        """Wait until every living agent that runs jobs has confirmed the version."""
        while True:
            followers = await self._master.pauses.followers(version)
            waiting = [each for each in followers if not each.obeys]
            seconds = self._now() - began
            if not waiting or timeout == 0:
                return PauseChange(
                    kind=subject.kind,
                    value=subject.value,
                    version=version,
                    until_us=until_us,
                    agents=len(followers),
                    obeying=len(followers) - len(waiting),
                    seconds=seconds,
                )
            if timeout is not None and seconds >= timeout:
                raise _not_followed(subject, followers, waiting, timeout)
            await asyncio.sleep(_POLL_SECONDS)

    # ------------------------------------------------------------ what is given

    def _subject(self, given: PauseSubject, verb: str) -> _Subject:
        """The one subject.

        Raises:
            InputError: none, several, one that there is not, or a value that no job can have.
        """
        for name in given:
            if name not in PauseSubject.__annotations__:
                raise InputError(
                    f"{verb}() knows no {name!r}",
                    hint=did_you_mean(name, PauseSubject.__annotations__)
                    or f"give one of {', '.join(PauseSubject.__annotations__)}",
                )
        named = [(name, value) for name, value in given.items() if value is not None]
        if len(named) != 1:
            wrong = f"{len(named)} things are given" if named else "nothing is given"
            raise InputError(
                f"{verb}() takes one thing at a time, and {wrong}",
                hint=f"{verb}(handler=...), {verb}(lane=...), {verb}(priority=...), {verb}(tag=...) or {verb}(schedule=...)",
            )
        name, value = named[0]
        kind = PauseKind(name)
        return _Subject(kind, self._value(kind, value))

    def _value(self, kind: PauseKind, value: Any) -> str:
        if kind is PauseKind.LANE:
            return check_lane(value)
        if kind is PauseKind.PRIORITY:
            try:
                return Priority.parse(value).label
            except ValueError as error:
                raise InputError(f"'priority': {error}") from None
        if kind is PauseKind.SCHEDULE:
            return check_name(value, "'schedule'")
        if kind is PauseKind.TAG:
            return check_name(value, "'tag'", self._settings.limits.tag_chars)
        if isinstance(value, str):
            return check_name(value, "'handler'")
        declared = self._handlers.of(value)
        if declared is None:
            raise UnknownHandler(
                f"{getattr(value, '__qualname__', value)!r} is not declared as a handler of this cluster",
                hint="name the handler by its text",
            )
        return declared.name

    async def _check_known(self, subject: _Subject) -> None:
        """A handler or lane that does not exist is mostly a slip of the pen, and its pause would stop nothing.

        Raises:
            UnknownHandler, UnknownLane: with the nearest known name.
        """
        if subject.kind is PauseKind.HANDLER and self._handlers.get(subject.value) is None:
            published = await self._master.queries.handlers()
            if subject.value not in published:
                raise unknown_handler(
                    subject.value,
                    [*self._handlers.names(), *published],
                    "to pause it before an agent has it, give force=True (--force)",
                )
        elif subject.kind is PauseKind.LANE:
            buckets = await self._master.queries.list_buckets(states=(BucketState.ACTIVE, BucketState.FROZEN))
            known = served_lanes(self._settings) | {bucket.lane for bucket in buckets}
            if subject.value not in known:
                near = did_you_mean(subject.value, known) or f"lanes are {', '.join(sorted(known))}"
                raise UnknownLane(
                    f"no agent serves lane {subject.value!r}",
                    hint=f"{near}; to pause it before an agent serves it, give force=True (--force)",
                )


def _end(until: object) -> tuple[int | None, float | None]:
    """The end as a time, or as seconds from now."""
    if until is None:
        return None, None
    if isinstance(until, datetime):
        return moment_us(until, "until"), None
    seconds = until.total_seconds() if isinstance(until, timedelta) else until
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < 1e11:
        raise InvalidDueTime(
            f"'until' must be an aware datetime, a timedelta or seconds, more than 0 from now, not {until!r}"
        )
    return None, float(seconds)


def _timeout(timeout: object) -> float | None:
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0:
        raise InputError(f"'timeout' must be 0 seconds or more, not {timeout!r}", hint="None waits without a limit")
    return float(timeout)


def _reason(reason: object) -> str:
    if not isinstance(reason, str):
        raise InputError(f"'reason' must be text, not {type(reason).__name__}")
    if len(reason) > REASON_CHARS_MAX or "\0" in reason:
        wrong = (
            "contains U+0000" if "\0" in reason else f"has {len(reason)} characters, the limit is {REASON_CHARS_MAX}"
        )
        raise InputError(f"'reason' {wrong}")
    return reason or _NO_REASON


def _not_followed(
    subject: _Subject, followers: Sequence[PauseFollower], waiting: Sequence[PauseFollower], timeout: float
) -> WaitTimeout:
    names = ", ".join(f"{each.name} (pid {each.pid} on {each.host})" for each in waiting[:_NAMED_MAX])
    more = f" and {len(waiting) - _NAMED_MAX} more" if len(waiting) > _NAMED_MAX else ""
    return WaitTimeout(
        f"the change of {subject_of(*subject)} is stored, but {len(waiting)} of {len(followers)} agents have not confirmed "
        f"it within {timeout:g} s: {names}{more}",
        hint="it holds for them from their next renewal on; an agent that is cut off from the master may start such jobs "
        "until then, and one of a version without pauses always",
    )
