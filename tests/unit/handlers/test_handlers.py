"""Declaring handlers, and the typed way in and out of them."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import msgspec
import pytest

from jobmaster.handlers import Cancel, Handler, Handlers, JobContext, Retry
from jobmaster.model.errors import ConfigError, InputError, InvalidArguments
from jobmaster.model.job import Delivery, ErrorInfo, Headers, Priority, RunMode, StartRule

if TYPE_CHECKING:
    from decimal import Decimal


@dataclasses.dataclass
class Size:
    width: int
    height: int


class Colour(enum.Enum):
    RED = "red"


class Point(msgspec.Struct):
    x: float


async def resize(path: str, width: int = 800, when: datetime.datetime | None = None) -> Size:
    return Size(width, 1)


def declared(function: Callable[..., Any], **options: Any) -> Handler:
    return Handlers().add(function, **options)


def test_the_decorator_returns_the_function_itself_bare_or_with_options() -> None:
    handlers = Handlers()
    assert handlers.job(resize) is resize
    assert handlers.job(name="again", priority="high", timeout=datetime.timedelta(seconds=3))(resize) is resize
    again = handlers.get("again")
    assert again is not None
    assert again.options.priority is Priority.HIGH
    assert again.options.timeout_seconds == 3.0
    assert handlers.names() == ["again", f"{__name__}.resize"]


def test_at_most_once_is_one_fenced_attempt_and_refuses_other_options() -> None:
    options = declared(resize, delivery="at_most_once").options
    assert (options.delivery, options.start, options.max_attempts) == (Delivery.AT_MOST_ONCE, StartRule.FENCED, 1)
    assert declared(resize, delivery="at_most_once", max_attempts=1, start="fenced").options == options
    assert declared(resize).once().options == options, "asked for with a job"
    assert declared(resize, delivery="at_most_once").spec.delivery == "at_most_once"
    for wrong, said in (
        ({"max_attempts": 2}, "one attempt, and max_attempts is 2"),
        ({"backoff": 1, "backoff_jitter": 0.1}, "backoff, backoff_jitter"),
        ({"start": "lease"}, "needs start 'fenced'"),
    ):
        with pytest.raises(ConfigError, match=said):
            declared(resize, delivery="at_most_once", **wrong)
    with pytest.raises(ConfigError, match="'sometimes'"):
        declared(resize, delivery="sometimes")


def test_mode_follows_the_kind_of_function() -> None:
    def plain() -> None: ...

    assert declared(resize).options.mode is RunMode.ASYNC
    assert declared(plain, name="p").options.mode is RunMode.THREAD
    assert declared(plain, name="p", mode="process").options.mode is RunMode.PROCESS
    assert declared(resize, start="fenced").options.start is StartRule.FENCED


def test_arguments_come_back_typed_and_defaults_are_pythons_own() -> None:
    def work(
        size: Size,
        colour: Colour,
        points: list[Point],
        when: datetime.datetime,
        raw: bytes,
        extra: list[int] | None = None,
    ) -> None: ...

    arguments = declared(work, name="w").decode(
        b'{"size":{"width":1,"height":2},"colour":"red","points":[{"x":1.5}],"when":"2026-01-01T00:00:00Z","raw":"eA=="}'
    )
    assert arguments == {
        "size": Size(1, 2),
        "colour": Colour.RED,
        "points": [Point(1.5)],
        "when": datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
        "raw": b"x",
    }


def test_a_call_gets_the_arguments_that_were_sent_and_pythons_own_defaults() -> None:
    missing = object()

    def plain(a: int, b: Any = missing, c: str = "c") -> tuple[Any, ...]:
        return a, b, c

    def named(a: int, *, b: int = 2, c: int) -> tuple[int, ...]:
        return a, b, c

    def nothing() -> str:
        return "called"

    handler = declared(plain)
    assert handler.call(b'{"c":"x","b":null,"a":1}') == (1, None, "x")
    assert handler.call(b'{"a":1}') == (1, missing, "c")
    assert handler.call(b'{"a":1,"c":"x"}') == (1, missing, "x")
    with pytest.raises(InvalidArguments, match="missing argument 'a'; unknown argument 'd'"):
        handler.call(b'{"d":1}')
    assert declared(named).call(b'{"c":3,"a":1}') == (1, 2, 3)
    assert declared(nothing).call(b"{}") == declared(nothing).call(b" {}") == "called"


def test_a_default_that_json_cannot_represent_is_no_problem() -> None:
    marker = object()

    def work(thing: Any = marker, other: object = None) -> bool:
        return thing is marker

    handler = declared(work, name="w")
    assert handler.function(**handler.decode(b"{}")) is True
    assert handler.decode(b'{"thing":null,"other":[1]}') == {"thing": None, "other": [1]}


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (b"{}", "missing argument 'path'"),
        (
            b'{"pth":"a","q":1}',
            "missing argument 'path'; unknown argument 'pth' (did you mean 'path'?); unknown argument 'q'",
        ),
        (b'{"path":1}', "argument 'path': expected str, got int"),
        (b'{"path":"a","width":null}', "argument 'width': expected int, got null"),
        (b"[1]", "must be an object"),
        (b"{", "not JSON"),
        (b'{"path":"\xff"}', "not JSON"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_by_name_at_submit_and_at_run(args: bytes, words: str) -> None:
    handler = declared(resize)
    for way_in in (handler.check, handler.decode):
        with pytest.raises(InvalidArguments) as caught:
            way_in(args)
        assert words in str(caught.value)


def test_constraints_in_the_annotation_hold() -> None:
    def work(count: Annotated[int, msgspec.Meta(ge=1)] = 1) -> None: ...

    with pytest.raises(InvalidArguments, match="argument 'count': expected int >= 1"):
        declared(work, name="w").decode(b'{"count":0}')


def test_the_context_is_given_not_sent() -> None:
    def annotated(job: JobContext, x: int) -> None: ...
    def named(ctx, x: int) -> None: ...  # type: ignore[no-untyped-def]
    def without(x: int) -> None: ...

    assert declared(annotated, name="a").wants_context
    assert declared(named, name="n").wants_context
    assert not declared(without, name="w").wants_context
    assert declared(annotated, name="a").parameters == ("x",)


def test_the_context_holds_the_fields_of_its_run() -> None:
    class Still:
        def boottime(self) -> float:
            return 10.0

        def wall_us(self) -> int:
            return 0

    context = JobContext(
        job_id_bytes=bytes(16), token=1, handler="h", lane="default", priority=Priority.HIGH, attempt=2, max_attempts=2,
        headers=Headers(tags=("t",), metadata={"k": "v"}), deadline_boottime=12.5, clock=Still(),
    )  # fmt: skip
    assert context.job_id == UUID(int=0)
    assert context.job_id_bytes == bytes(16)
    assert context.remaining_seconds == 2.5
    assert context.last_attempt
    assert context.tags == ("t",)
    assert context.metadata == {"k": "v"}
    context.check()
    context.cancelled = True
    with pytest.raises(Cancel):
        context.check()


def positional(a: int, /) -> None: ...
def starred(*many: int) -> None: ...
def double_starred(**many: int) -> None: ...
def late_context(a: int, ctx: int) -> None: ...
def unsendable(a: Handlers) -> None: ...
def unsendable_result() -> Handlers: ...  # type: ignore[empty-body]
def unresolved(a: Decimal) -> None: ...
def generator() -> Any:
    yield 1


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (positional, "positional-only"),
        (starred, r"\*many"),
        (double_starred, r"\*\*many"),
        (late_context, "does not stand first"),
        (unsendable, "parameter 'a' has a type that JSON cannot carry"),
        (unsendable_result, "return value has a type that JSON cannot carry"),
        (unresolved, "'Decimal' is not defined"),
        (generator, "generator"),
        (lambda: 1, "no name of its own"),
        (Size, "not a function"),
    ],
)
def test_what_cannot_be_a_handler_is_refused_at_declaration(function: Callable[..., Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        declared(function)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "async"}, "would block the agent's event loop"),
        ({"mode": "fibre"}, "mode must be one of 'async', 'thread', 'process', not 'fibre'"),
        ({"start": "now"}, "start must be one of 'lease', 'fenced', not 'now'"),
        ({"delivery": 1}, "delivery must be one of 'at_least_once', 'at_most_once', not 1"),
        ({"confirm": "perhaps"}, "confirm must be one of 'return', 'explicit', not 'perhaps'"),
        ({"priority": []}, r"unknown priority \[\]; valid are very_low"),
        ({"priority": True}, "unknown priority True; valid are very_low"),
        ({"priority": 2.0}, "unknown priority 2.0; valid are very_low"),
        ({"name": ""}, "is empty"),
        ({"name": 7}, "must be text"),
        ({"priority": "urgent"}, "valid are very_low"),
        ({"lane": "Pay Roll"}, "not the name of a lane"),
        ({"timeout": 0}, "more than 0"),
        ({"timeout": math.nan}, "must be a number"),
        ({"timeout": True}, "must be a number"),
        ({"max_attempts": 0}, "at least 1"),
        ({"backoff_factor": 0.5}, "at least 1"),
        ({"backoff_jitter": 2}, "at most 1"),
        ({"start": "never"}, "never"),
        ({"retries": 3}, "unknown option retries"),
        ({"name": "a\0b"}, r"U\+0000"),
        ({"name": "x" * 201}, "201 characters"),
    ],
)
def test_options_that_cannot_work_are_refused_at_declaration(options: dict[str, Any], words: str) -> None:
    def plain() -> None: ...

    with pytest.raises(ConfigError, match=words):
        declared(plain, **{"name": "plain", **options})


def test_an_async_function_does_not_run_in_a_thread() -> None:
    with pytest.raises(ConfigError, match="needs a plain 'def'"):
        declared(resize, mode="thread")


def test_one_name_is_one_function() -> None:
    handlers, others = Handlers(), Handlers()
    handlers.add(resize, name="same")
    handlers.add(resize, name="same", priority="low")
    with pytest.raises(ConfigError, match="two functions"):
        handlers.add(positional_free, name="same")
    others.add(positional_free, name="same")
    with pytest.raises(ConfigError, match="two functions"):
        handlers.merge(others)


def positional_free() -> None: ...


def test_results_are_encoded_and_checked_against_the_annotation() -> None:
    handler = declared(resize)
    data = handler.encode_result(Size(1, 2), 1000)
    assert data == b'{"width":1,"height":2}'
    assert handler.decode_result(data) == Size(1, 2)


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (7, "does not fit the return annotation"),
        (None, "does not fit the return annotation"),
        (Size(1, math.nan), "NaN|nan"),  # type: ignore[arg-type]
        (object(), "cannot be encoded"),
        (Size(1, 10**2000), "the limit is 1000"),
    ],
)
def test_a_result_that_cannot_be_recorded_gives_the_reason(result: object, words: str) -> None:
    info = declared(resize).encode_result(result, 1000)
    assert isinstance(info, ErrorInfo)
    assert info.reason == "result"
    import re

    assert re.search(words, info.message)


def test_no_result_is_no_bytes() -> None:
    def untyped(): ...  # type: ignore[no-untyped-def]
    def nothing() -> None: ...

    for function in (untyped, nothing):
        handler = declared(function, name="n")
        assert handler.encode_result(None, 10) is None
        assert handler.decode_result(None) is None
    assert isinstance(declared(nothing, name="n").encode_result(1, 10), ErrorInfo)
    assert declared(untyped, name="n").encode_result({"a": 1}, 10) == b'{"a":1}'


def test_what_agents_publish_changes_with_the_signature() -> None:
    def one(a: int) -> None: ...
    def two(a: int, b: str = "x") -> None: ...

    first, second = declared(one, name="h").spec, declared(two, name="h").spec
    assert first.digest != second.digest
    assert first.digest == declared(one, name="h").spec.digest
    assert second.schema["required"] == ["a"]
    assert second.schema["additionalProperties"] is False


def test_words_of_control_survive_the_way_between_processes() -> None:
    import pickle

    retry = pickle.loads(pickle.dumps(Retry(datetime.timedelta(seconds=2), "busy")))  # noqa: S301 - our own bytes
    assert (retry.after_seconds, str(retry)) == (2.0, "busy")
    assert str(pickle.loads(pickle.dumps(Cancel("gone")))) == "gone"  # noqa: S301


@pytest.mark.parametrize("after", ["5s", math.nan, math.inf, -math.inf, True, 1e18, [5]])
def test_a_pause_that_makes_no_sense_is_one_clear_error(after: object) -> None:
    with pytest.raises(InputError, match=r"Retry\(after=.*\) is (no time|more than 3660 days)"):
        Retry(after=after)  # type: ignore[arg-type]


def test_a_pause_below_zero_is_none_at_all() -> None:
    assert (Retry(after=-3).after_seconds, Retry().after_seconds) == (0.0, None)
    assert Retry(after=datetime.timedelta(minutes=2)).after_seconds == 120.0
