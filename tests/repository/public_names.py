"""Every public name with its signature, and the record of those that the last release had (``public_names.json``).

A program of a user may rely on a public name: of the Python API, the command line, the configuration, the HTTP API, the views
and functions in SQL, the metrics. ``python -m tests.repository.public_names`` writes the record anew, which is a step of a
release (docs/releasing.md); it starts a PostgreSQL for the names in SQL. Until then tests compare: nothing may be lost.
"""

from __future__ import annotations

import ast
import asyncio
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg
import click
import griffe

from jobmaster.cli.main import root as command_line
from jobmaster.telemetry import METRICS
from tests.repository.api_reference import (
    MODULES,
    ROOT,
    clean,
    members_of,
    package_read,
    public_names,
    signatures,
    target,
)

RECORD = Path(__file__).with_name("public_names.json")
VIEWS = (
    "jobs", "attempts", "ledger", "bucket_owners", "bucket_status", "agent_status", "schedules", "schedule_fires", "batches",
)  # fmt: skip
FUNCTIONS = ("submit", "change_job", "signal")
Names = dict[str, str]
"""Name -> signature; empty where a name has none."""


class Difference(NamedTuple):
    """What users would notice."""

    name: str
    what: str

    def __str__(self) -> str:
        return f"{self.name}: {self.what}"


# ---------------------------------------------------------------- the names that there are


def python_names() -> Names:
    """Of each public module: functions and classes, and public members of classes."""
    package = package_read()
    found: Names = {}
    for module in MODULES:
        for name in public_names(module):
            one = target(package, module, name)
            found[f"{module}.{name}"] = signatures(one)[-1] if isinstance(one, griffe.Function) else ""
            if isinstance(one, griffe.Class):
                known = set(public_names(module))
                found |= {f"{module}.{name}: {base}": "" for base in map(str, one.bases) if base in known}
                for member, definition in members_of(one).items():
                    shown = signatures(definition)[-1] if isinstance(definition, griffe.Function) else ""
                    found[f"{module}.{name}.{member}"] = shown
                if (init := one.members.get("__init__")) is not None and isinstance(init, griffe.Function):
                    found[f"{module}.{name}()"] = clean(init.signature())
    return found


def command_names() -> Names:
    """Commands, their options, and their arguments in order."""

    def walk(command: click.Command, path: str) -> Iterator[tuple[str, str]]:
        arguments = [each for each in command.params if isinstance(each, click.Argument)]
        yield (
            path,
            " ".join(f"{each.name}{'' if each.required else '?'}{'...' * (each.nargs < 0)}" for each in arguments),
        )
        for each in command.params:
            if isinstance(each, click.Option) and not each.hidden:
                kind = "required" if each.required else "flag" if each.is_flag else "value"
                for option in (*each.opts, *each.secondary_opts):
                    yield f"{path} {option}", kind
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                found = command.get_command(context, name)
                assert found is not None
                yield from walk(found, f"{path} {name}")

    return dict(walk(command_line, "jobmaster"))


def setting_names() -> Names:
    """Keys of the configuration; ``<name>`` stands for a name that users choose."""
    schema = json.loads((ROOT / "config" / "jobmaster.schema.json").read_text(encoding="utf-8"))

    def walk(part: Mapping[str, Any], path: str, above: tuple[str, ...]) -> Iterator[str]:
        for each in (*part.get("allOf", ()), *part.get("anyOf", ())):
            yield from walk(each, path, above)
        if (reference := part.get("$ref")) and reference not in above:
            yield from walk(schema["definitions"][reference.rpartition("/")[2]], path, (*above, reference))
        for name, value in part.get("properties", {}).items():
            yield f"{path}{name}"
            yield from walk(value, f"{path}{name}.", above)
        if isinstance(inner := part.get("additionalProperties"), dict):
            yield from walk(inner, f"{path}<name>.", above)

    return dict.fromkeys(walk(schema, "", ()), "")


def http_names() -> Names:
    """Operations with their parameters, and the fields of bodies and answers."""
    document = json.loads((ROOT / "docs" / "openapi.json").read_text(encoding="utf-8"))
    found: Names = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if method in ("get", "put", "post", "patch", "delete"):
                name = f"{method.upper()} {path}"
                found[name] = ""
                for parameter in operation.get("parameters", ()):
                    needed = "required" if parameter.get("required") else ""
                    found[f"{name} ?{parameter['name']}"] = needed
    for schema, shape in document["components"]["schemas"].items():
        for field in shape.get("properties", {}):
            found[f"{schema}.{field}"] = ""
    return found


def metric_names() -> Names:
    """Metrics as they are served, with kind and label."""
    return {metric.served: f"{metric.kind.value} {metric.label or ''}".strip() for metric in METRICS.values()}


