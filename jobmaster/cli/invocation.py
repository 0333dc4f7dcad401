"""The common options of all commands: configuration, output format, verbosity.

They are valid before and after the command (``jobmaster -o json job list`` equals ``jobmaster job list -o json``), so each
command of the tree has them; the last value counts.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jobmaster.cli.tables import Output

if TYPE_CHECKING:
    from jobmaster.settings.loader import LoadedSettings
    from jobmaster.settings.model import ClusterSettings


@dataclass
class Invocation:
    """One call of the program."""

    config: Path | None = None
    overrides: list[str] = field(default_factory=list)
    output: Output = Output.TABLE
    debug: bool = False
    verbosity: int = 0
    """-1: errors only; 0: notes for people; 1 and above: more notes."""
    submitted_id: str | None = None
    """Id of a job that this call has submitted. Each error after that names it, because the job continues."""
    _loaded: LoadedSettings | None = None

    def loaded(self) -> LoadedSettings:
        """The configuration, read once; its warnings go to standard error.

        Raises:
            ConfigError: with every problem.
        """
        from jobmaster.settings.loader import load_settings

        if self._loaded is None:
            self._loaded = load_settings(self.config, os.environ, self.overrides)
            for warning in self._loaded.warnings:
                self.note(warning.as_warning())
        return self._loaded

    @property
    def settings(self) -> ClusterSettings:
        """See ``loaded``."""
        return self.loaded().settings

    def note(self, text: str, *, level: int = 0) -> None:
        """Print one line for people on standard error; ``level`` 1 needs ``-v``, -1 is printed with ``-q`` too."""
        if self.verbosity >= level:
            click.echo(text, err=True)


def invocation_of(ctx: click.Context) -> Invocation:
    """The invocation of a click context."""
    return ctx.ensure_object(Invocation)


pass_invocation: Callable[[Callable[..., Any]], Callable[..., Any]] = click.make_pass_decorator(Invocation, ensure=True)


# ---------------------------------------------------------------- the options


def _set_config(ctx: click.Context, _: click.Parameter, value: Path | None) -> None:
    if value is not None:
        invocation_of(ctx).config = value
        # `config validate` names its file by an argument of that name.
        ctx.default_map = {**(ctx.default_map or {}), "file": str(value)}


def _add_overrides(ctx: click.Context, _: click.Parameter, value: tuple[str, ...]) -> None:
    invocation_of(ctx).overrides.extend(value)


def _set_output(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    if value is not None:
        invocation_of(ctx).output = Output(value)


def _set_debug(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        invocation_of(ctx).debug = True


def _add_verbose(ctx: click.Context, _: click.Parameter, value: int) -> None:
    invocation_of(ctx).verbosity += value


def _set_quiet(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        invocation_of(ctx).verbosity = -1


def common_options() -> list[click.Option]:
    """New option objects. Their values are not passed to the function of the command."""
    return [
        click.Option(
            ["--config"],
            type=click.Path(path_type=Path),
            callback=_set_config,
            expose_value=False,
            is_eager=True,
            help="The configuration file. Default: $JOBMASTER_CONFIG, ./jobmaster.yaml, ./cluster.yaml, else the defaults.",
        ),
        click.Option(
            ["--set", "overrides"],
            metavar="KEY=VALUE",
            multiple=True,
            callback=_add_overrides,
            expose_value=False,
            is_eager=True,
            help="Set one key over file and environment, such as leases.lease=15s; may be repeated.",
        ),
        click.Option(
            ["-o", "--output"],
            type=click.Choice([each.value for each in Output]),
            callback=_set_output,
            expose_value=False,
            is_eager=True,
            help="How to print data; name: only ids or names.  [default: table]",
        ),
        click.Option(
            ["--debug"],
            is_flag=True,
            callback=_set_debug,
            expose_value=False,
            is_eager=True,
            help="Show the traceback of an error.",
        ),
        click.Option(
            ["-v", "--verbose"],
            count=True,
            callback=_add_verbose,
            expose_value=False,
            is_eager=True,
            help="Print more (-vv: even more).",
        ),
        click.Option(
            ["-q", "--quiet"],
            is_flag=True,
            callback=_set_quiet,
            expose_value=False,
            is_eager=True,
            help="Print only errors and data.",
        ),
    ]


def attach_common_options(command: click.Command) -> click.Command:
    """Attach the common options to a command and all commands below it, except options that a command declares itself."""
    taken = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    if not getattr(command, "has_common_options", False):
        command.params.extend(option for option in common_options() if not taken.intersection(option.opts))
        command.has_common_options = True  # type: ignore[attr-defined]  # click commands are open objects
    if isinstance(command, click.Group):
        for child in command.commands.values():
            attach_common_options(child)
    return command


def pass_defaults(ctx: click.Context) -> None:
    """Make options before the command the defaults of commands that declare these options themselves (``config``)."""
    invocation = invocation_of(ctx)
    own: dict[str, Any] = {}
    if invocation.config is not None:
        own["file"] = str(invocation.config)
    if invocation.overrides:
        own["overrides"] = tuple(invocation.overrides)
    ctx.default_map = {"config": {"validate": own, "show": own}}
