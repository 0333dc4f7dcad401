"""``jobmaster pipeline run``: several steps, one JVM."""

from __future__ import annotations

import shlex

import click

from jobmaster.cli.failures import EXIT_FAILED
from jobmaster.cli.invocation import Invocation, pass_invocation
from jobmaster.cli.pipeline.group import COMMANDS, pipeline_group
from jobmaster.cli.pipeline.step import open_run, session_options, share


@click.command("run", params=session_options())
@click.argument("steps", nargs=-1, required=True, metavar="STEP...")
@pass_invocation
@click.pass_context
def run(
    ctx: click.Context,
    invocation: Invocation,
    steps: tuple[str, ...],
    spark_master: str,
    spark_conf: tuple[str, ...],
    lake: str | None,
    dry_run: bool,
) -> None:
    """Run several steps in one Spark session.

    A step is the name of a command of the pipeline, or in quotes a name with its options. All of them are read before the
    first one starts. A step that fails ends the run; one whose check found something lets the others go on, and the exit
    code is 1.

    \b
    Examples:
      jobmaster pipeline run rollup audit plan
      jobmaster pipeline run "archive --older-than 7d" rollup audit --lake lake
    """
    contexts = [_context(ctx, text) for text in steps]
    failed = False
    shared = open_run(invocation, spark_master, spark_conf, lake, dry_run)
    share(ctx, shared)
    try:
        for inner in contexts:
            invocation.note(f"step {inner.info_name}")
            with inner:
                failed |= bool(inner.command.invoke(inner).failed)
    finally:
        shared.close()
    if failed:
        ctx.exit(EXIT_FAILED)


def _context(ctx: click.Context, text: str) -> click.Context:
    """One step, its options read."""
    try:
        name, *arguments = shlex.split(text)
    except ValueError as error:
        raise click.UsageError(f"step {text!r} cannot be read: {error}", ctx) from None
    command = None if name == "run" else pipeline_group.get_command(ctx, name)
    if command is None:
        known = ", ".join(word for word in COMMANDS if word != "run")
        raise click.UsageError(f"{name!r} is no step; the steps are {known}", ctx)
    return command.make_context(name, arguments, parent=ctx)
