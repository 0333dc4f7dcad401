"""``jobmaster health``: the probe of a container or of a service manager. Imports no driver of a server, so it is quick."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import urlsplit

import click

from jobmaster.cli.failures import EXIT_FAILED
from jobmaster.cli.invocation import Invocation, pass_invocation
from jobmaster.cli.tables import clean, emit_data
from jobmaster.model.errors import ConfigError, InputError, Unavailable

BODY_BYTES_MAX = 65_536
_SCHEMES = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}


@click.command("health")
@click.option("--url", help="Of the server, such as http://127.0.0.1:9464.  [default: the agent of the configuration]")
@click.option("--ready", "probe", flag_value="ready", help="Whether it takes work: the default.")
@click.option("--live", "probe", flag_value="live", help="Whether its event loop turns; of jobmaster web, too.")
@click.option("--name", help="Which agent of the configuration.  [default: the only one]")
@click.option("--timeout", "seconds", type=click.FloatRange(0.01, 60), default=3.0, show_default=True)
@pass_invocation
@click.pass_context
def health(
    ctx: click.Context, invocation: Invocation, url: str | None, probe: str | None, name: str | None, seconds: float
) -> None:
    """Ask an agent or a web server whether it is well.

    Exit code 1 when it is not, with the reason; 69 when it does not answer. The address of an agent is that of its probes:
    observability.metrics_host and metrics_port. Of several processes of one agent it is the first.

    \b
    Examples:
      jobmaster health
      jobmaster health --live --url http://127.0.0.1:9464
    """
    probe = probe or "ready"
    whole = f"{(url or _configured(invocation, name)).rstrip('/')}/{probe}"
    status, said = ask(whole, seconds)
    well = status == http.client.OK
    if not emit_data({"url": whole, "ok": well, "status": status, **said}, invocation.output, name="url"):
        reason = said.get("reason") or said.get("remark")
        word = probe if well else f"not {probe}"
        click.echo(clean(f"{word}: {reason}" if reason else word if well else f"{word}: HTTP status {status}"))
    if not well:
        ctx.exit(EXIT_FAILED)


def ask(url: str, seconds: float) -> tuple[int, dict[str, Any]]:
    """One GET request: the HTTP status, and the object in the body, empty when it is none.

    Raises:
        InputError: the URL is none. Unavailable: there is no answer within this time.
    """
    try:
        parts = urlsplit(url)
        make, host, port = _SCHEMES.get(parts.scheme), parts.hostname, parts.port
    except ValueError:
        make = host = None
    if make is None or not host:
        raise InputError(f"{url!r:.200} is not a URL of http or https", hint="such as http://127.0.0.1:9464")
    connection = make(host, port, timeout=seconds)
    try:
        connection.request("GET", parts.path)
        answer = connection.getresponse()
        body = answer.read(BODY_BYTES_MAX)
    except (OSError, http.client.HTTPException) as error:
        why = str(error) or type(error).__name__
        raise Unavailable(f"{url} does not answer: {why}", hint="is it running, and is this its address?") from error
    finally:
        connection.close()
    try:
        said = json.loads(body)
    except ValueError:
        said = None
    return answer.status, said if isinstance(said, dict) else {}


def _configured(invocation: Invocation, name: str | None) -> str:
    """Address of the probes of an agent.

    Raises:
        ConfigError: there is no such agent, or it has no probes on a known port.
    """
    from jobmaster.monitoring.probe_address import port_of, url_of

    settings = invocation.settings
    if name is None and len(settings.agents) == 1:
        name = next(iter(settings.agents))
    if name not in settings.agents:
        if not settings.agents:
            raise ConfigError("no agent is configured", hint="give --url")
        wrong = f"there is no agent {name!r}" if name else "several agents are configured"
        raise ConfigError(f"{wrong}: {', '.join(settings.agents)}", hint="name one of them with --name, or give --url")
    port = port_of(settings, name, 0)
    if not port:
        raise ConfigError(
            f"agent {name!r} has no probes on a known port", hint="set observability.metrics_port, or give --url"
        )
    return url_of(settings.observability.metrics_host, port)
