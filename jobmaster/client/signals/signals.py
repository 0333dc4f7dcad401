"""``Cluster.signals``: send a signal to the jobs that wait for it, and list what waits and what is kept."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Literal
from uuid import UUID

from jobmaster.client.signals.blocked_keys import blocked_key
from jobmaster.client.signals.wait import check_key, positive_seconds
from jobmaster.clock import new_id
from jobmaster.codec import encode_value
from jobmaster.handlers import check_name
from jobmaster.model import ids
from jobmaster.model.errors import Conflict, InputError, OutcomeUnknown, Refused, Unavailable
from jobmaster.model.flow.signal import (
    KeptSignal,
    OutgoingSignal,
    Recipients,
    SignalSent,
    SignalStatus,
    SignalStep,
    WaitingJobs,
)
from jobmaster.ports import ClientSignals
from jobmaster.settings.model import Limits

LISTED_MAX = 1000
ACTOR = "client"
ACTOR_CHARS_MAX = 200

SignalId = bytes | str | UUID


class Signals:
    """The signals of a cluster. Made by ``Cluster``."""

    def __init__(self, master: ClientSignals, limits: Limits, refuse_closed: Callable[[], None]) -> None:
        self._master = master
        self._limits = limits
        self._refuse_closed = refuse_closed

    async def send(
        self,
        key: str,
        payload: object = None,
        *,
        to: Recipients | Literal["all", "one"] = Recipients.ALL,
        keep_for: float | timedelta | None = None,
        signal_id: SignalId | None = None,
        actor: str = ACTOR,
    ) -> SignalSent:
        """Send a signal to the jobs that wait for its key: they are due now, and their handlers find it in ``ctx.signal``.

        A signal without a receiver has no effect, unless it is kept.

        Args:
            key: as given to ``signal(key)`` at the submit.
            payload: a value that JSON can hold; at most ``limits.headers``.
            to: ``all`` jobs that wait, or the ``one`` that was submitted first.
            keep_for: seconds for which jobs that are submitted later receive it, too: ``to="all"``: every one, until a newer
                signal to all of the same key is kept; ``to="one"``: the first one, if no job waits now.
            signal_id: a UUID of the caller's. The same id again, within a day of the first effect, delivers nothing new and
                gives the same answer.
            actor: name of the sender, for lists.

        Raises:
            InputError: one of these cannot be meant; nothing was sent.
            Conflict: ``signal_id`` was sent before with another key, payload or recipients.
            Refused: too many signals are kept; nothing was sent.
            OutcomeUnknown: an answer was lost, or only a part of the jobs was reached so far. Send the same again with
                ``signal_id=error.job_ids[0]``.
            Unavailable: the master cannot be reached, or another open transaction holds the key; nothing was sent.
        """
        self._refuse_closed()
        outgoing = OutgoingSignal(
            new_id() if signal_id is None else _signal_id(signal_id),
            check_key(key),
            self._payload(payload),
            _recipients(to).value,
            0.0 if keep_for is None else positive_seconds(keep_for, "'keep_for'"),
        )
        actor = check_name(actor, "'actor'", ACTOR_CHARS_MAX)
        return await self._send(outgoing, actor)

    async def _send(self, outgoing: OutgoingSignal, actor: str) -> SignalSent:
        """All portions of a signal."""
        delivered = 0
        try:
            step = await _once_more(lambda: self._master.send(outgoing, actor))
            repeated = step.status is SignalStatus.REPEATED
            while step.status is SignalStatus.SENT and not step.finished:
                delivered = step.delivered
                step = await _once_more(lambda: self._master.send(outgoing, actor))
        except OutcomeUnknown as error:
            raise OutcomeUnknown(error.message, id_bytes=[outgoing.id]) from error
        except Unavailable as error:
            if delivered:
                raise OutcomeUnknown(
                    f"the signal has reached {delivered} jobs so far: {error.message}",
                    id_bytes=[outgoing.id],
                    hint="the leader delivers the rest; or send it again with signal_id=error.job_ids[0]",
                ) from error
            if not error.blocked:
                raise
            raise blocked_key(outgoing.key, error) from error
        if step.status is SignalStatus.CONFLICT:
            raise Conflict(
                f"signal {ids.text(outgoing.id)} was sent before with another key, payload or recipients",
                hint="give each signal an id of its own",
            )
        if step.status is SignalStatus.FULL:
            raise Refused(
                "too many signals are kept for jobs to come; this one was not sent",
                hint="list them with `jobmaster signal list`; send without keep_for, or with a shorter one",
            )
        return SignalSent(
            id_bytes=outgoing.id,
            key=outgoing.key,
            delivered=step.delivered,
            kept_until_us=step.kept_until_us,
            repeated=repeated,
        )

    async def waiting(self, key: str | None = None) -> list[WaitingJobs]:
        """How many jobs wait for the signal of each key, the most first; at most 1000 keys. With ``key``: of that one."""
        return await self._master.waiting(None if key is None else check_key(key), LISTED_MAX)

    async def kept(self, key: str | None = None) -> list[KeptSignal]:
        """Signals that are kept for jobs to come, the oldest first; at most 1000. With ``key``: of that one."""
        return await self._master.kept(None if key is None else check_key(key), LISTED_MAX)

    def _payload(self, payload: object) -> bytes:
        data = encode_value(payload, "the payload of the signal")
        if len(data) > self._limits.headers_bytes:
            raise InputError(
                f"the payload of the signal has {len(data)} bytes, the limit is {self._limits.headers_bytes}",
                hint="send a reference to large data, or raise limits.headers",
            )
        return data


async def _once_more(send: Callable[[], Awaitable[SignalStep]]) -> SignalStep:
    """The call; sent a second time when its first answer was lost, which the signal's row answers."""
    try:
        return await send()
    except OutcomeUnknown:
        return await send()


def _recipients(to: str) -> Recipients:
    try:
        return Recipients(to)
    except ValueError:
        raise InputError(f"'to' must be 'all' or 'one', not {to!r}") from None


def _signal_id(value: SignalId) -> bytes:
    try:
        return UUID(bytes=value).bytes if isinstance(value, bytes) else UUID(str(value)).bytes
    except (ValueError, AttributeError, TypeError):
        raise InputError(f"signal_id {value!r} is not a UUID") from None
