"""``spark_job``: a function over a Spark session becomes a handler. It runs in a driver process of its own."""

from __future__ import annotations

import inspect
import os
import socket
import sys
import typing
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, Unpack

import msgspec

from jobmaster.handlers import Handlers, JobContext
from jobmaster.handlers.registry import default_name
from jobmaster.model.errors import ConfigError, InputError
from jobmaster.pipeline.jobs.driver_call import PROGRESS, call_driver
from jobmaster.pipeline.jobs.orders import FunctionOrder
from jobmaster.pipeline.spark.session import DEFAULT_MASTER
from jobmaster.server_addresses import master_address
from jobmaster.settings.current import current_settings
from jobmaster.settings.loader import load_settings
from jobmaster.settings.model import ClusterSettings
from jobmaster.settings.urls import is_dsn

if TYPE_CHECKING:
    from jobmaster.handlers.options import JobOptions

F = TypeVar("F", bound=Callable[..., Any])
_UNKNOWN_HERE = {"SparkSession": object, "DataFrame": object}
"""Types of Spark, which a module of handlers may import under TYPE_CHECKING only."""


class SparkFunction(NamedTuple):
    """What the handler of a function takes and returns."""

    parameters: tuple[inspect.Parameter, ...]
    """The arguments of the job."""
    hints: dict[str, Any]


def spark_job(
    handlers: Handlers,
    /,
    *,
    master: str = DEFAULT_MASTER,
    conf: Mapping[str, str] | None = None,
    **options: Unpack[JobOptions],
) -> Callable[[F], F]:
    """Declare a handler whose function gets a Spark session and the job's arguments::

        @spark_job(handlers, name="sales.totals", master="spark://host:7077", timeout=3600)
        def totals(spark: SparkSession, day: str) -> dict[str, int]: ...

    Each run is one Spark application: a process imports the function's module, opens a session, calls the function, and
    stops the session. Its result is the job's result. What it prints is kept as lines of the job, the progress of its stages
    is ``ctx.progress``. ``Retry``, ``Fail``, ``Cancel`` and ``Snooze`` work in it. The function stays what it was, so a test
    calls it with a session; a submit names the handler: ``call("sales.totals", day="2030-01-31")``.

    Args:
        master: of Spark: ``local[*]``, ``spark://host:7077``, ``sc://host`` ...
        conf: settings of Spark.
        options: as of ``Handlers.job``, without ``mode``.

    Raises:
        ConfigError: the function cannot be a handler.
    """
    refuse_mode(options)

    def declare(function: F) -> F:
        name = handler_name(function, options)
        own = spark_function(function)
        runner = _runner(function, name, own, master, dict(conf or {}))
        given = options.copy()
        given["name"] = name
        handlers.add(runner, stands_for=function, **given)
        return function

    return declare


def refuse_mode(options: JobOptions) -> None:
    """Raise ``ConfigError`` when the options name a mode."""
    if "mode" in options:
        raise ConfigError("a Spark job has no mode: it runs in a process of its own", hint="leave 'mode' out")


def handler_name(function: Callable[..., Any], options: JobOptions) -> str:
    """Name of the handler of a function that a driver imports and calls.

    Raises:
        ConfigError: a driver cannot do that.
    """
    name = options.get("name") or default_name(function)
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(
            f"handler {name!r}: a Spark job is a plain function", hint="write 'def' in place of 'async def'"
        )
    if "<locals>" in function.__qualname__:
        raise ConfigError(f"handler {name!r}: its driver cannot import a function that is inside another one")
    return name


def cluster_options(*, dsn_env: str | None = None) -> dict[str, str]:
    """Options of the data source ``jobmaster`` that name the cluster of the job, in a Spark job. The address may have a
    password; Spark hides option ``url``.

    Args:
        dsn_env: variable with the address to log in with, in place of that of the agent. Where there are roles, the agent's
            may not read all that the data source has; the viewer's may.

    Raises:
        InputError: the variable has no address. Unavailable: the embedded server is meant and none is running.
    """
    settings = settings_of_job(dsn_env)
    return {"url": master_address(settings), "schema": settings.schema_name()}


def settings_of_job(dsn_env: str | None) -> ClusterSettings:
    """The settings of the agent, for a program of the same cluster.

    Args:
        dsn_env: variable of this machine with the address of the master, used for reads and writes in place of
            ``master.dsn``, ``master.read_dsn`` and ``master.password_command``; ``None``: those.

    Raises:
        InputError: the variable has no address.
    """
    settings = current_settings() or load_settings(None, os.environ).settings
    if dsn_env is None:
        return settings
    dsn = os.environ.get(dsn_env, "")
    if not is_dsn(dsn):
        raise InputError(
            f"dsn_env names {dsn_env}, which is no address of a PostgreSQL on {socket.gethostname()}",
            hint=f"start the agent with {dsn_env}=postgresql://..., or leave dsn_env out",
        )
    master = msgspec.structs.replace(settings.master, dsn=dsn, read_dsn=None, password_command=None)
    return msgspec.structs.replace(settings, master=master)


def spark_function(function: Callable[..., Any]) -> SparkFunction:
    """The signature of a function over a session.

    Raises:
        ConfigError: it has no parameter for the session.
    """
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters or parameters[0].kind is inspect.Parameter.KEYWORD_ONLY:
        raise ConfigError(
            f"{function.__module__}.{function.__qualname__} has no parameter for the Spark session",
            hint="a Spark job is a function (spark, ...)",
        )
    hints = typing.get_type_hints(function, localns=_UNKNOWN_HERE, include_extras=True)
    hints.pop(parameters[0].name, None)
    return SparkFunction(tuple(parameters[1:]), hints)


def _runner(
    function: Callable[..., Any], name: str, own: SparkFunction, master: str, conf: dict[str, str]
) -> Callable[..., Any]:
    """The handler: it runs the function in a driver."""
    signature = inspect.Signature(own.parameters)

    async def run(ctx: JobContext[Any], *given: Any, **named: Any) -> Any:
        arguments = msgspec.to_builtins(dict(signature.bind(*given, **named).arguments))
        every = {**PROGRESS, **conf}
        module, qualname = function.__module__, function.__qualname__
        order = FunctionOrder(module, qualname, arguments, master, every, name, tuple(sys.path), current_settings())
        return await call_driver(ctx, order)

    stand_in(run, function, own)
    return run


def stand_in(run: Callable[..., Any], function: Callable[..., Any], own: SparkFunction) -> None:
    """Give the handler ``run`` the place of the function that it stands for, and these parameters after its context."""
    context = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    returns = own.hints.get("return", inspect.Signature.empty)
    vars(run)["__signature__"] = inspect.Signature([context, *own.parameters], return_annotation=returns)
    run.__annotations__ = {"ctx": JobContext, **own.hints}
    run.__module__, run.__qualname__, run.__doc__ = function.__module__, function.__qualname__, function.__doc__
