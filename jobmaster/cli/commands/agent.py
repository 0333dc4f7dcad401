"""``jobmaster agent``: run agents, list them, drain one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jobmaster.cli.commands.job_inputs import with_cluster
from jobmaster.cli.completion import Known, known
from jobmaster.cli.id_prefix import pick
from jobmaster.cli.invocation import Invocation, pass_invocation
from jobmaster.cli.running import run_async
from jobmaster.cli.tables import Column, emit_record, emit_rows, iso_at
from jobmaster.units import rounded_duration, rounded_size

if TYPE_CHECKING:
    from jobmaster.client.cluster import Cluster
    from jobmaster.model.inspection.views import AgentView
    from jobmaster.settings.model import AgentSettings, ClusterSettings

MODES = ("full", "execution", "leader", "drain")

COLUMNS = (
    Column("ID", "id"),
    Column("NAME", "name"),
    Column("STATE", "state"),
    Column("MODE", "mode"),
    Column("STORE", "store"),
    Column("HOST", "host"),
    Column("PID", "pid", right=True),
    Column("BUCKETS", "buckets", right=True),
    Column("SLOTS", "statistics.slots", right=True),
    Column("RUNNING", "statistics.running", right=True),
    Column("CPU", "statistics.processor", "{:.0%}".format, right=True),
    Column("MEMORY", "statistics.memory_bytes", rounded_size, right=True),
    Column("LEASE", "lease_left_seconds", rounded_duration, right=True),
    Column("STARTED", "started"),
)


@click.group("agent")
def agent_group() -> None:
    """Run, list and drain agents."""


@agent_group.command("run")
@click.option("--name", help="Which agent of the configuration to run; also its label.  [default: the only one]")
@click.option(
    "--processes", type=click.IntRange(1, 512), help="How many processes, each an agent with its own buckets."
)
@click.option(
    "--mode", type=click.Choice(MODES), help="full: all; execution: never lead; leader: only lead; drain: only rescue."
)
@click.option(
    "--handlers", "modules", metavar="MODULE", multiple=True, help="Module that declares handlers; may be repeated."
)
@click.option("--print-settings", is_flag=True, hidden=True, help="Print what would be run, as JSON, and end.")
@click.option("--leave-with-stdin", is_flag=True, hidden=True, help="Stop at once when standard input ends.")
@pass_invocation
def run(
    invocation: Invocation,
    name: str | None,
    processes: int | None,
    mode: str | None,
    modules: tuple[str, ...],
    print_settings: bool,
    leave_with_stdin: bool,
) -> None:
    """Run one kind of agent under a supervisor, until a signal stops it.

    The first SIGTERM or Ctrl-C drains: no new jobs; running and queued jobs have leases.grace to end; the rest goes back to
    the master. The second one stops at once. If the process is killed, other agents rescue its jobs.

    \b
    Examples:
      jobmaster agent run --handlers myapp.jobs
      jobmaster agent run --config cluster.yaml --name payroll --processes 4
      jobmaster agent run --mode leader
    """
    import msgspec

    from jobmaster_agents.supervisor.main import SupervisorLaunch, become_supervisor
    from jobmaster_agents.supervisor.supervisor import SupervisorPlan

    settings, key = _plan_settings(invocation, name, processes, mode, modules)
    if print_settings:  # for the supervisor, which reloads the configuration by its own command line
        click.echo(msgspec.json.encode(settings))
        return
    _check_before_start(settings, key)
    level = settings.observability.log_level
    agent = settings.agents[key]
    for line in _banner(settings, key, agent):
        # A collector of JSON lines cannot parse prose.
        invocation.note(line, level=1 if settings.observability.log_format == "json" else 0)
    plan = SupervisorPlan(
        settings=settings,
        agent=key,
        name=name or key,
        processes=agent.processes,
        sys_path=_import_path(),
        reload_command=(sys.executable, "-m", "jobmaster.cli.main", *sys.argv[1:], "--print-settings"),
    )
    become_supervisor(
        SupervisorLaunch(
            plan=plan,
            log_level={-1: "warning"}.get(invocation.verbosity, level if invocation.verbosity < 1 else "debug"),
            leave_with_stdin=leave_with_stdin,
        )
    )


def _plan_settings(
    invocation: Invocation, name: str | None, processes: int | None, mode: str | None, modules: tuple[str, ...]
) -> tuple[ClusterSettings, str]:
    """Settings with the command line's options for this agent, and the agent's key."""
    import msgspec

    from jobmaster.model.errors import ConfigError
    from jobmaster.settings.model import AgentMode

    settings = invocation.settings
    if name is not None and name in settings.agents:
        key = name
    elif len(settings.agents) == 1:
        key = next(iter(settings.agents))
    else:
        wrong = f"there is no agent {name!r}" if name else "several agents are configured"
        raise ConfigError(f"{wrong}: {', '.join(settings.agents)}", hint="name one of them with --name")
    agent = settings.agents[key]
    if processes is not None:
        agent = msgspec.structs.replace(agent, processes=processes)
    if mode is not None:
        agent = msgspec.structs.replace(agent, mode=AgentMode(mode))
    handlers = list(dict.fromkeys([*settings.handlers, *modules]))
    changed = msgspec.structs.replace(settings, agents={**settings.agents, key: agent}, handlers=handlers)
    return changed, key


def _check_before_start(settings: ClusterSettings, key: str) -> None:
    """Report once, before the start, errors that each child would meet: handlers that cannot be imported, schedules that
    cannot work, missing embedded servers, a pooler in the way, ports in use."""
    from jobmaster.handlers import load_handlers
    from jobmaster.server_addresses import addresses, direct_dsn
    from jobmaster.settings.job_limits import declared_limits
    from jobmaster.settings.schedules import declared_schedules
    from jobmaster_agents.http_server import check_ports

    handlers = load_handlers(settings.handlers)
    declared_schedules(settings, handlers)
    declared_limits(settings.job_limits, handlers)
    provided = {name for agent in settings.agents.values() for name in agent.provides}
    for handler in handlers:
        if lacking := sorted(set(handler.options.needs) - provided):
            click.echo(
                f"warning: handler {handler.name} needs {', '.join(lacking)}, which no agent of this configuration has in "
                "agents.<name>.provides",
                err=True,
            )
    addresses(settings)
    direct_dsn(settings)
    check_ports(settings, key, settings.agents[key].processes)


def _import_path() -> tuple[str, ...]:
    """Import path for the children: that of this process."""
    here = str(Path.cwd())
    return tuple(dict.fromkeys([*(path or here for path in sys.path), here]))


def _banner(settings: ClusterSettings, key: str, agent: AgentSettings) -> list[str]:
    from jobmaster import __version__

    lanes = []
    for lane, counts in agent.bucket_counts().items():
        parts = [f"{level} {getattr(counts, level)}" for level in ("critical", "high", "medium", "low", "very_low")]
        lanes.append(f"{lane}: {', '.join(parts)}")
    owned = "; ".join(lanes) if agent.mode in ("full", "execution") else "none"
    lines = [
        f"jobmaster {__version__} agent {key} of cluster {settings.cluster}, mode {agent.mode}, processes {agent.processes}",
        f"buckets  {owned}",
        f"slots    {agent.slots} a bucket{_other_slots(agent)}, {agent.max_running} a process; store {agent.store}",
        f"handlers {', '.join(settings.handlers) or '(none: every job is released to the master)'}",
    ]
    from jobmaster.monitoring.probe_address import port_of, url_of

    if port := port_of(settings, key, 0):
        last = f" to {port + agent.processes - 1}" if agent.processes > 1 else ""
        place = url_of(settings.observability.metrics_host, port)
        lines.append(f"metrics  {place}{last}: /metrics, /live, /startup, /ready, /drain")
    return lines


def _other_slots(agent: AgentSettings) -> str:
    """Slots of buckets that have others than ``slots``."""
    from jobmaster.model.job import Priority

    parts = [
        f"{prefix}{priority.label} {slots}"
        for prefix, counts in (
            ("", agent.priority_slots),
            *((f"{lane}/", each) for lane, each in agent.lane_slots.items()),
        )
        for priority in reversed(Priority)
        if (slots := counts.of(priority)) is not None
    ]
    return f" ({', '.join(parts)})" if parts else ""


# ---------------------------------------------------------------- list and show


def agent_record(view: AgentView) -> dict[str, Any]:
    """One agent as it is printed."""
    import msgspec

    record: dict[str, Any] = msgspec.to_builtins(view)
    for name in ("started", "ended", "statistics"):
        record[f"{name}_at"] = iso_at(getattr(view, f"{name}_at"))
    record["started"], record["ended"] = record.pop("started_at"), record.pop("ended_at")
    return record


@agent_group.command("list")
@click.option("--all", "all_", is_flag=True, help="Include ended agents.")
@pass_invocation
def list_(invocation: Invocation, all_: bool) -> None:
    """List the agents.

    CORDONED is how much longer the agent's host gets no bucket that other hosts can have, because its agents died again and
    again (safety.flapping_deaths).

    \b
    Examples:
      jobmaster agent list
      jobmaster agent list --all -o json
    """
    records = [agent_record(view) for view in run_async(_agents(invocation.settings, all_))]
    shown = any(record["cordoned_seconds"] is not None for record in records)
    columns = (*COLUMNS, Column("CORDONED", "cordoned_seconds", rounded_duration, right=True)) if shown else COLUMNS
    emit_rows(records, columns, invocation.output, empty="no agents (start one: jobmaster agent run)")


@agent_group.command("show")
@click.argument("agent", shell_complete=known(Known.AGENTS))
@pass_invocation
def show(invocation: Invocation, agent: str) -> None:
    """Show one agent by its id, the beginning of it, or its name.

    \b
    Example:
      jobmaster agent show 0199a1
    """
    views = run_async(_agents(invocation.settings, True))
    living = [view for view in views if view.lease_left_seconds is not None]
    chosen = living if any(view.name == agent for view in living) else views
    emit_record(agent_record(pick(chosen, agent, "agent")), invocation.output)


@agent_group.command("drain")
@click.argument("agent", shell_complete=known(Known.AGENTS))
@pass_invocation
def drain(invocation: Invocation, agent: str) -> None:
    """Drain an agent: it completes its buckets, releases the remaining jobs, and exits.

    The request is a row in the master, which the agent reads with its next renewal. Its supervisor does not start it again.

    \b
    Example:
      jobmaster agent drain payroll-0
    """
    agent_id = run_async(_drain(invocation.settings, agent))
    emit_record({"id": agent_id, "drain_requested": True}, invocation.output)


async def _agents(settings: ClusterSettings, all_: bool) -> list[AgentView]:
    async def work(cluster: Cluster) -> list[AgentView]:
        return await cluster.inspect.agents(ended=all_)

    found: list[AgentView] = await with_cluster(settings, work)
    return found


async def _drain(settings: ClusterSettings, agent: str) -> str:
    from jobmaster.cli.operator_log import operator_name

    async def work(cluster: Cluster) -> str:
        chosen = pick(await cluster.inspect.agents(), agent, "agent")
        await cluster.operate.drain(chosen.id, actor=operator_name())
        return str(chosen.id)

    found: str = await with_cluster(settings, work)
    return found
