"""``jobmaster drill``: rare races, played step by step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from jobmaster.cli.invocation import Invocation, pass_invocation
from jobmaster.cli.running import run_async
from jobmaster.cli.tables import Output, emit_data

if TYPE_CHECKING:
    from jobmaster.demo.lease_race.lease_race import RaceOptions, RaceResult
    from jobmaster.settings.model import ClusterSettings


@click.group("drill")
def drill_group() -> None:
    """Play failures step by step, and check every job."""


@drill_group.command("lease-race")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines, the status last (as -o json does).")
@click.option("--runs", type=click.IntRange(1, 100_000), default=1, show_default=True, help="How often.")
@click.option(
    "--clock-shift",
    "shift_seconds",
    type=click.FloatRange(-3600, 3600),
    default=0.0,
    show_default=True,
    metavar="SECONDS",
    help="How far the wall clocks are off: A's and the producer's by this, B's by as much the other way.",
)
@click.option(
    "--unknown-to-master",
    is_flag=True,
    help="Pause A before the master has a row of the job.  [default: after its row is PROCESSING]",
)
@click.option(
    "--servers",
    type=click.Choice(["embedded", "configured"]),
    default="embedded",
    show_default=True,
    help="Private servers that are deleted afterwards, or those of the configuration.",
)
@pass_invocation
@click.pass_context
def lease_race(
    ctx: click.Context,
    invocation: Invocation,
    as_json: bool,
    runs: int,
    shift_seconds: float,
    unknown_to_master: bool,
    servers: str,
) -> None:
    """A paused owner continues after its job was rescued and finished, and tries to write its own outcome.

    Agent A claims a job and is paused while it runs. Its lease ends, and B rescues and finishes the job. Then A continues:
    its write must be refused and counted, the ledger must have exactly one concluding line, and A must exit. The drill
    uses the parts of real agents on real servers, in a cluster of its own that is deleted afterwards. Every event is
    printed. Exit code 1 when a check fails.

    \b
    Examples:
      jobmaster drill lease-race
      jobmaster drill lease-race --runs 25 --clock-shift 3600 --json | tail -1
      jobmaster drill lease-race --servers configured --config cluster.yaml
    """
    from jobmaster.demo.lease_race.lease_race import RaceOptions

    if as_json:
        invocation.output = Output.JSON
    options = RaceOptions(shift_seconds, not unknown_to_master)
    with _servers(invocation, servers) as settings:
        results = run_async(_play(settings, options, runs, invocation.output))
    bad = [result for result in results if not result.ok]
    if not emit_data(_record((bad or results)[-1], runs, len(bad)), invocation.output):
        click.echo("\n".join(_as_text((bad or results)[-1], runs, len(bad))))
    if bad:
        ctx.exit(1)


@contextmanager
def _servers(invocation: Invocation, servers: str) -> Iterator[ClusterSettings]:
    import shutil
    import tempfile

    from jobmaster.embedded import EmbeddedCluster, EmbeddedOptions
    from jobmaster.settings.model import ClusterSettings

    if servers == "configured":
        yield invocation.settings
        return
    directory = tempfile.mkdtemp(prefix="jobmaster-drill-")
    try:
        with EmbeddedCluster(directory, EmbeddedOptions(durable=False)) as cluster:
            for line in cluster.describe():
                invocation.note(line, level=1)
            yield ClusterSettings(data_dir=directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


async def _play(settings: ClusterSettings, options: RaceOptions, runs: int, output: Output) -> list[RaceResult]:
    from jobmaster.demo.lease_race.drill_cluster import temporary_cluster
    from jobmaster.demo.lease_race.event_trace import EventTrace
    from jobmaster.demo.lease_race.lease_race import LeaseRace

    def write_line(line: str) -> None:
        click.echo(line, err=not (output.for_people or output.json_errors))  # not between YAML or names

    results = []
    async with temporary_cluster(settings) as drill:
        for _ in range(runs):
            with EventTrace(write_line, as_json=output.json_errors) as trace:
                results.append(await LeaseRace(drill, options, trace).run())
    return results


def _record(result: RaceResult, runs: int, bad: int) -> dict[str, Any]:
    import msgspec

    return {**msgspec.to_builtins(result), "runs": runs, "runs_off": bad}


def _as_text(result: RaceResult, runs: int, bad: int) -> list[str]:
    broken = {number: count for number, count in result.invariants.items() if count}
    return [
        "",
        f"ledger     {result.concluding_lines} concluding line(s), token {result.token}",
        f"refused    {result.stale_refused} late write(s), counted on the line of A's assignment",
        f"invariants {f'VIOLATED: {broken}' if broken else 'no violation'}",
        f"runs       {runs}, {bad} of them off",
        f"time       {result.seconds:g} s for the last one, {result.events} events",
        *(f"OFF        {sentence}" for sentence in result.off),
        "",
        "everything is as it must be" if result.ok else "SOMETHING IS OFF",
    ]
