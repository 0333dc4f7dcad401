"""The rules of a handler for its errors: what a declaration may say, and what follows an error."""

from __future__ import annotations

import asyncio
import datetime
import math
import pickle
import re
from typing import Any

import pytest

from jobmaster import Cancel, ConfigError, Fail, Handlers, InputError, JobContext, Retry, Snooze
from jobmaster.handlers import Handler, RetryDecision
from jobmaster.handlers.decisions import PAUSE_SECONDS_MAX, Decision
from jobmaster.handlers.retry_rules import GIVEN_UP, TRIED_AGAIN
from jobmaster.model.job import Priority


class Lost(ConnectionError): ...


def work() -> None: ...


def declared(**options: Any) -> Handler:
    return Handlers().add(work, name="h", **options)


def context() -> JobContext[Any]:
    return JobContext(
        job_id_bytes=b"j" * 16, token=1, handler="h", lane="default", priority=Priority.HIGH, attempt=2, max_attempts=4
    )


def decided(error: BaseException, **options: Any) -> RetryDecision:
    rules = declared(**options).options.retry_rules
    assert rules is not None
    return rules.decide(error, context)


def test_a_handler_without_rules_has_none() -> None:
    options = declared().options
    assert (options.retry_rules, options.delays_seconds, options.warn_after_seconds) == (None, None, None)


GROUP = ExceptionGroup("several", [Lost(), ExceptionGroup("more", [Lost(), ValueError()])])
ALIKE = ExceptionGroup("several", [Lost(), ExceptionGroup("more", [ConnectionError()])])


@pytest.mark.parametrize(
    ("error", "options", "again"),
    [
        (Lost(), {"retry_on": ConnectionError}, True),
        (ValueError(), {"retry_on": ConnectionError}, False),
        (ValueError(), {"retry_on": (ConnectionError, ValueError)}, True),
        (ValueError(), {"give_up_on": ValueError}, False),
        (Lost(), {"give_up_on": [ValueError, KeyError]}, True),
        (FileNotFoundError(), {"retry_on": OSError, "give_up_on": FileNotFoundError}, False),
        (PermissionError(), {"retry_on": OSError, "give_up_on": FileNotFoundError}, True),
        (KeyError(), {"retry_on": OSError, "give_up_on": FileNotFoundError}, False),
        (SystemExit(), {"retry_on": OSError}, True),
        (asyncio.CancelledError(), {"retry_on": OSError}, True),
        (GROUP, {"retry_on": ConnectionError}, False),
        (ALIKE, {"retry_on": ConnectionError}, True),
        (GROUP, {"give_up_on": ValueError}, False),
        (ALIKE, {"give_up_on": ValueError}, True),
        (GROUP, {"retry_on": ExceptionGroup}, True),
        (BaseExceptionGroup("stop", [KeyboardInterrupt()]), {"retry_on": OSError}, True),
    ],
)
def test_types_decide_whether_an_error_is_tried_again(
    error: BaseException, options: dict[str, Any], again: bool
) -> None:
    assert decided(error, **options) == (TRIED_AGAIN if again else GIVEN_UP)


@pytest.mark.parametrize(
    ("answer", "decision"),
    [
        (True, TRIED_AGAIN),
        (False, GIVEN_UP),
        (0, RetryDecision(after_seconds=0.0)),
        (1.5, RetryDecision(after_seconds=1.5)),
        (-3, RetryDecision(after_seconds=0.0)),
        (datetime.timedelta(minutes=1), RetryDecision(after_seconds=60.0)),
    ],
)
def test_the_policy_is_asked_first(answer: Any, decision: RetryDecision) -> None:
    asked: list[tuple[int, Exception]] = []

    def policy(ctx: JobContext[Any], error: Exception) -> Any:
        asked.append((ctx.attempt, error))
        return answer

    error = ValueError()
    assert decided(error, retry=policy, give_up_on=ValueError) == decision
    assert asked == [(2, error)]


def test_a_policy_without_an_opinion_leaves_it_to_the_types() -> None:
    assert decided(ValueError(), retry=lambda ctx, error: None, give_up_on=ValueError) is GIVEN_UP
    assert decided(KeyError(), retry=lambda ctx, error: None, give_up_on=ValueError) is TRIED_AGAIN


class Wordless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def raises(error: BaseException) -> Any:
    def policy(ctx: JobContext[Any], failure: Exception) -> bool:
        raise error

    return policy


