"""``jobmaster version``."""

from __future__ import annotations

import platform

import click

from jobmaster import __version__
from jobmaster.cli.invocation import Invocation, pass_invocation
from jobmaster.cli.tables import emit_data


@click.command("version")
@pass_invocation
def version(invocation: Invocation) -> None:
    """Print the version.

    \b
    Example:
      jobmaster version -o json
    """
    if not emit_data({"jobmaster": __version__, "python": platform.python_version()}, invocation.output):
        click.echo(f"jobmaster {__version__} on Python {platform.python_version()}")
