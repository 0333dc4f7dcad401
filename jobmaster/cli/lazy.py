"""A group of commands whose modules are imported when they are named, so that `--help` costs none of them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import ClassVar

import click

from jobmaster.cli.invocation import attach_common_options

Commands = Mapping[str, tuple[str, str]]
"""Name -> (``module:attribute``, the line in the list of commands), in the order of the list."""


def lazily(commands: Commands) -> type[click.Group]:
    """The class of a group (``cls=``) that lists these commands without importing any of them."""

    class Listed(LazyGroup):
        listed = commands

    return Listed


class LazyGroup(click.Group):
    """A group whose commands are only named."""

    listed: ClassVar[Commands] = {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.listed)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.listed:
            return None
        module, _, attribute = self.listed[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return attach_common_options(command)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in self.listed.items()])