async def later() -> bool:
    return True


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (raises(ZeroDivisionError("by zero")), "it raised ZeroDivisionError: by zero"),
        (raises(SystemExit(3)), "it raised SystemExit: 3"),
        (raises(Wordless()), "it raised Wordless: <its text cannot be read>"),
        (lambda ctx, error: "soon", "it returned 'soon', which is not seconds"),
        (lambda ctx, error: math.nan, "it returned nan"),
        (lambda ctx, error: PAUSE_SECONDS_MAX + 1, "which is not seconds .at most"),
        (lambda ctx, error: 10**400, "it returned 1000"),
        (lambda ctx, error: later(), "it returned a coroutine; a policy is a plain function"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_a_policy_that_does_not_work_is_named_and_the_types_decide(policy: Any, words: str) -> None:
    kept = decided(KeyError(), retry=policy, give_up_on=ValueError)
    ended = decided(ValueError(), retry=policy, give_up_on=ValueError)
    assert (kept.again, ended.again) == (True, False)
    for decision in (kept, ended):
        assert decision.after_seconds is None
        assert re.search(words, decision.policy_problem)


async def async_policy(ctx: JobContext[Any], error: Exception) -> bool:
    return True


class AsyncPolicy:
    async def __call__(self, ctx: JobContext[Any], error: Exception) -> bool:
        return True


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"retry_on": "ValueError"}, "retry_on takes exception types, not 'ValueError'"),
        ({"retry_on": [ValueError, 7]}, "retry_on takes exception types, not 7"),
        ({"retry_on": ()}, "retry_on is empty"),
        ({"give_up_on": []}, "give_up_on is empty"),
        ({"give_up_on": ValueError("x")}, "give_up_on takes exception types"),
        ({"give_up_on": int}, "give_up_on takes exception types"),
        ({"retry_on": asyncio.CancelledError}, "CancelledError is no error of a handler"),
        ({"give_up_on": (KeyError, SystemExit)}, "SystemExit is no error of a handler"),
        ({"retry_on": Retry}, "retry_on cannot have Retry"),
        ({"give_up_on": Snooze}, "give_up_on cannot have Snooze"),
        ({"retry_on": TimeoutError, "give_up_on": OSError}, "give_up_on has OSError, so TimeoutError of retry_on"),
        ({"retry_on": KeyError, "give_up_on": KeyError}, "would never be tried again"),
        ({"retry": 5}, "retry must be a function"),
        ({"retry": True}, "retry must be a function"),
        ({"retry": ValueError}, "retry must be a function"),
        ({"retry": async_policy}, "not an 'async def'"),
        ({"retry": AsyncPolicy()}, "not an 'async def'"),
        ({"retry": lambda error: True}, r"retry must take \(ctx, error\) by position"),
        ({"retry": lambda ctx, error, more: True}, r"retry must take \(ctx, error\) by position"),
        ({"delays": 5}, "delays must be a list"),
        ({"delays": "135"}, "delays must be a list"),
        ({"delays": []}, "1 to 1000 entries, not 0"),
        ({"delays": [1] * 1001}, "1 to 1000 entries, not 1001"),
        ({"delays": [1, -1]}, r"delays\[1\] must be at least 0"),
        ({"delays": [1, None]}, r"delays\[1\] is None"),
        ({"delays": ["1s"]}, r"delays\[0\] must be a number"),
        ({"delays": [math.inf]}, r"delays\[0\] must be a number"),
        ({"delays": [1e12]}, r"delays\[0\] must be at most"),
        ({"delays": [1], "backoff": 2}, "delays take the place of a back-off; leave out backoff"),
        ({"delays": [1], "backoff_max": 2, "backoff_factor": 2}, "leave out backoff_factor, backoff_max"),
        ({"warn_after": 0}, "warn_after must be more than 0"),
        ({"warn_after": "soon"}, "warn_after must be a number"),
        ({"warn_after": 30, "timeout": 30}, r"warn_after \(30\) must be less than timeout \(30\)"),
        ({"accept_time": -1}, "accept_time must be 0"),
        (
            {"accept_time": datetime.timedelta.max},
            "accept_time must be 0 .* to 316224000 seconds, not datetime.timedelta",
        ),
        ({"accept_time": "soon"}, "accept_time must be a number"),
        ({"complete_time": -1}, "complete_time must be 0"),
        ({"complete_time": math.inf}, "complete_time must be 0"),
        ({"complete_time": 30, "timeout": 30}, r"complete_time \(30\) must be less than timeout \(30\)"),
        ({"cancel_slow": True}, "cancel_slow goes with complete_time"),
        ({"cancel_slow": 1, "complete_time": 3}, "cancel_slow must be True or False"),
        ({"delivery": "at_most_once", "complete_time": 30}, "allows one start, and complete_time"),
        ({"delivery": "at_most_once", "delays": [1]}, "no second attempt that delays could be for"),
        ({"delivery": "at_most_once", "retry_on": OSError, "retry": lambda c, e: None}, "that retry, retry_on could"),
        ({"delivery": "at_most_once", "give_up_on": OSError}, "no second attempt that give_up_on could be for"),
        ({"retry_onn": OSError}, "unknown option retry_onn"),
        ({"needs": "GPU"}, "needs: 'GPU' is no name"),
        ({"needs": 5}, "needs must be a name or a list of names, not 5"),
        ({"needs": [""]}, "needs: '' is no name"),
        ({"needs": [f"t{n}" for n in range(17)]}, "needs has 17 names, the limit is 16"),
    ],
)
def test_what_cannot_work_is_refused_at_the_declaration(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=f"handler 'h': .*{words}"):
        declared(**options)


