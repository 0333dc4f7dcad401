"""``jobmaster web``: pages and HTTP API in a server of their own."""

from __future__ import annotations

import os
import signal
import sys
from threading import Thread
from typing import TYPE_CHECKING, Any

import click

from jobmaster.cli.invocation import Invocation, pass_invocation
from jobmaster.cli.running import run_async
from jobmaster.cli.tables import emit_data

if TYPE_CHECKING:
    from jobmaster.settings.model import ClusterSettings


@click.group("web", invoke_without_command=True)
@click.option("--host", help="Address to listen on, in place of web.host.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port, in place of web.port; 0: any free one.")
@click.option("--read-only", is_flag=True, help="Refuse every change.")
@click.option("--leave-with-stdin", is_flag=True, hidden=True, help="Stop when standard input ends.")
@pass_invocation
@click.pass_context
def web_group(
    ctx: click.Context,
    invocation: Invocation,
    host: str | None,
    port: int | None,
    read_only: bool,
    leave_with_stdin: bool,
) -> None:
    """Serve the pages and the HTTP API until a signal stops it.

    Without web.tokens it listens on the loopback address alone, and nothing can be changed through it. With tokens a
    program sends one as "Authorization: Bearer TOKEN"; a person enters the name and the token in the browser's dialog.

    \b
    Examples:
      jobmaster web
      jobmaster web --port 0 --read-only
      jobmaster web token ann --role operator
    """
    if ctx.invoked_subcommand is not None:
        return
    serve = _server()
    settings = _with_address(invocation.settings, host, port)

    def started(url: str) -> None:
        how = "" if settings.web.tokens and not read_only else " (read only)"
        invocation.note(f"jobmaster web: {url}{how}")

    if leave_with_stdin:
        Thread(target=_leave, daemon=True).start()
    run_async(serve(settings, read_only=read_only, started=started))


def _leave() -> None:
    """Wait for the end of standard input, and stop as at a signal.

    Reads the descriptor itself: a thread that holds the lock of ``sys.stdin`` would abort the interpreter when it ends.
    """
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


@web_group.command("token")
@click.argument("name")
@click.option("--role", type=click.Choice(["viewer", "operator", "admin"]), default="viewer", show_default=True)
@pass_invocation
def token(invocation: Invocation, name: str, role: str) -> None:
    """Make a token for NAME, and print what goes into the configuration.

    The configuration has the hash alone, so keep the token: it is printed once.

    \b
    Example:
      jobmaster web token ann --role operator
    """
    _server()
    from jobmaster.web.authentication import new_token

    made, digest = new_token()
    if emit_data({"name": name, "token": made, "sha256": digest, "role": role}, invocation.output):
        return
    invocation.note("the token, for the caller:")
    click.echo(made)
    invocation.note(f"the configuration:\nweb:\n  tokens:\n    {name}:\n      role: {role}\n      sha256: {digest}")


@web_group.command("openapi")
@pass_invocation
def openapi(_: Invocation) -> None:
    """Print the OpenAPI document of the HTTP API.

    \b
    Example:
      jobmaster web openapi > openapi.json
    """
    _server()
    from jobmaster.web.api.routes import openapi_document

    click.echo(openapi_document(), nl=False)


def _server() -> Any:
    """``serve``, or the command that installs what it needs."""
    from jobmaster.distribution import install_command
    from jobmaster.model.errors import ConfigError

    try:
        from jobmaster.web.server import serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "jobmaster":
            raise
        raise ConfigError(f"jobmaster web needs {error.name}", hint=install_command("web")) from None
    return serve


def _with_address(settings: ClusterSettings, host: str | None, port: int | None) -> ClusterSettings:
    import msgspec

    given = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    return msgspec.structs.replace(settings, web=msgspec.structs.replace(settings.web, **given))
