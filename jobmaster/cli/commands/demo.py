"""``jobmaster demo``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from jobmaster.cli.invocation import Invocation, pass_invocation
from jobmaster.cli.tables import Output, emit_data, thousands
from jobmaster.units import rounded_us

if TYPE_CHECKING:
    from jobmaster.demo.pipeline_steps import PlannedWaits
    from jobmaster.demo.results import DemoSummary

_BAR_CHARS = 40


@click.command("demo")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object as the last line (as -o json does).")
@click.option("--jobs", type=click.IntRange(60), help="At most so many files.  [default: the whole standard library]")
@click.option(
    "--seconds",
    type=click.FloatRange(1, 600),
    default=8.0,
    show_default=True,
    help="The held half is due over this time.",
)
@click.option(
    "--limit", type=click.FloatRange(10), default=240.0, show_default=True, help="Give up after so many seconds."
)
@click.option(
    "--watch", is_flag=True, help="Wait for Enter before the kill and before the end, to see both in a browser."
)
@click.option("--pipeline", is_flag=True, help="End with the data pipeline on Spark over the demo's own history.")
@click.option(
    "--report",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    default="jobmaster-report.html",
    show_default=True,
    help="File for the report of --pipeline.",
)
@pass_invocation
def demo(
    invocation: Invocation,
    as_json: bool,
    jobs: int | None,
    seconds: float,
    limit: float,
    watch: bool,
    pipeline: bool,
    report: Path,
) -> None:
    """Run a whole cluster over real work, with crashes, and check every job.

    Each job indexes one Python source file of the standard library. The agent store acknowledges half of the jobs; the other
    half is held on the master until due. Of two agents one is drained and replaced, the other is killed while it runs jobs.
    Then the results in the master are compared with a plain loop over the same files, and the invariants are audited. The
    pages are served meanwhile; with --watch the kill waits for Enter. With --pipeline, Spark rolls the
    history up, audits it again and plans bucket counts from it. Servers and data are private and are deleted at the end.
    Exit code 1 when a check fails.

    \b
    Examples:
      jobmaster demo
      jobmaster demo --watch
      jobmaster demo --json | tail -1
      jobmaster demo --pipeline
    """
    from jobmaster.demo.driver import DemoOptions, run_demo
    from jobmaster.demo.viewer import Viewer

    if as_json:
        invocation.output = Output.JSON
    bar = ProgressBar(sys.stderr) if sys.stderr.isatty() and invocation.verbosity >= 0 else None

    def log(sentence: str) -> None:
        if bar is not None:
            bar.clear()
        invocation.note(sentence)

    def progress(done: int, total: int) -> None:
        if bar is not None:
            bar.show(done, total)

    viewer = Viewer(sys.stdin.fileno(), log) if watch else None
    try:
        options = DemoOptions(jobs, seconds, limit, log, progress, report if pipeline else None, viewer)
        summary, audited = run_demo(options)
    finally:
        if bar is not None:
            bar.clear()
    if not emit_data(_record(summary), invocation.output):
        click.echo("\n".join(_as_text(summary)))
    for number, rows in audited.evidence.items():
        for row in rows:
            click.echo(f"{number}: {row.subject} {row.detail}", err=True)
    if not summary.ok:
        click.get_current_context().exit(1)


def _record(summary: DemoSummary) -> dict[str, Any]:
    import msgspec

    record: dict[str, Any] = msgspec.to_builtins(summary)
    return record


def _as_text(summary: DemoSummary) -> list[str]:
    totals = summary.totals
    broken = {number: count for number, count in summary.invariants.items() if count}
    return [
        "",
        f"files      {thousands(summary.files)} with {thousands(totals.lines)} lines,"
        f" {thousands(totals.definitions)} definitions, {thousands(totals.imports)} imports;"
        f" {totals.unparsed} do not parse (which is a result, too)",
        f"jobs       {thousands(summary.submitted)} submitted, {thousands(summary.succeeded)} succeeded,"
        f" {summary.failed} failed, {summary.lost} lost, {summary.duplicate_outcomes} recorded twice",
        f"agents     {summary.graceful_exits} drained, 1 was killed; {summary.rescued} jobs rescued from it",
        f"results    {'the same as' if summary.results_match else 'DIFFERENT from'} those of a plain loop",
        f"invariants {f'VIOLATED: {broken}' if broken else ', '.join(summary.invariants) + ': no violation'}",
        *_looked_back(summary),
        f"time       {summary.seconds:g} s",
        "",
        "everything adds up" if summary.ok else "SOMETHING IS OFF",
    ]


def _looked_back(summary: DemoSummary) -> list[str]:
    import msgspec

    if isinstance(summary.pipeline, msgspec.UnsetType):
        return []
    found = summary.pipeline
    return [
        f"pipeline   {thousands(found.rolled_up_jobs)} jobs rolled up, {thousands(found.audited_jobs)} audited"
        f" with {found.audit_violations} violations, in {found.seconds:g} s",
        *(_planned(one) for one in found.waits),
        f"report     {found.report}",
    ]


def _planned(one: PlannedWaits) -> str:
    """A line of the plan: measured, the model of the same, and what to expect."""
    low, high = sorted((max(one.measured_us, 1.0), max(one.model_us, 1.0)))
    return (
        f"plan       {one.group}: {one.present} buckets, p99 {rounded_us(one.measured_us)} measured,"
        f" {rounded_us(one.model_us)} in the model (factor {high / low:.2g}); with {one.buckets} buckets"
        f" {rounded_us(one.predicted_us)}, objective {rounded_us(one.objective_us)}: {one.status}"
    )


class ProgressBar:
    """A progress bar in the last line of the terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._shown = False

    def show(self, done: int, total: int) -> None:
        """Draw it."""
        filled = round(_BAR_CHARS * done / max(total, 1))
        line = f"[{'#' * filled}{'.' * (_BAR_CHARS - filled)}] {thousands(done)} of {thousands(total)} jobs"
        self._stream.write(f"\r\x1b[K{line}")
        self._stream.flush()
        self._shown = True

    def clear(self) -> None:
        """Erase it."""
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._shown = False
