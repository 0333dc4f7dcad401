"""Errors of redis-py and of the server, translated to JobMaster's errors in one place.

Two things are decided. Could the call have had an effect? Error replies mean that it had none: Redis checks memory,
permissions, flags and the places of the keys before it starts a function, and the functions are written so that no command
after their first write is refused (``lua/prelude.lua``). So only a missing reply is uncertain. And which side must act: a
store that will be back is ``Unavailable``, one that an operator must change is ``StoreRefused``.
"""

from __future__ import annotations

import redis.exceptions as driver

from jobmaster.model.errors import CodeError, JobMasterError, OutcomeUnknown, StoreRefused, Unavailable

PASSING_WORDS = (
    "LOADING",
    "BUSY",
    "READONLY",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "MISCONF",
    "NOREPLICAS",
    "UNBLOCKED",
)
"""First words of error replies after which the same call may succeed later."""


class NotSent(Exception):
    """The command never left: no connection."""


class NoReply(Exception):
    """The command left, and nothing came back: it may have been executed."""


class FunctionsMissing(StoreRefused):
    """The store does not know our functions."""


class PasswordRefused(StoreRefused):
    """The store does not accept the user or the password."""


class ArgumentsRefused(CodeError):
    """A function does not take what it was given: a defect, or the function is one of another build."""


class OutOfMemory(Unavailable):
    """The store is at its ``maxmemory`` and refused a command that needs room; nothing was written."""


def is_reply(error: driver.RedisError) -> bool:
    """True for an error that the server sent as a reply; the connection goes on. (Two of them are, oddly, subclasses of
    the driver's ``ConnectionError``.)"""
    return isinstance(error, driver.ResponseError | driver.BusyLoadingError | driver.AuthenticationError)


def shows_replica(error: driver.RedisError) -> bool:
    """True for an error reply of a server that is no primary any more, or has lost its replicas: another server may have
    taken its place, at the same address or another one."""
    return isinstance(error, driver.ReadOnlyError | driver.MasterDownError) or str(error).startswith("NOREPLICAS")


def translate(error: Exception, *, where: str, mutating: bool) -> JobMasterError:
    """Our error for what happened to one call.

    Args:
        error: ``NotSent``, ``NoReply`` or an error reply.
        where: the store's name and address for messages, without its password.
        mutating: whether the call could have changed anything.
    """
    if isinstance(error, NotSent):
        return Unavailable(f"{where} cannot be reached: {error}", hint="is the server running, and is the URL right?")
    if isinstance(error, NoReply):
        if mutating:
            return OutcomeUnknown(f"{where} did not answer: {error}")
        return Unavailable(f"{where} did not answer: {error}")
    return _translate_reply(error, where)


def _translate_reply(error: Exception, where: str) -> JobMasterError:
    text = str(error)
    word = text.split(" ", 1)[0]
    if isinstance(error, driver.OutOfMemoryError) or word == "OOM":
        return OutOfMemory(
            f"{where} is out of memory and refused to store more",
            hint="raise maxmemory, or add agents so that its buckets are emptied",
        )
    if isinstance(error, driver.AuthenticationError) or word in {"NOAUTH", "WRONGPASS"}:
        return PasswordRefused(
            f"{where} refused the user name or password",
            hint="put the right ones into the URL: redis://user:password@host",
        )
    if isinstance(error, driver.NoPermissionError) or word == "NOPERM":
        return StoreRefused(
            f"{where} forbids what is needed: {text}", hint="give the user the commands and keys named in its ACL rule"
        )
    if isinstance(error, driver.TryAgainError):
        return Unavailable(
            f"{where} cannot serve at the moment: the hash slot of the key is being moved to another node",
            hint="this ends with the move; where it does not, see CLUSTER NODES for [slot->-node]",
        )
    # AskError is also the class of MOVED: nodes of a server cluster that name one another for too long.
    passing = (
        *(driver.BusyLoadingError, driver.ReadOnlyError),
        *(driver.ClusterDownError, driver.TryAgainError, driver.AskError),
    )
    if isinstance(error, passing) or word in PASSING_WORDS:
        return Unavailable(f"{where} cannot serve at the moment: {text}")
    if "unction not found" in text:
        return FunctionsMissing(
            f"{where} does not have the functions of JobMaster: functions are missing",
            hint="run `jobmaster store init` or start an agent",
        )
    if text.startswith("JMARGS"):
        return ArgumentsRefused(
            f"{where} refused the arguments of one of its functions: {text[7:]}",
            hint="are its functions of an earlier build? agents of this one load theirs, and so does `jobmaster store init`",
        )
    return StoreRefused(f"{where} answered with an error: {text}", hint="is it a Redis >= 7.0 or Valkey >= 7.2?")