async def sql_names(connection: Any) -> Names:
    """Columns of the views for people, and functions that users call.

    Args:
        connection: of asyncpg, with the cluster's schema first in its search path.
    """
    columns = await connection.fetch(
        "SELECT relname, attname FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid"
        " WHERE relnamespace = current_schema()::regnamespace AND relname = ANY($1) AND attnum > 0 AND NOT attisdropped"
        " ORDER BY array_position($1, relname::text), attnum",
        list(VIEWS),
    )
    functions = await connection.fetch(
        "SELECT proname, pg_get_function_identity_arguments(oid) AS arguments FROM pg_proc"
        " WHERE pronamespace = current_schema()::regnamespace AND proname = ANY($1) ORDER BY 1, 2",
        list(FUNCTIONS),
    )
    views = {f"view {each['relname']}.{each['attname']}": "" for each in columns}
    return views | {f"function {each['proname']}({each['arguments']})": "" for each in functions}


KINDS: dict[str, Callable[[], Names]] = {
    "python": python_names,
    "command line": command_names,
    "configuration": setting_names,
    "http": http_names,
    "metrics": metric_names,
}
"""What is public, by kind, but for SQL."""


# ---------------------------------------------------------------- comparison


def record() -> dict[str, Names]:
    """What the last release had."""
    return dict(json.loads(RECORD.read_text(encoding="utf-8"))["names"])


def differences(kind: str, before: Names, now: Names) -> list[Difference]:
    """What programs that were written for the record would notice."""
    found = []
    for name, signature in before.items():
        whats = _changes(kind, signature, now[name]) if name in now else ["it is gone"]
        found += [Difference(name, what) for what in whats]
    for name in now.keys() - before.keys():
        parent = name.rpartition(" ")[0]
        if now[name] == "required" and parent in before:
            found.append(Difference(name, "it is new and required"))
    return sorted(found)


def _changes(kind: str, before: str, now: str) -> list[str]:
    if before == now:
        return []
    if kind == "python":
        return call_differences(before, now)
    fits = {"metrics": False, "command line": fewer_demands(before, now)}.get(kind, True)
    return [] if fits and now != "required" else [f"it was {before!r} and is {now!r}"]


def fewer_demands(before: str, now: str) -> bool:
    """Whether each command line with the arguments of before is still one; new arguments at the end may be left out."""
    old, new = before.split(), now.split()
    same = all(
        one.rstrip("?.") == other.rstrip("?.")
        and ("?" in other or "?" not in one)
        and ("..." in other or "..." not in one)
        for one, other in zip(old, new, strict=False)
    )
    return len(new) >= len(old) and same and all("?" in each for each in new[len(old) :])


def call_differences(before: str, now: str) -> list[str]:
    """Calls that a signature took and another one does not take. Annotations are for type checkers, and are not compared.

    Each is a signature as ``api.md`` has it: ``async (a: int, *, b: str = 'x') -> None``.
    """
    if not before:
        return [] if not now else ["it was no function"]
    if not now:
        return ["it is no function any more"]
    found = []
    if before.startswith("async ") != now.startswith("async "):
        found.append(f"it is {'async' if now.startswith('async ') else 'not async'} now")
    old, new = _arguments(before), _arguments(now)
    for name, how in old.items():
        if name not in new:
            found.append(f"argument {name} is gone")
        elif not how.optional <= new[name].optional:
            found.append(f"argument {name} is required now")
        elif how.by_name and not new[name].by_name:
            found.append(f"argument {name} cannot be given by its name any more")
        elif how.place is not None and how.place != new[name].place:
            found.append(f"argument {name} has another place")
    found += [f"the new argument {name} is required" for name in new if name not in old and not new[name].optional]
    return found


class _Argument(NamedTuple):
    """How an argument is given."""

    place: int | None
    by_name: bool
    optional: bool


def _arguments(signature: str) -> dict[str, _Argument]:
    (function,) = ast.parse(f"def f{signature.removeprefix('async ')}: ...").body
    assert isinstance(function, ast.FunctionDef)
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    first_default = len(positional) - len(given.defaults)
    found = {
        each.arg: _Argument(place, place >= len(given.posonlyargs), place >= first_default)
        for place, each in enumerate(positional)
    }
    for each, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        found[each.arg] = _Argument(None, True, default is not None)
    for stars, rest in (("*", given.vararg), ("**", given.kwarg)):
        if rest is not None:
            found[f"{stars}{rest.arg}"] = _Argument(None, False, True)
    return found


# ---------------------------------------------------------------- the record


async def _sql_of_a_new_master() -> Names:
    from jobmaster.embedded import PostgresServer
    from jobmaster.master.schema.migrate import migrate
    from jobmaster.settings.model import MasterSettings

    with tempfile.TemporaryDirectory(prefix="jm-") as folder:
        server = PostgresServer(Path(folder) / "master", durable=False)
        server.spawn()
        try:
            server.wait_ready()
            await migrate(dsn=server.dsn, schema="public_names", cluster="names", settings=MasterSettings())
            connection = await asyncpg.connect(server.dsn, server_settings={"search_path": "public_names"})
            try:
                return await sql_names(connection)
            finally:
                await connection.close()
        finally:
            server.stop()


def main() -> None:
    """Write the record anew."""
    import jobmaster

    names = {kind: found() for kind, found in KINDS.items()} | {"sql": asyncio.run(_sql_of_a_new_master())}
    RECORD.write_text(json.dumps({"version": jobmaster.__version__, "names": names}, indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
