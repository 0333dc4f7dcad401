"""``jobmaster``: the root of the command line."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

import click

from jobmaster.cli.failures import EXIT_FAILED, guarded
from jobmaster.cli.invocation import Invocation, attach_common_options, pass_defaults

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

COMMANDS: dict[str, tuple[str, str]] = {
    "agent": ("jobmaster.cli.commands.agent:agent_group", "Run, list and drain agents."),
    "bucket": (
        "jobmaster.cli.commands.bucket:bucket_group",
        "Show buckets and their contents; freeze them in an emergency.",
    ),
    "breaker": ("jobmaster.cli.commands.flow.breaker:breaker_group", "List circuit breakers; open and close one."),
    "batch": ("jobmaster.cli.commands.flow.batch:batch_group", "List, show, watch, cancel and retry batches of jobs."),
    "bulk": (
        "jobmaster.cli.commands.jobs.bulk:bulk_group",
        "Retry, cancel, reschedule or delete every job that fits a filter; list and stop such operations.",
    ),
    "cluster": ("jobmaster.cli.commands.cluster.cluster:cluster_group", "Show and change the mode of the cluster."),
    "completion": (
        "jobmaster.cli.commands.terminal.completion:completion",
        "Print the completion script of a shell.",
    ),
    "config": ("jobmaster.cli.commands.config:config_group", "Check, write and show configuration files."),
    "db": ("jobmaster.cli.commands.db:db_group", "Create and upgrade the schema of the master database."),
    "demo": (
        "jobmaster.cli.commands.demo:demo",
        "Run a whole cluster over real work, with crashes, and check every job.",
    ),
    "dev": ("jobmaster.cli.commands.dev:dev_group", "Run a development cluster with embedded servers."),
    "doctor": ("jobmaster.cli.commands.doctor:doctor", "Check the cluster, its servers and its invariants."),
    "drill": ("jobmaster.cli.commands.drill:drill_group", "Play failures step by step, and check every job."),
    "events": (
        "jobmaster.cli.commands.events:events",
        "Show what the master has recorded, event by event; follow it.",
    ),
    "health": ("jobmaster.cli.commands.terminal.health:health", "Ask an agent or a web server whether it is well."),
    "job": ("jobmaster.cli.commands.jobs.job:job_group", "Submit, find, change, cancel and retry jobs."),
    "limit": (
        "jobmaster.cli.commands.flow.limit:limit_group",
        "List limits and what is taken of them; set other values at run time.",
    ),
    "lock": ("jobmaster.cli.commands.lock:lock_group", "List named locks and their holders; release a lock."),
    "log": ("jobmaster.cli.commands.log:log_group", "Show the actions of operators."),
    "pause": ("jobmaster.cli.commands.pause:pause", "Stop the starts of a handler, a lane, a priority or a tag."),
    "pauses": ("jobmaster.cli.commands.pause:pauses", "List the pauses in force, and the paused schedules."),
    "migrate": (
        "jobmaster.cli.commands.cluster.cluster:migrate",
        "Move all unfinished jobs to the master of another cluster.",
    ),
    "once": ("jobmaster.cli.commands.lock:once_group", "List actions that run once per version."),
    "pipeline": (
        "jobmaster.cli.commands.pipeline.pipeline:pipeline_group",
        "Move jobs and their history by the million, with Spark.",
    ),
    "rescue": ("jobmaster.cli.commands.rescue:rescue_group", "Show lost buckets and their rescues."),
    "resume": ("jobmaster.cli.commands.pause:resume", "End a pause."),
    "schedule": (
        "jobmaster.cli.commands.schedule:schedule_group",
        "Show, pause, resume, run and remove recurring jobs.",
    ),
    "signal": (
        "jobmaster.cli.commands.flow.signal:signal_group",
        "Send signals to jobs that wait for them; list what waits and what is kept.",
    ),
    "stat": ("jobmaster.cli.commands.terminal.stat:stat", "Print a line with the figures of the cluster each second."),
    "status": ("jobmaster.cli.commands.status:status", "Show the cluster on one screen."),
    "store": ("jobmaster.cli.commands.store:store_group", "Prepare and check agent stores."),
    "tenants": ("jobmaster.cli.commands.flow.tenant:tenants", "List tenants with their waiting and running jobs."),
    "top": ("jobmaster.cli.commands.terminal.top:top", "Show the cluster live in the terminal."),
    "unique": (
        "jobmaster.cli.commands.flow.unique:unique_group",
        "List unique keys and the jobs that hold them; release a key.",
    ),
    "web": ("jobmaster.cli.commands.web:web_group", "Serve the pages and the HTTP API until a signal stops it."),
    "workflow": ("jobmaster.cli.commands.flow.workflow:workflow_group", "List, show, cancel and retry workflows."),
    "version": ("jobmaster.cli.commands.version:version", "Print the version."),
}
"""Name -> (module:attribute, its line in the list of commands). The list is printed without an import of these modules."""


_GC_THRESHOLDS = (100_000, 20, 20)
"""Imports make 70,000 objects that live as long as the process. At the default thresholds the collector looks at them again
and again, for a quarter of the processor time of a short command."""


class LazyGroup(click.Group):
    """The group of ``COMMANDS``. It imports a command's module when the command is used, so that ``--help`` imports none."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return attach_common_options(command)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        found = [CompletionItem(name, help=line) for name, (_, line) in COMMANDS.items() if name.startswith(incomplete)]
        return found + click.Command.shell_complete(self, ctx, incomplete)  # that of a group imports every command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.group(
    cls=LazyGroup,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Options are valid before and after the command. Start with: jobmaster demo, then jobmaster dev.",
)
@click.pass_context
def root(ctx: click.Context) -> None:
    """Background jobs on PostgreSQL and Valkey, each as safe as was asked for."""
    pass_defaults(ctx)


attach_common_options(root)


def run(arguments: Sequence[str]) -> int:
    """Run one command line; returns the exit code."""
    invocation = Invocation()
    if sys.stdout is None:  # closed by the parent process: no answer can be printed
        if sys.stderr is not None:
            click.echo("error: standard output is closed", err=True)
        return EXIT_FAILED
    return guarded(
        lambda: root.main(list(arguments), prog_name="jobmaster", standalone_mode=False, obj=invocation),
        invocation,
        arguments,
    )


def main() -> None:
    """Entry point of the program ``jobmaster``."""
    gc.set_threshold(*_GC_THRESHOLDS)
    code = run(sys.argv[1:])
    gc.freeze()  # the interpreter collects several times at its end, and the memory is given back anyway
    sys.exit(code)


if __name__ == "__main__":
    main()
