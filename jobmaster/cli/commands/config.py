"""``jobmaster config``: check, write and show configurations. None of it needs a server.

The loader and PyYAML are imported inside the commands: ``--help`` must not wait for them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from jobmaster.cli.invocation import Invocation, pass_invocation
from jobmaster.cli.tables import Column, Output, emit_data, emit_rows

if TYPE_CHECKING:
    from jobmaster.settings.loader import LoadedSettings
    from jobmaster.settings.problems import InvalidSettings, Problem

EXIT_CONFIG = 78
COLUMNS = (Column("KEY", "key"), Column("VALUE", "value", whole=True))

_SET_HELP = "Set one key over file and environment, such as leases.lease=15s; may be repeated."


@click.group("config")
def config_group() -> None:
    """Check, write and show configuration files."""


@config_group.command("validate")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("--set", "overrides", metavar="KEY=VALUE", multiple=True, help=_SET_HELP)
@pass_invocation
@click.pass_context
def validate(ctx: click.Context, invocation: Invocation, file: Path | None, overrides: Sequence[str]) -> None:
    """Check a configuration file, offline.

    Prints every problem with its place.

    FILE defaults to the file of the other commands: $JOBMASTER_CONFIG, ./jobmaster.yaml, ./cluster.yaml. The
    environment counts, as for an agent.

    Exit codes: 0 sound (there may be warnings), 78 problems.
    """
    loaded, error = _load(file, overrides)
    problems = error.details if error else ()
    warnings = error.warnings if error else loaded.warnings if loaded else ()
    report = {
        "valid": error is None,
        "source": str(loaded.source) if loaded and loaded.source else str(file) if file else None,
        "problems": [problem.as_dict() for problem in problems],
        "warnings": [warning.as_dict() for warning in warnings],
    }
    if not emit_data(report, invocation.output, name="source"):
        _print_problems(problems, warnings)
        if loaded:
            click.echo(f"{loaded.source or 'no file: the defaults'}: the configuration is sound")
    if error:
        ctx.exit(EXIT_CONFIG)


@config_group.command("init")
@click.argument("path", type=click.Path(path_type=Path, allow_dash=True), default=Path("jobmaster.yaml"))
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@click.pass_context
def init(ctx: click.Context, path: Path, force: bool) -> None:
    """Write a commented configuration file.

    It has every key with its default and its meaning; the path - is standard output. The JSON
    Schema is written beside it, so that editors complete and check keys.
    """
    from jobmaster.settings.generated_texts import SCHEMA_NAME, example_yaml
    from jobmaster.settings.json_schema import json_schema_text

    if str(path) == "-":
        click.echo(example_yaml(), nl=False)
        return
    schema = path.parent / SCHEMA_NAME
    schema_text = json_schema_text()
    try:
        # "x" checks and creates in one step, so a file that another program creates meanwhile is never lost.
        with path.open("w" if force else "x", encoding="utf-8") as stream:
            stream.write(example_yaml())
        if force or not schema.exists():
            schema.write_text(schema_text, encoding="utf-8")
            click.echo(f"wrote {path} and {schema}")
        else:
            same = schema.read_text(encoding="utf-8", errors="replace") == schema_text
            click.echo(f"wrote {path}; {schema} {'is current' if same else 'differs and was kept, --force renews it'}")
    except FileExistsError:
        _fail(ctx, f"{path} exists and was left alone", "use --force to overwrite it", 1)
    except OSError as error:
        _fail(ctx, f"{error.filename or path} cannot be written: {error.strerror}", "check the directory", 1)


@config_group.command("schema")
def schema() -> None:
    """Print the JSON Schema of the file."""
    from jobmaster.settings.json_schema import json_schema_text

    click.echo(json_schema_text(), nl=False)


@config_group.command("show")
@click.option("--config", "file", type=click.Path(path_type=Path), help="The file; default as for validate.")
@click.option("--set", "overrides", metavar="KEY=VALUE", multiple=True, help=_SET_HELP)
@click.option("--origin", is_flag=True, help="Print the layer and the place of each value.")
@pass_invocation
@click.pass_context
def show(ctx: click.Context, invocation: Invocation, file: Path | None, overrides: Sequence[str], origin: bool) -> None:
    """Print the resulting configuration.

    That is: defaults, then file, environment and command line over them. Secrets are
    printed as ***. With -o yaml the output is a configuration again.
    """
    loaded, error = _load(file, overrides)
    if error or loaded is None:
        if invocation.output.json_errors and error:
            report = {"code": "config", "message": error.message, "problems": list(error.problems)}
            click.echo(json.dumps({"error": report}), err=True)
        elif error:
            _print_problems(error.details, error.warnings)
        ctx.exit(EXIT_CONFIG)
    _print_problems((), loaded.warnings)
    _print_settings(loaded, origin, invocation.output)


def _print_settings(loaded: LoadedSettings, origin: bool, output: Output) -> None:
    from jobmaster.settings.rendering import leaf_rows, leaf_text, settings_tree, yaml_lines

    def place(path: str) -> str:
        return loaded.origin_of(path).describe()

    tree = settings_tree(loaded.settings)
    if output is Output.YAML:
        click.echo("\n".join(yaml_lines(tree, place if origin else None)))
    elif output is Output.JSON and not origin:
        click.echo(json.dumps(tree))
    else:
        with_origin = origin or output is Output.WIDE
        columns = (*COLUMNS, Column("ORIGIN", "origin")) if with_origin else COLUMNS
        rows = [
            {
                "key": path,
                "value": leaf_text(value) if output.for_people else value,
                **({"origin": place(path)} if with_origin else {}),
            }
            for path, value in leaf_rows(tree)
        ]
        emit_rows(rows, columns, output, empty="")


def _load(file: Path | None, overrides: Sequence[str]) -> tuple[LoadedSettings | None, InvalidSettings | None]:
    from jobmaster.settings.loader import load_settings
    from jobmaster.settings.problems import InvalidSettings

    try:
        return load_settings(file, os.environ, overrides), None
    except InvalidSettings as error:
        return None, error


def _print_problems(problems: Sequence[Problem], warnings: Sequence[Problem]) -> None:
    for problem in problems:
        click.echo(str(problem), err=True)
    for warning in warnings:
        click.echo(warning.as_warning(), err=True)
    counts = [
        f"{len(found)} {word}{'' if len(found) == 1 else 's'}"
        for found, word in ((problems, "problem"), (warnings, "warning"))
        if found
    ]
    if counts:
        click.echo(", ".join(counts), err=True)


def _fail(ctx: click.Context, message: str, hint: str, code: int) -> None:
    click.echo(f"{message} ({hint})", err=True)
    ctx.exit(code)
