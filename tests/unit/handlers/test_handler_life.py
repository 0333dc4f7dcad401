"""Lifespans, middleware and dependencies as they are declared: what is refused, and what merged registries keep."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any

import pytest
from uncalled_for import CallArgument, Depends, Shared

from jobmaster import Handlers, JobContext, current_job
from jobmaster.clock import new_id
from jobmaster.handlers import load_handlers
from jobmaster.handlers.lifespan import OpenLifespans
from jobmaster.model.errors import ConfigError, InputError, InvalidArguments
from jobmaster.model.job import Priority

steps: list[str] = []
colour: ContextVar[str] = ContextVar("colour", default="none")


@pytest.fixture(autouse=True)
def no_steps() -> None:
    steps.clear()


@contextlib.asynccontextmanager
async def lifespan() -> AsyncIterator[str]:
    steps.append("enter")
    colour.set("red")
    try:
        yield "resource"
    finally:
        steps.append("leave")


@contextlib.asynccontextmanager
async def other() -> AsyncIterator[int]:
    steps.append("enter other")
    yield 2
    steps.append("leave other")


@contextlib.asynccontextmanager
async def grouped() -> AsyncIterator[asyncio.TaskGroup]:
    async with asyncio.TaskGroup() as group:
        yield group


@contextlib.asynccontextmanager
async def failing() -> AsyncIterator[None]:
    raise OSError("no route to the database")
    yield


@contextlib.asynccontextmanager
async def unconfigured() -> AsyncIterator[None]:
    raise ConfigError("no password is set")
    yield


@contextlib.asynccontextmanager
async def hanging() -> AsyncIterator[None]:
    await asyncio.Event().wait()
    yield


@contextlib.contextmanager
def synchronous() -> Iterator[None]:
    yield


async def generator() -> AsyncIterator[None]:
    yield


async def coroutine() -> None:
    pass


@contextlib.asynccontextmanager
async def with_parameter(app: object) -> AsyncIterator[None]:
    yield


def returns_text() -> str:
    return "text"


def context(**over: Any) -> JobContext:
    given = {
        "job_id_bytes": new_id(), "token": 1, "handler": "h", "lane": "default", "priority": Priority.MEDIUM, "attempt": 1,
        "max_attempts": 4,
    }  # fmt: skip
    return JobContext(**{**given, **over})


# ---------------------------------------------------------------- lifespans


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (synchronous, "is no async context manager"),
        (generator, "returns no async context manager"),
        (coroutine, "returns no async context manager"),
        (with_parameter, "called without arguments: missing a required argument: 'app'"),
        (lifespan(), "give the function itself, without calling it"),
        (int, "is no async context manager"),
        ("tasks.lifespan", "is not a function"),
    ],
)
def test_what_cannot_be_a_lifespan_is_refused_when_the_registry_is_made(given: Any, words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        Handlers(lifespan=given)
    assert words in str(raised.value)


def declared(*lifespans: Callable[[], Any] | None) -> Handlers:
    joined = Handlers()
    for number, function in enumerate(lifespans):
        registry = Handlers(lifespan=function)
        for again in range(2):

            async def work() -> None: ...

            registry.add(work, name=f"work.{number}.{again}")
        joined.merge(registry)
    return joined


async def test_each_registry_keeps_its_lifespan_and_each_is_entered_once() -> None:
    handlers = declared(lifespan, None, other)
    held = OpenLifespans(handlers, 5.0)
    await held.open()
    assert steps == ["enter", "enter other"]
    found = {handler.name: held.resources.get(handler.lifespan) for handler in handlers if handler.lifespan}
    assert found == {"work.0.0": "resource", "work.0.1": "resource", "work.2.0": 2, "work.2.1": 2}
    assert held.context[colour] == "red"
    assert colour.get() == "none"
    assert await held.close(5.0) is None
    assert steps == ["enter", "enter other", "leave other", "leave"]
    assert not held.ended.is_set()


async def test_a_lifespan_that_fails_is_named_with_its_line_and_the_others_are_left() -> None:
    held = OpenLifespans(declared(lifespan, failing), 5.0)
    with pytest.raises(ConfigError) as raised:
        await held.open()
    said = str(raised.value)
    assert "failing failed: OSError: no route to the database" in said
    assert f'File "{__file__}", line' in said
    assert said.endswith("in failing)")
    assert steps == ["enter", "leave"]


async def test_an_error_of_the_configuration_in_a_lifespan_is_named_with_its_line() -> None:
    handlers = Handlers(lifespan=unconfigured)
    handlers.job(name="never")(coroutine)
    with pytest.raises(ConfigError) as raised:
        await OpenLifespans(handlers, 5.0).open()
    assert f"lifespan {__name__}.unconfigured failed: ConfigError: no password is set" in str(raised.value)
    assert f'File "{__file__}", line ' in str(raised.value)


async def test_a_lifespan_that_hangs_is_named_with_its_line_and_the_limit() -> None:
    held = OpenLifespans(declared(hanging), 0.05)
    opening = asyncio.ensure_future(held.open())
    await asyncio.sleep(0.01)
    line = hanging.__wrapped__.__code__.co_firstlineno + 2  # type: ignore[attr-defined]
    place = f'hanging, at File "{__file__}", line {line}, in hanging'
    assert held.waits_at is not None
    assert held.waits_at.endswith(place)
    with pytest.raises(ConfigError) as raised:
        await opening
    assert place in str(raised.value)
    assert "within 0.05 s" in str(raised.value)
    assert "lifespan_timeout" in str(raised.value)


async def test_a_function_that_returns_something_else_is_refused_when_it_is_entered() -> None:
    with pytest.raises(ConfigError, match="returned str, which is no async context manager"):
        await OpenLifespans(declared(returns_text), 5.0).open()


async def test_a_lifespan_that_is_not_left_in_time_is_cancelled_and_named() -> None:
    @contextlib.asynccontextmanager
    async def clings() -> AsyncIterator[None]:
        yield
        await asyncio.Event().wait()

    held = OpenLifespans(declared(clings), 5.0)
    await held.open()
    said = await held.close(0.02)
    assert said is not None
    assert "not left within" in said
    assert "in clings" in said


async def test_a_task_group_of_a_lifespan_that_fails_ends_the_lifespan() -> None:
    held = OpenLifespans(declared(grouped), 5.0)
    await held.open()
    (group,) = held.resources.values()
    assert isinstance(group, asyncio.TaskGroup)

    async def breaks() -> None:
        raise RuntimeError("lost connection")

    group.create_task(breaks())
    async with asyncio.timeout(5):
        await held.ended.wait()
    said = await held.close(1.0)
    assert said is not None
    assert "ExceptionGroup" in said


async def test_without_lifespans_nothing_is_started() -> None:
    held = OpenLifespans(declared(None), 5.0)
    before = asyncio.all_tasks()
    await held.open()
    assert not held.needed
    assert asyncio.all_tasks() == before
    assert await held.close(1.0) is None


def test_resources_of_a_registry_without_a_lifespan_raise_an_error() -> None:
    with pytest.raises(InputError, match="registry of this handler has no lifespan"):
        _ = context().resources.http
    assert not context().resources


# ---------------------------------------------------------------- middleware


def test_what_cannot_be_middleware_is_refused() -> None:
    handlers = Handlers()

    def plain(ctx: JobContext, run: Any) -> None: ...

    async def short(ctx: JobContext) -> object: ...

    async def long(ctx: JobContext, run: Any, more: int) -> object: ...

    for wrong, words in ((plain, "is no 'async def'"), (short, "cannot be called"), (long, "argument: 'more'")):
        with pytest.raises(ConfigError, match=words):
            handlers.around(wrong)  # type: ignore[type-var]
    with pytest.raises(ConfigError, match="is no 'async def'"):
        handlers.around(3)  # type: ignore[type-var]


def middleware(name: str) -> Callable[..., Any]:
    async def around(ctx: JobContext, run: Callable[[], Awaitable[object]]) -> object:
        steps.append(f"{name} before {ctx.handler}")
        result = await run()
        steps.append(f"{name} after")
        return [name, result]

    return around


async def test_the_first_middleware_is_the_outermost_also_for_handlers_declared_before() -> None:
    handlers = Handlers()

    @handlers.job(name="before")
    async def before(ctx: JobContext, value: int) -> int:
        assert ctx.handler == "h"
        return value

    handlers.around(middleware("one"))
    handlers.around(middleware("two"))
    handler = handlers.get("before")
    assert handler is not None
    assert handler.needs_context
    assert await handler.run(context(), {"value": 3}) == ["one", ["two", 3]]
    assert steps == ["one before h", "two before h", "two after", "one after"]
    assert handler.once().around == handler.around
    assert await before(context(), 3) == 3, "the function stays what it was"


async def test_merged_handlers_keep_the_middleware_of_their_own_registry() -> None:
    one, two, joined = Handlers(), Handlers(), Handlers()
    for registry, name in ((one, "a"), (two, "b"), (joined, "c")):

        async def work() -> int:
            return 1

        registry.add(work, name=name)
    joined.merge(one)
    joined.merge(two)
    one.around(middleware("one"))
    joined.around(middleware("joined"))
    got = {handler.name: await handler.run(context(), {}) for handler in joined}
    assert got == {"a": ["one", 1], "b": 1, "c": ["joined", 1]}
    plain = joined.get("b")
    assert plain is not None
    assert not plain.needs_context


# ---------------------------------------------------------------- dependencies


async def connection() -> AsyncIterator[str]:
    steps.append("connect")
    yield "connection"
    steps.append("close")


managed = contextlib.asynccontextmanager(connection)


def of_user(user: str = CallArgument()) -> str:
    return f"data of {user}"


def pool() -> object:
    steps.append("pool")
    return object()


async def refuses() -> str:
    raise OSError("no database")


async def test_dependencies_are_no_arguments_and_are_resolved_around_the_call() -> None:
    handlers = Handlers()

    @handlers.job(name="h")
    async def h(
        user: str,
        db: str = Depends(managed),
        data: str = Depends(of_user),
        again: Annotated[object, Depends(pool)] = None,
    ) -> str:
        steps.append("run")
        return f"{user}: {db}, {data}"

    handler = handlers.get("h")
    assert handler is not None
    assert handler.parameters == ("user",)
    assert list(handler.spec.schema["properties"]) == ["user"]  # type: ignore[call-overload]
    with pytest.raises(InvalidArguments, match="unknown argument 'db'"):
        handler.check(b'{"user":"u","db":"mine"}')
    assert await handler.run(context(), handler.decode(b'{"user":"u"}')) == "u: connection, data of u"
    assert sorted(steps) == sorted(["connect", "pool", "run", "close"])
    assert steps[-1] == "close"


async def test_a_dependency_that_fails_fails_the_run_with_its_own_error() -> None:
    handlers = Handlers()

    @handlers.job(name="h")
    async def h(db: str = Depends(refuses)) -> None:
        steps.append("run")

    handler = handlers.get("h")
    assert handler is not None
    with pytest.raises(OSError, match="no database") as raised:
        await handler.run(context(), {})
    assert raised.value.__notes__ == ["while the dependency 'db' was resolved"]
    assert steps == []


async def test_a_shared_dependency_is_made_once_in_a_process() -> None:
    handlers = Handlers()

    @handlers.job(name="h")
    async def h(shared: object = Shared(pool)) -> int:
        return id(shared)

    handler = handlers.get("h")
    assert handler is not None
    held = OpenLifespans(handlers, 5.0)
    await held.open()

    async def once() -> object:
        return await handler.run(context(), {})

    loop = asyncio.get_running_loop()
    got = {await loop.create_task(once(), context=held.context) for _ in range(3)}
    assert len(got) == 1
    assert steps == ["pool"]
    assert await held.close(1.0) is None


def test_a_dependency_on_an_argument_that_the_handler_lacks_is_refused() -> None:
    async def h(data: str = Depends(of_user)) -> None: ...

    with pytest.raises(ConfigError, match="a dependency takes 'user', and the handler has no such parameter"):
        Handlers().add(h, name="h")


def test_there_is_no_current_job_outside_of_a_handler() -> None:
    assert current_job() is None


def test_a_missing_library_for_dependencies_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "handlers_with_dependencies.py").write_text("from uncalled_for import Depends\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "uncalled_for", None)
    with pytest.raises(ConfigError) as raised:
        load_handlers(["handlers_with_dependencies"])
    assert raised.value.hint == 'pip install "jobmaster-cluster[depends]"'
