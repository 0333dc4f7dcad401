"""``jobmaster dev``: a cluster on this machine with embedded servers, in the foreground until Ctrl-C."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from jobmaster.cli.invocation import Invocation, pass_invocation
from jobmaster.cli.running import run_async
from jobmaster.cli.tables import emit_data
from jobmaster.rules.access import READING

if TYPE_CHECKING:
    from jobmaster.embedded import ClusterStatus

DEMO_HANDLERS = "jobmaster.demo.handlers"
_EXIT_NOT_RUNNING = 3
_DATA_DIR = click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the servers keep their data.  [default: data_dir of the configuration]",
)


@click.group("dev", invoke_without_command=True)
@_DATA_DIR
@click.option(
    "--agents",
    type=click.IntRange(0, 64),
    default=1,
    show_default=True,
    help="Agent processes to run; 0: servers only.",
)
@click.option(
    "--handlers", "modules", metavar="MODULE", multiple=True, help="Module that declares handlers; may be repeated."
)
@click.option("--pages/--no-pages", default=True, help="Serve the pages of jobmaster web, too.  [default: --pages]")
@pass_invocation
@click.pass_context
def dev_group(
    ctx: click.Context,
    invocation: Invocation,
    data_dir: Path | None,
    agents: int,
    modules: tuple[str, ...],
    pages: bool,
) -> None:
    """Run a development cluster with embedded servers.

    PostgreSQL, Valkey, an agent and the pages, in the foreground until Ctrl-C.

    The data stays in the directory for the next start. When the servers of that directory run already, only agents are
    added. Other commands find the servers by the same directory, without further settings.

    \b
    Examples:
      jobmaster dev --handlers myapp.jobs
      jobmaster dev --data-dir ./cluster --agents 0
      jobmaster dev status
      jobmaster dev stop
    """
    if data_dir is not None:
        invocation.overrides.append(f"data_dir={data_dir.absolute()}")
    if ctx.invoked_subcommand is None:
        ctx.exit(_run(invocation, agents, modules, pages))


@dev_group.command("stop")
@_DATA_DIR
@pass_invocation
def stop(invocation: Invocation, data_dir: Path | None) -> None:
    """Stop the cluster of the directory: agents complete, then the servers end."""
    from jobmaster.embedded import stop_owner

    root = _directory(invocation, data_dir)
    invocation.note("stopped" if stop_owner(root) else f"nothing is running in {root}")


@dev_group.command("status")
@_DATA_DIR
@pass_invocation
@click.pass_context
def status(ctx: click.Context, invocation: Invocation, data_dir: Path | None) -> None:
    """Show what runs in the directory. Exit code 3 when not both servers do."""
    from jobmaster.embedded import read_status

    found = read_status(_directory(invocation, data_dir))
    servers = {
        server.name.lower(): {
            "running": server.running,
            "pid": server.pid,
            "address": server.address or None,
            "log": str(server.log),
        }
        for server in (found.postgres, found.valkey)
    }
    record = {"directory": str(found.directory), "owner_pid": found.owner_pid, "running": found.running, **servers}
    if not emit_data(record, invocation.output):
        click.echo("\n".join(_status_lines(found)))
    if not found.running:
        ctx.exit(_EXIT_NOT_RUNNING)


def _directory(invocation: Invocation, data_dir: Path | None) -> Path:
    from jobmaster.server_addresses import data_directory

    return data_dir if data_dir is not None else data_directory(invocation.settings)


def _status_lines(found: ClusterStatus) -> list[str]:
    lines = [f"directory   {found.directory}", f"owner       {found.owner_pid or '-'}"]
    for server in (found.postgres, found.valkey):
        state = f"pid {server.pid}  {server.address}" if server.running else "not running"
        lines.append(f"{server.name:<11} {state}")
    return lines


# ---------------------------------------------------------------- running


def _run(invocation: Invocation, agents: int, modules: tuple[str, ...], pages: bool) -> int:
    from jobmaster.handlers import load_handlers
    from jobmaster.server_addresses import addresses
    from jobmaster.settings.masking import mask_secrets
    from jobmaster.settings.schedules import declared_schedules

    settings = invocation.settings
    if not settings.handlers and not modules:
        modules = (DEMO_HANDLERS,)
    handlers = load_handlers([*settings.handlers, *modules])  # an error in them is reported before the servers start
    declared_schedules(settings, handlers)
    with _servers(invocation):
        _migrate(invocation)
        where = addresses(settings)
        invocation.note(f"master      {mask_secrets(where.dsn)}")
        for name, url in where.urls.items():
            invocation.note(f"store       {name}: {mask_secrets(url)}")
        _greet(invocation, agents, modules)
        with _pages(invocation) if pages else nullcontext():
            return _serve(invocation, agents, modules)


@contextmanager
def _pages(invocation: Invocation) -> Iterator[None]:
    """The pages in a process of their own, on the configured port, or on any free one where that is taken. Without tokens
    a viewer on this machine may see the contents of jobs, too: this is a cluster for development."""
    from jobmaster.web.process import WebProcess

    web = invocation.settings.web
    options = program_options(invocation)
    if not web.tokens:
        options += [f"--set=web.anonymous=[{', '.join(READING)}]"]
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((web.host, web.port))
        except OSError:
            options += ["--port=0"]
    process = WebProcess(options, lambda line: invocation.note(line.replace("jobmaster web: ", "pages       ")))
    try:
        yield
    finally:
        process.close()


@contextmanager
def _servers(invocation: Invocation) -> Iterator[None]:
    """The servers of the directory: started here and stopped at the end, or running already."""
    from jobmaster.embedded import DirectoryInUse, EmbeddedCluster, read_status
    from jobmaster.server_addresses import data_directory

    root = data_directory(invocation.settings)
    cluster = EmbeddedCluster(root)
    invocation.note(f"starting the servers of {root}", level=1)
    try:
        cluster.start()
    except DirectoryInUse:
        if not read_status(root).running:
            raise
        invocation.note(f"attached to the servers that run in {root} (process {read_status(root).owner_pid})")
        yield
        return
    try:
        for line in cluster.describe():
            invocation.note(line, level=1)
        yield
    finally:
        cluster.stop()


def _migrate(invocation: Invocation) -> None:
    from jobmaster.wiring import migrate_master

    run_async(migrate_master(invocation.settings, lambda line: invocation.note(line, level=1)))


def _greet(invocation: Invocation, agents: int, modules: tuple[str, ...]) -> None:
    moved = any(override.startswith("data_dir=") for override in invocation.overrides)
    program = f"jobmaster --set data_dir={invocation.settings.data_dir}" if moved else "jobmaster"
    lines = [
        f"handlers    {', '.join([*invocation.settings.handlers, *modules])}",
        f"agents      {agents}",
        "",
        "Try in another terminal:",
    ]
    if DEMO_HANDLERS in modules:
        lines.append(f"  {program} job submit demo.index_file path={__file__} --within 10s")
    lines += [f"  {program} status", f"  {program} doctor", "Stop with Ctrl-C or: jobmaster dev stop", ""]
    for line in lines:
        invocation.note(line)


def _serve(invocation: Invocation, agents: int, modules: tuple[str, ...]) -> int:
    """Wait until the agents end. The first signal drains them, the second stops them at once."""
    if agents == 0:
        signals = {signal.SIGINT, signal.SIGTERM}
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        signal.sigwait(signals)
        return 0
    child = start_agents(invocation, [f"--processes={agents}", *(f"--handlers={module}" for module in modules)])

    asked = []

    def pass_on(number: int, _: object) -> None:
        asked.append(number)
        child.send_signal(signal.SIGTERM)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, pass_on)
    code = child.wait()
    if asked and code == -signal.SIGTERM:
        return 0  # the signal came before the agents started
    return code if code >= 0 else 128 - code


def program_options(invocation: Invocation) -> list[str]:
    """The options of this command line that hold for every command."""
    options = [] if invocation.config is None else [f"--config={invocation.config.absolute()}"]
    options += [f"--set={override}" for override in invocation.overrides]
    return options + (["-q"] if invocation.verbosity < 0 else ["-v"] * invocation.verbosity)


def start_agents(invocation: Invocation, options: list[str]) -> subprocess.Popen[bytes]:
    """Start ``jobmaster agent run`` as a process of its own, which exits when this one ends for any reason."""
    command = [sys.executable, "-m", "jobmaster.cli.main", "agent", "run", "--leave-with-stdin", *options]
    command += program_options(invocation)
    # A session of its own does not get the terminal's Ctrl-C: agents must complete before their servers stop.
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
