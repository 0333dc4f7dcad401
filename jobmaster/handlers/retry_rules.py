"""The rules of a handler for its errors: which end the job at once, which are tried again, and after how long.

The rules apply where an error was raised: in the agent, or in the worker process of the handler. The attempts of the job are
the bound of every rule. Decisions of the handler itself (``Retry``, ``Snooze``, ``Fail``, ``Cancel``) are no errors to them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, NamedTuple

import msgspec

from jobmaster.handlers.context import JobContext
from jobmaster.handlers.decisions import PAUSE_SECONDS_MAX, Decision, pause_seconds

RetryPolicy = Callable[[JobContext, Exception], float | timedelta | bool | None]
"""Called with the context of the run and its error. Returns seconds or a timedelta until the next attempt, True (another
attempt after the usual pause), False (no other attempt) or ``None`` (as if there were no policy)."""
ErrorTypes = tuple[type[Exception], ...]


class RetryDecision(NamedTuple):
    """What follows a failed attempt, within the attempts of the job."""

    again: bool = True
    """False: no other attempt."""
    after_seconds: float | None = None
    """Until the next attempt; ``None`` = the delays or the back-off of the handler."""
    policy_problem: str = ""
    """Why the answer of the policy did not count; empty: it did, or there is none."""


TRIED_AGAIN = RetryDecision()
GIVEN_UP = RetryDecision(again=False)


class RetryRules(msgspec.Struct, frozen=True, kw_only=True):
    """``retry_on``, ``give_up_on`` and ``retry`` of one handler, checked."""

    retry_on: ErrorTypes | None = None
    """Only these are tried again; ``None``: all."""
    give_up_on: ErrorTypes = ()
    """These are not tried again."""
    policy: RetryPolicy | None = None
    """Asked first."""

    def decide(self, error: BaseException, context: Callable[[], JobContext]) -> RetryDecision:
        """What follows this error. Raises nothing, whatever the policy does.

        Args:
            error: what the handler raised; what is no ``Exception`` (``SystemExit``) is tried again.
            context: makes the context for the policy.
        """
        if not isinstance(error, Exception):
            return TRIED_AGAIN
        problem = ""
        if self.policy is not None:
            answer = _ask(self.policy, error, context)
            if isinstance(answer, RetryDecision):
                return answer
            problem = answer or ""
        again = not self._gives_up(error)
        return RetryDecision(again, None, problem) if problem else (TRIED_AGAIN if again else GIVEN_UP)

    def _gives_up(self, error: Exception) -> bool:
        if self.give_up_on and any(isinstance(each, self.give_up_on) for each in _with_members(error)):
            return True
        return self.retry_on is not None and not _all_are(error, self.retry_on)


def _ask(policy: RetryPolicy, error: Exception, context: Callable[[], JobContext]) -> RetryDecision | str | None:
    """The policy's decision, ``None`` when it leaves it to the other rules, or why its answer does not count."""
    try:
        answer: Any = policy(context(), error)
        if answer is None:
            return None
        if isinstance(answer, bool):
            return TRIED_AGAIN if answer else GIVEN_UP
        if inspect.iscoroutine(answer):
            answer.close()
            return "it returned a coroutine; a policy is a plain function"
        seconds = pause_seconds(answer)
        if seconds is None or seconds > PAUSE_SECONDS_MAX:
            wanted = f"seconds (at most {PAUSE_SECONDS_MAX:g}), a timedelta, True, False or None"
            return f"it returned {answer!r:.200}, which is not {wanted}"
        return RetryDecision(after_seconds=seconds)
    except BaseException as problem:  # foreign code: its SystemExit must not end other jobs
        return f"it raised {type(problem).__name__}: {_text(problem):.500}"


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "<its text cannot be read>"


def _with_members(error: BaseException) -> Iterator[BaseException]:
    """The error and, if it is a group, all errors inside it."""
    todo = [error]
    while todo:
        each = todo.pop()
        yield each
        if isinstance(each, BaseExceptionGroup):
            todo.extend(each.exceptions)


def _all_are(error: BaseException, types: ErrorTypes) -> bool:
    """True when the error is of these types, or is a group and all errors inside it are."""
    todo = [error]
    while todo:
        each = todo.pop()
        if isinstance(each, types):
            continue
        if not isinstance(each, BaseExceptionGroup):
            return False
        todo.extend(each.exceptions)
    return True


# ------------------------------------------------------------ declared


def checked_rules(retry_on: object, give_up_on: object, policy: object) -> RetryRules | None:
    """The rules of a declaration, ``None`` when it has none; ``ValueError`` when one of them cannot work."""
    if retry_on is None and give_up_on is None and policy is None:
        return None
    wanted = None if retry_on is None else _error_types(retry_on, "retry_on")
    unwanted = () if give_up_on is None else _error_types(give_up_on, "give_up_on")
    for each in wanted or ():
        if clash := next((one for one in unwanted if issubclass(each, one)), None):
            raise ValueError(
                f"give_up_on has {clash.__name__}, so {each.__name__} of retry_on would never be tried again; errors outside "
                "retry_on are not tried again anyway"
            )
    return RetryRules(retry_on=wanted, give_up_on=unwanted, policy=_checked_policy(policy))


def _error_types(value: object, option: str) -> ErrorTypes:
    types = value if isinstance(value, tuple | list | set | frozenset) else (value,)
    if not types:
        raise ValueError(f"{option} is empty; leave it out, or name exception types")
    for each in types:
        if not (isinstance(each, type) and issubclass(each, BaseException)):
            raise ValueError(f"{option} takes exception types, not {each!r:.200}")
        if not issubclass(each, Exception):
            raise ValueError(
                f"{option} takes types of Exception; {each.__name__} is no error of a handler, it ends a task or a process"
            )
        if issubclass(each, Decision):
            raise ValueError(f"{option} cannot have {each.__name__}: it is the handler's own decision, and no error")
    return tuple(types)


def _checked_policy(value: object) -> RetryPolicy | None:
    if value is None:
        return None
    if not callable(value) or isinstance(value, type):
        raise ValueError(f"retry must be a function of (ctx, error), not {value!r:.200}")
    if inspect.iscoroutinefunction(value) or inspect.iscoroutinefunction(type(value).__call__):
        raise ValueError("retry must be a plain function, not an 'async def'; it decides at once, without I/O")
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):  # made in C: there is nothing to look at
        return value
    try:
        signature.bind(None, None)
    except TypeError as error:
        raise ValueError(f"retry must take (ctx, error) by position; {error}: it is declared {signature}") from None
    return value
