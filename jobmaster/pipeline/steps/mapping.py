"""Maps columns of the input to columns of a write: key, arguments, and the optional columns."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from jobmaster.model.agent import HandlerSpec
from jobmaster.model.errors import InputError, InvalidArguments
from jobmaster.pipeline.datasource.source_files import FILE
from jobmaster.pipeline.spark.errors import run_spark
from jobmaster.pipeline.steps.inputs import CORRUPT

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

WHOLE_ROW = "*"
_PAIR = re.compile(r"^(?P<name>[A-Za-z_]\w*)=(?P<expression>.+)$", re.DOTALL)


class RowMapping(NamedTuple):
    """The column, or expression of Spark's SQL, of each part of a job."""

    key: tuple[str, ...]
    """Columns that make a row unique; ``*``: all of them together."""
    arguments: Mapping[str, str] = {}
    """Argument -> expression; other arguments come from columns of the same name."""
    due: str | None = None
    priority: str | None = None
    lane: str | None = None


class MappedRows(NamedTuple):
    """Rows for a write, and the columns they used."""

    rows: DataFrame
    arguments: tuple[str, ...]
    unused: tuple[str, ...]
    """Columns without a use."""


def parse_pairs(pairs: Sequence[str], option: str) -> dict[str, str]:
    """``name=expression`` texts.

    Raises:
        InputError: one is not of that form, or a name comes twice.
    """
    found: dict[str, str] = {}
    for pair in pairs:
        match = _PAIR.match(pair)
        if match is None:
            raise InputError(f"{option} {pair!r} is not NAME=EXPRESSION", hint=f"such as {option} width=w")
        if match["name"] in found:
            raise InputError(f"{option} names {match['name']!r} twice")
        found[match["name"]] = match["expression"]
    return found


def map_rows(frame: DataFrame, mapping: RowMapping, spec: HandlerSpec | None, file: Column | None = None) -> MappedRows:
    """The rows of ``frame`` with the columns of a write.

    Args:
        file: number of the file of a row; ``None``: the rows get no such column.

    Raises:
        InputError: a column or an expression is wrong.
        InvalidArguments: a required argument has neither a mapping nor a column.
    """
    from pyspark.sql import functions as F

    columns = [name for name in frame.columns if name != CORRUPT]
    arguments = _arguments(columns, mapping, spec)
    if missing := [name for name in mapping.key if name != WHOLE_ROW and name not in columns]:
        raise InputError(f"there is no column {missing[0]!r} for the key", hint=f"columns are {', '.join(columns)}")
    fields = [_expression(frame, text, f"argument {name!r}").alias(name) for name, text in arguments.items()]
    args = F.to_json(F.struct(*fields)) if fields else F.lit("{}")
    if CORRUPT in frame.columns:
        # An unreadable line is passed on as it is, and rejected with its text.
        args = F.coalesce(F.col(CORRUPT), args)
    row: list[Any] = [_key(frame, mapping.key, columns).alias("key"), args.alias("args")]
    for name, text in (("due_at", mapping.due), ("priority", mapping.priority), ("lane", mapping.lane)):
        if text is not None:
            row.append(_expression(frame, text, name).alias(name))
    if file is not None:
        row.append(file.alias(FILE))
    used = {*mapping.key, *arguments.values(), mapping.due, mapping.priority, mapping.lane}
    text = " ".join(map(str, used))
    unused = tuple(name for name in columns if name not in used and not re.search(rf"\b{re.escape(name)}\b", text))
    rows = run_spark(lambda: frame.select(*row))
    return MappedRows(rows, tuple(arguments), unused if WHOLE_ROW not in mapping.key else ())


def _arguments(columns: Sequence[str], mapping: RowMapping, spec: HandlerSpec | None) -> dict[str, str]:
    """Argument -> expression, in the order of the signature."""
    if spec is None:
        return dict(mapping.arguments) if mapping.arguments else {name: f"`{name}`" for name in columns}
    schema: Any = spec.schema
    known = list(schema.get("properties", {}))
    if unknown := [name for name in mapping.arguments if name not in known]:
        raise InvalidArguments(
            f"handler {spec.name!r} has no argument {unknown[0]!r}", hint=f"it takes ({', '.join(known)})"
        )
    found = {}
    for name in known:
        if name in mapping.arguments:
            found[name] = mapping.arguments[name]
        elif name in columns:
            found[name] = f"`{name}`"
    missing = [name for name in schema.get("required", ()) if name not in found]
    if missing:
        raise InvalidArguments(
            f"handler {spec.name!r} needs argument {', '.join(map(repr, missing))}, and no column of that name is there",
            hint=f"give --map {missing[0]}=EXPRESSION; columns are {', '.join(columns)}",
        )
    return found


def _key(frame: DataFrame, names: Sequence[str], columns: Sequence[str]) -> Column:
    from pyspark.sql import functions as F

    if WHOLE_ROW in names:
        every = [F.col(f"`{name}`") for name in frame.columns]
        return F.sha2(F.to_json(F.struct(*every)), 256)
    if len(names) == 1:
        return F.col(f"`{names[0]}`").cast("string")
    return F.to_json(F.array(*(F.coalesce(F.col(f"`{name}`").cast("string"), F.lit("")) for name in names)))


def _expression(frame: DataFrame, text: str, what: str) -> Column:
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as F

    try:
        column = F.expr(text)
        _ = frame.select(column).schema  # analysed now, so a wrong name is found before the job runs
    except PySparkException as error:
        first = (str(error).strip().splitlines() or [""])[0]
        raise InputError(f"{what}: the expression {text!r} does not fit: {first}") from None
    return column
