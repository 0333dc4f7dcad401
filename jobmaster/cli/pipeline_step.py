"""What every command of the pipeline has in common: its options, one session per call, and the summary at the end.

A command is a function that takes a ``PipelineContext`` and returns an ``StepResult``; ``step`` makes a click command of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from jobmaster.cli.failures import EXIT_FAILED
from jobmaster.cli.invocation import Invocation, invocation_of
from jobmaster.cli.operator_log import NOTE, note_values
from jobmaster.cli.tables import Column, emit_json, render, terminal_width, thousands

if TYPE_CHECKING:
    from jobmaster.pipeline.context import PipelineContext, StepResult

_SHARED = "jobmaster.pipeline.run"
"""Where the steps of one ``run`` find what they share."""


def step(name: str) -> Callable[[Callable[..., StepResult]], click.Command]:
    """Make a command of the pipeline out of ``function(run, **its own options)``; other options go below this decorator.

    ::

        @step("rollup")
        @click.option("--since")
        def rollup(run: PipelineRun, since: str | None) -> Outcome: ...
    """

    def make(function: Callable[..., StepResult]) -> click.Command:
        @click.pass_context
        def command(ctx: click.Context, /, **words: Any) -> StepResult:
            spark = {key: words.pop(key) for key in ("spark_master", "spark_conf", "lake", "dry_run")}
            shared: PipelineContext | None = ctx.meta.get(_SHARED)
            context = shared or open_run(invocation_of(ctx), **spark)
            try:
                outcome = _carry_out(ctx, name, context, lambda: function(context, **words))
            finally:
                if shared is None:
                    context.close()
            if outcome.failed and shared is None:
                ctx.exit(EXIT_FAILED)
            return outcome

        command.__doc__ = function.__doc__
        parameters = list(reversed(getattr(function, "__click_params__", [])))
        return click.Command(
            name, callback=command, params=[*parameters, *session_options()], help=(function.__doc__ or "").strip()
        )

    return make


def session_options() -> list[click.Parameter]:
    """Fresh options that decide where Spark runs and what may be changed."""
    return [
        click.Option(
            ["--master", "spark_master"],
            metavar="URL",
            default="local[*]",
            show_default=True,
            help="Where Spark runs: local[2], spark://host:7077, yarn, k8s://..., sc://host.",
        ),
        click.Option(
            ["--conf", "spark_conf"], metavar="spark.KEY=VALUE", multiple=True, help="A setting of Spark, over ours."
        ),
        click.Option(["--lake"], metavar="PATH", help="Directory or URL of the lake.  [default: <data_dir>/lake]"),
        click.Option(["--dry-run"], is_flag=True, help="Say what would be done, and change nothing."),
    ]


def open_run(
    invocation: Invocation, spark_master: str, spark_conf: tuple[str, ...], lake: str | None, dry_run: bool
) -> PipelineContext:
    """What the steps of one call share."""
    from jobmaster.pipeline.context import PipelineContext, PipelineOptions
    from jobmaster.pipeline.spark.session import SessionOptions, parse_conf

    session = SessionOptions(spark_master, parse_conf(spark_conf))
    return PipelineContext(invocation.settings, PipelineOptions(session, lake, dry_run), invocation.note)


def share(ctx: click.Context, context: PipelineContext) -> None:
    """Let the steps below this context use one run."""
    ctx.meta[_SHARED] = context


def note_batch(context: PipelineContext, action: str, outcome: StepResult) -> StepResult:
    """A line in the operator's log about a batch of jobs that a step has made; the outcome."""
    if not context.dry_run:
        counts = {key: value for key, value in outcome.found.items() if type(value) is int}
        context.connection.execute(NOTE, *note_values(action, {str(outcome.found["batch"]): counts}))
    return outcome


def _carry_out(ctx: click.Context, name: str, context: PipelineContext, work: Callable[[], StepResult]) -> StepResult:
    """Run a step, say what it did: one JSON object, or some lines."""
    began = context.clock.boottime()
    outcome = work()
    seconds = context.clock.boottime() - began
    rate = round(outcome.rows / seconds) if outcome.rows and seconds > 0 else 0
    figures = {"rows": outcome.rows, "seconds": round(seconds, 2), "rows_per_second": rate} if outcome.rows else {}
    dry = {"dry_run": True} if context.dry_run else {}
    if invocation_of(ctx).json:
        items = {} if outcome.items is None else {"items": list(outcome.items)}
        emit_json({"command": name, "ok": not outcome.failed, **dry, **outcome.found, **items, **figures})
        return outcome
    width = max((len(key) for key in outcome.found), default=0)
    for key, value in outcome.found.items():
        click.echo(f"{key.replace('_', ' ').ljust(width)}  {_told(value)}")
    if outcome.items:
        click.echo(render(outcome.items, [Column(key.upper(), key) for key in outcome.items[0]], terminal_width()))
    if outcome.note:
        click.echo(outcome.note)
    if outcome.rows:
        click.echo(f"{name}: {thousands(outcome.rows)} rows in {seconds:.1f} s, {thousands(rate)} a second")
    if dry:
        click.echo(f"{name}: this was a dry run, nothing was changed")
    return outcome


def _told(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return thousands(value)
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_told(inner)}" for key, inner in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return "-" if value is None else str(value)
