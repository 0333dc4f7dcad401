"""A group of commands whose modules are imported when they are named, so that `--help` costs none of them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from jobmaster.cli.invocation import attach_common_options


class LazyGroup(click.Group):
    """Lists its commands without importing any of them.

    Args:
        commands_lazily: name -> (``module:attribute``, the line in the list of commands), in the order of the list.
    """

    def __init__(self, *args: Any, commands_lazily: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lazily = commands_lazily

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._lazily)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lazily:
            return None
        module, _, attribute = self._lazily[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return attach_common_options(command)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in self._lazily.items()])
