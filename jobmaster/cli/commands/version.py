"""``jobmaster version``."""

from __future__ import annotations

import json
import platform

import click

from jobmaster import __version__
from jobmaster.cli.invocation import Invocation, pass_invocation


@click.command("version")
@pass_invocation
def version(invocation: Invocation) -> None:
    """Print the version.

    \b
    Example:
      jobmaster version -o json
    """
    if invocation.json:
        click.echo(json.dumps({"jobmaster": __version__, "python": platform.python_version()}))
    else:
        click.echo(f"jobmaster {__version__} on Python {platform.python_version()}")