def test_options_that_are_none_are_not_given() -> None:
    none = dict.fromkeys(("retry_on", "give_up_on", "retry", "delays", "warn_after", "backoff"))
    assert declared(**none).options == declared().options
    assert declared(delays=[1], backoff=None).options.delays_seconds == (1.0,)
    assert declared(delivery="at_most_once", delays=None, backoff=None).options.max_attempts == 1


def test_limits_of_late_work_are_checked_and_published() -> None:
    handler = declared(accept_time=datetime.timedelta(seconds=5), complete_time=30, cancel_slow=True)
    options, spec = handler.options, handler.spec
    assert (options.accept_seconds, options.complete_seconds, options.cancel_slow) == (5.0, 30.0, True)
    assert (spec.accept_seconds, spec.complete_seconds, spec.cancel_slow) == (5.0, 30.0, True)
    assert spec.digest != declared(accept_time=5, complete_time=30).spec.digest
    assert handler.once().options.complete_seconds is None, "a job that may be started once has no other run"
    assert declared(complete_time=0, delivery="at_most_once").options.complete_seconds is None


def test_delays_bring_their_number_of_attempts() -> None:
    options = declared(delays=[1, datetime.timedelta(minutes=1), 3600]).options
    assert (options.delays_seconds, options.max_attempts) == ((1.0, 60.0, 3600.0), 4)
    assert declared(delays=[1, 2], max_attempts=9).options.max_attempts == 9
    assert declared(delays=[1, 2]).once().options.max_attempts == 1


def test_a_policy_may_be_any_plain_callable() -> None:
    class Policy:
        def __call__(self, ctx: JobContext[Any], error: Exception) -> bool:
            return False

        def method(self, ctx: JobContext[Any], error: Exception, base: float = 2.0) -> float:
            return base**ctx.attempt

    assert decided(KeyError(), retry=Policy()) is GIVEN_UP
    assert decided(KeyError(), retry=Policy().method) == RetryDecision(after_seconds=4.0)


def typed_policy(ctx: JobContext[str], error: Exception) -> datetime.timedelta | bool | None:
    return None if ctx.last_attempt else isinstance(error, OSError)


def test_the_options_are_typed() -> None:
    """The type checker reads this call, too."""
    handlers = Handlers()

    @handlers.job(
        delays=[1, 2.5, datetime.timedelta(minutes=1)],
        retry_on=(OSError, Lost),
        give_up_on=KeyError,
        retry=typed_policy,
        warn_after=datetime.timedelta(seconds=5),
    )
    async def typed(number: int) -> int:
        return number

    options = next(iter(handlers)).options
    assert (options.delays_seconds, options.warn_after_seconds) == ((1.0, 2.5, 60.0), 5.0)


# ---------------------------------------------------------------- decisions of the handler itself


@pytest.mark.parametrize("after", ["5s", math.nan, math.inf, True, 1e18, [5], None, 10**400])
def test_a_snooze_needs_a_time(after: Any) -> None:
    with pytest.raises(InputError, match=r"Snooze\(after=.*\) is (no time until the next run|more than 3660 days)"):
        Snooze(after)


def test_a_snooze_below_zero_is_over_at_once() -> None:
    assert (Snooze(-3).after_seconds, Snooze(datetime.timedelta(minutes=2)).after_seconds) == (0.0, 120.0)


def test_decisions_have_words_and_travel() -> None:
    snooze: Snooze = pickle.loads(pickle.dumps(Snooze(2, "busy")))  # noqa: S301 - our own bytes
    assert (snooze.after_seconds, str(snooze), str(Snooze(1))) == (2.0, "busy", "the handler put the job off")
    assert [str(Fail("no such user")), str(Fail())] == ["no such user", "the handler failed its own job"]
    assert all(issubclass(each, Decision) for each in (Retry, Snooze, Fail, Cancel))


def test_a_decision_of_a_subclass_without_the_usual_beginning_has_defaults() -> None:
    class Mine(Snooze):
        def __init__(self) -> None:
            pass

    assert (Mine().after_seconds, str(Mine())) == (None, "the handler put the job off")
