"""``spark_map``: a function over Arrow record batches becomes a handler, whose jobs are rows in Spark."""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, Unpack

import msgspec
from msgspec import inspect as types

from jobmaster.handlers import Fail, Handlers, JobContext
from jobmaster.model.errors import ConfigError
from jobmaster.model.job import Delivery
from jobmaster.pipeline.jobs.driver_call import PROGRESS
from jobmaster.pipeline.jobs.functions import SparkFunction, handler_name, refuse_mode, stand_in
from jobmaster.pipeline.jobs.map_application import MapApplications, MapTerms
from jobmaster.pipeline.jobs.map_rows import ERROR, JOB
from jobmaster.pipeline.jobs.orders import MapOrder
from jobmaster.pipeline.spark.session import DEFAULT_MASTER
from jobmaster.settings.current import current_settings

if TYPE_CHECKING:
    from jobmaster.handlers.options import JobOptions

F = TypeVar("F", bound=Callable[..., Any])
_DECLARED = "__spark_map__"
_REPEATED = "Spark gives rows of a chunk to the function again when a part of it fails"
_Fielded = types.StructType | types.DataclassType
_SPARK_TYPES: Mapping[type[types.Type], str] = {
    types.BoolType: "boolean",
    types.BytesType: "binary",
    types.DateTimeType: "timestamp",
    types.DateType: "date",
    types.FloatType: "double",
    types.IntType: "bigint",
    types.StrType: "string",
    types.UUIDType: "string",
}


class DeclaredMap(NamedTuple):
    """What ``spark_map`` was given for a function, for its driver."""

    row: type
    result: Any
    types: Mapping[str, Any]
    """Fields of ``row``, and their types."""
    columns: str
    """The same with their types, in Spark's words."""


def spark_map(
    handlers: Handlers,
    /,
    *,
    row: type,
    result: Any = dict[str, Any],
    master: str = DEFAULT_MASTER,
    conf: Mapping[str, str] | None = None,
    rows: int = 1000,
    gather_seconds: float = 1.0,
    idle_seconds: float = 30.0,
    start_seconds: float = 300.0,
    **options: Unpack[JobOptions],
) -> Callable[[F], F]:
    """Declare a handler whose function is called for many jobs at once, over Arrow record batches in Spark::

        @spark_map(handlers, name="pictures.measure", row=Picture, result=Size, master="spark://host:7077", timeout=3600)
        def measure(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]: ...

    The jobs are jobs as all others: each has its arguments, its attempts and its outcome, and any submit, batch or schedule
    makes them. An agent process gathers those that it has started, and gives them as one chunk to its Spark application, in
    which a chunk is one Spark job: ``DataFrame.mapInArrow`` with the function. The application starts with the first job.

    The function gets what ``mapInArrow`` gives, an iterator of record batches. Their columns are ``job_id`` and the fields
    of ``row``. It yields record batches with ``job_id`` and the fields of ``result``: one row for each job, in any order.
    A text in the column ``error``, which may be left out, is the error of that job. What the function raises is the error of
    the jobs that it has taken and not answered; ``Retry``, ``Fail``, ``Cancel`` and ``Snooze`` work.

    Args:
        row: a dataclass or ``msgspec.Struct``; its fields are the arguments of a job.
        result: type of a job's result.
        master: of Spark: ``local[*]``, ``spark://host:7077``, ``sc://host`` ...
        conf: settings of Spark.
        rows: jobs of one chunk, at most. An agent starts no more jobs than it has slots.
        gather_seconds: how long a chunk waits for further jobs.
        idle_seconds: how long the application waits for jobs before it ends.
        start_seconds: how long its driver may take until it is ready. One that takes longer is ended, and the attempts of
            the jobs that wait for it have failed.
        options: as of ``Handlers.job``, without ``mode``, ``secret`` and a ``delivery`` of at most once. A job whose submit
            asks for that fails before Spark has it.

    Raises:
        ConfigError: the function cannot be a handler, a field has a type that is no column of Spark, or a number is too low.
    """
    _check_options(options)
    terms = _checked_terms(MapTerms(rows, gather_seconds, idle_seconds, start_seconds))

    def declare(function: F) -> F:
        name = handler_name(function, options)
        declared, parameters = _columns(row, result, name)
        vars(function)[_DECLARED] = declared
        hints = {**typing.get_type_hints(row, include_extras=True), "return": result}
        runner = _runner(function, name, terms, master, {**PROGRESS, **(conf or {})})
        stand_in(runner, function, SparkFunction(parameters, hints))
        given = options.copy()
        given["name"] = name
        handlers.add(runner, stands_for=function, **given)
        return function

    return declare


