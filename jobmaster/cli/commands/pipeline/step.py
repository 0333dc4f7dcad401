"""The common part of the pipeline's commands: options, one Spark session per call, and the summary.

A command is a function that takes a ``PipelineContext`` and returns a ``StepResult``; ``step`` makes a click command of it.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from jobmaster.cli.failures import EXIT_FAILED
from jobmaster.cli.invocation import Invocation, invocation_of
from jobmaster.cli.operator_log import NOTE, note_values
from jobmaster.cli.tables import Column, emit_data, render, terminal_width, thousands

if TYPE_CHECKING:
    from jobmaster.pipeline.context import PipelineContext, StepResult

_SHARED = "jobmaster.pipeline.run"
"""Key of the shared context in ``ctx.meta``, for the steps of one ``run``."""


def step(name: str) -> Callable[[Callable[..., StepResult]], click.Command]:
    """Make a command of the pipeline from ``function(context, **its own options)``; click options go below this decorator.

    ::

        @step("rollup")
        @click.option("--since")
        def rollup(context: PipelineContext, since: str | None) -> StepResult: ...
    """

    def make(function: Callable[..., StepResult]) -> click.Command:
        @click.pass_context
        def command(ctx: click.Context, /, **words: Any) -> StepResult:
            spark = {key: words.pop(key) for key in ("spark_master", "spark_conf", "lake", "dry_run")}
            shared: PipelineContext | None = ctx.meta.get(_SHARED)
            context = shared or open_context(invocation_of(ctx), **spark)
            try:
                result = _carry_out(ctx, name, context, lambda: function(context, **words))
            finally:
                if shared is None:
                    context.close()
            if result.failed and shared is None:
                ctx.exit(EXIT_FAILED)
            return result

        command.__doc__ = function.__doc__
        parameters = list(reversed(getattr(function, "__click_params__", [])))
        return click.Command(
            name, callback=command, params=[*parameters, *session_options()], help=(function.__doc__ or "").strip()
        )

    return make


def session_options() -> list[click.Parameter]:
    """New option objects: Spark's master and settings, the lake, and ``--dry-run``."""
    return [
        click.Option(
            ["--master", "spark_master"],
            metavar="URL",
            default="local[*]",
            show_default=True,
            help="Where Spark runs: local[2], spark://host:7077, yarn, k8s://..., sc://host.",
        ),
        click.Option(
            ["--conf", "spark_conf"],
            metavar="spark.KEY=VALUE",
            multiple=True,
            help="Setting of Spark; overrides defaults.",
        ),
        click.Option(
            ["--lake"],
            metavar="PATH",
            help="Directory or URL of the lake; {cluster} in it is the name of the cluster.  [default: <data_dir>/lake]",
        ),
        click.Option(["--dry-run"], is_flag=True, help="Show what would be done, and change nothing."),
    ]


def open_context(
    invocation: Invocation, spark_master: str, spark_conf: tuple[str, ...], lake: str | None, dry_run: bool
) -> PipelineContext:
    """Create the context of one call."""
    from jobmaster.pipeline.context import PipelineContext, PipelineOptions
    from jobmaster.pipeline.spark.session import SessionOptions, parse_conf

    session = SessionOptions(spark_master, parse_conf(spark_conf))
    return PipelineContext(invocation.settings, PipelineOptions(session, lake, dry_run), invocation.note)


def open_shared(ctx: click.Context, invocation: Invocation, *session: Any) -> PipelineContext:
    """Create one context for all steps below a click context.

    Args:
        session: values of ``session_options``, in the order of ``open_context``.
    """
    context: PipelineContext = open_context(invocation, *session)
    ctx.meta[_SHARED] = context
    return context


def step_context(run: click.Context, group: click.Group, text: str) -> click.Context:
    """The click context of one step of a run, its options read. All steps share one session and one lake.

    Args:
        group: the commands of the pipeline.
        text: name and options of the step, as in a shell.

    Raises:
        UsageError: there is no such step, an option is wrong, or it is one of ``session_options``.
    """
    try:
        name, *arguments = shlex.split(text)
    except ValueError as error:
        raise click.UsageError(f"step {text!r} cannot be read: {error}", run) from None
    command = None if name == "run" else group.commands.get(name)
    if command is None:
        known = ", ".join(word for word in group.commands if word != "run")
        raise click.UsageError(f"{name!r} is no step; the steps are {known}", run)
    inner = command.make_context(name, arguments, parent=run)
    for option in session_options():
        if inner.get_parameter_source(option.name) is ParameterSource.COMMANDLINE:
            word = option.opts[0]
            example = word if word == "--dry-run" else f"{word} {option.metavar}"
            raise click.UsageError(
                f"step {text!r}: {word} is for all steps of a run, which share one session and one lake; give it to the run, "
                f"outside the quotes of a step: jobmaster pipeline run {example} {name}",
                run,
            )
    return inner


def note_batch(context: PipelineContext, action: str, result: StepResult) -> StepResult:
    """Write a line about a step's batch of jobs to the operator's log; returns the result."""
    if not context.dry_run:
        counts = {key: value for key, value in result.summary.items() if type(value) is int}
        context.connection.execute(NOTE, *note_values(action, {str(result.summary["batch"]): counts}))
    return result


def note_backfill(context: PipelineContext, action: str, result: StepResult) -> StepResult:
    """Write a line about a backfill to the operator's log; returns the result."""
    if not context.dry_run:
        context.connection.execute(NOTE, *note_values(action, {str(result.summary["backfill"]): {}}))
    return result


def _carry_out(ctx: click.Context, name: str, context: PipelineContext, work: Callable[[], StepResult]) -> StepResult:
    """Run a step and print its summary: one JSON object, or some lines."""
    began = context.clock.boottime()
    result = work()
    seconds = context.clock.boottime() - began
    rate = round(result.rows / seconds) if result.rows and seconds > 0 else 0
    figures = {"rows": result.rows, "seconds": round(seconds, 2), "rows_per_second": rate} if result.rows else {}
    dry = {"dry_run": True} if context.dry_run else {}
    items = {} if result.items is None else {"items": list(result.items)}
    report = {"command": name, "ok": not result.failed, **dry, **result.summary, **items, **result.details, **figures}
    if emit_data(report, invocation_of(ctx).output):
        return result
    width = max((len(key) for key in result.summary), default=0)
    for key, value in result.summary.items():
        click.echo(f"{key.replace('_', ' ').ljust(width)}  {_text(value)}")
    if result.items:
        click.echo(render(result.items, [Column(key.upper(), key) for key in result.items[0]], terminal_width()))
    if result.note:
        click.echo(result.note)
    if result.rows:
        click.echo(f"{name}: {thousands(result.rows)} rows in {seconds:.1f} s, {thousands(rate)} a second")
    if dry:
        click.echo(f"{name}: this was a dry run, nothing was changed")
    return result


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return thousands(value)
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_text(inner)}" for key, inner in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return "-" if value is None else str(value)