def _check_options(options: JobOptions) -> None:
    refuse_mode(options)
    if "secret" in options:
        raise ConfigError(
            "a job of spark_map has no secret arguments: lines of its driver are kept with another job of the chunk",
            hint="give the function a name under which it finds the secret value",
        )
    if options.get("delivery") == Delivery.AT_MOST_ONCE:
        raise ConfigError(
            f"spark_map has no delivery={Delivery.AT_MOST_ONCE.value!r}: {_REPEATED}",
            hint="leave delivery out, and let the function be safe to repeat; or declare a handler without Spark",
        )


def _checked_terms(terms: MapTerms) -> MapTerms:
    if type(terms.rows) is not int:
        raise ConfigError(
            f"spark_map: rows={terms.rows!r} is no whole number", hint="give the number of jobs of a chunk"
        )
    for name, least in (("rows", 1), ("gather_seconds", 0), ("idle_seconds", 0), ("start_seconds", 1)):
        value = getattr(terms, name)
        if not value >= least:
            raise ConfigError(f"spark_map: {name}={value!r} is below {least}", hint=f"give {least} or more")
    return terms


def declared_map(function: Callable[..., Any]) -> DeclaredMap:
    """What ``spark_map`` was given for the function."""
    found: DeclaredMap = vars(function)[_DECLARED]
    return found


def _runner(
    function: Callable[..., Any], name: str, terms: MapTerms, master: str, conf: dict[str, str]
) -> Callable[..., Any]:
    """The handler: it is a row of an application."""
    result = declared_map(function).result
    module, qualname = function.__module__, function.__qualname__

    def order() -> MapOrder:
        return MapOrder(module, qualname, master, conf, name, tuple(sys.path), current_settings())

    applications = MapApplications(terms, order)

    async def run(ctx: JobContext[Any], *given: Any, **named: Any) -> Any:
        if ctx.headers.at_most_once:
            raise Fail(
                f"the submit asked for delivery={Delivery.AT_MOST_ONCE.value!r}, which spark_map does not have: {_REPEATED}. "
                "The function was not called; submit the job without delivery"
            )
        bound = vars(run)["__signature__"].bind(ctx, *given, **named)
        arguments = {key: value for key, value in bound.arguments.items() if key != "ctx"}
        answer = await applications.answer(ctx, msgspec.to_builtins(arguments))
        return msgspec.json.decode(answer, type=result)

    return run


def _columns(row: type, result: Any, name: str) -> tuple[DeclaredMap, tuple[inspect.Parameter, ...]]:
    """The columns of the rows, and the parameters of the handler."""
    try:
        found = types.type_info(row)
        returned = types.type_info(result)
    except (TypeError, NameError, RecursionError) as error:
        raise ConfigError(f"handler {name!r}: {error}") from None
    if not isinstance(found, _Fielded) or not found.fields:
        raise ConfigError(
            f"handler {name!r}: row={row!r} has no fields",
            hint="give a dataclass or a msgspec.Struct with the arguments",
        )
    if isinstance(returned, _Fielded) and not returned.fields:
        raise ConfigError(
            f"handler {name!r}: result={result!r} has no fields",
            hint="give a dataclass or a msgspec.Struct with the columns of a result; without result any columns are taken",
        )
    columns, parameters = [], []
    for field in found.fields:
        if field.name in (JOB, ERROR, "ctx"):
            raise ConfigError(
                f"handler {name!r}: a field of row cannot be named {field.name!r}", hint="name it otherwise"
            )
        columns.append(f"`{field.name}` {_spark_type(field.type, f'handler {name!r}: field {field.name!r}')}")
        default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        if default is msgspec.NODEFAULT:
            default = inspect.Parameter.empty
        parameters.append(inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default))
    hints = typing.get_type_hints(row, include_extras=True)
    fields = {field.name: hints[field.name] for field in found.fields}
    return DeclaredMap(row, result, fields, ", ".join(columns)), tuple(parameters)


def _spark_type(kind: types.Type, where: str) -> str:
    """A type in Spark's words."""
    match kind:
        case types.Metadata():
            return _spark_type(kind.type, where)
        case types.ListType():
            return f"array<{_spark_type(kind.item_type, where)}>"
        case types.DictType() if isinstance(kind.key_type, types.StrType):
            return f"map<string,{_spark_type(kind.value_type, where)}>"
        case types.StructType() | types.DataclassType():
            return f"struct<{','.join(f'`{one.name}`:{_spark_type(one.type, where)}' for one in kind.fields)}>"
        case types.UnionType():
            others = [one for one in kind.types if not isinstance(one, types.NoneType)]
            if len(others) == 1:
                return _spark_type(others[0], where)
    if (found := _SPARK_TYPES.get(type(kind))) is None:
        raise ConfigError(
            f"{where} has a type that is no column of Spark ({type(kind).__name__})",
            hint="bool, int, float, str, bytes, date, datetime, UUID; lists, dictionaries by str and dataclasses of these",
        )
    return found
